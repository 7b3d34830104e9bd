"""Facts about a measured machine: its multiplication rates, its bandwidth, and the cost of a kernel call."""

from __future__ import annotations

from explorer.base.fact import Fact
from explorer.facts.profile.profile import Spread


class KernelTime(Fact, frozen=True):
    """One kernel that was timed alone.

    Attributes:
        op: Operator in ONNX's name.
        dtype: Number type of the operands.
        sizes: M, K and N of a matmul; output channels, inputs of each, and positions of a Conv; the shape of
            the array for other operators.
        macs: Multiply-accumulates of one call.
        bytes: Bytes read and written by one call, each once.
        seconds: Seconds of one call.
        macs_per_second: `macs` divided by the median seconds.
        bytes_per_second: `bytes` divided by the median seconds.
    """

    op: str
    dtype: str
    sizes: tuple[int, ...]
    macs: int
    bytes: int
    seconds: Spread
    macs_per_second: float
    bytes_per_second: float


class PeakRate(Fact, frozen=True):
    """Highest multiply-accumulate rate of one number type over all tried sizes.

    Attributes:
        low: Lower end of the 95 % interval of the rate.
        high: Upper end of the 95 % interval of the rate.
        sizes: M, K and N of the matmul that reached the rate.
    """

    dtype: str
    macs_per_second: float
    low: float
    high: float
    sizes: tuple[int, ...]


class CacheLevel(Fact, frozen=True):
    """A data cache as the operating system reports it, with its measured bandwidth.

    Attributes:
        processors: Number of processors that share the cache, or 0 if the system does not report it.
        bytes_per_second: Bytes per second of a sum of two arrays that fit into the caches of this level, all
            threads together, but not into smaller caches. None if the call of the runtime dominates the time.
        ways: Ways of the cache, or 0 if the system does not report them.
    """

    level: int
    bytes: int
    processors: int = 0
    bytes_per_second: float | None = None
    ways: int = 0


class CopyRate(Fact, frozen=True):
    """Rate at which one thread copies an array with NumPy.

    Attributes:
        level: Level of the cache that holds both arrays, or 0 for the main memory.
        bytes: Bytes of both arrays together.
        bytes_per_second: Bytes read and bytes written, each per second: half of what moves in total.
    """

    level: int
    bytes: int
    bytes_per_second: float


class MeasuredCore(Fact, frozen=True):
    """Measurements of one core.

    Attributes:
        macs_per_second: Rate of a float32 matmul on one thread.
        sizes: M, K and N of this matmul.
        copies: Rates of copies in each cache, the smallest first, and in the main memory.
    """

    macs_per_second: float
    sizes: tuple[int, ...]
    copies: tuple[CopyRate, ...]


class MeasuredMachine(Fact, frozen=True):
    """Measurements of the machine on which the program ran.

    Attributes:
        processor: Name of the processor, as the system reports it.
        threads: Number of threads of the kernels.
        runtime: Name and version of the runtime that ran the kernels: 'onnxruntime 1.32.0'.
        date: Date of the measurement: '2026-11-23'.
        peaks: Peak rates by number type, without the types in `refused`.
        bandwidth: Time of a sum of two arrays that fit into no cache: two arrays are read and one is written
            (STREAM's Add).
        launch: Seconds of one tiny node in a long chain.
        call: Seconds of a run of a model that consists of one tiny node.
        caches: Data caches, the smallest first.
        kernels: Timed square matmuls, from which the peak rates follow.
        probes: Other timed kernels, from which the times of layers are predicted.
        refused: Number types that the runtime cannot multiply.
        seconds: Seconds of all measurements together.
        loaded: Whether other programs used the machine during the measurement.
        load: Evidence for that, in words.
        notes: Further remarks, in words.
        core: Measurements of one core, or None in a file that an older version wrote.
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
    core: MeasuredCore | None = None
