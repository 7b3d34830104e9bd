"""Workers of the program: what was to be awaited and never is, because another took its place, is closed.

Textual takes a coroutine for a worker. One whose worker is cancelled before its first step, as by a second
key in the same instant, or when its screen goes, would be complained of on the terminal.
"""

from __future__ import annotations

import inspect
from typing import Any

from textual.worker import Worker
from textual.worker_manager import WorkerManager


class ClosingWorkers(WorkerManager):
    """Workers whose coroutines are closed when they are done, begun or not."""

    def _remove_worker(self, worker: Worker[Any]) -> None:
        super()._remove_worker(worker)
        _close(getattr(worker, "_work", None))


def _close(work: object) -> None:
    """Closes a coroutine that was never begun, and those that it was handed."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        handed = [*work.cr_frame.f_locals.values()] if work.cr_frame is not None else []
        work.close()
        for one in handed:
            _close(one)
