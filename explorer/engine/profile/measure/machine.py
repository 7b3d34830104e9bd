"""Measures this machine: matmul rates by size and type, bandwidths, and the costs of a node and of a call.

The peak of an element type is the rate of its fastest matmul. An efficiency above 1 is therefore possible
only for kernels that compute fewer MACs than their formula counts, such as Winograd convolutions.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import onnxruntime
from msgspec.structs import replace

from explorer.base.units import bytes_text, many_text
from explorer.engine.profile.load import LoadWatch, check_threads
from explorer.engine.profile.measure import probes
from explorer.engine.profile.measure.kernels import DTYPES, Kernels, Run
from explorer.engine.profile.measure.one_core import measure_core
from explorer.engine.profile.statistics import compute_spread, find_stop_reason, is_settled
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.facts.profile.machine import CacheLevel, KernelTime, MeasuredMachine, PeakRate
from explorer.facts.profile.profile import Spread
from explorer.host import processor

MATMUL_SIDES = (128, 256, 512, 1024, 2048, 4096)
"""Sides of the square matmuls. A large matmul is left out if it does not fit into the time limit."""
_MIN_MACS = 100_000_000
"""Minimum number of MACs in a run. A smaller matmul is repeated in its graph."""
_MIN_RUNS = 12
"""Number of runs that must fit into a matmul's share of the time; fewer give no reliable median."""
_ROUNDS = 2
"""Number of rounds over all probes, so that a disturbance affects only one of a kernel's times."""
_CHAIN_NODES = 1000
"""Number of nodes in the chain that measures the cost of a node."""
_CACHE_FACTOR = 4
"""Size of the bandwidth array as a multiple of the last cache (STREAM's rule), so that no cache fits it."""
_MIN_ARRAY_BYTES, _MAX_ARRAY_BYTES = 64 << 20, 512 << 20
_MEMORY_DIVISOR = 8
"""Divisor of the free memory: each of three arrays may use an eighth."""
_ELEMENT_BYTES = {"float32": (4, 4, 4), "int8": (1, 1, 4), "float16": (2, 2, 2), "bfloat16": (2, 2, 2)}
"""Bytes of an element of the two factors and of the product, by type."""


class Surroundings(NamedTuple):
    """Facts about the machine, and the clock of the measurement.

    Attributes:
        name: Name of the processor.
        caches: Level, size in bytes, and number of processors that share it, for each cache.
        free: Free memory in bytes, or None if unknown.
        day: Date of the measurement.
        clock: Returns seconds.
        ways: Ways of the caches by level.
    """

    name: str
    caches: Sequence[tuple[int, int, int]]
    free: int | None
    day: str
    clock: Callable[[], float] = time.perf_counter
    ways: Mapping[int, int] = {}


def measure_this_machine(
    threads: int | None = None,
    time_limit: float = 60.0,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> MeasuredMachine:
    """Measures this machine with onnxruntime.

    Args:
        threads: Number of threads for operators, or None for one per core, as the runtime does by default.
        time_limit: Time limit in seconds for the whole measurement. A note counts the medians that are not
            settled then.
        on_progress: Receives the number of timed kernels.
        cancel: Returns whether to stop; called between runs.

    Raises:
        Misuse: There are fewer processors than threads.
        Cancelled: `cancel` returned True.
    """
    check_threads(threads)
    thread_count = threads or processor.count_cores()
    surroundings = Surroundings(
        processor.name(),
        processor.list_caches(),
        processor.free_bytes(),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        ways=processor.read_cache_ways(),
    )
    measurement = measure(
        Kernels(thread_count),
        thread_count,
        time_limit,
        surroundings,
        LoadWatch(thread_count),
        on_progress,
        cancel,
    )
    return replace(
        measurement, core=measure_core(surroundings.caches, _compute_max_array_bytes(surroundings))
    )


def measure(
    kernels: Kernels,
    threads: int,
    time_limit: float,
    surroundings: Surroundings,
    watch: LoadWatch,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> MeasuredMachine:
    """Measures a machine with the given kernels, clock and load watch. See `measure_this_machine`."""
    bench = _Bench(time_limit, surroundings.clock, on_progress, cancel, len(surroundings.caches))
    elements, notes = _choose_bandwidth_array(surroundings)
    call = bench.time(kernels.build_chain(1))
    launch = bench.time(kernels.build_chain(_CHAIN_NODES), _CHAIN_NODES)
    added = bench.time(kernels.build_add(elements))
    bandwidth = KernelTime(
        op="Add",
        dtype="float32",
        sizes=(elements,),
        macs=0,
        bytes=12 * elements,
        seconds=added,
        macs_per_second=0.0,
        bytes_per_second=12 * elements / added.median,
    )
    caches = tuple(_measure_caches(kernels, surroundings, threads, call.median, bench))
    matmuls, refused = [], []
    for dtype in DTYPES:
        dtype_kernels = list(_time_matmuls(kernels, dtype, bench))
        matmuls += dtype_kernels
        if not dtype_kernels:
            refused.append(dtype)
    other_kernels = _time_probes(kernels, bench, matmuls, _compute_streamed_bytes(surroundings))
    if bench.is_over():
        notes.append("the time limit passed before all kernels were timed twice")
    all_times = [call, launch, added, *(kernel.seconds for kernel in (*matmuls, *other_kernels))]
    if unsure := sum(not is_settled(timing) for timing in all_times):
        notes.append(f"{many_text(unsure, 'median')} of {len(all_times):,} may be off by more than 5 %")
    peaks = tuple(_find_peaks(matmuls))
    peak_keys = {(peak.dtype, peak.sizes) for peak in peaks}
    best = [kernel.seconds for kernel in matmuls if (kernel.dtype, kernel.sizes) in peak_keys]
    load = watch.describe_load(max([added, *best], key=lambda timing: timing.p90 / max(timing.p10, 1e-12)))
    return MeasuredMachine(
        processor=surroundings.name,
        threads=threads,
        runtime=f"onnxruntime {onnxruntime.__version__}",
        date=surroundings.day,
        peaks=peaks,
        bandwidth=bandwidth,
        launch=launch,
        call=call,
        caches=caches,
        kernels=tuple(matmuls),
        probes=tuple(other_kernels),
        refused=tuple(refused),
        seconds=bench.get_elapsed_seconds(),
        loaded=bool(load),
        load=load,
        notes=tuple(notes),
    )


class _Bench:
    """Times kernels. Each kernel gets an equal share of the time that is left."""

    def __init__(
        self,
        limit: float,
        clock: Callable[[], float],
        on_progress: OnProgress,
        cancel: Cancel,
        cache_levels: int,
    ) -> None:
        self._limit, self._clock = limit, clock
        self._on_progress, self._cancel = on_progress, cancel
        self._began, self._done = clock(), 0
        self._all = 3 + cache_levels + len(MATMUL_SIDES) * len(DTYPES) + _ROUNDS * probes.PROBE_COUNT

    def get_elapsed_seconds(self) -> float:
        """Returns the seconds since the start."""
        return self._clock() - self._began

    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return self.get_elapsed_seconds() > self._limit

    def compute_budget(self) -> float:
        """Returns the seconds for the next kernel."""
        return max(0.0, self._limit - self.get_elapsed_seconds()) / max(1, self._all - self._done)

    def skip(self, count: int) -> None:
        """Skips `count` kernels, and leaves their time to the other kernels."""
        self._done += count

    def time(self, run: Run, parts: int = 1) -> Spread:
        """Times a run; returns the seconds of one of its `parts` equal parts."""
        report(self._on_progress, self._cancel, "measuring", self._done, self._all)
        budget = self.compute_budget()
        run()  # not timed: the runtime plans its memory in the first run
        samples: list[float] = []
        began = self._clock()
        while find_stop_reason(samples, self._clock() - began, steps=None, time_limit=budget) is None:
            stop_if(self._cancel)
            start = self._clock()
            run()
            samples.append(self._clock() - start)
        self._done += 1
        return compute_spread([sample / parts for sample in samples])


def _measure_caches(
    kernels: Kernels, surroundings: Surroundings, threads: int, call: float, bench: _Bench
) -> Iterator[CacheLevel]:
    """Yields the bandwidth of each cache, measured on an array larger than the nearer caches.

    The time of a call, a few microseconds, is subtracted. If reading the array takes less than a call, the
    bandwidth is unknown.
    """
    nearer = 0
    for level, size, processors in surroundings.caches:
        cache_bytes = size * max(1, threads // max(1, processors))
        # three arrays of 4-byte elements take the mean of both sizes: (nearer + cache_bytes) / 2 / 12
        elements = (nearer + cache_bytes) // 24
        is_measurable = cache_bytes > nearer and 4 * elements <= _compute_max_array_bytes(surroundings)
        seconds = bench.time(kernels.build_add(elements)).median - call if is_measurable else 0.0
        rate = 12 * elements / seconds if seconds > call else None
        yield CacheLevel(
            level=level,
            bytes=size,
            processors=processors,
            bytes_per_second=rate,
            ways=surroundings.ways.get(level, 0),
        )
        nearer = max(nearer, cache_bytes)


def count_copies(macs: int) -> int:
    """Computes how many copies of a matmul with `macs` MACs its graph needs."""
    return max(1, _MIN_MACS // macs)


def _time_matmuls(kernels: Kernels, dtype: str, bench: _Bench) -> Iterator[KernelTime]:
    """Yields the times of square matmuls, from the smallest to the largest that fits into the time."""
    previous_seconds = 0.0
    for index, size in enumerate(MATMUL_SIDES):
        macs = size**3
        count = count_copies(macs)
        # a matmul has eight times the MACs of the previous matmul
        slow = index and 8 * previous_seconds * _MIN_RUNS > bench.compute_budget()
        run = None if slow else kernels.build_gemm(dtype, size, count)
        if run is None:
            bench.skip(len(MATMUL_SIDES) - index)
            return
        seconds = bench.time(run, count)
        previous_seconds = seconds.median
        moved = sum(_ELEMENT_BYTES[dtype]) * size**2
        op = DTYPES[dtype][0]
        yield KernelTime(
            op=op,
            dtype=dtype,
            sizes=(size,) * 3,
            macs=macs,
            bytes=moved,
            seconds=seconds,
            macs_per_second=macs / previous_seconds,
            bytes_per_second=moved / previous_seconds,
        )


def _time_probes(
    kernels: Kernels, bench: _Bench, matmuls: Sequence[KernelTime], streamed: int
) -> Sequence[KernelTime]:
    """Times the other kernels in rounds, and keeps the fastest time of each.

    Other work on the machine can only slow a kernel down.
    """
    rate = max((kernel.macs_per_second for kernel in matmuls if kernel.dtype == "float32"), default=1.0)
    fastest: dict[tuple[str, tuple[int, ...]], KernelTime] = {}
    for _ in range(_ROUNDS):
        for kernel in probes.time_probes(
            kernels, bench.time, lambda macs: macs / rate <= bench.compute_budget(), streamed
        ):
            best = fastest.setdefault((kernel.op, kernel.sizes), kernel)
            if kernel.seconds.median < best.seconds.median:
                fastest[kernel.op, kernel.sizes] = kernel
            if bench.is_over():
                return tuple(fastest.values())
    return tuple(fastest.values())


def _find_peaks(matmuls: Sequence[KernelTime]) -> Iterator[PeakRate]:
    """Yields the rate of the fastest matmul of each type, with its interval."""
    for dtype in DTYPES:
        kernels_of_type = [kernel for kernel in matmuls if kernel.dtype == dtype]
        if kernels_of_type:
            best = max(kernels_of_type, key=lambda kernel: kernel.macs_per_second)
            seconds = best.seconds
            yield PeakRate(
                dtype=dtype,
                macs_per_second=best.macs_per_second,
                low=best.macs / seconds.high,
                high=best.macs / seconds.low,
                sizes=best.sizes,
            )


def _compute_streamed_bytes(surroundings: Surroundings) -> int:
    """Computes the bytes of weights that are too many for a cache to hold from one run to the next."""
    last = max((size for _, size, _ in surroundings.caches), default=0)
    return min(_compute_max_array_bytes(surroundings) // 2, 2 * last or _MIN_ARRAY_BYTES)


def _compute_max_array_bytes(surroundings: Surroundings) -> int:
    """Computes the maximum size of an array, in bytes."""
    if surroundings.free is None:
        return _MAX_ARRAY_BYTES
    return max(1 << 20, min(_MAX_ARRAY_BYTES, surroundings.free // _MEMORY_DIVISOR))


def _choose_bandwidth_array(surroundings: Surroundings) -> tuple[int, list[str]]:
    """Computes the number of elements of an array that no cache holds.

    Returns:
        The number of elements; and a note if the memory is too small for such an array, or the caches are
        unknown.
    """
    last = max((size for _, size, _ in surroundings.caches), default=0)
    max_bytes = _compute_max_array_bytes(surroundings)
    size = min(max_bytes, max(_MIN_ARRAY_BYTES, _CACHE_FACTOR * last))
    if size < _CACHE_FACTOR * last:
        note = f"the bandwidth is measured on {bytes_text(size)}, but the last cache has {bytes_text(last)}"
        return size // 4, [note]
    return size // 4, [] if last else ["the caches are unknown: the bandwidth may be that of a cache"]
