"""Progress and cancellation of long jobs of the engine.

Every job takes `on_progress` and `cancel` in the same form, and passes both to the stages that it calls.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer.base.errors import Cancelled
from explorer.facts import Progress

OnProgress = Callable[[Progress], None] | None
"""Function that receives the progress of a job, or None."""

Cancel = Callable[[], bool] | None
"""Function that a job calls now and then; True cancels the job.

None means that the job cannot be canceled.
"""


def stop_if(cancel: Cancel) -> None:
    """Stops the job if `cancel` returns True.

    Raises:
        Cancelled: `cancel` returned True.
    """
    if cancel is not None and cancel():
        raise Cancelled


def report(on_progress: OnProgress, cancel: Cancel, phase: str, done: int = 0, total: int = 0) -> None:
    """Reports the progress of a job, and stops the job if `cancel` returns True.

    Raises:
        Cancelled: `cancel` returned True.
    """
    stop_if(cancel)
    if on_progress is not None:
        on_progress(Progress(phase, done, total))
