"""Text output of `explorer sweep --quantize`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from explorer.base.units import bytes_text, count_text, printable
from explorer.facts.quantize import FormatCost, FormatRow, FormatSweep
from explorer.facts.quantize.sweep import read_cost
from explorer.features.quantize.quantize_words import decibels
from explorer.features.sweep.sweep_words import FRONT
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
from explorer.report.present.computed_rows import describe_computed_rows
from explorer.report.present.figures import count, plain, seconds, share, size

_SCOPES = {"all": "all", "only": "only {}", "without": "all but {}", "mixed": "mixed, then {}"}


def format_sweep(
    fact: FormatSweep,
    written_path: str | None = None,
    cost: FormatCost = "weights",
    plotted: str | None = None,
) -> list[Block]:
    """Build the output of `explorer sweep --quantize`: a row for each choice, and a command that applies one.

    Args:
        fact: The choices of number formats.
        written_path: Path of the file with the formats of a row, or None if none was written.
        cost: Cost on the horizontal axis of the plot.
        plotted: Path of the picture with the plot, or None if none was drawn.
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
        prefix = f"{printable(mixed.model)}: " if len(models) > 1 else ""
        number = next((f" (row {index})" for index, row in enumerate(rows, 1) if row.key == mixed.row), "")
        blocks.append(Paragraph(f"{prefix}{mixed.told}{number}", "good" if mixed.met else "warning"))
    blocks.append(Paragraph(_format_legend(fact), "quiet"))
    failed = Counter(row.error for row in rows if row.error).most_common(5)
    blocks += [Paragraph(f"{number:,} x {printable(reason)}", "warning") for reason, number in failed]
    blocks += [Paragraph(note, "warning") for note in fact.notes]
    blocks += [Line(), *_suggest_commands(fact, written_path, plotted)]
    return [*blocks, Line(), Line(tuple(describe_computed_rows(fact)), 2)]


def _format_legend(fact: FormatSweep) -> str:
    samples = dict.fromkeys(row.calibration for row in fact.rows if row.calibration)
    samples_text = f" From {', '.join(map(printable, samples))}." if samples else ""
    return (
        f"{FRONT} Pareto front: no other choice has fewer weight bytes, fewer BitOPs or more SNR without"
        " being worse in another of them. SNR is that of the output that lost most, against the original's."
        f"{samples_text}"
    )


def _suggest_commands(fact: FormatSweep, written_path: str | None, plotted: str | None) -> Iterator[Block]:
    """Build the lines about written files, and the command that applies a row.

    The command is that of the written file, else of the row that the limits choose, else of the first row on
    the Pareto front.
    """
    keys = [mixed.row for mixed in fact.mixed if mixed.row]
    row = next((row for row in fact.rows if row.key in keys), None)
    row = row or next((row for row in fact.rows if row.pareto), None)
    number = next((index for index, candidate in enumerate(fact.rows, 1) if candidate is row), 0)
    if plotted is not None:
        yield Line((Span("drawn into ", "quiet"), Span(printable(plotted), "strong")), 2)
    if written_path is not None:
        yield Line((Span("formats written to ", "quiet"), Span(printable(written_path), "strong")), 2)
        command = f"explorer quantize MODEL -o FILE --config {printable(written_path)}"
        yield Line((Span("apply them with   ", "quiet"), Span(command, "strong")), 2)
    elif row is not None and row.command:
        first = f"--take {number}:formats.toml writes its file, then  " if "--config" in row.command else ""
        yield Line((Span(f"apply row {number} with  {first}", "quiet"), Span(row.command, "strong")), 2)


FormatColumn = tuple[Column, Callable[[int, FormatRow], Cell]]

_COLUMNS: tuple[FormatColumn, ...] = (
    (Column("row", "right", drop=7), lambda number, row: Span(str(number), "quiet")),
    (Column("model", shrink=True, paths=True), lambda _, row: printable(row.model)),
    (Column("layers", shrink=True), lambda _, row: printable(_SCOPES[row.scope].format(row.layer))),
    (Column("format", shrink=True), lambda _, row: Span(printable(row.format), "strong")),
    (Column("changed", "right", drop=6), lambda _, row: plain(row.changed)),
    (
        Column("bits", "right", drop=4),
        lambda _, row: "" if row.weight_bits is None else f"{row.weight_bits:.2f}",
    ),
    (Column("weights", "right"), lambda _, row: size(row.weight_bytes)),
    (Column("BitOPs", "right", drop=2), lambda _, row: count(row.bitops)),
    (Column("SNR dB", "right"), lambda _, row: decibels(row.snr_db)),
    (Column("cosine", "right", drop=5), lambda _, row: "" if row.cosine is None else f"{row.cosine:.6f}"),
    (Column("same choice", "right", drop=3), lambda _, row: share(row.top1, 1)),
    (Column(""), lambda _, row: Span(FRONT, "good") if row.pareto else ""),
)


def front_plots(rows: Sequence[FormatRow], cost: FormatCost, current: str = "") -> list[Scatter]:
    """Plot SNR over cost for each model, with the Pareto front of the table and the greedy path.

    The labels of the front are the numbers of the rows.

    Args:
        rows: The choices. A choice without any loss is not plotted, because its SNR is infinite.
        cost: Cost on the horizontal axis.
        current: Key of the choice under the cursor, or ''.
    """
    name, text = _COSTS[cost]
    plots = []
    for model in dict.fromkeys(row.model for row in rows):
        points = {
            row.key: (float(paid), snr)
            for row in rows
            if row.model == model and (paid := read_cost(row, cost))
            if (snr := row.snr_db) is not None and math.isfinite(snr)
        }
        if len(points) < _MIN_CHOICES:
            continue
        labels = {row.key: str(number) for number, row in enumerate(rows, 1) if row.pareto}
        path = {row.key for row in rows if row.scope == "mixed"}
        mark_indices = {key: 2 * (key in labels) + (key in path) for key in points}
        order = sorted(points, key=lambda key: (key == current, mark_indices[key]))
        dots = [Dot(points[key], *_MARKS[mark_indices[key]][:2], labels.get(key, "")) for key in order]
        if current in points:
            dots[-1] = Dot(points[current], "●", "formula", labels.get(current, ""))
        legend = [mark for kind, mark in enumerate(_MARKS) if kind in mark_indices.values()][::-1]
        path_points = [points[row.key] for row in rows if row.key in path and row.key in points]
        axes = Axis(name, text, logarithmic=True), Axis("SNR dB", lambda value: f"{value:.1f}")
        plots.append(Scatter(f"{printable(model)}: SNR over {name}", *axes, dots, legend, path_points))
    return plots


_MIN_CHOICES = 3
"""Minimum number of choices for a plot."""
_COSTS: Mapping[FormatCost, tuple[str, Callable[[float], str]]] = {
    "weights": ("weight bytes", lambda value: bytes_text(round(value))),
    "bitops": ("BitOPs", lambda value: count_text(round(value))),
}
_MARKS: tuple[tuple[str, Role, str], ...] = (
    ("·", "quiet", "others"),
    ("○", "warning", "greedy path"),
    (FRONT, "good", "Pareto front, with row numbers"),
    ("◈", "good", "front and path"),
)
"""Marks of the choices: on neither, on the greedy path, on the Pareto front, on both."""


def row_blocks(row: FormatRow) -> list[Block]:
    """Build the facts about a choice that its row does not show, or the reason why it has no figures."""
    if row.error:
        return [Paragraph(row.error, "warning")]
    fields = [
        # the table shortens long names
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


def rows_table(rows: Sequence[FormatRow], with_model: bool, numbers: Sequence[int] = ()) -> Table:
    """Build a table with a numbered row for each choice.

    Args:
        rows: The choices.
        with_model: Whether to add a column with the model.
        numbers: Numbers of the rows; empty numbers them from 1.
    """
    is_hidden = {"model": not with_model, "same choice": all(row.top1 is None for row in rows)}
    columns = [(column, cell) for column, cell in _COLUMNS if not is_hidden.get(column.title, False)]
    numbered = zip(numbers or range(1, len(rows) + 1), rows, strict=True)
    lines = [[cell(number, row) for _, cell in columns] for number, row in numbered]
    return Table([column for column, _ in columns], lines)
