"""Torchinfo's own table in text, ours beside it, and where they differ and why."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import exact_text
from explorer.facts import Analysis, Info
from explorer.facts.comparison import TorchinfoDifference, TorchinfoTable
from explorer.report.blocks import Block, Column, Line, Paragraph, Span, Table, table_of
from explorer.report.present.look.info import title
from explorer.report.present.look.table import layers


def torchinfo(about: Info, fact: TorchinfoTable, analysis: Analysis | None, compared: bool) -> list[Block]:
    """Torchinfo's own table, ours where it was asked for, and with `compared` where they differ and why."""
    blocks: list[Block] = []
    if analysis is None:
        blocks = [
            *title(about.model),
            Line(Span(f"made by torchinfo {fact.version}", "quiet")),
            *(Line(line) for line in fact.text.splitlines()),
        ]
    else:
        blocks = layers(analysis)
    if not compared:
        return blocks
    if not fact.differences:
        return [*blocks, Line(), Paragraph(f"torchinfo {fact.version} agrees with every figure", "good")]
    for why in dict.fromkeys(difference.why for difference in fact.differences):
        blocks += [
            Line(),
            Paragraph(why, "warning", 0),
            _overruled([d for d in fact.differences if d.why == why], fact),
        ]
    return blocks


def _overruled(differences: Sequence[TorchinfoDifference], fact: TorchinfoTable) -> Table:
    """Torchinfo's numbers that one rule overrules."""
    return table_of(
        differences,
        (
            (Column("layer", shrink=True), lambda row: row.path or "total"),
            (Column("kind", shrink=True, drop=1), lambda row: Span(row.kind, "quiet")),
            (Column("figure"), lambda row: row.figure),
            (Column(f"torchinfo {fact.version}", "right"), lambda row: exact_text(row.theirs)),
            (Column("ours", "right", role="strong"), lambda row: exact_text(row.ours)),
        ),
    )
