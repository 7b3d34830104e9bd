"""Jobs, what the engine is doing for the screen: one in the foreground, its progress and its end.

The engine works in another process; here its answers are awaited, so the event loop never waits. Nobody
is told of progress as it comes: the job bar looks at it twice a second, and nothing ticks while idle.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.session.cache.rows import RowPages

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.process.client import EngineJob, EngineProcess, TreePreview


_RESTS = dict.fromkeys(("profile", "compare_profiles"), "timing")
"""Phase of a method's job in which the screen rests: what is timed has the machine for itself."""


class RunningJob(Struct):
    """The job in the foreground."""

    title: str
    job: EngineJob
    started: float

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started

    @property
    def resting(self) -> bool:
        """Whether nobody looks at it until it ends."""
        progress = self.job.progress
        return progress is not None and progress.phase == _RESTS.get(self.job.method)


class Jobs:
    """Awaits the engine.

    Args:
        engine: Answers.
        on_change: Called when a foreground job begins or ends.
    """

    def __init__(self, engine: EngineProcess, on_change: Callable[[], None]) -> None:
        self.engine = engine
        self.current: RunningJob | None = None
        self._on_change = on_change

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The answer of a session's method, without a word on the screen."""
        return await asyncio.wrap_future(self.engine.submit(method, *args, **kwargs).future)

    async def run(self, title: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """The same as the job that the job bar shows and Esc stops.

        Raises:
            ExplorerError: What the job failed with; `Cancelled` if it was stopped.
        """
        mine = RunningJob(title, self.engine.submit(method, *args, **kwargs), time.monotonic())
        self.current = mine
        self._on_change()
        try:
            return await asyncio.wrap_future(mine.job.future)
        finally:
            if self.current is mine:
                self.current = None
                self._on_change()

    async def outlined(self, at: int) -> TreePreview | None:
        """The header's rows as they are read (see `worker.Engine.outlined`); None if no more come."""
        outlined: TreePreview | None = await asyncio.wrap_future(self.engine.outlined(at))
        return outlined

    async def locate(self, layers: Sequence[Layer], paths: Sequence[str]) -> Mapping[str, int]:
        """Where in the current model's `layers` some paths are."""
        if not isinstance(layers, RowPages):
            wanted = set(paths)
            return {layer.path: layer.id for layer in layers if layer.path in wanted}
        return await self.ask("locate", paths) if paths else {}

    def stop(self) -> bool:
        """Stop the job in the foreground. Returns whether there was one."""
        if self.current is None:
            return False
        self.engine.stop(self.current.job)
        return True
