"""Measures one core: the rate of a matmul on one thread, and of copies in each cache and in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from explorer.engine.profile.measure.kernels import Kernels
from explorer.facts.profile.machine import CopyRate, MeasuredCore

_SIDES = (256, 512)
"""Sides of the matmuls of one thread; the fastest matmul counts."""
_RUNS = 25
"""Timed runs of each kernel. The fastest counts, because other work can only slow a run down."""
_MIN_BYTES_PER_RUN = 16 << 20
"""Minimum bytes that one timed run copies, so that the time of a call does not matter."""
_CACHE_DIVISOR = 4
"""Size of a cache, divided by the size of each of the two arrays that a copy in it uses."""


def measure_core(
    caches: Sequence[tuple[int, int, int]],
    max_array_bytes: int,
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredCore:
    """Measures one core.

    Args:
        caches: Level, size in bytes, and number of processors that share it, for each cache.
        max_array_bytes: Maximum size of an array in bytes.
        clock: Returns seconds.
    """
    rate, side = max(_measure_matmul_rates(clock))
    return MeasuredCore(rate, (side,) * 3, tuple(_measure_copy_rates(caches, max_array_bytes, clock)))


def _measure_matmul_rates(clock: Callable[[], float]) -> Iterator[tuple[float, int]]:
    """Yields the MACs per second and the side of each matmul."""
    for side in _SIDES:
        run = Kernels(1).build_gemm("float32", side, 1)
        assert run is not None  # every build of the runtime multiplies float32
        yield side**3 / _measure_least_seconds(run, clock), side


def _measure_copy_rates(
    caches: Sequence[tuple[int, int, int]], max_array_bytes: int, clock: Callable[[], float]
) -> Iterator[CopyRate]:
    """Yields the rate of each cache, then of the memory (level 0).

    The two arrays of a copy together are larger than the nearer cache. A cache for which this is impossible
    is left out.
    """
    nearer_size = largest_size = 0
    for level, size, _ in caches:
        array_bytes = min(size // _CACHE_DIVISOR, max_array_bytes)
        if 2 * array_bytes > nearer_size:
            yield CopyRate(level, 2 * array_bytes, _measure_copy_rate(array_bytes, clock))
        nearer_size, largest_size = size, max(largest_size, size)
    # twice the largest cache, so that no cache holds an array; 64 MiB if the caches are small or unknown
    array_bytes = min(max_array_bytes, max(64 << 20, 2 * largest_size))
    yield CopyRate(0, 2 * array_bytes, _measure_copy_rate(array_bytes, clock))


def _measure_copy_rate(size: int, clock: Callable[[], float]) -> float:
    """Returns the bytes per second that a copy of `size` bytes reads. It writes as many bytes per second."""
    elements, rows = max(size // 4, 1), max(_MIN_BYTES_PER_RUN // size, 1)
    source, target = np.ones(elements, np.float32), np.zeros(elements, np.float32)
    # views that repeat the arrays: NumPy copies them again and again within one call
    repeated = np.broadcast_to(source, (rows, elements))
    targets = np.lib.stride_tricks.as_strided(target, (rows, elements), (0, 4))
    seconds = _measure_least_seconds(lambda: np.copyto(targets, repeated), clock)
    return 4 * elements * rows / seconds


def _measure_least_seconds(run: Callable[[], object], clock: Callable[[], float]) -> float:
    run()  # not timed: the first run allocates memory
    seconds = []
    for _ in range(_RUNS):
        start = clock()
        run()
        seconds.append(clock() - start)
    return max(min(seconds), 1e-9)
