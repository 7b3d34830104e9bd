"""Load of the machine: whether something else ran while a model was timed, and how that was seen.

Three signs, and any one is enough: the system took the processor away (involuntary context switches), more
was ready to run than the model's own threads (load average), the same run took very different times (spread).
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable

from explorer.facts.profile.profile import Spread

_SWITCHES = 25.0
"""Involuntary context switches a second and a thread, above which others took the processor: a machine of
nobody else has a few, one shared by two such programs a hundred."""
_OTHERS = 0.5
"""Load average above what our threads are."""
_SPREAD = 1.5
"""How many times the tenth percentile the ninetieth may be."""


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LoadWatch:
    """What else ran while it was entered; between its making and `words`, if it never was.

    Args:
        threads: That our own work uses.
        switches: Involuntary context switches so far, of this process.
        average: The load average of the last minute; None where it is not known.
        clock: Seconds.
    """

    def __init__(
        self,
        threads: int,
        *,
        switches: Callable[[], int] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        average: Callable[[], float | None] = lambda: _average(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._threads, self._switches, self._average, self._clock = threads, switches, average, clock
        self._start, self._before = clock(), switches()
        self._seconds, self._taken = 0.0, 0
        self._found = average()

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
        signs = []
        if seconds > _SHORTEST and rate > _SWITCHES:
            signs.append(f"the processor was taken away {rate:,.0f} times a second from each thread")
        # the average of a minute knows little of our own few seconds: what was there before is others' work
        if (
            self._found is not None
            and self._found > processors() - min(self._threads, processors()) + _OTHERS
        ):
            signs.append(f"the load average was {self._found:.1f} before, on {processors():,} processors")
        if wall.sure and wall.p90 > _SPREAD * wall.p10 > 0:
            signs.append(f"a run in ten took {wall.p90 / wall.p10:.1f} times as long as another")
        return "; ".join(signs)


_SHORTEST = 0.05
"""Seconds below which a rate means nothing."""


def _average() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None
