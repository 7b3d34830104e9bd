"""Runs of a loaded model that are timed: as a user's, and under a profiler, in blocks that alternate.

A run right behind one of another kind finds threads that still spin, and caches of the other: on two
processors such a run took twice its time. So runs are made in blocks, each begins when all threads are idle,
and of short runs the first of a block is not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from explorer.engine.profile.load import LoadWatch
from explorer.engine.progress import Cancel, stop_if
from explorer.facts.profile.profile import SURE, ProfileSpec, Stopped

_SHORT = 0.2
"""Seconds of a block of runs; of a run that takes longer it is not seen that the sessions change hands."""
_BLOCK, _OBSERVED = 10, 3
"""Runs of a block without the profiler and with it."""
_LOOK, _IDLE, _SPINNING = 0.005, 0.2, 0.5
"""Seconds between looks at whether threads are idle; the share of a processor that idle ones take; seconds
after which they are left to it."""


class TimedRuns:
    """A loaded model that is run without a profiler and with one.

    Attributes:
        wall, profiled: Seconds of their runs.
        counted: Of each run under the profiler, whether it was timed.
    """

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.profiled: list[float] = []
        self.counted: list[bool] = []

    def once(self, observed: bool) -> float:
        """Seconds of one run, under the profiler or not."""
        raise NotImplementedError

    def warm_up(self, spec: ProfileSpec, cancel: Cancel) -> None:
        """Runs that are not timed: the runtime plans its memory in the first."""
        began = time.perf_counter()
        for step in range(max(1, spec.warmup)):
            stop_if(cancel)
            self.once(True)
            self.counted.append(False)
            if step < spec.warmup:
                self.once(False)
            if time.perf_counter() - began > spec.time_limit / 2:
                break

    def block(
        self,
        room: int,
        watch: LoadWatch,
        step: Callable[[int], None],
        stop: Callable[[Sequence[float]], Stopped | None],
    ) -> Stopped | None:
        """Times some runs without the profiler, and some with it.

        Args:
            room: Runs under the profiler that are kept.
            watch: Looks at what else runs meanwhile.
            step: Told before each run how many were made.
            stop: Says of the times so far why no more are needed.
        """
        short = not self.wall or self.wall[-1] < _SHORT
        wait_idle()  # threads of the session before would take processors from this one
        if short:  # its own wake up in a run that nobody counts
            self.once(False)
        why: Stopped | None = None
        began = len(self.wall)
        with watch:
            while why is None and not _enough(self.wall[began:], _BLOCK):
                step(len(self.wall))
                self.wall.append(self.once(False))
                why = stop(self.wall)
        began = len(self.profiled)
        wait_idle()
        if short and self._kept(room):
            self.once(True)
            self.counted.append(False)
        few = min(len(self.wall), SURE) if why else 0  # an interval of each layer, too
        while self._kept(room) and (
            len(self.profiled) < few or not _enough(self.profiled[began:], _OBSERVED)
        ):
            self.profiled.append(self.once(True))
            self.counted.append(True)
        return why

    def _kept(self, room: int) -> bool:
        """Whether the events of another run under the profiler are kept."""
        return len(self.counted) < room or not any(self.counted)


def wait_idle(
    busy: Callable[[], float] = time.process_time,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Waits until no thread of ours is busy: those of a runtime look for work for a while after a run.

    Args:
        busy: Seconds for which all of them were busy so far.
        sleep: Waits so many seconds.
        clock: Seconds.
    """
    began = clock()
    before, at = busy(), began
    while at - began < _SPINNING:
        sleep(_LOOK)
        now, then = busy(), clock()
        if now - before < _IDLE * (then - at):
            return
        before, at = now, then


def _enough(times: Sequence[float], most: int) -> bool:
    """Whether a block of runs is long enough."""
    return len(times) >= most or sum(times) >= _SHORT
