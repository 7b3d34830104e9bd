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
