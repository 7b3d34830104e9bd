"""Text output of `explorer layers --style torchinfo` and `--compare`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import exact_text
from explorer.facts import Analysis, Info
from explorer.facts.comparison import TorchinfoDifference, TorchinfoTable
from explorer.report.blocks import Block, Column, Line, Paragraph, Span, Table, table_of
from explorer.report.present.look.info import title
from explorer.report.present.look.table import layers


def torchinfo(info: Info, fact: TorchinfoTable, analysis: Analysis | None, compared: bool) -> list[Block]:
    """Return the table of torchinfo, or Explorer's own one, and with `compared` the differences explained."""
    blocks: list[Block] = []
    if analysis is None:
        blocks = [
            *title(info.model),
            Line(Span(f"made by torchinfo {fact.version}", "quiet")),
            *(Line(line) for line in fact.text.splitlines()),
        ]
    else:
        blocks = layers(analysis)
    if not compared:
        return blocks
    if not fact.differences:
        return [*blocks, Line(), Paragraph(f"torchinfo {fact.version} agrees with every figure", "good")]
    for reason in dict.fromkeys(difference.why for difference in fact.differences):
        blocks += [
            Line(),
            Paragraph(reason, "warning", 0),
            _build_difference_table([d for d in fact.differences if d.why == reason], fact),
        ]
    return blocks


def _build_difference_table(differences: Sequence[TorchinfoDifference], fact: TorchinfoTable) -> Table:
    """Return the numbers of torchinfo that differ for one reason."""
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
