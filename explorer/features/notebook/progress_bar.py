"""Progress bar of rich for the jobs of a session, on a terminal and in a notebook."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING

from explorer.facts import Progress

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


def progress_bar() -> AbstractContextManager[Callable[[Progress], None]]:
    """Return a context manager that draws the progress of a job while its `with` block runs.

    The value of the block is the callback: `with progress_bar() as bar: session.open(on_progress=bar)`.

    The bar is rich's. In a notebook, rich draws it with ipywidgets; without that package there is no bar.
    """
    return _ProgressBar()


class _ProgressBar:
    """Context manager of a progress callback. Each phase of the job has a line of its own."""

    def __enter__(self) -> Callable[[Progress], None]:
        from rich.console import Console
        from rich.progress import Progress as RichProgress

        console = Console()
        is_hidden = console.is_jupyter and importlib.util.find_spec("ipywidgets") is None
        self._bar: RichProgress = RichProgress(console=console, transient=True, disable=is_hidden)
        self._tasks: dict[str, TaskID] = {}
        self._bar.start()
        return self._update

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def _update(self, progress: Progress) -> None:
        if progress.phase not in self._tasks:
            self._tasks[progress.phase] = self._bar.add_task(progress.phase, total=None)
        total = progress.total or None
        self._bar.update(self._tasks[progress.phase], completed=progress.done, total=total)
