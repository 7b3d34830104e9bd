"""Load of the machine: whether something else ran while a model was timed, and how that was seen.

Others kept the processors busy, or the same run took very different times. How often the system took the
processor away (involuntary context switches) is told beside: alone it is a sign only where the system does
not tell how busy it was, for threads of one program take it from each other, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from explorer.base.errors import Misuse
from explorer.facts.profile.profile import Spread
from explorer.host import processor

_SWITCHES = 25.0
"""Involuntary context switches a second and a thread, above which others took the processor: a machine of
nobody else has a few, one shared by two such programs a hundred."""
_OTHERS = 0.25
"""Processors that others keep busy: the machine's own small work is less."""
_WAITING = 0.5
"""Load average above what our threads are."""
_SPREAD = 1.5
"""How many times the tenth percentile the ninetieth may be."""


def processors() -> int:
    """Processors that this process may use."""
    return len(processor.processors())


def check_threads(threads: int | None) -> None:
    """Refuses more threads than there are processors.

    Raises:
        Misuse: There are fewer.
    """
    there = processors()
    if threads is not None and threads > there:
        raise Misuse(
            f"{threads:,} threads on {there:,} processors would wait for each other",
            where="--threads",
            hint=f"{there:,} at most",
        )


class LoadWatch:
    """What else ran while it was entered; between its making and `words`, if it never was.

    Args:
        threads: That our own work uses.
        switches: Involuntary context switches so far, of this process.
        busy: Seconds for which the processors that we may use were busy, and our part of them; None where the
            system does not tell.
        average: The load average of the last minute; None where it is not known.
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
        """What says that the machine was loaded, in words; '' where nothing does.

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
        """What others did, in words; '' for next to nothing."""
        there, now = processors(), self._busy()
        if now is not None and self._was_busy is not None:
            seconds = max(self._clock() - self._began, _LONG)
            others = (now[0] - self._was_busy[0] - (now[1] - self._was_busy[1])) / seconds
            return f"others kept {others:.1f} of {there:,} processors busy" if others > _OTHERS else ""
        # the average of a minute knows little of our own few seconds: what was there before is others' work
        if (
            self._average_before is None
            or self._average_before <= there - min(self._threads, there) + _WAITING
        ):
            return ""
        return f"the load average was {self._average_before:.1f} before, on {there:,} processors"


_SHORTEST = 0.05
"""Seconds below which a rate means nothing."""
_LONG = 0.2
"""The same of what the system counts in hundredths of a second."""


def _switches() -> int:
    import resource  # psutil counts those of the main thread alone

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _busy() -> tuple[float, float] | None:
    """Seconds for which the processors that we may use were busy, and our own part of them."""
    import psutil

    try:
        times = psutil.cpu_times(percpu=True)
    except (OSError, psutil.Error):
        return None
    mine = processor.processors()
    if len(times) <= mine[-1]:  # some are switched off, so that places are no numbers
        return None
    # idle and waiting are left out
    busy = sum(getattr(times[at], name, 0.0) for at in mine for name in _BUSY)
    return busy, time.process_time()


_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
"""Times of a processor, as far as a system tells them: work, interrupts, what a hypervisor took."""


def _average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
