"""Text output of `explorer profile`: where the time of a run goes, and how certain the figures are."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import bytes_text, exact_text, many_do_text, many_text, rate_text, seconds_text
from explorer.facts import Info
from explorer.facts.profile.profile import LayerTime, ModuleTime, OperatorTime, Profile, ProfileSeries, Spread
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Span,
    Table,
    table_of,
)
from explorer.report.present.figures import bar_text, dash_zero, plain, seconds, share, share_text
from explorer.report.present.look.info import title
from explorer.report.present.look.roofline_words import format_machine

_MAX_OPERATORS = 10  # of the slowest, in the table of kernels
_MAX_NOTEBOOK_LAYERS = 20


def profile(info: Info, fact: Profile, limit: int) -> list[Block]:
    """Build the output of `explorer profile`, with at most `limit` layers."""
    return [*title(info.model), Line(), *profile_blocks(fact, limit)]


def summary_blocks(fact: Profile) -> list[Block]:
    """Build a profile for a cell of a notebook, with its slowest layers."""
    return profile_blocks(fact, _MAX_NOTEBOOK_LAYERS)


def profiles(info: Info, fact: ProfileSeries, limit: int) -> list[Block]:
    """Build the output of `explorer profile --batch 1,8,32`: a table of the batches, then each profile."""
    blocks: list[Block] = [_build_batch_table(fact)]
    for batch_profile in fact.profiles:
        blocks += [Line(), Heading(f"Batch {batch_profile.batch:,}"), *profile_blocks(batch_profile, limit)]
    return [*title(info.model), Line(), *blocks]


def profile_blocks(fact: Profile, limit: int) -> list[Block]:
    """Build the wall time and its parts, the tables of layers and operators, and the notes."""
    layers = [layer for layer in fact.layers if layer.seconds][:limit]
    timed_count = sum(layer.seconds is not None for layer in fact.layers)
    blocks: list[Block] = [build_profile_fields(fact)]
    if fact.phases:
        blocks += [Line(), _build_phase_table(fact)]
    if layers:
        blocks += [Line(), build_layer_table(fact, layers)]
    if timed_count > len(layers):
        blocks.append(Line(Span(f"{len(layers):,} of {timed_count:,} layers; --top shows more", "quiet")))
    return [*blocks, *build_other_blocks(fact, limit)]


def build_other_blocks(fact: Profile, limit: int) -> list[Block]:
    """Build the blocks after the layer table: groups, operators, time outside of layers, notes."""
    blocks: list[Block] = []
    if fact.modules:
        blocks += [Line(), _build_group_table(fact, limit)]
    if fact.operators:
        blocks += [Line(), build_operator_table(fact)]
    if fact.other:
        columns = (
            (Column("no layer"), lambda part: part.name),
            (Column("time", "right"), lambda part: seconds(part.seconds)),
            (Column("calls", "right"), lambda part: plain(part.calls)),
            (Column("share", "right"), lambda part: _format_share(part.share)),
        )
        blocks += [Line(), table_of(fact.other, columns)]
    if fact.removed:
        blocks += [
            Line(),
            Line(
                Span(
                    f"{many_do_text(len(fact.removed), 'layer', 'does', 'do')} not run: computed while the"
                    " model loads, or removed",
                    "quiet",
                )
            ),
        ]
    return [*blocks, *(Paragraph(note) for note in fact.notes)]


def format_spread(times: Spread) -> str:
    """Format the spread of times: '1.2 to 1.4 ms in eight of ten runs'."""
    if times.count == 1:
        return "one run"
    return f"{seconds_text(times.p10)} to {seconds_text(times.p90)} in eight of ten runs"


def build_profile_fields(fact: Profile) -> Fields:
    """Build the fields for the wall time, its confidence interval, the overhead and the measurement."""
    rows = [
        Field("Wall time", seconds(fact.wall_seconds), f"a run, {format_spread(fact.wall)}", "wall"),
        Field("  how sure", _format_interval(fact), _describe_stop(fact), "sure"),
    ]
    if fact.batch and fact.wall_seconds:
        rate = Span(rate_text(fact.batch / fact.wall_seconds, "rows/s"), "figure")
        rows.append(Field("  rows", rate, f"{fact.batch:,} in a run", "rows"))
    level = f", optimize {fact.optimize}" if fact.optimize else ""
    rows += [
        *_build_overhead(fact),
        Field("Profiler's cost", _format_overhead(fact), _describe_overhead(fact), "profiler"),
        Field(
            "Runs on", f"{fact.device}, {many_text(fact.threads, 'thread')}", f"{fact.runtime}{level}", "on"
        ),
        *(Field("Input", "", text) for text in fact.inputs),
    ]
    if fact.machine is not None:
        reached = Span(share_text(fact.efficiency, 1), "figure", value=fact.efficiency)
        rows.append(
            Field("Of the roof", reached, f"{format_machine(fact.machine)}, {fact.machine.origin}", "roof")
        )
    if fact.predicted_seconds is not None and fact.wall_seconds:
        rows.append(
            Field("Predicted", seconds(fact.predicted_seconds), _describe_prediction(fact), "predicted")
        )
    if fact.loaded:
        rows.append(Field(Span("Loaded machine", "warning"), Span("yes", "warning"), fact.load, "loaded"))
    return Fields(rows)


def _build_overhead(fact: Profile) -> list[Field]:
    """Build the fields for time outside of kernels, and for time that the profiler adds to kernels."""
    # work of other processes delays a different layer in each run, so no layer's median shows it
    remark = "no kernel runs: calls, copies, gaps" + (
        "; and time that other processes took" if fact.loaded else ""
    )
    # kernels that the profiler slows hide the time between them
    overhead = Span("?", "warning") if fact.slowed_seconds else seconds(fact.overhead_seconds)
    rows = [
        Field("Kernel time", seconds(fact.kernel_seconds), _describe_kernel_time(fact), "kernels"),
        Field("Runtime overhead", overhead, remark, "overhead"),
    ]
    if fact.slowed_seconds:
        remark = "kernel time above the wall time, because the profiler slows kernels: compare shares"
        slowed = Span(seconds_text(fact.slowed_seconds), "warning", value=fact.slowed_seconds)
        rows.append(Field("Kernels slowed", slowed, remark, "slowed"))
    return rows


def _describe_kernel_time(fact: Profile) -> str:
    return f"all kernels of a run, under the profiler; shares are of the {fact.share_base} time"


def _format_interval(fact: Profile) -> Span:
    low, high = seconds_text(fact.wall.low), seconds_text(fact.wall.high)
    if not fact.wall.sure:
        return Span("uncertain", "warning")
    return Span(f"{low} to {high}", "figure" if fact.settled else "warning")


def _describe_stop(fact: Profile) -> str:
    runs = many_text(fact.runs, "run")
    why = {
        "settled": "until the median was certain",
        "steps": "as requested",
        "time limit": "until the time limit",
    }[fact.stopped]
    if not fact.wall.sure:
        return f"{runs}, {why}: an interval needs at least six"
    width_note = "" if fact.settled else "; wider than 5 %"
    return f"95 % interval of the median{width_note}; {runs}, {why}"


def _describe_prediction(fact: Profile) -> str:
    """Describe the error of a prediction, in total and by layer, and the source of the prediction."""
    assert fact.predicted_seconds is not None
    error = fact.predicted_seconds / fact.wall_seconds - 1
    errors = sorted(abs(layer.error) for layer in fact.layers if layer.error is not None)
    half_text = f", half of the layers within {100 * errors[(len(errors) - 1) // 2]:.0f} %" if errors else ""
    return (
        f"{error * 100:+.0f} % against this run{half_text}; learned from kernels timed alone on this"
        " machine, not from this model"
    )


def _format_overhead(fact: Profile) -> Span:
    if fact.profiler_overhead is None:
        return Span("?", "warning")
    return Span(f"{fact.profiler_overhead * 100:+.0f} %", "figure", value=fact.profiler_overhead)


def _describe_overhead(fact: Profile) -> str:
    """Describe how much slower the runs with the profiler are."""
    remark = "the wall time is measured without it"
    if fact.profiler_overhead is not None:
        remark = f"profiled time {seconds_text(fact.wall_seconds * (1 + fact.profiler_overhead))}; {remark}"
    if fact.profiling_overhead is None:
        return f"on a run; {remark}"
    profiled = f"{fact.profiled_runs:,} of {fact.runs + fact.profiled_runs:,}"
    average_text = f"{fact.profiling_overhead * 100:+.0f} % on average: it was on in {profiled} runs"
    return f"on a run, {average_text}; {remark}"


def build_layer_table(fact: Profile, layers: Sequence[LayerTime]) -> Table:
    """Build a table with a row for each of `layers`."""
    largest = max((layer.share for layer in layers), default=0.0)

    def kernel(layer: LayerTime) -> Span:
        return Span(f"{layer.op}, for {1 + len(layer.holds):,} layers" if layer.holds else layer.op, "quiet")

    predicted = fact.predicted_seconds is not None
    return table_of(
        layers,
        (
            (Column("layer", shrink=True), lambda layer: layer.path or "(unnamed)"),
            (Column("kind", shrink=True, drop=2), lambda layer: Span(layer.kind, "kind")),
            (Column("kernel", shrink=True, drop=6), kernel),
            (Column("time", "right"), lambda layer: _format_median(layer.seconds)),
            (Column("p10 to p90", "right", drop=5), lambda layer: _build_spread_cell(layer.seconds)),
            (Column("calls", "right", drop=7), lambda layer: plain(layer.calls)),
            (Column("share", "right"), lambda layer: _format_share(layer.share)),
            (Column("", role="bar", drop=9), lambda layer: bar_text(layer.share, largest)),
            (Column("MACs/s", "right", drop=3), lambda layer: _format_rate(layer.macs_per_second, "MAC/s")),
            (Column("bytes/s", "right", drop=4), lambda layer: _format_rate(layer.bytes_per_second, "B/s")),
            (
                Column("backward" if fact.phases else "", "right", drop=1),
                lambda layer: _format_seconds(layer.backward_seconds),
            ),
            (
                Column("predicted" * predicted, "right", drop=3),
                lambda layer: _format_seconds(layer.predicted_seconds),
            ),
            (Column("error" * predicted, "right", drop=3), lambda layer: _format_error(layer.error)),
            (
                Column("of roof" if fact.machine is not None else "", "right", drop=1),
                lambda layer: "" if layer.efficiency is None else share(layer.efficiency, 1.0),
            ),
        ),
        what="layers",
    )


def _format_median(times: Spread | None) -> Cell:
    return "" if times is None else seconds(times.median)


def _build_spread_cell(times: Spread | None) -> Cell:
    if times is None:
        return ""
    return Span(f"{seconds_text(times.p10)} to {seconds_text(times.p90)}", "quiet")


def _format_seconds(value: float | None) -> Cell:
    return "" if value is None else seconds(value)


def _format_share(value: float) -> Span:
    return Span(share_text(value, 1), value=value)


def _format_error(value: float | None) -> Cell:
    return "" if value is None else Span(f"{value * 100:+.0f} %", "figure", value=value)


def _format_rate(value: float | None, unit: str) -> Cell:
    if value is None:
        return ""
    return Span(rate_text(value, unit), "figure", f"{value:,.0f} {unit}".strip(), value)


def build_operator_table(fact: Profile) -> Table:
    """Build a table with a row for each kind of kernel, slowest first; torch kernels also show their self
    time.
    """
    has_self_times = any(operator.self_seconds is not None for operator in fact.operators)
    has_memory = any(operator.allocated_bytes is not None for operator in fact.operators)

    def self_time(operator: OperatorTime) -> Span:
        return seconds(operator.seconds if operator.self_seconds is None else operator.self_seconds)

    def total(operator: OperatorTime) -> Span:
        return seconds(operator.seconds)

    def net(operator: OperatorTime) -> Cell:
        return _format_memory(operator.allocated_bytes)

    def build_total_memory_cell(operator: OperatorTime) -> Cell:
        return _format_memory(operator.total_bytes)

    memory = [
        (Column("net memory", "right"), net),
        (Column("with called", "right", drop=3), build_total_memory_cell),
    ]
    return table_of(
        fact.operators[:_MAX_OPERATORS],
        (
            (Column("kernel", shrink=True), lambda operator: Span(operator.op, "kind")),
            (Column("self" if has_self_times else "time", "right"), self_time),
            *([(Column("total", "right", drop=2), total)] if has_self_times else []),
            (Column("share", "right"), lambda operator: _format_share(operator.share)),
            (Column("calls", "right"), lambda operator: plain(operator.calls)),
            *(memory if has_memory else []),
            (Column("layers", "right", drop=1), lambda operator: plain(operator.layers)),
        ),
        what="operators",
    )


def _format_memory(size: int | None) -> Cell:
    """Format allocated minus freed bytes, which can be negative."""
    if size is None:
        return ""
    text = f"{'-' * (size < 0)}{bytes_text(abs(size))}"
    return dash_zero(Span(text, "figure", f"{exact_text(size)} B", size))


def _build_phase_table(fact: Profile) -> Table:
    """Build a table of the parts of a training step."""
    return table_of(
        fact.phases,
        (
            (Column("training step"), lambda phase: phase.name),
            (Column("time", "right"), lambda phase: _format_median(phase.seconds)),
            (Column("p10 to p90", "right", drop=1), lambda phase: _build_spread_cell(phase.seconds)),
            (Column("share", "right"), lambda phase: _format_share(phase.share)),
        ),
    )


def _build_batch_table(fact: ProfileSeries) -> Table:
    batches = fact.batches
    return table_of(
        range(len(batches)),
        (
            (Column("batch", "right"), lambda index: plain(batches[index].batch)),
            (Column("wall time", "right"), lambda index: seconds(batches[index].wall_seconds)),
            (
                Column("95 % of the median", "right", drop=1),
                lambda index: _format_interval(fact.profiles[index]),
            ),
            (Column("a row", "right"), lambda index: seconds(batches[index].row_seconds)),
            (Column("rows/s", "right"), lambda index: _format_rate(batches[index].rows_per_second, "")),
            (Column("overhead", "right", drop=2), lambda index: seconds(batches[index].overhead_seconds)),
        ),
    )


def _build_group_table(fact: Profile, limit: int) -> Table:
    """Build a table of the slowest groups, with the time that is not in their layers."""
    return table_of(
        sorted(fact.modules, key=lambda module: -module.seconds)[:limit],
        (
            (Column("group", shrink=True), lambda module: module.path or "(unnamed)"),
            (Column("kind", shrink=True, drop=2), lambda module: Span(module.kind, "kind")),
            (Column("total", "right"), lambda module: seconds(module.seconds)),
            (Column("self", "right", drop=1), lambda module: dash_zero(seconds(module.self_seconds))),
            (Column("share", "right"), lambda module: _format_share(module.share)),
            (Column("calls", "right", drop=3), lambda module: plain(module.calls)),
        ),
    )


def build_time_blocks(fact: Profile, row: int) -> list[Block]:
    """Build the fields with the measured time of a row; empty if the profile does not contain the row."""
    group = next((timed for timed in fact.modules if timed.layer == row), None)
    layer = next((timed for timed in fact.layers if timed.layer == row), None)
    rows = _build_group_fields(fact, group) if group is not None else []
    if layer is not None and group is None:
        rows = _build_layer_fields(fact, layer)
    batch = "" if fact.batch is None else f"batch {fact.batch:,}, "
    note = f"{batch}{many_text(fact.runs, 'run')}, {fact.device}, {many_text(fact.threads, 'thread')}"
    return [Heading("Time", note), Fields(rows)] if rows else []


def _build_group_fields(fact: Profile, group: ModuleTime) -> list[Field]:
    remark = f"{share_text(group.share, 1)} of the {fact.share_base} time, sum of its layers"
    return [
        Field("Kernel time", seconds(group.seconds), remark),
        Field("  without them", dash_zero(seconds(group.self_seconds)), many_text(group.calls, "call")),
    ]


def _build_layer_fields(fact: Profile, layer: LayerTime) -> list[Field]:
    if layer.seconds is None:
        return [
            Field("Kernel time", Span("none of its own", "quiet"), f"the kernel of {layer.within} does it")
        ]
    kernel_text = (
        f", {layer.op} for {many_text(1 + len(layer.holds), 'layer')}" if layer.holds else f", {layer.op}"
    )
    rows = [
        Field(
            "Kernel time",
            seconds(layer.seconds.median),
            f"{share_text(layer.share, 1)} of the {fact.share_base} time{kernel_text * bool(layer.op)}",
        ),
        Field("  how far apart", "", f"{format_spread(layer.seconds)}, {many_text(layer.calls, 'call')}"),
    ]
    if layer.backward_seconds is not None:
        rows.append(Field("  of it backward", seconds(layer.backward_seconds)))
    if layer.predicted_seconds is not None and layer.error is not None:
        off = f"{layer.error * 100:+.0f} %, from kernels timed alone on this machine"
        rows.append(Field("Predicted", seconds(layer.predicted_seconds), off))
    if layer.limit_seconds is not None and fact.machine is not None and layer.efficiency is not None:
        machine = format_machine(fact.machine)
        reached = (
            f"{share_text(layer.efficiency, 1)} of the roof: the least time of the counted work on {machine}"
        )
        rows.append(Field("At the least", seconds(layer.limit_seconds), reached))
    for label, rate, unit in (
        ("MACs a second", layer.macs_per_second, "MAC/s"),
        ("Bytes a second", layer.bytes_per_second, "B/s"),
    ):
        if rate is not None:
            rows.append(
                Field(label, Span(rate_text(rate, unit), "figure", value=rate), "counted over measured")
            )
    if layer.allocated_bytes is not None:
        peak = "" if layer.peak_bytes is None else f"{bytes_text(layer.peak_bytes)} at once"
        rows.append(Field("Allocated", Span(bytes_text(layer.allocated_bytes), "figure"), peak))
    return rows
