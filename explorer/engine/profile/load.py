"""Load of the machine: whether another program ran while a model was timed, and the signs of it.

The signs are processors that others kept busy, and very different times of the same run. Involuntary context
switches are reported in addition. Alone they are a sign only if the system does not report how busy it was,
for threads of one program also take the processor from each other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import Spread
from explorer.host import processor

_SWITCHES = 25.0
"""Involuntary context switches per second and thread, above which others used the processor: an idle machine
has a few, a machine shared by two such programs a hundred."""
_OTHERS = 0.25
"""Processors that others keep busy; the system's own small work is less."""
_WAITING = 0.5
"""Load average above that of our own threads."""
_SPREAD = 1.5
"""Highest ratio of the ninetieth to the tenth percentile."""


def processors() -> int:
    """Processors that this process may use."""
    return len(processor.processors())


def check_threads(threads: int | None) -> None:
    """Refuses more threads than there are processors.

    Raises:
        Misuse: There are fewer processors than threads.
    """
    there = processors()
    if threads is not None and threads > there:
        raise Misuse(
            f"{threads:,} threads on {there:,} processors would wait for each other",
            where="--threads",
            hint=f"{there:,} at most",
        )


class LoadWatch:
    """Watches the load: while it is entered, or from its creation to `words` if it never was.

    Args:
        threads: Threads of our own work.
        switches: Involuntary context switches of this process so far.
        busy: Seconds for which our processors were busy, and our part of them; None if the system does not
            report it.
        average: The load average of the last minute; None if unknown.
        clock: Seconds.
    """

    def __init__(
        self,
        threads: int,
        *,
        switches: Callable[[], int] = lambda: _switches(),
        busy: Callable[[], tuple[float, float] | None] = lambda: _busy(),
        average: Callable[[], float | None] = lambda: _average(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads, self._switches, self._busy, self._clock = threads, switches, busy, clock
        self._began, self._was_busy = clock(), busy()
        self._start, self._before = clock(), switches()
        self._seconds, self._taken = 0.0, 0
        self._average_before = average()

    def __enter__(self) -> None:
        self._start, self._before = self._clock(), self._switches()

    def __exit__(self, *_: object) -> None:
        self._seconds += self._clock() - self._start
        self._taken += self._switches() - self._before

    def words(self, wall: Spread) -> str:
        """The signs that the machine was loaded, in words; '' for none.

        Args:
            wall: Times of the same run.
        """
        if not self._seconds:
            self.__exit__()
        seconds = max(self._seconds, 1e-9)
        rate = self._taken / seconds / max(self._threads, 1)
        signs = [self._others()]
        if wall.sure and wall.p90 > _SPREAD * wall.p10 > 0:
            signs.append(f"a run in ten took {wall.p90 / wall.p10:.1f} times as long as another")
        if seconds > _SHORTEST and rate > _SWITCHES and (any(signs) or self._was_busy is None):
            signs.append(f"the processor was taken away {rate:,.0f} times a second from each thread")
        return "; ".join(filter(None, signs))

    def _others(self) -> str:
        """The work of other programs, in words; '' for next to none."""
        there, now = processors(), self._busy()
        if now is not None and self._was_busy is not None:
            seconds = max(self._clock() - self._began, _LONG)
            others = (now[0] - self._was_busy[0] - (now[1] - self._was_busy[1])) / seconds
            return f"others kept {others:.1f} of {there:,} processors busy" if others > _OTHERS else ""
        # a minute's average contains little of our own few seconds: the average before is the work of others
        if (
            self._average_before is None
            or self._average_before <= there - min(self._threads, there) + _WAITING
        ):
            return ""
        return f"the load average was {self._average_before:.1f} before, on {there:,} processors"


_SHORTEST = 0.05
"""Seconds below which a rate means nothing."""
_LONG = 0.2
"""Seconds below which a rate from the system's hundredths of a second means nothing."""


def _switches() -> int:
    import resource  # psutil counts the switches of the main thread only

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _busy() -> tuple[float, float] | None:
    """Seconds for which the processors that we may use were busy, and our own part of them."""
    import psutil

    try:
        times = psutil.cpu_times(percpu=True)
    except (OSError, psutil.Error):
        return None
    mine = processor.processors()
    if len(times) <= mine[-1]:  # some processors are switched off, so their numbers have gaps
        return None
    # idle and waiting are left out
    busy = sum(getattr(times[at], name, 0.0) for at in mine for name in _BUSY)
    return busy, time.process_time()


_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Times of a processor that systems report: work, interrupts, time taken by a hypervisor."""


def _average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
