"""Facts about measured time: how long a model runs, layer by layer, and what is no layer.

The sum is the wall time: `wall_seconds` is what the layers, the named parts of `other` and
`overhead_seconds` add up to, less `slowed_seconds`. Nothing is divided by guess: where one kernel does the
work of several layers, one of them has its time and the others say which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from explorer.base.checked import Count, Natural, PathText, Spec, Words
from explorer.base.options import option
from explorer.facts.external.machine import Machine
from explorer.facts.profile.recording import RecordedRun

OptimizeLevel = Literal["none", "basic", "extended", "all"]
"""How far onnxruntime rewrites a graph before it runs."""

StepOptimizer = Literal["sgd", "momentum", "adam"]
"""What takes a training step."""

Stopped = Literal["settled", "steps", "time limit"]
"""Why no more runs were made: the median was sure, so many were asked for, or the time was over."""


SURE = 6
"""Samples from which on the least and the most hold the true median in 95 of 100 measurements."""


class ProfileSpec(Spec, frozen=True):
    """How a model is to be timed.

    Attributes:
        optimize: 'none', 'basic', 'extended' or 'all'; None: all, where the runtime is not too slow for it.
        threads: That its operators may use; None: as the runtime likes.
        device: 'cpu', 'cuda', or what the runtime calls another.
        warmup: Runs before those that are timed.
        steps: Timed runs; None: until the median is sure.
        repeat: How often all is done anew, with the model loaded again.
        time_limit: Seconds after which no more runs are made.
        input: An .npy or .npz file to run on; None draws it.
        seed: Of drawn inputs.
        train: A training step: forward, backward, optimizer. Of modules alone.
        optimizer: What takes the step: 'sgd', 'momentum', 'adam'.
        record: Runs under the profiler that are kept as they were, for a trace.
    """

    optimize: Annotated[
        OptimizeLevel | None,
        option("level of onnxruntime's graph optimization (default all; of more than 4,096 nodes none)"),
    ] = None
    threads: Annotated[
        Count | None,
        option("threads for operators (default: as the runtime likes)", metavar="N"),
    ] = None
    device: Annotated[
        Words, option("what runs it: cpu, cuda, or another of the runtime's", metavar="NAME")
    ] = "cpu"
    warmup: Annotated[Natural, option("runs before those that are timed", metavar="N")] = 2
    steps: Annotated[
        Count | None,
        option("timed runs (default: until the median is sure)", metavar="N"),
    ] = None
    repeat: Annotated[Count, option("load the model anew and time it again, N times in all", metavar="N")] = 1
    time_limit: Annotated[
        float,
        Meta(gt=0, le=1e9),
        option(
            "seconds after which no more runs are made", metavar="S", write="{:g}".format, reader="seconds"
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
    optimizer: Annotated[StepOptimizer, option("what takes the step of --train")] = "sgd"
    record: Natural = 0


class Spread(Struct, frozen=True):
    """Seconds that were measured several times.

    Attributes:
        median, p10, p90: Of the samples.
        low, high: The interval that holds the true median in 95 of 100 measurements, by order statistics (no
            shape of the distribution is assumed). Below six samples no interval is that sure, and these are
            the least and the most.
        count: How many samples.
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
        return self.count >= SURE


class LayerTime(Struct, frozen=True):
    """The time of one layer; of a group what it does itself: a Loop without its body.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        op: What ran, as the runtime names it: 'FusedConv'. Several: 'MatMul, Add'.
        seconds: Of one run of the model, all calls together; None where the layer has no time of its own.
        calls: Kernels that ran for it in one run.
        share: Of `Profile.wall_seconds`, or of what all kernels took under the profiler where that is more.
        macs_per_second, bytes_per_second: What was counted of the layer, and of those within it, over its
            median; None where either is not known, and for MACs where there are none.
        predicted_seconds: What a model of time said before it ran.
        limit_seconds: Least time on `Profile.machine`, of the layer and those within it.
        within: Path of the layer whose kernel did this one's work, too; '' where it has its own.
        holds: Paths of the layers within this one.
        allocated_bytes, peak_bytes: Memory that its kernels asked for, and the most that was held at once,
            where the profiler tells.
        backward_seconds: What of `seconds` is behind the loss of a training step, where it runs there.
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
        """Its time without that behind the loss: what is counted of it is of this."""
        if self.seconds is None:
            return None
        return max(0.0, self.seconds.median - (self.backward_seconds or 0.0))

    @property
    def efficiency(self) -> float | None:
        """The least time over the measured one: 1 is at the roof."""
        if self.limit_seconds is None or not self.forward_seconds:
            return None
        return self.limit_seconds / self.forward_seconds

    @property
    def error(self) -> float | None:
        """By what share the prediction is above the measured time; below 0 it is less."""
        if self.predicted_seconds is None or self.seconds is None or not self.seconds.median:
            return None
        return self.predicted_seconds / self.seconds.median - 1


class OperatorTime(Struct, frozen=True):
    """All kernels of one kind, those that are no layer's too.

    Attributes:
        op: As the runtime names it.
        seconds: Sum of medians, of one run; of torch's operators with those that they call.
        share: As of a layer; of torch's operators of what they take themselves.
        layers: How many layers have kernels of it.
        self_seconds: Without what operators that it calls take; None where that is the same.
        allocated_bytes: What it asked for itself less what it gave back, where the profiler tells.
        total_bytes: The same with operators that it calls.
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


class ModuleTime(Struct, frozen=True):
    """A group of layers, or a module with others in it.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        self_seconds: What it takes itself, without the rows below it.
        seconds: With them. Sums of medians, so a group has what its rows have.
    """

    layer: int
    path: str
    kind: str
    self_seconds: float
    seconds: float
    share: float
    calls: int


class OtherTime(Struct, frozen=True):
    """What ran and is no layer: copies, changes of layout."""

    name: str
    seconds: float
    calls: int
    share: float


class PhaseTime(Struct, frozen=True):
    """A part of a training step, measured without a profiler: 'forward', 'loss', 'backward', ..."""

    name: str
    seconds: Spread
    share: float


class Profile(Struct, frozen=True):
    """How long one model runs, and where the time goes.

    Attributes:
        wall: Time of one run from call to result, measured without a profiler; `wall_seconds` is its median.
        overhead_seconds: What of `wall_seconds` neither a layer nor `other` has: the runtime's own work,
            gaps; 0 where these took longer than the runs without the profiler.
        slowed_seconds: What they took longer then: the profiler's cost within kernels.
        other: What ran and is no layer, by name.
        layers: In execution order, with those that have no time of their own.
        operators: By kind of kernel, the most expensive first.
        modules: Groups, in the order of the rows.
        removed: Paths of layers that do not run: computed when the model is loaded, or left out.
        runs: Timed runs without the profiler.
        warmup: Runs before those.
        settled: Whether the 95 % interval of the wall's median is within 5 % of it.
        stopped: Why no more runs were made.
        profiler_overhead: What a run takes longer under the profiler, as a share of the one without.
        profiled_runs: Timed runs under it, which have the times of the layers.
        profiling_overhead: What all runs took longer for those under it, as a share; what these are begun and
            read with is in it. Of runs above 20 ms only as many are made as keep it within a tenth, and one.
        device: What ran it: 'cpu', 'cuda'.
        threads: That its operators may use.
        batch: Size that was bound to the open first dimension; None where none was.
        rows: Samples in one run, the first size of the first input; None where it has none.
        optimize: 'none', 'basic', 'extended' or 'all', what the runtime was asked for; '' where it has no
            such levels.
        runtime: 'onnxruntime 1.32.0'.
        inputs: What it was run on, in words.
        machine: That `limit_seconds` are of: the least time of a layer, and here of all whose limit is known.
        predicted_seconds: Of one run, from what was measured of `machine`: the layers whose time is
            predicted, and the call.
        loaded: Whether something else ran on the machine meanwhile; `load` says how that was seen.
        notes: What else to know, in words.
        phases: The parts of a training step; none where it is no step.
        recording: Some runs under the profiler as they were, where that was asked for.
    """

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
        """The least time of all layers over the wall time; None without a machine."""
        return None if self.limit_seconds is None else self.limit_seconds / self.wall_seconds


class BatchTime(Struct, frozen=True):
    """What a batch takes.

    Attributes:
        wall_seconds, low, high: The median of a run, and its 95 % interval.
        row_seconds: Of one sample of the batch.
        rows_per_second: Samples in a second.
    """

    batch: int
    wall_seconds: float
    low: float
    high: float
    row_seconds: float
    rows_per_second: float
    overhead_seconds: float
    settled: bool


class ProfileSeries(Struct, frozen=True):
    """One model at several batches: side by side, and each."""

    batches: tuple[BatchTime, ...]
    profiles: tuple[Profile, ...]


def series(profiles: Sequence[Profile]) -> ProfileSeries:
    """Profiles of several batches, side by side."""
    batch_times = []
    for profile in profiles:
        batch, took = profile.batch or 1, profile.wall_seconds
        rate = batch / took if took else 0.0
        sure = profile.wall.low, profile.wall.high
        batch_times.append(
            BatchTime(batch, took, *sure, took / batch, rate, profile.overhead_seconds, profile.settled)
        )
    return ProfileSeries(tuple(batch_times), tuple(profiles))


_KEYS: Mapping[str, Callable[[LayerTime], float | None]] = {
    "time": lambda one: one.seconds.median if one.seconds else None,
    "order": lambda one: -one.layer,
    "calls": lambda one: one.calls,
    "mac-rate": lambda one: one.macs_per_second,
    "byte-rate": lambda one: one.bytes_per_second,
    "limit": lambda one: one.limit_seconds,
    "roof": lambda one: one.efficiency,
    "memory": lambda one: one.allocated_bytes,
}
"""What layers are sorted by, the largest first; 'order' is that of the rows, 'roof' the efficiency."""


def ordered(layers: Sequence[LayerTime], by: str = "time") -> tuple[LayerTime, ...]:
    """Layers by one of `_KEYS`, those of which it is not known last."""

    def key(layer: LayerTime) -> tuple[bool, float]:
        value = _KEYS[by](layer)
        return value is None, -(value or 0.0)

    return tuple(sorted(layers, key=key))


def measured_figures(fact: Profile) -> dict[str, Mapping[int, float | None]]:
    """What a profile has of rows that have time of their own, by the id of the row: what groups sum.

    Returns:
        'measured' seconds, 'measured_share' of the wall time, and with a machine 'measured_limit', the least
        time of those of which it is known, and 'measured_limited', what these took.
    """
    timed = [(layer, layer.seconds.median) for layer in fact.layers if layer.seconds is not None]
    figures: dict[str, Mapping[int, float | None]] = {
        "measured": {layer.layer: took for layer, took in timed},
        "measured_share": {layer.layer: layer.share for layer, _ in timed},
    }
    if fact.machine is not None:
        limited = [(layer, took) for layer, took in timed if layer.limit_seconds is not None]
        figures["measured_limit"] = {layer.layer: layer.limit_seconds for layer, _ in limited}
        figures["measured_limited"] = {layer.layer: took for layer, took in limited}
    return figures


def layer_figures(fact: Profile) -> dict[str, Mapping[int, float | None]]:
    """What a profile has of each layer, not of groups, under the names of the columns that show it."""
    measured = measured_figures(fact)
    figures = {name: measured[name] for name in ("measured", "measured_share")}
    if fact.machine is not None:
        figures["efficiency"] = {
            layer.layer: layer.efficiency for layer in fact.layers if layer.seconds is not None
        }
    return figures
