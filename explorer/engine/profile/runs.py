"""Timed runs of a loaded model: plain, as a user runs it, and under a profiler, in blocks that alternate.

A run right after one of another kind finds spinning threads, and caches filled by the other: on two
processors such a run took twice its time. So runs are made in blocks. Each block begins when all threads are
idle, and the first of several short runs is not counted.

A profiler may take longer than the model: a run of a graph of thousands of small kernels took 2.6 times as
long. So longer runs are made under it only as far as plain runs pay for them: see `paid_runs`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from explorer.engine.profile.load import LoadWatch
from explorer.engine.progress import Cancel, stop_if
from explorer.facts.profile.profile import SURE, ProfileSpec, Stopped

_SHORT = 0.2
"""Seconds of a block of runs; a run longer than this is not affected by the change of sessions."""
_BLOCK, _OBSERVED = 10, 3
"""Runs of a block without the profiler and with it."""
_LOOK, _IDLE, _SPINNING = 0.005, 0.2, 0.5
"""Seconds between looks at whether threads are idle; the share of a processor that idle ones take; seconds
after which they are left to it."""


_COST, _LONG = 0.1, 0.02
"""Share that the profiler may add to all runs, and seconds of a run below which it may add more."""


def paid_runs(plain: int, seconds: float, under: float) -> int | None:
    """The number of runs under a profiler that lengthen all runs by at most a tenth; None: any number.

    For n runs of s seconds and m of u, m (u - s) <= 0.1 (n + m) s.

    Args:
        plain: Number of plain runs.
        seconds: Seconds of a plain run.
        under: Seconds of a run under the profiler, with its start and reading.
    """
    slower = under / seconds - 1 if seconds > _LONG else 0.0
    return None if slower <= _COST else int(_COST * plain / (slower - _COST) + 1e-9)


class TimedRuns:
    """A loaded model that is run without a profiler and with one.

    Args:
        fewest: Runs under the profiler that are timed at any cost, because they are recorded.

    Attributes:
        fewest: The given number, or more.
        wall, profiled: Seconds of runs without and with the profiler.
        counted: For each run under the profiler, whether it was timed.
        spent: Seconds of each such run behind the warm-up, with its start and reading.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, fewest: int = 1) -> None:
        self.fewest = max(1, fewest)
        self.wall: list[float] = []
        self.profiled: list[float] = []
        self.counted: list[bool] = []
        self.spent: list[float] = []

    def once(self, observed: bool) -> float:
        """Seconds of one run, under the profiler or not."""
        raise NotImplementedError

    def warm_up(self, spec: ProfileSpec, fewest: int, cancel: Cancel) -> None:
        """Runs that are not timed: the runtime plans its memory in the first."""
        self.fewest = max(self.fewest, fewest)
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
            watch: Watches other programs meanwhile.
            step: Called before each run with the number of runs so far.
            stop: Returns a reason to stop from the times so far; at once if all requested runs are made.
        """
        if stop(self.wall) == "steps":
            return "steps"
        short = not self.wall or self.wall[-1] < _SHORT
        wait_idle()  # threads of the session before would take processors from this one
        if short:  # the threads wake up in a run that is not counted
            self.once(False)
        why: Stopped | None = None
        began = len(self.wall)
        with watch:
            while why is None and not _enough(self.wall[began:], _BLOCK):
                step(len(self.wall))
                self.wall.append(self.once(False))
                why = stop(self.wall)
                if why == "settled" and not self._shared(room):
                    why = None
        self._look(room, sure=why is not None)
        return why

    def _shared(self, room: int) -> bool:
        """Whether runs under the profiler are made, or paid for, as an interval of each layer takes them."""
        if not self.profiled:  # their cost is unknown before the first one
            return statistics.median(self.wall) <= _LONG
        enough = not self._more(room) or len(self.profiled) >= SURE
        return enough or self._paid(SURE - len(self.profiled) + (self.wall[-1] < _SHORT))

    def _look(self, room: int, sure: bool) -> None:
        """Runs under the profiler, as far as they are paid for; `sure`: enough for an interval."""
        began, few = len(self.profiled), max(min(len(self.wall), SURE), self.fewest) if sure else 0
        short = self.wall[-1] < _SHORT
        if not self._more(room) or not self._paid((1 if sure else _OBSERVED) + short):
            return
        wait_idle()
        if short:
            self._observe(counted=False)
        while (
            self._more(room)
            and self._paid(1)
            and (len(self.profiled) < few or not _enough(self.profiled[began:], _OBSERVED))
        ):
            self.profiled.append(self._observe(counted=True))

    def _observe(self, counted: bool) -> float:
        began = self.clock()
        took = self.once(True)
        self.spent.append(self.clock() - began)
        self.counted.append(counted)
        return took

    def _paid(self, more: int) -> bool:
        """Whether `more` runs under the profiler are paid for; the first `fewest` always are."""
        if len(self.profiled) < self.fewest:
            return True
        paid = paid_runs(len(self.wall), statistics.median(self.wall), statistics.median(self.spent))
        return paid is None or len(self.spent) + more <= paid

    def _more(self, room: int) -> bool:
        """Whether the events of another run under the profiler fit."""
        return len(self.counted) < room or not any(self.counted)


def wait_idle(
    busy: Callable[[], float] = time.process_time,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Waits until no thread of this process is busy: a runtime's threads spin for a while after a run.

    Args:
        busy: Returns the busy seconds of all threads so far.
        sleep: Waits for some seconds.
        clock: Returns seconds.
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
