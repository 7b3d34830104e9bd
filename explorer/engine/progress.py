"""Progress and cancelling: what a job of the engine tells while it works, and asks.

Every stage takes both in the same form, so that whoever starts one hands them through.
"""

from __future__ import annotations

from collections.abc import Callable

from explorer.base.errors import Cancelled
from explorer.facts import Progress

OnProgress = Callable[[Progress], None] | None
"""Told how far a job has come; None: nobody listens."""

Cancel = Callable[[], bool] | None
"""Asked now and then whether a job is to end; None: nobody can stop it."""


def stop_if(cancel: Cancel) -> None:
    """Ends a job that nobody wants any more.

    Raises:
        Cancelled: `cancel` said so.
    """
    if cancel is not None and cancel():
        raise Cancelled


def report(on_progress: OnProgress, cancel: Cancel, phase: str, done: int = 0, total: int = 0) -> None:
    """Tells how far a job is, and ends it there if nobody wants it any more.

    Raises:
        Cancelled: `cancel` said so.
    """
    stop_if(cancel)
    if on_progress is not None:
        on_progress(Progress(phase, done, total))
