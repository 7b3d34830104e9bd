"""Text output of `explorer sweep --map`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from explorer.base.units import many_text, printable
from explorer.facts.mapping_sweep import MappingRow, MappingSweep
from explorer.features.mapping.nest_words import energy_text
from explorer.features.sweep.sweep_words import FRONT
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, table_of
from explorer.report.present.computed_rows import describe_computed_rows
from explorer.report.present.figures import count, seconds, size

MappingColumn = tuple[Column, Callable[[MappingRow], Cell]]


def mapping_sweep(fact: MappingSweep) -> list[Block]:
    """Build the output of `explorer sweep --map`: a row per combination, with the Pareto front marked."""
    rows = fact.rows
    models = dict.fromkeys(" ".join(filter(None, (row.model, row.opening))) for row in rows)
    objectives = dict.fromkeys(row.objective for row in rows)
    subject = f"   {printable(', '.join(models))}   for the least {', '.join(objectives)}"
    varied = [*["model"] * (len(models) > 1), *["objective"] * (len(objectives) > 1), "machine"]
    head = Span(f"{many_text(len(rows), 'combination')} of {', '.join(varied)} and size", "strong")
    second_figure = "fewer cycles" if fact.front == "cycles" else f"less {fact.front}"
    legend = (
        f"{FRONT} Pareto front: no other row has fewer bytes on the chip without more {fact.front}, or"
        f" {second_figure} without more bytes."
    )
    reasons = Counter(row.error for row in rows if row.error).most_common(5)
    return [
        Line((head, Span(subject, "quiet"))),
        Line(),
        table_of(rows, _list_columns(fact, len(models) > 1, len(objectives) > 1), what="rows"),
        Line(),
        *([Paragraph(legend, "quiet")] if any(row.pareto for row in rows) else ()),
        *(Paragraph(f"{number:,} x {printable(reason)}", "warning") for reason, number in reasons),
        Line(),
        Line(tuple(describe_computed_rows(fact)), 2),
    ]


def _list_columns(fact: MappingSweep, several_models: bool, several_objectives: bool) -> list[MappingColumn]:
    rows = fact.rows
    columns: list[MappingColumn] = []
    if several_models:
        columns.append((Column("model", shrink=True, paths=True), lambda row: printable(row.model)))
    if several_objectives:
        columns.append((Column("least"), lambda row: row.objective))
    columns += [
        (Column("machine", shrink=True), lambda row: Span(printable(row.machine), "strong")),
        (Column("first memory", shrink=True, drop=4), lambda row: printable(row.memory)),
        (Column("memory size", "right"), lambda row: size(row.size)),
        (Column("on the chip", "right"), lambda row: size(row.on_chip)),
        (Column("fits"), _format_fits),
        (Column("traffic", "right"), lambda row: size(row.traffic) if row.fits else ""),
        (Column("cycles", "right"), lambda row: count(row.cycles) if row.fits else ""),
    ]
    if any(row.seconds is not None for row in rows):
        columns.append(
            (Column("time", "right", drop=2), lambda row: seconds(row.seconds) if row.fits else "")
        )
    if any(row.pj is not None for row in rows):
        columns.append(
            (
                Column("energy", "right", drop=1),
                lambda row: "" if not row.fits else "?" if row.pj is None else energy_text(row.pj),
            )
        )
    return [*columns, (Column(""), lambda row: Span(FRONT, "good") if row.pareto else "")]


def _format_fits(row: MappingRow) -> Cell:
    if row.fits is None:
        return Span("?", "warning")
    return "yes" if row.fits else Span("no", "bad")
