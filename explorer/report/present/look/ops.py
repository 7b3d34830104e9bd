"""What each operator type costs, and the values of its attributes: `explorer ops`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.facts import Info, OpStat, Range
from explorer.report.blocks import Block, Cell, Column, Heading, Line, Span, Table
from explorer.report.present.figures import bar_text, count, plain, quiet_zero, share_text, value_text
from explorer.report.present.look.info import title

__all__ = ["ops", "ops_blocks", "range_text"]


def ops(fact: Info, stats: Sequence[OpStat]) -> list[Block]:
    """The answer of `explorer ops`."""
    return [*title(fact.model), Line(), *ops_blocks(fact, stats)]


def ops_blocks(fact: Info, stats: Sequence[OpStat]) -> list[Block]:
    """What each operator type costs, and the values its attributes take."""
    whole = fact.totals.macs
    largest = max((stat.macs or 0 for stat in stats), default=0)
    rows: list[tuple[Cell, ...]] = [
        (
            Span(stat.op, "strong"),
            plain(stat.count),
            quiet_zero(count(stat.macs)),
            share_text(stat.macs, whole) if stat.macs != 0 and whole else "",
            bar_text(stat.macs, largest),
            quiet_zero(count(stat.params)),
            quiet_zero(count(stat.elementwise_ops)),
        )
        for stat in stats
    ]
    columns = (
        Column("operator", shrink=True),
        Column("count", "right"),
        Column("MACs", "right"),
        Column("share", "right", drop=2),
        Column("", role="bar", drop=3),
        Column("params", "right"),
        Column("elementwise", "right", drop=1),
    )
    blocks: list[Block] = [Table(columns, rows, 0)]
    for stat in stats:
        if stat.attributes:
            found = [(Span(name, "quiet"), range_text(span)) for name, span in stat.attributes.items()]
            blocks += [
                Line(),
                Heading(stat.op),
                Table((Column(""), Column("", shrink=True)), found),
            ]
    return blocks


def range_text(span: Range) -> str:
    """The values of an attribute: one value, or the range and then the values with how often each occurs."""
    if span.distinct == 1:
        return value_text(span.minimum if not span.values else span.values[0][0])
    listed = ", ".join(value_text(v) + (f" ×{count:,}" if count > 1 else "") for v, count in span.values)
    more = f" and {span.distinct - len(span.values):,} more" if span.distinct > len(span.values) else ""
    if span.minimum is None or span.maximum is None:
        return listed + more
    return f"{value_text(span.minimum)} .. {value_text(span.maximum)}   ({listed}{more})"
