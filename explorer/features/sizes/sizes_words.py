"""Text output of `explorer sizes` and of its screen: figures over one size, closed forms and crossings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from explorer.base.units import dims_text
from explorer.facts import Info
from explorer.facts.sizes.curves import Crossing, CurveName, SizeCurve, SizeCurves
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Rows, Span, Table
from explorer.report.present.figures import count, seconds, size
from explorer.report.present.look.info import title
from explorer.report.present.look.roofline_words import format_machine

NAMES: Mapping[CurveName, tuple[str, str]] = {
    "macs": ("MACs", "multiply-accumulates; 1 MAC = 2 FLOPs"),
    "moved": ("Bytes moved", "read and written, each layer's inputs and outputs once"),
    "activations": ("Activations, peak", "live at once, no weights"),
    "weights": ("Weight bytes", "whatever the size"),
    "kv_cache": ("KV cache", "keys and values of all tokens, for decoding"),
    "compute": ("All MACs", "at the machine's peak"),
    "memory": ("All bytes", "at the machine's bandwidth"),
    "time": ("Least time", "layer after layer, each at its limit"),
}
"""Label and explanation of each curve."""

_CROSSING_WORDS: Mapping[CurveName, tuple[str, str]] = {
    "activations": ("activations pass", "the activations"),
    "weights": ("weights pass", "the weights"),
    "kv_cache": ("the KV cache passes", "the KV cache"),
    "compute": ("computing passes", "computing"),
    "memory": ("moving bytes passes", "moving bytes"),
}
"""Words of each curve in a crossing: with a verb as the curve that rises above, and as the curve below."""
_TIME_CURVES = ("compute", "memory", "time")
_COLUMNS: Mapping[CurveName, str] = {
    "macs": "MACs",
    "moved": "moved",
    "activations": "activations",
    "kv_cache": "KV cache",
    "time": "least time",
}


def sizes(info: Info, fact: SizeCurves) -> list[Block]:
    """Build the output of `explorer sizes`."""
    return [*title(info.model), Line(), *sizes_blocks(fact)]


def sizes_blocks(fact: SizeCurves) -> list[Block]:
    """Build the crossings, the closed forms, and a table of the figures at several sizes."""
    current_note = "" if fact.at is None else f"; the model has {fact.at:,}"
    others_note = f"; {dims_text(fact.others)}" if fact.others else ""
    machine = "" if fact.machine is None else f"; {format_machine(fact.machine)}"
    forms: list[Block] = [Line(), build_form_fields(fact)] if any(curve.form for curve in fact.curves) else []
    return [
        Line(
            (
                "over ",
                Span(fact.name, "strong"),
                Span(f" from {fact.low:,} to {fact.high:,}{current_note}{others_note}{machine}", "quiet"),
            )
        ),
        Line(),
        *crossings_blocks(fact),
        *forms,
        Line(),
        _build_table(fact),
        Line(),
        Paragraph(_describe_evidence(fact), "quiet"),
        *(Paragraph(note, "warning") for note in fact.notes),
        *([Paragraph("--dim binds another size.", "quiet")] if fact.others else []),
    ]


def describe_crossing(fact: SizeCurves, crossing: Crossing) -> str:
    """Describe a crossing: 'activations pass the weights at batch 23'."""
    crossing_text = f"{_CROSSING_WORDS[crossing.above][0]} {_CROSSING_WORDS[crossing.below][1]}"
    return f"{crossing_text} at {fact.name} {crossing.size:,}"


def crossings_blocks(fact: SizeCurves) -> list[Block]:
    """Build a line for each crossing, with both figures."""
    if not fact.crossings:
        return [Line(Span("no figure passes another in this range", "quiet"))]
    lines: list[Block] = []
    for crossing in fact.crossings:
        above, below = (
            format_curve_value(fact, name, crossing.size) for name in (crossing.above, crossing.below)
        )
        origin = "" if crossing.counted else ", by the closed forms: the model was not counted there"
        lines.append(
            Line(
                (
                    Span(describe_crossing(fact, crossing), "strong"),
                    Span(": ", "quiet"),
                    above,
                    Span(" against ", "quiet"),
                    below,
                    Span(origin, "quiet"),
                )
            )
        )
    return lines


def build_fields_at(fact: SizeCurves, index: int) -> Fields:
    """Build the fields for all figures at `fact.sizes[index]`."""
    return Fields([Field(NAMES[c.name][0], _format_value(c, index), NAMES[c.name][1]) for c in fact.curves])


def build_form_fields(fact: SizeCurves) -> Fields:
    """Build a field for each curve that has a closed form."""
    short = "n" if len(fact.name) > 1 else fact.name
    rows = [
        Field(NAMES[c.name][0], Span(format_form(c, fact.name, short), "formula"))
        for c in fact.curves
        if c.form
    ]
    return Fields(rows and [*rows, *([Field(short, Span(fact.name, "quiet"))] if short != fact.name else [])])


def format_form(curve: SizeCurve, name: str, short: str) -> str:
    """Format a closed form in mathematical notation: '18,432 n² + 123,532,032 n'."""
    text = curve.form.replace(name, short)
    text = text.replace("^2", "²").replace("^3", "³").replace("*", " ")
    text = re.sub(r"(?<=[^\s(])([+-])", r" \1 ", text)
    return re.sub(r"\d{4,}", lambda number: f"{int(number[0]):,}", text)


def format_curve_value(fact: SizeCurves, name: CurveName, curve_size: int) -> Span:
    """Format the value of a curve at a size."""
    curve = fact.curve(name)
    assert curve is not None
    return _format_value(curve, fact.sizes.index(curve_size))


def _format_value(curve: SizeCurve, index: int) -> Span:
    value = curve.values[index]
    if curve.name in _TIME_CURVES:
        return seconds(value)
    return count(int(value)) if curve.name == "macs" else size(int(value))


def _build_table(fact: SizeCurves) -> Table:
    """Build a table of all sizes, or with closed forms of powers of two, ends, crossings and the own size."""
    curves = [c for name in _COLUMNS if (c := fact.curve(name)) is not None]
    time_limits = fact.curve("compute"), fact.curve("memory")
    crossing_sizes = {crossing.size for crossing in fact.crossings}

    def is_listed(size: int) -> bool:
        is_power_of_two = not size & (size - 1)
        return (
            is_power_of_two
            or size in (fact.low, fact.high, fact.at)
            or size in crossing_sizes
            or not fact.closed
        )

    row_indices = [index for index, size in enumerate(fact.sizes) if is_listed(size)]

    def row(index: int) -> tuple[Cell, ...]:
        row_size = fact.sizes[index]
        cells = [_format_value(curve, index) for curve in curves]
        if time_limits[0] is not None and time_limits[1] is not None:
            cells.append(
                Span(
                    "compute" if time_limits[0].values[index] >= time_limits[1].values[index] else "memory",
                    "kind",
                )
            )
        is_crossing = row_size in crossing_sizes
        mark = Span("crossing" if is_crossing else "now" if row_size == fact.at else "", "warning")
        return (Span(f"{row_size:,}", "strong" if is_crossing else ""), *cells, mark)

    columns = (
        Column(fact.name, "right"),
        *(Column(_COLUMNS[c.name], "right", drop=3 if c.name == "moved" else 0) for c in curves),
        *([Column("limit", drop=2)] if time_limits[0] is not None else []),
        Column("", drop=1),
    )
    return Table(columns, Rows(row, row_indices), what="sizes", more="--csv has all")


def _describe_evidence(fact: SizeCurves) -> str:
    """Describe in a sentence how the curves were counted."""
    counted_number = len(fact.counted)
    if set(fact.sizes) <= set(fact.counted):
        exception = "" if fact.closed else " No formula fits the figures between these sizes."
        return f"The whole model was counted at each of these sizes.{exception}"
    first_sizes = ", ".join(f"{size:,}" for size in fact.counted[:4])
    return (
        f"The whole model was counted at {counted_number:,} sizes ({first_sizes}, … {fact.counted[-1]:,});"
        " the closed forms"
        " give each figure of each layer there. They include both sides of each crossing unless its line says"
        " otherwise."
    )
