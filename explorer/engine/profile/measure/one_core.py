"""Measures one core: the rate of a matmul on one thread, and of copies in each cache and in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from explorer.engine.profile.measure.kernels import Kernels
from explorer.facts.profile.machine import CopyRate, MeasuredCore

_SIDES = (256, 512)
"""Sides of the matmuls of one thread; the faster one counts."""
_RUNS = 25
"""Timed runs of each kernel. The fastest counts, because other work can only slow a run down."""
_BYTES_PER_RUN = 16 << 20
"""Bytes that one timed run copies at least, so that the time of a call does not matter."""
_SHARE = 4
"""Each of both arrays has one part in so many of the cache that holds them."""


def measure_core(
    caches: Sequence[tuple[int, int, int]], largest: int, clock: Callable[[], float] = time.perf_counter
) -> MeasuredCore:
    """Measures one core.

    Args:
        caches: Level, size in bytes, and number of processors that share it, for each cache.
        largest: Maximum size of an array in bytes.
        clock: Returns seconds.
    """
    rate, side = max(_matmul_rates(clock))
    return MeasuredCore(rate, (side,) * 3, tuple(_copy_rates(caches, largest, clock)))


def _matmul_rates(clock: Callable[[], float]) -> Iterator[tuple[float, int]]:
    for side in _SIDES:
        run = Kernels(1).gemm("float32", side, 1)
        assert run is not None  # every build of the runtime multiplies float32
        yield side**3 / _least_seconds(run, clock), side


def _copy_rates(
    caches: Sequence[tuple[int, int, int]], largest: int, clock: Callable[[], float]
) -> Iterator[CopyRate]:
    """Yields the rate of each cache, with arrays larger than the nearer cache, then that of the memory."""
    nearer = last = 0
    for level, size, _ in caches:
        array = min(size // _SHARE, largest)
        if 2 * array > nearer:
            yield CopyRate(level, 2 * array, _copy_rate(array, clock))
        nearer, last = size, max(last, size)
    array = min(largest, max(64 << 20, 2 * last))
    yield CopyRate(0, 2 * array, _copy_rate(array, clock))


def _copy_rate(size: int, clock: Callable[[], float]) -> float:
    """Returns the bytes per second that a copy of `size` bytes reads, and writes as many."""
    elements, rows = max(size // 4, 1), max(_BYTES_PER_RUN // size, 1)
    source, target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    # views that repeat the arrays: NumPy copies them again and again within one call
    repeated = np.broadcast_to(source, (rows, elements))
    targets = np.lib.stride_tricks.as_strided(target, (rows, elements), (0, 4))
    seconds = _least_seconds(lambda: np.copyto(targets, repeated), clock)
    return 4 * elements * rows / seconds


def _least_seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    run()  # not timed: pages and the runtime's memory are made in the first run
    seconds = []
    for _ in range(_RUNS):
        start = clock()
        run()
        seconds.append(clock() - start)
    return max(min(seconds), 1e-9)
