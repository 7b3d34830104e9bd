"""Workers of the program: what was to be awaited and never is, because another took its place, is closed.

Textual takes a coroutine for a worker. One whose worker is cancelled before its first step, as by a second
key in the same instant, or when its screen goes, would be complained of on the terminal. What a worker fails
with that is no message of ours is an error of the program: it is told, and not dropped.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.dom import DOMNode
from textual.worker import Worker
from textual.worker_manager import WorkerManager

from explorer.base.errors import ExplorerError


class ClosingWorkers(WorkerManager):
    """Workers whose coroutines are closed when they are done, begun or not.

    Args:
        app: Whose they are.
        failed: Told of an error of the program.
    """

    def __init__(self, app: App[Any], failed: Callable[[Exception], None]) -> None:
        super().__init__(app)
        self._failed = failed

    def _remove_worker(self, worker: Worker[Any]) -> None:
        super()._remove_worker(worker)
        _close(getattr(worker, "_work", None))
        error = worker.error
        if isinstance(error, Exception) and not isinstance(error, ExplorerError) and _is_there(worker.node):
            self._failed(error)


def _is_there(node: DOMNode) -> bool:
    """Whether what a worker works for is not being taken away: it may then miss what was part of it."""
    return not any(one._pruning or one._closing for one in node.ancestors_with_self)


def _close(work: object) -> None:
    """Closes a coroutine that was never begun, and those that it was handed."""
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        handed = [*work.cr_frame.f_locals.values()] if work.cr_frame is not None else []
        work.close()
        for one in handed:
            _close(one)
