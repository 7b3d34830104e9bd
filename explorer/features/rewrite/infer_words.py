"""Text output of `explorer infer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from explorer.base.units import printable
from explorer.facts.split.infer import DeclarationStatus, InferenceResult, ValueDeclaration
from explorer.features.rewrite.rewrite_words import build_ending
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table
from explorer.report.present.figures import plain

_STATUS_LABELS: dict[DeclarationStatus, str] = {
    "kept": "Declared already",
    "added": "Added",
    "completed": "Completed",
    "corrected": "Corrected",
    "unknown": "Unknown",
}
_LISTED: tuple[DeclarationStatus, ...] = ("corrected", "unknown")
"""Statuses whose values the text lists one by one."""


def infer(source: str, fact: InferenceResult) -> list[Block]:
    """Build the output of `explorer infer`."""
    title = Line((Span("shapes of ", "quiet"), Span(source, "strong")))
    return [title, Line(), *build_inference(fact), *build_ending(fact.output, fact.seconds, wants_file=False)]


def build_inference(fact: InferenceResult) -> list[Block]:
    """Build the counts of declarations, the corrected and unknown values, and the notes."""
    counts = Counter(value.status for value in fact.values)
    total = f"of {len(fact.values):,} values"
    fields = [
        Field("Known before", plain(fact.known_before), total),
        Field("Known now", plain(fact.known), total),
        *(Field(label, plain(counts[status])) for status, label in _STATUS_LABELS.items() if counts[status]),
    ]
    if fact.graphs > 1:
        fields.append(Field("Graphs", plain(fact.graphs), "the main graph, bodies and functions"))
    blocks: list[Block] = [Fields(fields)]
    for status in _LISTED:
        rows = [value for value in fact.values if value.status == status]
        if rows:
            blocks += [Line(), _build_table(status, rows)]
    return [*blocks, *(Paragraph(note, "warning") for note in fact.notes)]


def _build_table(status: DeclarationStatus, values: Sequence[ValueDeclaration]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            printable(value.name),
            printable(value.graph),
            printable(value.before),
            Span(printable(value.after), "warning"),
        )
        for value in values
    ]
    columns = (
        Column(status, shrink=True),
        Column("in", shrink=True),
        Column("the file declares"),
        Column("inference gives" if status == "corrected" else "known"),
    )
    return Table(columns, rows, what="values")
