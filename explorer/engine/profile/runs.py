"""Times runs of a loaded model without a profiler (plain runs) and under it, in alternating blocks.

A run right after a run of the other kind is slower, because threads still spin and caches hold other data. On
two processors, such a run took twice its time. So the runs are grouped into blocks. A block begins when all
threads are idle. In a block of short runs, the first run is not counted.

A profiler can take longer than the model: a run of a graph of thousands of small kernels took 2.6 times as
long. So the number of profiled runs is limited by the number of plain runs; see `count_allowed_runs`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from explorer.engine.profile.load import LoadWatch
from explorer.engine.progress import Cancel, stop_if
from explorer.facts.profile.profile import MIN_INTERVAL_SAMPLES, ProfileSpec, Stopped

_BLOCK_SECONDS = 0.2
"""Seconds after which a block of runs ends. A longer run is hardly slower after a run of the other kind."""
_PLAIN_RUNS, _PROFILED_RUNS = 10, 3
"""Maximum number of runs in a block without the profiler, and in a block with it."""
_POLL_SECONDS = 0.005
"""Seconds between two checks whether threads are idle."""
_IDLE_SHARE = 0.2
"""Largest share of a processor that counts as idle."""
_MAX_WAIT_SECONDS = 0.5
"""Maximum seconds to wait until threads are idle."""
_MAX_OVERHEAD = 0.1
"""Share of time that the profiler may add to all runs."""
_SHORT_RUN_SECONDS = 0.02
"""Seconds of a run below which the profiler may add more."""


def count_allowed_runs(plain: int, seconds: float, profiled_seconds: float) -> int | None:
    """Computes how many runs under a profiler lengthen all runs together by at most a tenth.

    Returns None if the number is not limited: a profiled run takes at most a tenth longer, or a plain run
    takes at most `_SHORT_RUN_SECONDS`.

    For n plain runs of s seconds and m profiled runs of u seconds, m (u - s) <= 0.1 (n + m) s.

    Args:
        plain: Number of plain runs.
        seconds: Seconds of a plain run.
        profiled_seconds: Seconds of a run under the profiler, with the profiler's start and end.
    """
    slowdown = profiled_seconds / seconds - 1 if seconds > _SHORT_RUN_SECONDS else 0.0
    return (
        None if slowdown <= _MAX_OVERHEAD else int(_MAX_OVERHEAD * plain / (slowdown - _MAX_OVERHEAD) + 1e-9)
    )


class TimedRuns:
    """A loaded model that runs without a profiler and with one.

    Args:
        fewest: Minimum number of runs under the profiler, even if they exceed the limit of added time.

    Attributes:
        fewest: Minimum number of runs under the profiler; `warm_up` may raise it.
        wall, profiled: Seconds of the counted runs without and with the profiler.
        counted: Whether each run under the profiler was counted, warm-up included.
        spent: Seconds of each run under the profiler after the warm-up, with the profiler's start and end.
    """

    clock: Callable[[], float] = staticmethod(time.perf_counter)

    def __init__(self, fewest: int = 1) -> None:
        self.fewest = max(1, fewest)
        self.wall: list[float] = []
        self.profiled: list[float] = []
        self.counted: list[bool] = []
        self.spent: list[float] = []

    def run_once(self, observed: bool) -> float:
        """Runs the model once, under the profiler or not; returns the seconds."""
        raise NotImplementedError

    def warm_up(self, spec: ProfileSpec, fewest: int, cancel: Cancel) -> None:
        """Makes runs that are not counted. In the first of them, the runtime plans its memory."""
        self.fewest = max(self.fewest, fewest)
        began = time.perf_counter()
        for step in range(max(1, spec.warmup)):
            stop_if(cancel)
            self.run_once(True)
            self.counted.append(False)
            if step < spec.warmup:
                self.run_once(False)
            if time.perf_counter() - began > spec.time_limit / 2:
                break

    def time_block(
        self,
        max_profiled_runs: int,
        watch: LoadWatch,
        step: Callable[[int], None],
        stop: Callable[[Sequence[float]], Stopped | None],
    ) -> Stopped | None:
        """Times a block of runs without the profiler and a block with it.

        Args:
            max_profiled_runs: Number of runs under the profiler that can be kept.
            watch: Measures the load by other programs during the plain runs.
            step: Receives the number of plain runs before each one.
            stop: Takes the times so far; returns a reason to stop, or None.

        Returns:
            The reason to stop, or None.
        """
        if stop(self.wall) == "steps":
            return "steps"
        is_short = not self.wall or self.wall[-1] < _BLOCK_SECONDS
        wait_idle()  # threads of the previous session would still use the processors
        if is_short:  # a run that is not counted wakes up the threads
            self.run_once(False)
        stop_reason: Stopped | None = None
        first_run = len(self.wall)
        with watch:
            while stop_reason is None and not _is_block_full(self.wall[first_run:], _PLAIN_RUNS):
                step(len(self.wall))
                self.wall.append(self.run_once(False))
                stop_reason = stop(self.wall)
                if stop_reason == "settled" and not self._has_enough_profiled(max_profiled_runs):
                    stop_reason = None
        self._run_profiled(max_profiled_runs, sure=stop_reason is not None)
        return stop_reason

    def _has_enough_profiled(self, max_profiled_runs: int) -> bool:
        """Whether an interval of each layer has enough profiled runs, or the missing runs are allowed."""
        if not self.profiled:  # before the first profiled run, the added time is unknown
            return statistics.median(self.wall) <= _SHORT_RUN_SECONDS
        has_enough = not self._can_keep_more(max_profiled_runs) or len(self.profiled) >= MIN_INTERVAL_SAMPLES
        return has_enough or self._is_allowed(
            MIN_INTERVAL_SAMPLES - len(self.profiled) + (self.wall[-1] < _BLOCK_SECONDS)
        )

    def _run_profiled(self, max_profiled_runs: int, sure: bool) -> None:
        """Makes runs under the profiler, as many as are allowed.

        Args:
            max_profiled_runs: Number of runs under the profiler that can be kept.
            sure: Whether to make enough runs for an interval of each layer; else one block.
        """
        earlier_runs = len(self.profiled)
        minimum = max(min(len(self.wall), MIN_INTERVAL_SAMPLES), self.fewest) if sure else 0
        is_short = self.wall[-1] < _BLOCK_SECONDS
        if not self._can_keep_more(max_profiled_runs) or not self._is_allowed(
            (1 if sure else _PROFILED_RUNS) + is_short
        ):
            return
        wait_idle()
        if is_short:
            self._observe(is_counted=False)
        while (
            self._can_keep_more(max_profiled_runs)
            and self._is_allowed(1)
            and (
                len(self.profiled) < minimum
                or not _is_block_full(self.profiled[earlier_runs:], _PROFILED_RUNS)
            )
        ):
            self.profiled.append(self._observe(is_counted=True))

    def _observe(self, is_counted: bool) -> float:
        """Makes a run under the profiler, and returns the seconds of the run."""
        began = self.clock()
        seconds = self.run_once(True)
        self.spent.append(self.clock() - began)
        self.counted.append(is_counted)
        return seconds

    def _is_allowed(self, count: int) -> bool:
        """Whether `count_allowed_runs` allows `count` more runs under the profiler.

        The first `fewest` runs are always allowed.
        """
        if len(self.profiled) < self.fewest:
            return True
        allowed = count_allowed_runs(
            len(self.wall), statistics.median(self.wall), statistics.median(self.spent)
        )
        return allowed is None or len(self.spent) + count <= allowed

    def _can_keep_more(self, max_profiled_runs: int) -> bool:
        """Whether the events of another run under the profiler can be kept."""
        return len(self.counted) < max_profiled_runs or not any(self.counted)


def wait_idle(
    busy: Callable[[], float] = time.process_time,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Waits until no thread of this process is busy; a runtime's threads spin for a while after a run.

    Args:
        busy: Returns the busy seconds of all threads so far.
        sleep: Waits for a number of seconds.
        clock: Returns seconds.
    """
    began = clock()
    previous_busy, previous_time = busy(), began
    while previous_time - began < _MAX_WAIT_SECONDS:
        sleep(_POLL_SECONDS)
        busy_now, current_time = busy(), clock()
        if busy_now - previous_busy < _IDLE_SHARE * (current_time - previous_time):
            return
        previous_busy, previous_time = busy_now, current_time


def _is_block_full(times: Sequence[float], max_runs: int) -> bool:
    """Whether a block of runs is long enough."""
    return len(times) >= max_runs or sum(times) >= _BLOCK_SECONDS
