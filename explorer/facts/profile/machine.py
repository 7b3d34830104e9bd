"""Facts about a machine that was measured: what it multiplies and moves a second, what a kernel costs."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts.profile.profile import Spread


class KernelTime(Struct, frozen=True):
    """One kernel that was timed alone.

    Attributes:
        op: As ONNX names it.
        dtype: Of what it multiplies, or reads.
        sizes: M, K and N of a matmul; of a Conv output channels, inputs of each, and positions; the shape of
            the array of others.
        macs, bytes: Of one call; bytes are those read and written, each once.
        seconds: Of one call.
        macs_per_second, bytes_per_second: Over the median.
    """

    op: str
    dtype: str
    sizes: tuple[int, ...]
    macs: int
    bytes: int
    seconds: Spread
    macs_per_second: float
    bytes_per_second: float


class PeakRate(Struct, frozen=True):
    """The most multiply-accumulates a second of one type of number, over all sizes that were tried.

    Attributes:
        low, high: From the 95 % interval of the time.
        sizes: M, K and N of the matmul that reached it.
    """

    dtype: str
    macs_per_second: float
    low: float
    high: float
    sizes: tuple[int, ...]


class CacheLevel(Struct, frozen=True):
    """A cache for data, as the system tells, and how fast it was.

    Attributes:
        processors: How many processors share it; 0 where the system does not tell.
        bytes_per_second: Of a sum of two arrays that the caches of this level hold, those of all threads
            together, and those below do not; None where calling the runtime takes most of the time.
    """

    level: int
    bytes: int
    processors: int = 0
    bytes_per_second: float | None = None


class MeasuredMachine(Struct, frozen=True):
    """What was measured of the machine that the program ran on.

    Attributes:
        processor: What the system calls it.
        threads: That the kernels used.
        runtime: What ran them: 'onnxruntime 1.32.0'.
        date: Day of the measurement, '2026-11-23'.
        peaks: By type of number; those of `refused` do not run here.
        bandwidth: A sum of two arrays that no cache holds: two are read, one is written (STREAM's Add).
        launch: Seconds of one tiny node of a long chain.
        call: Seconds of a run of a model that is one tiny node.
        caches: For data, the smallest first.
        kernels: The square matmuls that were timed, from which the peaks are.
        probes: Other kernels that were timed, from which times of layers are predicted.
        refused: Types of numbers that the runtime multiplies not at all.
        seconds: How long all took.
        loaded: Whether something else ran on the machine meanwhile; `load` says how that was seen.
        notes: What else to know, in words.
    """

    processor: str
    threads: int
    runtime: str
    date: str
    peaks: tuple[PeakRate, ...]
    bandwidth: KernelTime
    launch: Spread
    call: Spread
    caches: tuple[CacheLevel, ...]
    kernels: tuple[KernelTime, ...]
    probes: tuple[KernelTime, ...] = ()
    refused: tuple[str, ...] = ()
    seconds: float = 0.0
    loaded: bool = False
    load: str = ""
    notes: tuple[str, ...] = ()
