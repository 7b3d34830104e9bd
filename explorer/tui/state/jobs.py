"""Jobs of the engine: one foreground job with its progress, and requests in the background.

The engine runs in another process and its answers are awaited, so that the event loop is never blocked. No
events are sent for progress: while a job runs, the status line polls its progress (twice a second; less often
over SSH).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.session.cache.rows import RowPages

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.process.client import EngineJob, EngineProcess, TreePreview


_RESTING_PHASES = dict.fromkeys(("profile", "compare_profiles"), "timing")
"""Phase of a job, by its method, in which the screen is not updated, so that the timing is not disturbed."""


_SHOWN_AFTER = 0.3
"""Seconds after which the request for a state is shown as a job."""
_REASON_SECONDS = 6.0
"""Seconds that the reason why a key did nothing stays in the status line."""


class RunningJob(Struct):
    """The foreground job.

    Attributes:
        title: Title in the status line.
        job: Job of the engine.
        started: Start time of the monotonic clock in seconds.
        refused_at: Time of the last key that did nothing because of this job, in seconds of that clock.
    """

    title: str
    job: EngineJob
    started: float
    refused_at: float = float("-inf")

    @property
    def refused(self) -> bool:
        """Whether a key did nothing a moment ago because this job runs."""
        return time.monotonic() - self.refused_at < _REASON_SECONDS

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the job."""
        return time.monotonic() - self.started

    @property
    def is_resting(self) -> bool:
        """Whether the job is in a phase in which the screen is not updated."""
        progress = self.job.progress
        return progress is not None and progress.phase == _RESTING_PHASES.get(self.job.method)


class Jobs:
    """Sends requests to the engine and awaits its answers.

    Args:
        engine: Engine process.
        on_change: Callback for the start and the end of a foreground job.
    """

    def __init__(self, engine: EngineProcess, on_change: Callable[[], None]) -> None:
        self.engine = engine
        self.current: RunningJob | None = None
        self._ended: RunningJob | None = None
        self._on_change = on_change

    async def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a session's method, without showing a job."""
        return await asyncio.wrap_future(self.engine.submit(method, *args, **kwargs).future)

    async def run(self, title: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Return the answer of a session's method as the foreground job, which Esc stops.

        Raises:
            ExplorerError: The job failed; `Cancelled` if the user stopped it.
        """
        job = RunningJob(title, self.engine.submit(method, *args, **kwargs), time.monotonic())
        return await self._follow(job, asyncio.wrap_future(job.job.future))

    async def ask_slow(self, title: str, method: str, *args: Any) -> Any:
        """Return the answer of a session's method. It becomes the foreground job if it takes long.

        An answer that comes at once is not shown as a job, so that the status line does not flicker.

        Raises:
            ExplorerError: The job failed; `Cancelled` if the user stopped it.
        """
        job = RunningJob(title, self.engine.submit(method, *args), time.monotonic())
        if self._ended is not None and self._ended.title == title:
            job.started = self._ended.started  # for the user this is one job
        self._ended = None
        answer = asyncio.wrap_future(job.job.future)
        done, _ = await asyncio.wait({answer}, timeout=_SHOWN_AFTER)
        return await answer if done or self.current is not None else await self._follow(job, answer)

    async def _follow(self, running_job: RunningJob, answer: Awaitable[Any]) -> Any:
        """Make a job the foreground job until its answer arrives, and return the answer."""
        self.current = running_job
        self._on_change()
        try:
            return await answer
        finally:
            if self.current is running_job:
                self.current, self._ended = None, running_job
                self._on_change()

    async def request_header_rows(self, start: int) -> TreePreview | None:
        """Return the next rows of the header (`EngineProcess.request_outline`), or None if all were read."""
        preview: TreePreview | None = await asyncio.wrap_future(self.engine.request_outline(start))
        return preview

    async def locate(self, layers: Sequence[Layer], paths: Sequence[str]) -> Mapping[str, int]:
        """Return the layer ID of each path in the current model's `layers`."""
        if not isinstance(layers, RowPages):
            path_set = set(paths)
            return {layer.path: layer.id for layer in layers if layer.path in path_set}
        return await self.ask("locate", paths) if paths else {}

    def refuse(self) -> bool:
        """Show beside the foreground job why a key does nothing. Returns whether there is such a job."""
        if self.current is None:
            return False
        self.current.refused_at = time.monotonic()
        self._on_change()
        return True

    def stop(self) -> bool:
        """Stop the foreground job. Returns whether there was one."""
        if self.current is None:
            return False
        self.engine.stop(self.current.job)
        return True
