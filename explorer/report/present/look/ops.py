"""Text output of `explorer ops`: the costs of operator types, and the values of their attributes."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.facts import Info, OpStat, Range
from explorer.report.blocks import Block, Cell, Column, Line, Span, Table
from explorer.report.present.figures import bar_text, count, dash_zero, plain, share_text, value_text
from explorer.report.present.look.info import title
from explorer.report.present.look.layers import find_work_sign


def ops(fact: Info, stats: Sequence[OpStat]) -> list[Block]:
    """Return the answer of `explorer ops`."""
    return [*title(fact.model), Line(), *build_operator_blocks(fact, stats)]


_MIN_NAME_WIDTH = len("LayerNormalization")
"""Minimum cells of an operator's name before another column is left out."""


def build_operator_blocks(fact: Info, stats: Sequence[OpStat]) -> list[Block]:
    """Return the costs of each operator type, and the values of its attributes."""
    rows = [
        (Span(stat.op if not index else "", "strong"), Span(name, "quiet"), range_text(span))
        for stat in stats
        for index, (name, span) in enumerate(stat.attributes.items())
    ]
    columns = (Column("operator"), Column("attribute"), Column("values", shrink=True))
    attributes: list[Block] = [Line(), Table(columns, rows, 0)] if rows else []
    return [operators(fact, stats), *attributes]


def operators(fact: Info, stats: Sequence[OpStat]) -> Table:
    """Return a table with one row per operator type."""
    total_macs = fact.totals.macs
    costliest = max((stat.macs or 0 for stat in stats), default=0)

    def row(stat: OpStat) -> tuple[Cell, ...]:
        return (
            Span(stat.op, "strong"),
            plain(stat.count),
            dash_zero(count(stat.macs, find_work_sign(stat))),
            share_text(stat.macs, total_macs) if stat.macs != 0 and total_macs else "",
            bar_text(stat.macs, costliest),
            dash_zero(count(stat.params)),
            dash_zero(count(stat.elementwise_ops, find_work_sign(stat))),
        )

    columns = (
        Column("operator", shrink=True, least=_MIN_NAME_WIDTH),
        Column("count", "right"),
        Column("MACs", "right"),
        Column("share", "right", drop=2),
        Column("", role="bar", drop=3),
        Column("params", "right"),
        Column("elementwise", "right", drop=1),
    )
    return Table(columns, [row(stat) for stat in stats], 0)


def build_operator_table(fact: Info, stats: Sequence[OpStat], sorted_by: str) -> Table:
    """Return the table of the screen, with bars left of the figures that the rows are sorted by.

    Args:
        fact: Facts about the model.
        stats: Operator types, in display order.
        sorted_by: 'macs', 'count', 'params' or 'elementwise_ops'; '' for no bars.
    """
    total_macs = fact.totals.macs
    largest = max((getattr(stat, sorted_by) or 0 for stat in stats), default=0) if sorted_by else 0

    def row(stat: OpStat) -> tuple[Cell, ...]:
        figures: dict[str, Cell] = {
            "count": plain(stat.count),
            "macs": dash_zero(count(stat.macs, find_work_sign(stat))),
            "share": share_text(stat.macs, total_macs) if stat.macs != 0 and total_macs else "",
            "params": dash_zero(count(stat.params)),
            "elementwise_ops": dash_zero(count(stat.elementwise_ops, find_work_sign(stat))),
        }
        cells: list[Cell] = [Span(stat.op, "kind")]
        for name, figure in figures.items():
            if name == sorted_by:
                cells.append(bar_text(getattr(stat, name), largest, _BAR_WIDTH))
            cells.append(figure)
        return tuple(cells)

    columns = [Column("operator", shrink=True, least=_MIN_NAME_WIDTH)]
    for name, title_text, drop in _FIGURES:
        if name == sorted_by:
            columns.append(Column("", role="bar", drop=1))
        columns.append(Column(title_text, "right", drop=0 if name == sorted_by else drop))
    return Table(tuple(columns), [row(stat) for stat in stats], 0)


_FIGURES = (
    ("count", "count", 0),
    ("macs", "MACs", 0),
    ("share", "share", 3),
    ("params", "params", 2),
    ("elementwise_ops", "elementwise", 4),
)
"""Figures on the screen: their names, their titles, and the order in which they are left out."""


def attribute_blocks(stat: OpStat) -> list[Block]:
    """Return the values of an operator's attributes with their counts."""
    blocks: list[Block] = []
    for name, span in stat.attributes.items():
        blocks.append(Line((Span(f" {name}  ", "quiet"), Span(_format_range(span), "figure"))))
        if span.distinct == 1:
            continue
        values = span.values[:_MAX_VALUES]
        rows: list[tuple[Cell, ...]] = [
            (bar_text(n, stat.count), plain(n), value_text(v, _MAX_ITEMS)) for v, n in values
        ]
        if span.distinct > len(values):
            rows.append(("", "", Span(f"{span.distinct - len(values):,} more values", "quiet")))
        columns = (Column("", role="bar"), Column("", "right"), Column(""))
        blocks.append(Table(columns, rows, 4))
    return blocks


_MAX_VALUES, _MAX_ITEMS, _BAR_WIDTH = 8, 16, 6
"""Maximum number of listed values, maximum items of a list, and width of a histogram bar in cells."""


def _format_range(span: Range) -> str:
    """Format the range of an attribute, its only value, or the number of unordered values."""
    if span.distinct <= 1:
        return value_text(span.values[0][0] if span.values else span.minimum, _MAX_ITEMS)
    if span.minimum is None or span.maximum is None:
        return f"{span.distinct:,} values"
    return f"{value_text(span.minimum, _MAX_ITEMS)} .. {value_text(span.maximum, _MAX_ITEMS)}"


def range_text(span: Range) -> str:
    """Format the values of an attribute: a single value, or the range and the values with their counts."""
    if span.distinct == 1:
        return value_text(span.minimum if not span.values else span.values[0][0])
    listed = ", ".join(value_text(v) + (f" ×{count:,}" if count > 1 else "") for v, count in span.values)
    rest_text = f" and {span.distinct - len(span.values):,} more" if span.distinct > len(span.values) else ""
    if span.minimum is None or span.maximum is None:
        return listed + rest_text
    return f"{value_text(span.minimum)} .. {value_text(span.maximum)}   ({listed}{rest_text})"
