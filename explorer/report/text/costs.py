"""What a model costs over time, in text: `explorer memory`, `roofline` and `training`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import (
    bytes_text,
    count_text,
    exact_text,
    percent_text,
    rate_text,
    seconds_text,
    shape_text,
)
from explorer.facts import Info, is_assumed
from explorer.facts.memory import Lifetime, Memory
from explorer.facts.roofline import Machine, Roofline, RooflinePoint
from explorer.facts.training import LayerTraining, Training
from explorer.report.layout import BAD, BAR, DIM, GOOD, NOTE, STRONG, Cell, Column, Line, Prose, Span, Table
from explorer.report.text.model import (
    CAP,
    Block,
    bar_text,
    bytes_row,
    capped,
    count_row,
    quiet_zero,
    share_text,
    symbolic_hint,
    title,
)

__all__ = ["figure_table", "live_at", "machine_text", "memory", "roofline", "training"]


def memory(about: Info, fact: Memory) -> list[Block]:
    """The answer of `explorer memory`: figures, what is live at the peak, and the timeline as bars."""
    signs = {"unknown": ">= ", "bound": "~ " if is_assumed(fact.reason) else "<= "}
    sign = signs.get(fact.status, "")
    at = fact.steps[fact.peak_step].path if fact.steps else ""
    figures = [
        bytes_row(
            "Buffers, sum", fact.sum_bytes, sign, "of every tensor, inputs too; none for what is in place"
        ),
        bytes_row(
            *("Activations, peak", fact.peak_bytes, sign),
            f"buffers live at step {fact.peak_step:,}, {at or 'the inputs'}",
        ),
        bytes_row("Smallest arena", fact.arena_bytes, sign, _arena_remark(fact)),
        bytes_row("Weight bytes", fact.weight_bytes, "", "resident throughout, in none of the above"),
        ("Steps", exact_text(len(fact.steps)), "", ""),
    ]
    return [
        *title(about.model),
        Line(),
        figure_table(figures),
        *([Prose(fact.reason, NOTE)] if fact.reason else []),
        Line(),
        Line(Span("live at the peak", STRONG)),
        _alive_table(live_at(fact, fact.peak_step), fact.peak_bytes),
        Line(),
        *_timeline(fact),
        *symbolic_hint(about),
    ]


def figure_table(rows: Sequence[Sequence[Cell]]) -> Table:
    """Label, rounded figure, exact figure, remark."""
    columns = (
        Column("", style=DIM),
        Column("", "right", style=STRONG),
        Column("", "right"),
        Column("", style=DIM),
    )
    return Table(columns, rows)


def live_at(fact: Memory, step: int) -> list[Lifetime]:
    """The tensors live at a step, largest first."""
    alive = [life for life in fact.lifetimes if life.born <= step <= life.dies]
    return sorted(alive, key=lambda life: -life.bytes)


def _arena_remark(fact: Memory) -> str:
    if not fact.peak_bytes:
        return ""
    if fact.arena_bytes == fact.peak_bytes:
        return "first fit; no allocator needs less"
    return f"first fit; {percent_text(fact.arena_bytes - fact.peak_bytes, fact.peak_bytes)} above the peak"


def _alive_table(alive: Sequence[Lifetime], peak: int) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            life.tensor.name,
            Span(life.tensor.dtype or "?", DIM),
            shape_text(life.tensor.shape),
            bytes_text(life.bytes),
            share_text(life.bytes, peak),
            f"{life.born:,} .. {life.dies:,}",
        )
        for life in alive[:16]
    ]
    if len(alive) > len(rows):
        rows.append((Span(f"16 of {len(alive):,}", NOTE),))
    columns = (
        Column("tensor", shrink=True),
        Column("", drop=1),
        Column("shape", drop=2),
        Column("bytes", "right"),
        Column("share", "right"),
        Column("steps", "right", drop=3),
    )
    return Table(columns, rows)


def _timeline(fact: Memory) -> list[Block]:
    first = max(0, min(fact.peak_step - CAP // 2, len(fact.steps) - CAP))
    shown = list(enumerate(fact.steps))[first : first + CAP]
    rows: list[tuple[Cell, ...]] = [
        (
            f"{at:,}",
            Span(step.path or "(inputs)", STRONG if at == fact.peak_step else ""),
            Span(step.kind, DIM),
            bytes_text(step.live_bytes),
            bar_text(step.live_bytes, fact.peak_bytes),
            Span("peak", BAD) if at == fact.peak_step else "",
        )
        for at, step in shown
    ]
    columns = (
        Column("step", "right"),
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=1),
        Column("live", "right"),
        Column("", style=BAR),
        Column(""),
    )
    return [*capped(len(shown), len(fact.steps), "steps, around the peak"), Table(columns, rows)]


def machine_text(machine: Machine) -> str:
    """The machine in one line: 'npu: 4.00 TMAC/s, 100.00 GB/s, ridge at 80 FLOPs per byte'."""
    name = f"{machine.name}: " if machine.name else ""
    return f"{name}{rate_text(machine.peak_macs, 'MAC/s')}, {rate_text(machine.bandwidth, 'B/s')}"


def roofline(about: Info, fact: Roofline) -> list[Block]:
    """The answer of `explorer roofline`: the least time, what limits it, and every layer's share of it."""

    def least(seconds: float | None) -> str:
        return f"{'>= ' if fact.coverage < 1 and seconds is not None else ''}{seconds_text(seconds)}"

    figures: list[tuple[Cell, ...]] = [
        ("Machine", machine_text(fact.machine), "", fact.machine.origin),
        ("Ridge", f"{fact.ridge:,.1f}", "", "FLOPs per byte; left of it memory limits, right of it compute"),
        ("Least time", least(fact.seconds), "", "layer after layer, each at its limit"),
        ("  all MACs at full rate", least(fact.compute_seconds), "", ""),
        (
            "  all bytes at full bandwidth",
            least(fact.memory_seconds),
            "",
            "each layer's reads and writes",
        ),
        ("Compute-bound layers", exact_text(fact.compute_bound), "", ""),
        ("Memory-bound layers", exact_text(fact.memory_bound), "", ""),
    ]
    if fact.unknown:
        figures.append((Span("Unknown", NOTE), exact_text(fact.unknown), "", "in no figure above"))
    by_time = sorted(fact.points, key=lambda point: -(point.seconds or 0))
    rows = [_roof_row(point, fact.seconds, by_time[0].share) for point in by_time[:CAP]]
    columns = (
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=1),
        Column("MACs", "right", drop=3),
        Column("bytes", "right", drop=4),
        Column("FLOPs/byte", "right", drop=2),
        Column("limit"),
        Column("least time", "right"),
        Column("share", "right"),
        Column("", style=BAR, drop=5),
    )
    return [
        *title(about.model),
        Line(),
        figure_table(figures),
        Line(),
        *capped(len(rows), len(fact.points), "layers, slowest first"),
        Table(columns, rows),
        *symbolic_hint(about),
    ]


def _roof_row(point: RooflinePoint, whole: float | None, largest: float) -> tuple[Cell, ...]:
    style = {"compute": GOOD, "memory": NOTE, "unknown": BAD}[point.limit]
    return (
        point.path,
        Span(point.kind, DIM),
        quiet_zero(point.macs, count_text(point.macs)),
        quiet_zero(point.bytes, bytes_text(point.bytes)),
        "?" if point.intensity is None and point.bytes is None else f"{point.intensity or 0:.2f}",
        Span(point.limit if point.seconds != 0 else "-", style if point.seconds != 0 else DIM),
        seconds_text(point.seconds),
        percent_text(point.seconds, whole),
        bar_text(point.share, largest),
    )


def training(about: Info, fact: Training) -> list[Block]:
    """The answer of `explorer training`: work and memory of one step, in total and layer by layer."""
    # the most of forward is the most of backward: both follow from the same sizes
    sign = ">= " if fact.coverage < 1 else about.totals.sign
    step = None
    if fact.forward_macs is not None and fact.backward_macs is not None:
        step = fact.forward_macs + fact.backward_macs
    figures = [
        ("Batch", exact_text(fact.batch), "", ""),
        count_row("MACs, forward", fact.forward_macs, sign),
        count_row("MACs, backward", fact.backward_macs, sign, "gradients of inputs and of weights"),
        count_row("MACs, step", step, sign),
        count_row("Elementwise operations", fact.elementwise_ops, sign, "forward"),
        count_row(
            *("Elementwise, backward", fact.backward_elementwise_ops, sign),
            "as many for inputs, again for parameters",
        ),
        bytes_row("Input", fact.input_bytes, sign),
        bytes_row("Kept outputs", fact.activation_bytes, sign, "of every layer, for backward"),
        bytes_row("Weight bytes", fact.param_bytes, ""),
        bytes_row("Gradients", fact.gradient_bytes, "", "of what is trained"),
        bytes_row("Optimizer", fact.optimizer_bytes, "", _OPTIMIZERS[fact.optimizer]),
        bytes_row("Memory, sum", fact.sum_bytes, sign, "of the five above"),
    ]
    rows = [_training_row(row) for row in fact.layers[:CAP]]
    columns = (
        Column("layer", shrink=True),
        Column("kind", shrink=True, drop=1),
        Column("forward", "right"),
        Column("grad of input", "right"),
        Column("grad of weight", "right"),
        Column("kept", "right", drop=2),
        Column("params", "right", drop=5),
        Column("gradients", "right", drop=3),
        Column("optimizer", "right", drop=4),
        Column("", shrink=True, style=NOTE, drop=6),
    )
    return [
        *title(about.model),
        Line(),
        figure_table(figures),
        Line(),
        *capped(len(rows), len(fact.layers), "layers"),
        Table(columns, rows),
        *([Line()] if fact.notes else []),
        *(Prose(note, NOTE) for note in fact.notes),
        *symbolic_hint(about),
    ]


_OPTIMIZERS = {
    "sgd": "SGD keeps nothing",
    "momentum": "SGD with momentum keeps 1 number a parameter",
    "adam": "Adam keeps 2 numbers a parameter",
}


def _training_row(row: LayerTraining) -> tuple[Cell, ...]:
    counts = (row.forward_macs, row.backward_input_macs, row.backward_weight_macs)
    sizes = (row.activation_bytes, row.param_bytes, row.gradient_bytes, row.optimizer_bytes)
    return (
        row.path,
        Span(row.kind, DIM),
        *(quiet_zero(value, count_text(value)) for value in counts),
        *(quiet_zero(value, bytes_text(value)) for value in sizes),
        row.reason,
    )
