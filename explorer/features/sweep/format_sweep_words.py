"""The answer of `explorer sweep --quantize` in text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from explorer.base.units import bytes_text, count_text, printable
from explorer.facts.pareto_front import nondominated
from explorer.facts.quantize import FormatCost, FormatRow, FormatSweep
from explorer.facts.quantize.sweep import cost_of
from explorer.features.quantize.quantize_words import decibels
from explorer.features.sweep.sweep_words import FRONT, done_and_kept
from explorer.report.blocks import (
    Axis,
    Block,
    Cell,
    Column,
    Dot,
    Field,
    Fields,
    Line,
    Paragraph,
    Role,
    Scatter,
    Span,
    Table,
)
from explorer.report.present.figures import count, plain, seconds, share, size

_SCOPES = {"all": "all", "only": "only {}", "without": "all but {}", "mixed": "mixed, then {}"}


def format_sweep(
    fact: FormatSweep, written: str | None = None, cost: FormatCost = "weights", plotted: str | None = None
) -> list[Block]:
    """The answer of `explorer sweep --quantize`: a row for each choice, and how to apply one.

    Args:
        fact: The choices.
        written: The file that the formats of a row were written to.
        cost: What the front is drawn over.
        plotted: The file that it was drawn into.
    """
    rows = fact.rows
    models = dict.fromkeys(row.model for row in rows)
    head = f"{len(rows):,} choices of number formats"
    blocks: list[Block] = [
        Line((Span(head, "strong"), Span(f"   of {', '.join(map(printable, models))}", "quiet"))),
        Line(),
        rows_table(rows, len(models) > 1),
        Line(),
    ]
    for plot in front_plots(rows, cost):
        blocks += [plot, Line()]
    for mixed in fact.mixed:
        of = f"{printable(mixed.model)}: " if len(models) > 1 else ""
        number = next((f" (row {at})" for at, row in enumerate(rows, 1) if row.key == mixed.row), "")
        blocks.append(Paragraph(f"{of}{mixed.told}{number}", "good" if mixed.met else "warning"))
    blocks.append(Paragraph(_legend(fact), "quiet"))
    failed = Counter(row.error for row in rows if row.error).most_common(5)
    blocks += [Paragraph(f"{many:,} x {printable(why)}", "warning") for why, many in failed]
    blocks += [Paragraph(note, "warning") for note in fact.notes]
    blocks += [Line(), *_commands(fact, written, plotted)]
    return [*blocks, Line(), Line(tuple(done_and_kept(fact)), 2)]


def _legend(fact: FormatSweep) -> str:
    samples = dict.fromkeys(row.calibration for row in fact.rows if row.calibration)
    ran = f" From {', '.join(map(printable, samples))}." if samples else ""
    return (
        f"{FRONT} Pareto front: no other choice has fewer weight bytes, fewer BitOPs or more SNR without"
        " being worse in another of them. SNR is that of the output that lost most, against the original's."
        f"{ran}"
    )


def _commands(fact: FormatSweep, written: str | None, plotted: str | None) -> Iterator[Block]:
    """The command that applies the row of the limits; without limits one of the front."""
    keys = [mixed.row for mixed in fact.mixed if mixed.row]
    row = next((row for row in fact.rows if row.key in keys), None)
    row = row or next((row for row in fact.rows if row.pareto), None)
    number = next((at for at, candidate in enumerate(fact.rows, 1) if candidate is row), 0)
    if plotted is not None:
        yield Line((Span("drawn into ", "quiet"), Span(printable(plotted), "strong")), 2)
    if written is not None:
        yield Line((Span("formats written to ", "quiet"), Span(printable(written), "strong")), 2)
        taken = f"explorer quantize MODEL -o FILE --config {printable(written)}"
        yield Line((Span("they are taken by  ", "quiet"), Span(taken, "strong")), 2)
    elif row is not None and row.command:
        first = f"--take {number}:formats.toml writes its file, then  " if "--config" in row.command else ""
        yield Line((Span(f"row {number} is taken by  {first}", "quiet"), Span(row.command, "strong")), 2)


FormatColumn = tuple[Column, Callable[[int, FormatRow], Cell]]

_COLUMNS: tuple[FormatColumn, ...] = (
    (Column("row", "right", drop=7), lambda at, row: Span(str(at), "quiet")),
    (Column("model", shrink=True), lambda at, row: printable(row.model)),
    (Column("layers", shrink=True), lambda at, row: printable(_SCOPES[row.scope].format(row.layer))),
    (Column("format", shrink=True), lambda at, row: Span(printable(row.format), "strong")),
    (Column("changed", "right", drop=6), lambda at, row: plain(row.changed)),
    (
        Column("bits", "right", drop=4),
        lambda at, row: "" if row.weight_bits is None else f"{row.weight_bits:.2f}",
    ),
    (Column("weights", "right"), lambda at, row: size(row.weight_bytes)),
    (Column("BitOPs", "right", drop=2), lambda at, row: count(row.bitops)),
    (Column("SNR dB", "right"), lambda at, row: decibels(row.snr_db)),
    (Column("cosine", "right", drop=5), lambda at, row: "" if row.cosine is None else f"{row.cosine:.6f}"),
    (Column("top-1", "right", drop=3), lambda at, row: share(row.top1, 1)),
    (Column(""), lambda at, row: Span(FRONT, "good") if row.pareto else ""),
)


def front_plots(rows: Sequence[FormatRow], cost: FormatCost, current: str = "") -> list[Scatter]:
    """A plot for each model: SNR over cost, with the front of these two and the greedy path.

    Args:
        rows: The choices; one whose outputs lose nothing has no place.
        cost: What is across.
        current: Key of the one under a cursor.
    """
    name, text = _COSTS[cost]
    plots = []
    for model in dict.fromkeys(row.model for row in rows):
        placed = {
            row.key: (float(paid), snr)
            for row in rows
            if row.model == model and (paid := cost_of(row, cost))
            if (snr := row.snr_db) is not None and math.isfinite(snr)
        }
        if len(placed) < _FEWEST:
            continue
        best = nondominated((paid, -snr, 0) for paid, snr in placed.values())
        path = {row.key for row in rows if row.scope == "mixed"}
        kinds = {key: (2 * ((at[0], -at[1], 0) in best) + (key in path)) for key, at in placed.items()}
        order = sorted(placed, key=lambda key: (key == current, kinds[key]))
        dots = [Dot(placed[key], _MARKS[kinds[key]][0], _MARKS[kinds[key]][1]) for key in order]
        if current in placed:
            dots[-1] = Dot(placed[current], "●", "formula")
        legend = [mark for kind, mark in enumerate(_MARKS) if kind in kinds.values()][::-1]
        way = [placed[row.key] for row in rows if row.key in path and row.key in placed]
        axes = Axis(name, text, logarithmic=True), Axis("SNR dB", lambda value: f"{value:.1f}")
        plots.append(Scatter(f"{printable(model)}: SNR over {name}", *axes, dots, legend, way))
    return plots


_FEWEST = 3
"""Fewest choices for a plot."""
_COSTS: Mapping[FormatCost, tuple[str, Callable[[float], str]]] = {
    "weights": ("weight bytes", lambda value: bytes_text(round(value))),
    "bitops": ("BitOPs", lambda value: count_text(round(value))),
}
_MARKS: tuple[tuple[str, Role, str], ...] = (
    ("·", "quiet", "others"),
    ("○", "warning", "greedy path"),
    (FRONT, "good", "front of these two"),
    ("◈", "good", "front and path"),
)
"""Marks of choices: off both, on the greedy path, on the front, on both."""


def row_blocks(row: FormatRow) -> list[Block]:
    """Facts about one choice that its row does not show; without figures, the reason."""
    if row.error:
        return [Paragraph(row.error, "warning")]
    fields = [
        # the table has only the end of a long name
        Field(
            _SCOPES[row.scope].format("").strip() or "layer",
            Span(printable(row.layer), "strong") if row.layer else "",
        ),
        Field("layers", f"{row.changed or 0:,} of {row.layers or 0:,} changed"),
        Field("output", Span(printable(row.output), "strong") if row.output else ""),
        Field("top-5", "" if row.top5 is None else share(row.top5, 1)),
        Field("it took", seconds(row.seconds)),
        Field("weights before", size(row.weight_bytes_before)),
        Field("BitOPs before", count(row.bitops_before)),
    ]
    blocks: list[Block] = [Fields([field for field in fields if field.figure])]
    return [*blocks, Line(Span(row.command, "quiet"), 1)] if row.command else blocks


def rows_table(rows: Sequence[FormatRow], several: bool, numbers: Sequence[int] = ()) -> Table:
    """A table of choices, a numbered row for each.

    Args:
        rows: They.
        several: They are of several models.
        numbers: Of the rows; none where they are shown in their order.
    """
    needless = {"model": not several, "top-1": all(row.top1 is None for row in rows)}
    columns = [(column, cell) for column, cell in _COLUMNS if not needless.get(column.title, False)]
    counted = zip(numbers or range(1, len(rows) + 1), rows, strict=True)
    lines = [[cell(at, row) for _, cell in columns] for at, row in counted]
    return Table([column for column, _ in columns], lines)
