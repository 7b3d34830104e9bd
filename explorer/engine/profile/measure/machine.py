"""Measurement of this machine: matmuls by size and type, bandwidth, the cost of a node and of a call.

The peak is the best matmul of a type; an efficiency above 1 is therefore possible only for kernels that do
less than their MACs say (Winograd).
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import onnxruntime

from explorer.base.units import bytes_text, many_text
from explorer.engine.profile.load import LoadWatch, check_threads
from explorer.engine.profile.measure import probes
from explorer.engine.profile.measure.kernels import DTYPES, Kernels, Run
from explorer.engine.profile.statistics import is_settled, spread, why_stop
from explorer.engine.progress import Cancel, OnProgress, report, stop_if
from explorer.facts.profile.machine import CacheLevel, KernelTime, MeasuredMachine, PeakRate
from explorer.facts.profile.profile import Spread
from explorer.host import processor

SIZES = (128, 256, 512, 1024, 2048, 4096)
"""Sides of the square matmuls; large ones only where they fit in the time."""
_TOGETHER = 100_000_000
"""MACs of a run, below which a matmul is repeated in its graph."""
_RUNS = 12
"""Runs of a matmul that have to fit in its time: without them its median is not sure."""
_TURNS = 2
"""Rounds over all probes: a disturbance of one round is over in the next."""
_NODES = 1000
_BEYOND = 4
"""How many times the last cache an array is that no cache holds (STREAM's rule)."""
_LEAST, _MOST = 64 << 20, 512 << 20
_PART = 8
"""Part of the free memory that one of three arrays may take."""
_WIDTHS = {"float32": (4, 4, 4), "int8": (1, 1, 4), "float16": (2, 2, 2), "bfloat16": (2, 2, 2)}
"""Bytes of an element of both factors and of the product."""


class Surroundings(NamedTuple):
    """Facts about the machine, and the clock of the measurement."""

    name: str
    caches: Sequence[tuple[int, int, int]]
    free: int | None
    day: str
    clock: Callable[[], float] = time.perf_counter


def measured(
    threads: int | None = None,
    time_limit: float = 60.0,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> MeasuredMachine:
    """Measures this machine with onnxruntime.

    Args:
        threads: Threads of operators; None: one per core, the runtime's default.
        time_limit: Seconds for everything; uncertain medians are noted.
        on_progress: Called with the number of timed kernels.
        cancel: Called between runs; True stops.

    Raises:
        Misuse: There are fewer processors.
        Cancelled: `cancel` returned True.
    """
    check_threads(threads)
    used = threads or processor.cores()
    surroundings = Surroundings(
        processor.name(),
        processor.caches(),
        processor.free_bytes(),
        datetime.datetime.now(datetime.UTC).date().isoformat(),
    )
    return measure(Kernels(used), used, time_limit, surroundings, LoadWatch(used), on_progress, cancel)


def measure(
    kernels: Kernels,
    threads: int,
    time_limit: float,
    surroundings: Surroundings,
    watch: LoadWatch,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> MeasuredMachine:
    """Measures a machine by its kernels; see `measured`."""
    bench = _Bench(time_limit, surroundings.clock, on_progress, cancel, len(surroundings.caches))
    elements, notes = _array(surroundings)
    call = bench.time(kernels.chain(1))
    launch = bench.time(kernels.chain(_NODES), _NODES)
    added = bench.time(kernels.add(elements))
    bandwidth = KernelTime(
        "Add", "float32", (elements,), 0, 12 * elements, added, 0.0, 12 * elements / added.median
    )
    caches = tuple(_caches(kernels, surroundings, threads, call.median, bench))
    matmuls, refused = [], []
    for dtype in DTYPES:
        of_type = list(_matmuls(kernels, dtype, bench))
        matmuls += of_type
        if not of_type:
            refused.append(dtype)
    others = _probed(kernels, bench, matmuls, _streamed(surroundings))
    if bench.is_over():
        notes.append("the time was over before all kernels were timed twice")
    every = [call, launch, added, *(kernel.seconds for kernel in (*matmuls, *others))]
    if unsure := sum(not is_settled(timing) for timing in every):
        notes.append(f"not sure to 5 %: {many_text(unsure, 'median')} of {len(every):,}")
    peaks = tuple(_peaks(matmuls))
    reached = {(peak.dtype, peak.sizes) for peak in peaks}
    best = [kernel.seconds for kernel in matmuls if (kernel.dtype, kernel.sizes) in reached]
    load = watch.words(max([added, *best], key=lambda timing: timing.p90 / max(timing.p10, 1e-12)))
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
        probes=tuple(others),
        refused=tuple(refused),
        seconds=bench.elapsed(),
        loaded=bool(load),
        load=load,
        notes=tuple(notes),
    )


class _Bench:
    """Times kernels, each in its part of the time that is left."""

    def __init__(
        self, limit: float, clock: Callable[[], float], on_progress: OnProgress, cancel: Cancel, more: int
    ) -> None:
        self._limit, self._clock = limit, clock
        self._on_progress, self._cancel = on_progress, cancel
        self._began, self._done = clock(), 0
        self._all = 3 + more + len(SIZES) * len(DTYPES) + _TURNS * probes.COUNT

    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def is_over(self) -> bool:
        """Whether the time is over."""
        return self.elapsed() > self._limit

    def budget(self) -> float:
        """Seconds for the next kernel."""
        return max(0.0, self._limit - self.elapsed()) / max(1, self._all - self._done)

    def skip(self, count: int) -> None:
        """Leaves out `count` kernels, whose time the others get."""
        self._done += count

    def time(self, run: Run, parts: int = 1) -> Spread:
        """Seconds of one of `parts` equal parts of a run."""
        report(self._on_progress, self._cancel, "measuring", self._done, self._all)
        budget = self.budget()
        run()  # in the first run, the runtime plans its memory
        samples: list[float] = []
        began = self._clock()
        while why_stop(samples, self._clock() - began, steps=None, time_limit=budget) is None:
            stop_if(self._cancel)
            start = self._clock()
            run()
            samples.append(self._clock() - start)
        self._done += 1
        return spread([sample / parts for sample in samples])


def _caches(
    kernels: Kernels, surroundings: Surroundings, threads: int, call: float, bench: _Bench
) -> Iterator[CacheLevel]:
    """The bandwidth of each cache, from an array larger than the nearer caches, without the time of a call.

    Calls take microseconds: the bandwidth of a cache that delivers its whole content in less is unknown.
    """
    nearer = 0
    for level, size, processors in surroundings.caches:
        there = size * max(1, threads // max(1, processors))
        elements = (nearer + there) // 24
        fits = there > nearer and 4 * elements <= _most(surroundings)
        seconds = bench.time(kernels.add(elements)).median - call if fits else 0.0
        yield CacheLevel(level, size, processors, 12 * elements / seconds if seconds > call else None)
        nearer = max(nearer, there)


def together(macs: int) -> int:
    """The number of copies of a matmul of `macs` in its graph."""
    return max(1, _TOGETHER // macs)


def _matmuls(kernels: Kernels, dtype: str, bench: _Bench) -> Iterator[KernelTime]:
    """Square matmuls, from the smallest to the largest that fits in the time."""
    taken = 0.0
    for at, size in enumerate(SIZES):
        macs = size**3
        count = together(macs)
        # eight times the MACs of the matmul before
        slow = at and 8 * taken * _RUNS > bench.budget()
        run = None if slow else kernels.gemm(dtype, size, count)
        if run is None:
            bench.skip(len(SIZES) - at)
            return
        seconds = bench.time(run, count)
        taken = seconds.median
        moved = sum(_WIDTHS[dtype]) * size**2
        op = DTYPES[dtype][0]
        yield KernelTime(op, dtype, (size,) * 3, macs, moved, seconds, macs / taken, moved / taken)


def _probed(
    kernels: Kernels, bench: _Bench, matmuls: Sequence[KernelTime], streamed: int
) -> Sequence[KernelTime]:
    """Other kernels, each with its fastest turn: other work on the machine can only slow a kernel down."""
    rate = max((kernel.macs_per_second for kernel in matmuls if kernel.dtype == "float32"), default=1.0)
    fastest: dict[tuple[str, tuple[int, ...]], KernelTime] = {}
    for _ in range(_TURNS):
        for kernel in probes.probes(
            kernels, bench.time, lambda macs: macs / rate <= bench.budget(), streamed
        ):
            best = fastest.setdefault((kernel.op, kernel.sizes), kernel)
            if kernel.seconds.median < best.seconds.median:
                fastest[kernel.op, kernel.sizes] = kernel
            if bench.is_over():
                return tuple(fastest.values())
    return tuple(fastest.values())


def _peaks(matmuls: Sequence[KernelTime]) -> Iterator[PeakRate]:
    for dtype in DTYPES:
        of_type = [kernel for kernel in matmuls if kernel.dtype == dtype]
        if of_type:
            best = max(of_type, key=lambda kernel: kernel.macs_per_second)
            took = best.seconds
            yield PeakRate(
                dtype, best.macs_per_second, best.macs / took.high, best.macs / took.low, best.sizes
            )


def _streamed(surroundings: Surroundings) -> int:
    """Bytes of weights that no cache holds from one run to the next."""
    last = max((size for _, size, _ in surroundings.caches), default=0)
    return min(_most(surroundings) // 2, 2 * last or _LEAST)


def _most(surroundings: Surroundings) -> int:
    """Bytes that an array may have."""
    return _MOST if surroundings.free is None else max(1 << 20, min(_MOST, surroundings.free // _PART))


def _array(surroundings: Surroundings) -> tuple[int, list[str]]:
    """Elements of an array that no cache holds, and a note if memory is too small for such an array."""
    last = max((size for _, size, _ in surroundings.caches), default=0)
    most = _most(surroundings)
    size = min(most, max(_LEAST, _BEYOND * last))
    if size < _BEYOND * last:
        note = f"the arrays of the bandwidth have {bytes_text(size)} each, the last cache {bytes_text(last)}"
        return size // 4, [note]
    return size // 4, [] if last else ["the system tells no caches: the bandwidth may be that of one"]
