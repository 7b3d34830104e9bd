"""Facts about measured time: the duration of a run, layer by layer, and the time outside of layers.

The times add up: `wall_seconds` is the sum of the layers, the named parts in `other` and `overhead_seconds`,
minus `slowed_seconds`. Times are never divided by a guess. If one kernel does the work of several layers, one
layer has its time, and the other layers refer to this layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from explorer.base.checked import Count, Natural, PathText, Spec, Words
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.facts.external.machine import Machine
from explorer.facts.profile.recording import RecordedRun

OptimizeLevel = Literal["none", "basic", "extended", "all"]
"""Level of onnxruntime's graph optimization."""

StepOptimizer = Literal["sgd", "momentum", "adam"]
"""Optimizer of the timed training step."""

Stopped = Literal["settled", "steps", "time limit"]
"""Reason why the measurement ended: the median was certain, the requested number of runs was reached, or the
time limit was reached.
"""


MIN_INTERVAL_SAMPLES = 6
"""Number of samples from which the minimum and the maximum enclose the true median in at least 95 of 100
measurements.
"""


class ProfileSpec(Spec, frozen=True):
    """Settings of a time measurement.

    Attributes:
        optimize: Optimization level: 'none', 'basic', 'extended' or 'all'. None selects 'all', or 'none' for
            graphs that onnxruntime optimizes too slowly.
        threads: Number of threads for operators. None leaves the choice to the runtime.
        device: Device: 'cpu', 'cuda', or another name that the runtime knows.
        warmup: Number of untimed runs before the timed ones.
        steps: Number of timed runs. None measures until the median is certain within 5 %.
        repeat: Number of complete measurements. Each loads the model again.
        time_limit: Seconds after which no further run starts.
        input: Path of an .npy or .npz file with the input. None draws random inputs.
        seed: Seed of the random inputs.
        train: Whether to time a training step: forward, backward, optimizer. Modules only.
        optimizer: Optimizer of the training step: 'sgd', 'momentum', 'adam'.
        record: Number of runs under the profiler whose events are kept for a trace.
    """

    optimize: Annotated[
        OptimizeLevel | None,
        option("level of onnxruntime's graph optimization (default all; none above 4,096 nodes)"),
    ] = None
    threads: Annotated[
        Count | None,
        option("threads for operators (default: the runtime's choice)", metavar="N"),
    ] = None
    device: Annotated[Words, option("device: cpu, cuda, or another of the runtime", metavar="NAME")] = "cpu"
    warmup: Annotated[Natural, option("first runs, which are not timed", metavar="N")] = 2
    steps: Annotated[
        Count | None,
        option("timed runs (default: until the median is stable)", metavar="N"),
    ] = None
    repeat: Annotated[Count, option("load and time the model N times", metavar="N")] = 1
    time_limit: Annotated[
        float,
        Meta(gt=0, le=1e9),
        option(
            "start no new run after this many seconds", metavar="S", write="{:g}".format, reader="seconds"
        ),
    ] = 10.0
    input: Annotated[
        PathText | None,
        option(
            "a .npy or .npz file with the input; random otherwise",
            manual="a `.npy` (or `.npz` by input name) to run on; random otherwise",
            metavar="FILE",
        ),
    ] = None
    seed: Annotated[Natural, option("seed of the first random input", metavar="S")] = 0
    train: Annotated[
        bool,
        option("time a training step of a module: forward, backward, optimizer", old="--training"),
    ] = False
    optimizer: Annotated[StepOptimizer, option("optimizer of --train")] = "sgd"
    record: Natural = 0


ProfileSort = Literal["time", "order", "calls", "mac-rate", "byte-rate", "limit", "roof", "memory"]
"""Order of the layers of a profile; see `_KEYS`."""


class ProfileViewSpec(Spec, frozen=True):
    """Order of the layers of a profile.

    Attributes:
        sort: Figure by which the layers are sorted, the largest first.
    """

    sort: Annotated[
        ProfileSort,
        option(
            "sort the layers, the largest figure first: order is as they run, limit the least time,\n"
            "roof the least time over the measured one",
            manual="sort the layers, the largest figure first: `time`, `order` (as they run), `calls`,"
            " `mac-rate`, `byte-rate`, `limit` (least time), `roof` (least over measured), `memory`",
        ),
    ] = "time"


class Spread(Fact, frozen=True):
    """Distribution of a time in seconds over several samples.

    Attributes:
        median: Median in seconds.
        p10: 10th percentile in seconds.
        p90: 90th percentile in seconds.
        low: Lower end of the interval that encloses the true median in 95 of 100 measurements. It follows
            from order statistics, which assume no shape of the distribution. With fewer than six samples no
            such interval exists, and this is the minimum.
        high: Upper end of the same interval, or the maximum.
        count: Number of samples.
    """

    median: float
    p10: float
    p90: float
    low: float
    high: float
    count: int

    @property
    def sure(self) -> bool:
        """Whether `low` and `high` are a 95 % interval."""
        return self.count >= MIN_INTERVAL_SAMPLES


class LayerTime(Fact, frozen=True):
    """Time of one layer. A group has the time of its own kernels only: a Loop without its body.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        op: Kernels that ran, in the runtime's names: 'FusedConv', or several: 'MatMul, Add'.
        seconds: Seconds of one run of the model, all calls together, or None if the layer has no time of its
            own.
        calls: Number of kernels that ran for the layer in one run.
        share: Share of `Profile.wall_seconds`, or of the time of all kernels under the profiler if that is
            longer.
        macs_per_second: Multiply-accumulates of the layer and of the layers in `holds`, divided by the median
            seconds, or None if they are unknown or the layers have no MACs.
        bytes_per_second: Bytes that these layers read and write, divided by the median seconds, or None if
            unknown.
        predicted_seconds: Predicted seconds, or None without a prediction.
        limit_seconds: Least possible seconds on `Profile.machine`, of the layer and the layers in `holds`, or
            None if unknown.
        within: Path of another layer with a kernel that also does the work of this layer, or '' if this layer
            has its own kernel.
        holds: Paths of other layers that are computed by this layer's kernel.
        allocated_bytes: Bytes that the kernels of the layer allocated, or None if not reported.
        peak_bytes: Largest number of bytes in use at one time, or None if not reported.
        backward_seconds: Part of `seconds` that belongs to the backward pass of a training step, or None if
            the layer does not run there.
    """

    layer: int
    path: str
    kind: str
    op: str
    seconds: Spread | None
    calls: int
    share: float
    macs_per_second: float | None = None
    bytes_per_second: float | None = None
    predicted_seconds: float | None = None
    limit_seconds: float | None = None
    within: str = ""
    holds: tuple[str, ...] = ()
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    backward_seconds: float | None = None

    @property
    def forward_seconds(self) -> float | None:
        """Seconds without the backward pass. The counted MACs and bytes refer to this time."""
        if self.seconds is None:
            return None
        return max(0.0, self.seconds.median - (self.backward_seconds or 0.0))

    @property
    def efficiency(self) -> float | None:
        """Least possible time divided by the measured time. 1 means that the layer reaches the roof."""
        if self.limit_seconds is None or not self.forward_seconds:
            return None
        return self.limit_seconds / self.forward_seconds

    @property
    def error(self) -> float | None:
        """Relative error of the prediction: above 0 it predicts too much time, below 0 too little."""
        if self.predicted_seconds is None or self.seconds is None or not self.seconds.median:
            return None
        return self.predicted_seconds / self.seconds.median - 1


class OperatorTime(Fact, frozen=True):
    """Time of all kernels of one operator, with those that belong to no layer.

    Attributes:
        op: Operator in the runtime's name.
        seconds: Sum of the median seconds of one run. For torch's operators, with the operators that they
            call.
        share: Share of the run, as in `LayerTime`. For torch's operators, the share of `self_seconds`.
        layers: Number of layers that have kernels of this operator.
        self_seconds: Seconds without the operators that it calls, or None if it is the same as `seconds`.
        allocated_bytes: Bytes that the operator itself allocated minus the bytes that it freed, or None if
            not reported.
        total_bytes: Bytes that the operator and the operators that it calls allocated minus the bytes that
            they freed, or None if not reported.
    """

    op: str
    calls: int
    seconds: float
    share: float
    layers: int
    self_seconds: float | None = None
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    total_bytes: int | None = None


class ModuleTime(Fact, frozen=True):
    """Time of a group of layers, or of a module that contains other modules.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        self_seconds: Seconds without the rows below it.
        seconds: Seconds with the rows below it. These are sums of medians, so a group has the sum of its
            rows.
    """

    layer: int
    path: str
    kind: str
    self_seconds: float
    seconds: float
    share: float
    calls: int


class OtherTime(Fact, frozen=True):
    """Time of kernels that belong to no layer, such as copies and layout conversions."""

    name: str
    seconds: float
    calls: int
    share: float


class PhaseTime(Fact, frozen=True):
    """Time of one phase of a training step without a profiler: 'forward', 'loss', 'backward', ..."""

    name: str
    seconds: Spread
    share: float


class Profile(TableFact, frozen=True):
    """Measured time of one model, and its distribution over the layers.

    Attributes:
        wall_seconds: Median seconds of one run.
        wall: Seconds of one run from the call to the result, measured without a profiler.
        overhead_seconds: Part of `wall_seconds` outside of `layers` and `other`: the runtime's own work and
            gaps. 0 if the layers and `other` took longer under the profiler than a run without it.
        slowed_seconds: Seconds by which `layers` and `other` took longer in that case: the cost of the
            profiler within kernels.
        other: Times of kernels that belong to no layer, by name.
        layers: Times of the layers in execution order, with layers that have no time of their own.
        operators: Times by operator, the most expensive first.
        modules: Times of the groups, in the order of the rows.
        removed: Paths of layers that do not run: the runtime computes them when it loads the model, or
            removes them.
        runs: Number of timed runs without the profiler.
        warmup: Number of untimed runs before the timed runs.
        settled: Whether the 95 % interval of the median wall time is within 5 % of the median.
        stopped: Reason why the measurement ended.
        profiler_overhead: Extra time of a run under the profiler, as a share of a run without it, or None if
            unknown.
        profiled_runs: Number of timed runs under the profiler, which give the times of the layers.
        profiling_overhead: Extra time of the full measurement for the runs under the profiler, as a share,
            with their start and the reading of their events. If a run takes more than 20 ms, their number is
            limited to keep this share below a tenth, but there is at least one.
        device: Device that ran the model: 'cpu', 'cuda'.
        threads: Number of threads for operators.
        batch: Size bound to the open first dimension, or None if none was bound.
        rows: Number of samples per run (first dimension of the first input), or None for a scalar input.
        optimize: Requested optimization level: 'none', 'basic', 'extended' or 'all'; '' if the runtime has no
            levels.
        runtime: Name and version of the runtime: 'onnxruntime 1.32.0'.
        inputs: Descriptions of the inputs.
        machine: Machine to which `limit_seconds` applies, or None.
        limit_seconds: Least possible seconds of all layers whose limit is known, or None without a machine.
        predicted_seconds: Predicted seconds of one run, from the measurements of `machine`: the sum over the
            layers that have a prediction, plus the time of the call itself.
        loaded: Whether other programs used the machine during the measurement.
        load: Evidence for that, in words.
        notes: Further remarks, in words.
        phases: Phases of a training step. Empty if no training step was timed.
        recording: Recorded runs under the profiler, if they were requested.
    """

    ROWS: ClassVar[str] = "layers"

    wall_seconds: float
    wall: Spread
    overhead_seconds: float
    layers: tuple[LayerTime, ...]
    operators: tuple[OperatorTime, ...]
    modules: tuple[ModuleTime, ...]
    other: tuple[OtherTime, ...]
    removed: tuple[str, ...]
    runs: int
    warmup: int
    settled: bool
    stopped: Stopped
    profiler_overhead: float | None
    device: str
    threads: int
    batch: int | None
    rows: int | None
    optimize: str
    runtime: str
    inputs: tuple[str, ...] = ()
    machine: Machine | None = None
    limit_seconds: float | None = None
    predicted_seconds: float | None = None
    loaded: bool = False
    load: str = ""
    notes: tuple[str, ...] = ()
    phases: tuple[PhaseTime, ...] = ()
    slowed_seconds: float = 0.0
    recording: tuple[RecordedRun, ...] = ()
    profiled_runs: int = 0
    profiling_overhead: float | None = None

    @property
    def efficiency(self) -> float | None:
        """Least possible time of all layers divided by the wall time, or None without a machine."""
        return None if self.limit_seconds is None else self.limit_seconds / self.wall_seconds

    @property
    def kernel_seconds(self) -> float:
        """Seconds of all kernels of one run under the profiler: those of `layers` and `other`."""
        return self.wall_seconds - self.overhead_seconds + self.slowed_seconds

    @property
    def share_base(self) -> Literal["kernel", "wall"]:
        """Time of which all shares are parts: the wall time, or the kernel time if that is longer."""
        return "kernel" if self.slowed_seconds else "wall"

    @property
    def share_base_seconds(self) -> float:
        """Seconds of `share_base` in one run."""
        return self.wall_seconds + self.slowed_seconds


class BatchTime(Fact, frozen=True):
    """Time of one batch size.

    Attributes:
        wall_seconds: Median seconds of a run.
        low: Lower end of the 95 % interval of the median.
        high: Upper end of the 95 % interval of the median.
        row_seconds: Seconds per sample of the batch.
        rows_per_second: Samples per second.
    """

    batch: int
    wall_seconds: float
    low: float
    high: float
    row_seconds: float
    rows_per_second: float
    overhead_seconds: float
    settled: bool


class ProfileSeries(Fact, frozen=True):
    """Profiles of one model at several batch sizes: a table of the times, and each profile."""

    batches: tuple[BatchTime, ...]
    profiles: tuple[Profile, ...]


def combine_profiles(profiles: Sequence[Profile]) -> ProfileSeries:
    """Builds the table of times from the profiles of several batch sizes."""
    batch_times = []
    for profile in profiles:
        batch, seconds = profile.batch or 1, profile.wall_seconds
        rate = batch / seconds if seconds else 0.0
        low, high, overhead = profile.wall.low, profile.wall.high, profile.overhead_seconds
        batch_times.append(
            BatchTime(batch, seconds, low, high, seconds / batch, rate, overhead, profile.settled)
        )
    return ProfileSeries(tuple(batch_times), tuple(profiles))


_KEYS: Mapping[str, Callable[[LayerTime], float | None]] = {
    "time": lambda layer: layer.seconds.median if layer.seconds else None,
    "order": lambda layer: -layer.layer,
    "calls": lambda layer: layer.calls,
    "mac-rate": lambda layer: layer.macs_per_second,
    "byte-rate": lambda layer: layer.bytes_per_second,
    "limit": lambda layer: layer.limit_seconds,
    "roof": lambda layer: layer.efficiency,
    "memory": lambda layer: layer.allocated_bytes,
}
"""Sort keys of layers, the largest value first. 'order' is the order of the rows, 'roof' the efficiency."""


def sort_times(layers: Sequence[LayerTime], key_name: str = "time") -> tuple[LayerTime, ...]:
    """Sorts layers by one of `_KEYS`. Layers with an unknown value come last."""

    def key(layer: LayerTime) -> tuple[bool, float]:
        value = _KEYS[key_name](layer)
        return value is None, -(value or 0.0)

    return tuple(sorted(layers, key=key))


def collect_measured_figures(fact: Profile) -> dict[str, Mapping[int, float | None]]:
    """Returns the figures of the rows that have a time of their own, by row id. Groups sum them.

    Returns:
        'measured' (seconds) and 'measured_share' (share as in `LayerTime`). With a machine also
        'measured_limit' (least possible seconds, if known) and 'measured_limited' (measured seconds of the
        same rows).
    """
    timed = [(time, time.seconds.median) for time in fact.layers if time.seconds is not None]
    figures: dict[str, Mapping[int, float | None]] = {
        "measured": {time.layer: seconds for time, seconds in timed},
        "measured_share": {time.layer: time.share for time, _ in timed},
    }
    if fact.machine is not None:
        limited = [(time, seconds) for time, seconds in timed if time.limit_seconds is not None]
        figures["measured_limit"] = {time.layer: time.limit_seconds for time, _ in limited}
        figures["measured_limited"] = {time.layer: seconds for time, seconds in limited}
    return figures


def collect_layer_figures(fact: Profile) -> dict[str, Mapping[int, float | None]]:
    """Returns the figures of each layer, without groups, by the name of the column that shows them."""
    measured = collect_measured_figures(fact)
    figures = {name: measured[name] for name in ("measured", "measured_share")}
    if fact.machine is not None:
        figures["efficiency"] = {
            time.layer: time.efficiency for time in fact.layers if time.seconds is not None
        }
    return figures
