"""Jobs of the engine: one foreground job with its progress, and requests in the background.

The engine runs in another process and its answers are awaited, so that the event loop is never blocked. No
events are sent for progress: the job bar polls it twice a second, and nothing is polled while no job runs.
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
"""Phase of a method's job in which the screen is not updated, so that it does not disturb the timing."""


class RunningJob(Struct):
    """The foreground job.

    Attributes:
        title: Title in the job bar.
        job: Job of the engine.
        started: Start time of the monotonic clock in seconds.
    """

    title: str
    job: EngineJob
    started: float

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the job."""
        return time.monotonic() - self.started

    @property
    def resting(self) -> bool:
        """Whether the job is in a phase in which the screen is not updated."""
        progress = self.job.progress
        return progress is not None and progress.phase == _RESTS.get(self.job.method)


class Jobs:
    """Sends requests to the engine and awaits its answers.

    Args:
        engine: Engine process.
        on_change: Callback for the start and the end of a foreground job.
    """

    def __init__(self, engine: EngineProcess, on_change: Callable[[], None]) -> None:
        self.engine = engine
        self.current: RunningJob | None = None
        self._on_change = on_change

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a session's method, without showing a job."""
        return await asyncio.wrap_future(self.engine.submit(method, *args, **kwargs).future)

    async def run(self, title: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a session's method as the foreground job, which Esc stops.

        Raises:
            ExplorerError: The job failed; `Cancelled` if the user stopped it.
        """
        running_job = RunningJob(title, self.engine.submit(method, *args, **kwargs), time.monotonic())
        self.current = running_job
        self._on_change()
        try:
            return await asyncio.wrap_future(running_job.job.future)
        finally:
            if self.current is running_job:
                self.current = None
                self._on_change()

    async def outlined(self, start: int) -> TreePreview | None:
        """Return the next rows of the header (`EngineProcess.request_outline`), or None if all were read."""
        preview: TreePreview | None = await asyncio.wrap_future(self.engine.request_outline(start))
        return preview

    async def locate(self, layers: Sequence[Layer], paths: Sequence[str]) -> Mapping[str, int]:
        """Return the layer ID of each path in the current model's `layers`."""
        if not isinstance(layers, RowPages):
            path_set = set(paths)
            return {layer.path: layer.id for layer in layers if layer.path in path_set}
        return await self.ask("locate", paths) if paths else {}

    def stop(self) -> bool:
        """Stop the foreground job. Returns whether there was one."""
        if self.current is None:
            return False
        self.engine.stop(self.current.job)
        return True
