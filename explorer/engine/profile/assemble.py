"""Assembles a profile from samples: times of rows, of kernels outside rows, and overhead.

Medians are added, never samples: so layers, operators and groups are sums of the same figures. Together with
`other` and the overhead they give the wall time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from explorer.base.units import many_text
from explorer.engine.costs.layer_tree import summed
from explorer.engine.costs.memory.roofline import bytes_moved, least_seconds
from explorer.engine.profile.kernels import RuntimeKernel
from explorer.engine.profile.predict import TimeModel
from explorer.engine.profile.statistics import is_settled, spread
from explorer.facts import Layer, TensorInfo
from explorer.facts.profile.profile import (
    LayerTime,
    ModuleTime,
    OperatorTime,
    OtherTime,
    Profile,
    Spread,
    Stopped,
)
from explorer.facts.profile.recording import RecordedRun
from explorer.facts.roofline import Machine
from explorer.settings.columns import tensor_bytes


class TimeSamples(Struct):
    """The samples of one row of the tree, or of a name outside it, run after run.

    Attributes:
        seconds: Seconds of each run.
        ops: Seconds and calls of one run by operator, in the runtime's names.
        allocated_bytes, peak_bytes: Memory, if the profiler reports it.
        backward: The part of `seconds` behind the loss of a training step.
        kernels: The kernels of one run, where they belong to no row.
    """

    seconds: list[float] = field(default_factory=list)
    ops: dict[str, tuple[float, int]] = field(default_factory=dict)
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    backward: list[float] = field(default_factory=list)
    kernels: list[RuntimeKernel] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Kernels of one run."""
        return sum(calls for _, calls in self.ops.values())


class Conditions(Struct, frozen=True):
    """The conditions of a measurement: fields of `Profile` of these names, and those in `_NO_FIELDS`.

    Attributes:
        profiled: Wall times of the runs under the profiler.
        spent: Wall times with the start and the reading of the profiler, including runs that are not counted.
        model: Predicts the times of layers.
        load: Signs that another program ran, in words; '' for none.
    """

    warmup: int
    stopped: Stopped
    device: str
    threads: int
    runtime: str
    profiled: Sequence[float] = ()
    spent: Sequence[float] = ()
    batch: int | None = None
    rows: int | None = None
    optimize: str = ""
    inputs: tuple[str, ...] = ()
    machine: Machine | None = None
    model: TimeModel | None = None
    load: str = ""
    notes: tuple[str, ...] = ()
    recording: tuple[RecordedRun, ...] = ()


def assembled(
    layers: Sequence[Layer],
    wall: Sequence[float],
    of_row: Mapping[int, TimeSamples],
    within: Mapping[int, int],
    other_samples: Mapping[str, TimeSamples],
    conditions: Conditions,
) -> Profile:
    """Assembles a profile.

    Args:
        layers: The rows of the tree, in pre-order.
        wall: Seconds of each run without a profiler.
        of_row: The samples of a row, by its id.
        within: Rows without time of their own, each with the row whose kernel did their work.
        other_samples: The samples of kernels that belong to no row, by name.
        conditions: The conditions.
    """
    whole = spread(wall)
    inside: dict[int, list[int]] = {}
    for row, around in within.items():
        inside.setdefault(around, []).append(row)
    timed = {row: spread(samples.seconds) for row, samples in of_row.items()}
    medians = {row: times_of_row.median for row, times_of_row in timed.items()}
    aside = {name: spread(samples.seconds).median for name, samples in sorted(other_samples.items())}
    attributed_seconds = sum(medians.values()) + sum(aside.values())
    base = max(whole.median, attributed_seconds)
    times = [
        _layer_time(layers, row, inside.get(row, ()), of_row[row], timed[row], base, conditions)
        for row in of_row
    ]
    times += [
        LayerTime(row, layers[row].path, layers[row].kind, "", None, 0, 0.0, within=layers[around].path)
        for row, around in within.items()
        if row not in of_row
    ]
    timed_rows = {*of_row, *within}
    beside = [kernel for samples in other_samples.values() for kernel in samples.kernels]
    fields = {
        name: getattr(conditions, name) for name in conditions.__struct_fields__ if name not in _NO_FIELDS
    }
    return Profile(
        wall_seconds=whole.median,
        wall=whole,
        overhead_seconds=max(0.0, whole.median - attributed_seconds),
        slowed_seconds=max(0.0, attributed_seconds - whole.median),
        layers=tuple(sorted(times, key=lambda layer_time: layer_time.layer)),
        operators=_operators([*of_row.values(), *other_samples.values()], len(of_row), base),
        modules=tuple(_modules(layers, medians, of_row, base)),
        other=tuple(
            [
                OtherTime(name, took, other_samples[name].calls, _share(took, base))
                for name, took in aside.items()
            ]
        ),
        removed=tuple(
            [
                layer.path
                for layer in layers
                if not layer.group and layer.counted and layer.id not in timed_rows
            ]
        ),
        runs=whole.count,
        settled=is_settled(whole),
        limit_seconds=summed(layer_time.limit_seconds for layer_time in times if layer_time.seconds)
        if conditions.machine
        else None,
        predicted_seconds=None if conditions.model is None else _predicted(conditions.model, times, beside),
        profiler_overhead=_overhead(whole.median, conditions.profiled),
        profiled_runs=len(conditions.profiled),
        profiling_overhead=_cost(wall, conditions.spent),
        loaded=bool(conditions.load),
        notes=(*conditions.notes, *_unpredicted(conditions.model, times, beside)),
        **fields,
    )


_NO_FIELDS = ("profiled", "spent", "notes", "model")


def _overhead(median: float, profiled: Sequence[float]) -> float | None:
    """The additional time of a run under the profiler, as a share of a run without it."""
    return spread(profiled).median / median - 1 if profiled and median else None


def _cost(wall: Sequence[float], spent: Sequence[float]) -> float | None:
    """The additional time of all runs under the profiler, as a share of their time without it."""
    median = spread(wall).median
    if not spent or not median:
        return None
    return len(spent) * (spread(spent).median / median - 1) / (len(wall) + len(spent))


def _predicted(model: TimeModel, times: Sequence[LayerTime], beside: Iterable[RuntimeKernel]) -> float | None:
    """Seconds of a run; `beside` are the kernels that belong to no layer."""
    predicted_seconds = [
        layer_time.predicted_seconds for layer_time in times if layer_time.predicted_seconds is not None
    ]
    if not predicted_seconds:
        return None
    return sum(predicted_seconds) + sum(_beside(model, kernel) or 0.0 for kernel in beside) + model.call


def _beside(model: TimeModel, kernel: RuntimeKernel) -> float | None:
    return model.beside(kernel.op, kernel.calls, kernel.output_bytes, is_turned=kernel.is_turned)


def _unpredicted(
    model: TimeModel | None, times: Sequence[LayerTime], beside: Iterable[RuntimeKernel]
) -> tuple[str, ...]:
    if model is None:
        return ()
    layers = sum(
        layer_time.seconds is not None and layer_time.predicted_seconds is None for layer_time in times
    )
    kernels = sum(_beside(model, kernel) is None for kernel in beside)
    missing = [many_text(layers, "layer")] if layers else []
    missing += [f"{many_text(kernels, 'kernel')} of no layer"] if kernels else []
    return (
        (f"the times of {' and '.join(missing)} are not predicted, and not in the prediction",)
        if missing
        else ()
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _layer_time(
    layers: Sequence[Layer],
    row: int,
    inside: Sequence[int],
    samples: TimeSamples,
    times: Spread,
    whole: float,
    conditions: Conditions,
) -> LayerTime:
    layer, median = layers[row], times.median
    # a group has the time of its own kernels (a Loop without its body), but the counts of all rows in it
    together = () if layer.group else (layer, *(layers[at] for at in inside if not layers[at].group))
    macs, moved = _work(together)
    backward = spread(samples.backward).median if samples.backward else None
    forward = max(0.0, median - (backward or 0.0))
    machine, model = conditions.machine, conditions.model
    return LayerTime(
        row,
        layer.path,
        layer.kind,
        ", ".join(samples.ops),
        times,
        samples.calls,
        _share(median, whole),
        macs / forward if macs and forward else None,
        moved / forward if moved and forward else None,
        None if model is None else model.seconds(layer, samples.ops, [layers[at] for at in inside]),
        None if machine is None or macs is None or moved is None else least_seconds(macs, moved, machine),
        "",
        tuple([layers[at].path for at in inside]),
        samples.allocated_bytes,
        samples.peak_bytes,
        backward,
    )


def _work(rows: Iterable[Layer]) -> tuple[int | None, int | None]:
    """MACs and bytes of layers that run as one kernel, without the tensors that stay inside the kernel."""
    rows = tuple(rows)
    if not rows:
        return None, None
    each = [layer.macs for layer in rows]
    macs = None if None in each else sum(count or 0 for count in each)
    moves = [bytes_moved(layer) for layer in rows]
    if None in moves:
        return macs, None
    outputs = {tensor.name: tensor for layer in rows for tensor in layer.outputs}
    passed: list[TensorInfo] = [t for layer in rows for t in layer.inputs if t.name in outputs]
    passed_bytes = tensor_bytes({t.name: t for t in passed}.values())
    read = [tensor_bytes((t,)) for t in passed]
    if passed_bytes is None or None in read:
        return macs, None
    return macs, max(0, sum(size or 0 for size in moves) - passed_bytes - sum(size or 0 for size in read))


def _operators(every: Sequence[TimeSamples], rows: int, whole: float) -> tuple[OperatorTime, ...]:
    """Times by operator; a row's time is divided among its operators. The first `rows` samples are rows'."""
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    layers: dict[str, int] = {}
    for at, samples in enumerate(every):
        median = spread(samples.seconds).median
        ran = sum(took for took, _ in samples.ops.values())
        for op, (took, count) in samples.ops.items():
            part = took / ran if ran else 1 / len(samples.ops)
            seconds[op] = seconds.get(op, 0.0) + median * part
            calls[op] = calls.get(op, 0) + count
            layers[op] = layers.get(op, 0) + (at < rows)
    order = sorted(seconds, key=lambda op: (-seconds[op], op))
    return tuple(
        [OperatorTime(op, calls[op], seconds[op], _share(seconds[op], whole), layers[op]) for op in order]
    )


def _modules(
    layers: Sequence[Layer], medians: Mapping[int, float], of_row: Mapping[int, TimeSamples], whole: float
) -> Iterable[ModuleTime]:
    """The times of groups: sums over the rows below them."""
    seconds = {row: medians.get(row, 0.0) for row in range(len(layers))}
    calls = {row: of_row[row].calls if row in of_row else 0 for row in range(len(layers))}
    for layer in reversed(layers):
        if layer.parent is not None:
            seconds[layer.parent] += seconds[layer.id]
            calls[layer.parent] += calls[layer.id]
    for layer in layers:
        if layer.group and calls[layer.id]:
            own_seconds = medians.get(layer.id, 0.0)
            took = seconds[layer.id]
            yield ModuleTime(
                layer.id, layer.path, layer.kind, own_seconds, took, _share(took, whole), calls[layer.id]
            )
