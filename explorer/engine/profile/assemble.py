"""Assembles a profile from samples: times of rows, times of kernels outside rows, and overhead.

A row is a row of the layer tree. Its time is the median of its samples. The times of groups and operators are
sums of these medians, so that layers, operators and groups agree. The medians of all rows and other kernels
plus the overhead give the wall time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct, field

from explorer.base.units import many_text
from explorer.engine.costs.layer_tree import sum_known
from explorer.engine.costs.memory.roofline import compute_minimum_seconds, count_moved_bytes
from explorer.engine.profile.kernels import RuntimeKernel
from explorer.engine.profile.predict import TimeModel
from explorer.engine.profile.statistics import compute_spread, is_settled
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
from explorer.settings.columns import sum_tensor_bytes


class TimeSamples(Struct):
    """Samples of one row of the layer tree, or of all kernels of one name that belong to no row.

    Attributes:
        seconds: Seconds in each run.
        ops: Seconds and number of calls in the last run, by operator name of the runtime.
        allocated_bytes, peak_bytes: Allocated and peak memory in bytes, or None if the profiler does not
            report memory.
        backward: Seconds of the backward pass in each run; empty if there was none.
        kernels: The kernels of the last run, if they belong to no row.
    """

    seconds: list[float] = field(default_factory=list)
    ops: dict[str, tuple[float, int]] = field(default_factory=dict)
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    backward: list[float] = field(default_factory=list)
    kernels: list[RuntimeKernel] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Number of kernel calls in one run."""
        return sum(calls for _, calls in self.ops.values())


class Conditions(Struct, frozen=True):
    """Conditions of a measurement.

    Each field has the meaning of the `Profile` field with the same name, except the fields in
    `_NOT_IN_PROFILE`.

    Attributes:
        profiled: Wall times of the runs under the profiler, in seconds.
        spent: Seconds of each run under the profiler, with the profiler's start and end; includes warm-up
            runs of blocks.
        model: Predicts the times of layers, or None.
        load: Signs that another program used the machine, as text; '' if there are none.
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


def _list_removed(layers: Sequence[Layer], timed_rows: Collection[int]) -> tuple[str, ...]:
    """Returns the paths of the counted layers that do not run."""
    return tuple(
        [layer.path for layer in layers if not layer.group and layer.counted and layer.id not in timed_rows]
    )


def assemble_profile(
    layers: Sequence[Layer],
    wall: Sequence[float],
    samples_by_row: Mapping[int, TimeSamples],
    kernel_rows: Mapping[int, int],
    other_samples: Mapping[str, TimeSamples],
    conditions: Conditions,
) -> Profile:
    """Assembles a profile.

    Args:
        layers: The rows of the layer tree, in pre-order.
        wall: Wall seconds of each run without a profiler.
        samples_by_row: Samples of the rows, by row id.
        kernel_rows: For each row without samples whose work another row's kernel did, the id of that row.
        other_samples: Samples of the kernels that belong to no row, by name.
        conditions: The conditions of the measurement.
    """
    wall_spread = compute_spread(wall)
    rows_in_kernel: dict[int, list[int]] = {}
    for row, kernel_row in kernel_rows.items():
        rows_in_kernel.setdefault(kernel_row, []).append(row)
    timed = {row: compute_spread(samples.seconds) for row, samples in samples_by_row.items()}
    medians = {row: times_of_row.median for row, times_of_row in timed.items()}
    other_medians = {
        name: compute_spread(samples.seconds).median for name, samples in sorted(other_samples.items())
    }
    attributed_seconds = sum(medians.values()) + sum(other_medians.values())
    base = max(wall_spread.median, attributed_seconds)
    times = [
        _build_layer_time(
            layers, row, rows_in_kernel.get(row, ()), samples_by_row[row], timed[row], base, conditions
        )
        for row in samples_by_row
    ]
    times += [
        LayerTime(
            layer=row,
            path=layers[row].path,
            kind=layers[row].kind,
            op="",
            seconds=None,
            calls=0,
            share=0.0,
            within=layers[kernel_row].path,
        )
        for row, kernel_row in kernel_rows.items()
        if row not in samples_by_row
    ]
    unassigned_kernels = [kernel for samples in other_samples.values() for kernel in samples.kernels]
    fields = {
        name: getattr(conditions, name)
        for name in conditions.__struct_fields__
        if name not in _NOT_IN_PROFILE
    }
    return Profile(
        wall_seconds=wall_spread.median,
        wall=wall_spread,
        overhead_seconds=max(0.0, wall_spread.median - attributed_seconds),
        slowed_seconds=max(0.0, attributed_seconds - wall_spread.median),
        layers=tuple(sorted(times, key=lambda layer_time: layer_time.layer)),
        operators=_build_operator_times(
            [*samples_by_row.values(), *other_samples.values()], len(samples_by_row), base
        ),
        modules=tuple(_build_module_times(layers, medians, samples_by_row, base)),
        other=tuple(
            [
                OtherTime(name, seconds, other_samples[name].calls, _compute_share(seconds, base))
                for name, seconds in other_medians.items()
            ]
        ),
        removed=_list_removed(layers, {*samples_by_row, *kernel_rows}),
        runs=wall_spread.count,
        settled=is_settled(wall_spread),
        limit_seconds=sum_known(layer_time.limit_seconds for layer_time in times if layer_time.seconds)
        if conditions.machine
        else None,
        predicted_seconds=None
        if conditions.model is None
        else _predict_run(conditions.model, times, unassigned_kernels),
        profiler_overhead=_compute_overhead(wall_spread.median, conditions.profiled),
        profiled_runs=len(conditions.profiled),
        profiling_overhead=_compute_profiling_overhead(wall, conditions.spent),
        loaded=bool(conditions.load),
        notes=(*conditions.notes, *_list_unpredicted(conditions.model, times, unassigned_kernels)),
        **fields,
    )


_NOT_IN_PROFILE = ("profiled", "spent", "notes", "model")
"""Fields of `Conditions` that `assemble_profile` does not copy to the profile."""


def _compute_overhead(median: float, profiled: Sequence[float]) -> float | None:
    """Computes how much longer a run takes under the profiler, as a share of a run without it."""
    return compute_spread(profiled).median / median - 1 if profiled and median else None


def _compute_profiling_overhead(wall: Sequence[float], spent: Sequence[float]) -> float | None:
    """Computes the time that profiling added to all runs, as a share of their time without it."""
    median = compute_spread(wall).median
    if not spent or not median:
        return None
    return len(spent) * (compute_spread(spent).median / median - 1) / (len(wall) + len(spent))


def _predict_run(
    model: TimeModel, times: Sequence[LayerTime], unassigned_kernels: Iterable[RuntimeKernel]
) -> float | None:
    """Predicts the seconds of a run, or returns None if no layer is predicted.

    Args:
        model: The model of the machine's times.
        times: Times of the layers.
        unassigned_kernels: Kernels that belong to no layer.
    """
    predicted_seconds = [
        layer_time.predicted_seconds for layer_time in times if layer_time.predicted_seconds is not None
    ]
    if not predicted_seconds:
        return None
    return (
        sum(predicted_seconds)
        + sum(_predict_unassigned(model, kernel) or 0.0 for kernel in unassigned_kernels)
        + model.call
    )


def _predict_unassigned(model: TimeModel, kernel: RuntimeKernel) -> float | None:
    return model.predict_unassigned(kernel.op, kernel.calls, kernel.output_bytes, is_turned=kernel.is_turned)


def _list_unpredicted(
    model: TimeModel | None, times: Sequence[LayerTime], unassigned_kernels: Iterable[RuntimeKernel]
) -> tuple[str, ...]:
    """Returns a note on the timed layers and kernels that the prediction leaves out, or ()."""
    if model is None:
        return ()
    layers = sum(
        layer_time.seconds is not None and layer_time.predicted_seconds is None for layer_time in times
    )
    kernels = sum(_predict_unassigned(model, kernel) is None for kernel in unassigned_kernels)
    missing = [many_text(layers, "layer")] if layers else []
    missing += [f"{many_text(kernels, 'kernel')} of no layer"] if kernels else []
    return (f"the prediction does not include the times of {' and '.join(missing)}",) if missing else ()


def _compute_share(part: float, total: float) -> float:
    return part / total if total else 0.0


def _build_layer_time(
    layers: Sequence[Layer],
    row: int,
    merged_rows: Sequence[int],
    samples: TimeSamples,
    times: Spread,
    total: float,
    conditions: Conditions,
) -> LayerTime:
    """Builds the time of a row.

    Args:
        layers: The rows of the layer tree.
        row: Id of the row.
        merged_rows: Ids of further rows whose work the row's kernel does.
        samples: Samples of the row.
        times: Median of the samples, with its interval.
        total: Seconds of which the row's share is computed.
        conditions: The conditions of the measurement.
    """
    layer, median = layers[row], times.median
    # a group's time covers only its own kernels, but its MACs and bytes cover all rows in it: no rates
    kernel_layers = (
        ()
        if layer.group
        else (layer, *(layers[merged_row] for merged_row in merged_rows if not layers[merged_row].group))
    )
    macs, moved = _count_macs_and_bytes(kernel_layers)
    backward = compute_spread(samples.backward).median if samples.backward else None
    forward = max(0.0, median - (backward or 0.0))
    machine, model = conditions.machine, conditions.model
    return LayerTime(
        layer=row,
        path=layer.path,
        kind=layer.kind,
        op=", ".join(samples.ops),
        seconds=times,
        calls=samples.calls,
        share=_compute_share(median, total),
        macs_per_second=macs / forward if macs and forward else None,
        bytes_per_second=moved / forward if moved and forward else None,
        predicted_seconds=None
        if model is None
        else model.predict(layer, samples.ops, [layers[merged_row] for merged_row in merged_rows]),
        limit_seconds=None
        if machine is None or macs is None or moved is None
        else compute_minimum_seconds(macs, moved, machine),
        within="",
        holds=tuple([layers[merged_row].path for merged_row in merged_rows]),
        allocated_bytes=samples.allocated_bytes,
        peak_bytes=samples.peak_bytes,
        backward_seconds=backward,
    )


def _count_macs_and_bytes(rows: Iterable[Layer]) -> tuple[int | None, int | None]:
    """Computes the MACs and the moved bytes of layers that run as one kernel, or None where unknown.

    Tensors that are passed between these layers do not count as moved.
    """
    rows = tuple(rows)
    if not rows:
        return None, None
    macs_by_row = [layer.macs for layer in rows]
    macs = None if None in macs_by_row else sum(count or 0 for count in macs_by_row)
    moves = [count_moved_bytes(layer) for layer in rows]
    if None in moves:
        return macs, None
    outputs = {tensor.name: tensor for layer in rows for tensor in layer.outputs}
    inner_tensors: list[TensorInfo] = [t for layer in rows for t in layer.inputs if t.name in outputs]
    passed_bytes = sum_tensor_bytes({t.name: t for t in inner_tensors}.values())
    read = [sum_tensor_bytes((t,)) for t in inner_tensors]
    if passed_bytes is None or None in read:
        return macs, None
    return macs, max(0, sum(size or 0 for size in moves) - passed_bytes - sum(size or 0 for size in read))


def _build_operator_times(
    samples_of_all: Sequence[TimeSamples], rows: int, total: float
) -> tuple[OperatorTime, ...]:
    """Computes the times by operator.

    A row's time is divided among its operators in proportion to their times in the last run.

    Args:
        samples_of_all: Samples of the rows, followed by the samples of other kernels.
        rows: Number of entries in `samples_of_all` that belong to rows.
        total: Seconds of which each operator's share is computed.
    """
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    layers: dict[str, int] = {}
    for index, samples in enumerate(samples_of_all):
        median = compute_spread(samples.seconds).median
        operator_seconds = sum(seconds_in_run for seconds_in_run, _ in samples.ops.values())
        for op, (seconds_in_run, count) in samples.ops.items():
            part = seconds_in_run / operator_seconds if operator_seconds else 1 / len(samples.ops)
            seconds[op] = seconds.get(op, 0.0) + median * part
            calls[op] = calls.get(op, 0) + count
            layers[op] = layers.get(op, 0) + (index < rows)
    order = sorted(seconds, key=lambda op: (-seconds[op], op))
    return tuple(
        [
            OperatorTime(
                op=op,
                calls=calls[op],
                seconds=seconds[op],
                share=_compute_share(seconds[op], total),
                layers=layers[op],
            )
            for op in order
        ]
    )


def _build_module_times(
    layers: Sequence[Layer],
    medians: Mapping[int, float],
    samples_by_row: Mapping[int, TimeSamples],
    total: float,
) -> Iterable[ModuleTime]:
    """Computes the times of groups as sums over the rows in them."""
    seconds = {row: medians.get(row, 0.0) for row in range(len(layers))}
    calls = {row: samples_by_row[row].calls if row in samples_by_row else 0 for row in range(len(layers))}
    for layer in reversed(layers):
        if layer.parent is not None:
            seconds[layer.parent] += seconds[layer.id]
            calls[layer.parent] += calls[layer.id]
    for layer in layers:
        if layer.group and calls[layer.id]:
            own_seconds = medians.get(layer.id, 0.0)
            total_seconds = seconds[layer.id]
            yield ModuleTime(
                layer=layer.id,
                path=layer.path,
                kind=layer.kind,
                self_seconds=own_seconds,
                seconds=total_seconds,
                share=_compute_share(total_seconds, total),
                calls=calls[layer.id],
            )
