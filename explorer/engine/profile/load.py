"""Detects whether another program used the machine while a model was timed.

There are two signs: processors that other programs kept busy, and times of the same run that differ widely.
Involuntary context switches are an additional sign, since threads of one program also interrupt each other.
They count alone only if the system does not report how busy its processors are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import Spread
from explorer.host import processor

_MAX_SWITCHES = 25.0
"""Maximum involuntary context switches per second and thread; more are a sign of other programs.

A machine without other programs has a few; with another program of as many threads as processors, a hundred.
"""
_MAX_OTHER_PROCESSORS = 0.25
"""Maximum number of processors that other programs keep busy. Small tasks of the system stay below it."""
_MAX_EXCESS_LOAD = 0.5
"""Maximum load average in excess of the processors that our threads leave free."""
_MAX_SPREAD = 1.5
"""Maximum ratio of the 90th to the 10th percentile of times of the same run."""


def count_processors() -> int:
    """Returns the number of processors that this process may use."""
    return len(processor.list_processors())


def check_threads(threads: int | None) -> None:
    """Checks that there are at least as many processors as threads.

    Raises:
        Misuse: There are fewer processors than threads.
    """
    available = count_processors()
    if threads is not None and threads > available:
        message = f"{threads:,} threads on {available:,} processors would wait for each other"
        raise Misuse(message, where="--threads", hint=f"{available:,} at most")


class LoadWatch:
    """Measures the load of the machine.

    It measures while it is active as a context manager. If it is not used as one, it measures from its
    creation until the call of `describe_load`.

    Args:
        threads: Number of threads of our own work.
        switches: Returns the number of involuntary context switches of this process so far.
        busy: Returns the seconds for which our processors were busy, and the part that this process used; or
            None if the system does not report them.
        average: Returns the load average of the last minute, or None if unknown.
        clock: Returns seconds.
    """

    def __init__(
        self,
        threads: int,
        *,
        switches: Callable[[], int] = lambda: _count_switches(),
        busy: Callable[[], tuple[float, float] | None] = lambda: _read_busy_seconds(),
        average: Callable[[], float | None] = lambda: _read_load_average(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads, self._switches, self._busy, self._clock = threads, switches, busy, clock
        self._began, self._busy_at_start = clock(), busy()
        self._start, self._switches_at_start = clock(), switches()
        self._seconds, self._switch_count = 0.0, 0
        self._average_before = average()

    def __enter__(self) -> None:
        self._start, self._switches_at_start = self._clock(), self._switches()

    def __exit__(self, *_: object) -> None:
        self._seconds += self._clock() - self._start
        self._switch_count += self._switches() - self._switches_at_start

    def describe_load(self, wall: Spread) -> str:
        """Describes the signs that other programs used the machine, or returns ''.

        Args:
            wall: Times of the same run, repeated.
        """
        if not self._seconds:
            self.__exit__()
        seconds = max(self._seconds, 1e-9)
        rate = self._switch_count / seconds / max(self._threads, 1)
        signs = [self._describe_other_load()]
        if wall.sure and wall.p90 > _MAX_SPREAD * wall.p10 > 0:
            signs.append(
                "the slowest tenth of the runs took at least"
                f" {wall.p90 / wall.p10:.1f} times as long as the fastest tenth"
            )
        if seconds > _MIN_SECONDS and rate > _MAX_SWITCHES and (any(signs) or self._busy_at_start is None):
            signs.append(f"the processor was taken away {rate:,.0f} times a second from each thread")
        return "; ".join(filter(None, signs))

    def _describe_other_load(self) -> str:
        """Describes the work of other programs, or returns '' if there is almost none."""
        available, busy_now = count_processors(), self._busy()
        if busy_now is not None and self._busy_at_start is not None:
            seconds = max(self._clock() - self._began, _MIN_BUSY_SECONDS)
            other_processors = (
                busy_now[0] - self._busy_at_start[0] - (busy_now[1] - self._busy_at_start[1])
            ) / seconds
            if other_processors > _MAX_OTHER_PROCESSORS:
                return f"others kept {other_processors:.1f} of {available:,} processors busy"
            return ""
        # the average before the runs measures the work of others: our runs add little to a minute's average
        if (
            self._average_before is None
            or self._average_before <= available - min(self._threads, available) + _MAX_EXCESS_LOAD
        ):
            return ""
        return f"the load average was {self._average_before:.1f} before, on {available:,} processors"


_MIN_SECONDS = 0.05
"""Minimum measured seconds for a reliable rate of context switches."""
_MIN_BUSY_SECONDS = 0.2
"""Minimum measured seconds for the busy processors, because the system counts in hundredths of a second."""


def _count_switches() -> int:
    import resource  # not psutil, which counts only the switches of the main thread

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _read_busy_seconds() -> tuple[float, float] | None:
    """Returns the seconds for which the available processors were busy, and the part of this process.

    Returns None if the system does not report the times of all these processors.
    """
    import psutil

    try:
        times = psutil.cpu_times(percpu=True)
    except (OSError, psutil.Error):
        return None
    available_processors = processor.list_processors()
    if len(times) <= available_processors[-1]:  # some processors are offline, so the list has gaps
        return None
    # idle time and waiting for devices do not count
    busy = sum(getattr(times[at], name, 0.0) for at in available_processors for name in _BUSY_TIMES)
    return busy, time.process_time()


_BUSY_TIMES = ("user", "nice", "system", "irq", "softirq", "steal")
"""Categories of a processor's busy time: work, interrupts, and time taken by a hypervisor."""


def _read_load_average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
