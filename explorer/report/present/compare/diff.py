"""What changed between two graphs, in text: `explorer diff`, and the end of `explorer tile`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from explorer.base.units import bytes_text, exact_text
from explorer.facts import Diff, NodeDiff, Totals
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Span, Table
from explorer.report.present.alike import alike, and_more
from explorer.report.terms import field_terms

__all__ = ["changes", "diff"]

_ROW_ROLES: Mapping[str, Role] = {
    "added": "good",
    "removed": "bad",
    "changed": "warning",
    "tiled": "good",
    "merged": "good",
    "renamed": "quiet",
}
_INSIDE_WIDTH = 56


def diff(fact: Diff) -> list[Block]:
    """The answer of `explorer diff`: by operator, row by row, cost before and after."""
    head = Line((Span(fact.before, "strong"), Span("   ->   ", "quiet"), Span(fact.after, "strong")))
    if fact.equal and not fact.nodes:
        return [head, Line(), Line((Span("identical", "good"), "   no node differs"), 2)]
    if fact.equal:
        verdict = Line((Span("equal", "good"), "   nothing but names inside the graph differs"), 2)
        return [head, Line(), verdict, Line(), *_rows(fact)]
    return [head, Line(), *_summary(fact), Line(), *_rows(fact), Line(), *_totals(fact)]


def changes(fact: Diff) -> list[Block]:
    """The rows and the cost, without the summary by operator."""
    return [*_rows(fact), Line(), *_totals(fact)] if fact.nodes else [Paragraph("nothing", "quiet")]


def _summary(fact: Diff) -> list[Block]:
    rows: list[tuple[Cell, ...]] = [
        (
            Span(row.op, "strong" if row.changed or row.added or row.removed else ""),
            exact_text(row.total),
            _count(row.changed, "warning"),
            _count(row.unchanged, ""),
            _count(row.added, "good"),
            _count(row.removed, "bad"),
        )
        for row in fact.summary
    ]
    columns = (
        Column("operator", shrink=True),
        Column("before", "right"),
        Column("changed", "right"),
        Column("unchanged", "right"),
        Column("added", "right"),
        Column("removed", "right"),
    )
    return [Table(columns, rows)]


def _count(value: int, role: Role) -> Span:
    return Span(exact_text(value), role) if value else Span("-", "quiet")


def _rows(fact: Diff) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for group in alike(fact.nodes, _sort):
        row = group[0]
        name = and_more([one.before or one.after or "" for one in group])
        if row.before and row.after and row.before != row.after and row.status not in ("tiled", "merged"):
            name = f"{row.before} -> {row.after}"
        how = ""
        if row.match and row.match != "name" and row.status not in ("tiled", "merged"):
            how = f"matched by {row.match}, {100 * row.confidence:.0f} % sure"
        what = field_terms(row.what) or Span(row.op_after or row.op_before or "", "quiet")
        rows.append((Span(row.status, _ROW_ROLES.get(row.status, "")), name, what, Span(how, "quiet")))
        rows += [("", "", Span(line, "quiet")) for line in _inside(row.children)]
    return (
        [Table((Column(""), Column("", shrink=True), Column(""), Column("", drop=1)), rows)] if rows else []
    )


def _sort(row: NodeDiff) -> Hashable:
    """What tiled rows have in common; every other row is one of a kind."""
    tiled = row.status in ("tiled", "merged")
    same = row.status, row.what, row.op_before, row.op_after, row.children
    return same if tiled else id(row)


def _inside(children: Sequence[tuple[str, int]]) -> Iterator[str]:
    """'9,216 2DMM_64x64x64, 64 Sum, ...', broken into lines."""
    line = ""
    for op, count in children:
        piece = f"{count:,} {op}"
        if line and len(line) + len(piece) > _INSIDE_WIDTH:
            yield line + ","
            line = piece
        else:
            line = f"{line}, {piece}" if line else piece
    if line:
        yield line


def _totals(fact: Diff) -> list[Block]:
    before, after = fact.totals_before, fact.totals_after
    figures = [
        ("Nodes", before.nodes, after.nodes, exact_text),
        ("Parameters", before.params, after.params, exact_text),
        ("Weight bytes", before.weight_bytes, after.weight_bytes, bytes_text),
        ("MACs", before.macs, after.macs, exact_text),
        ("Elementwise operations", before.elementwise_ops, after.elementwise_ops, exact_text),
        ("Activations, sum", before.activation_bytes_sum, after.activation_bytes_sum, bytes_text),
        ("Activations, peak", before.activation_bytes_peak, after.activation_bytes_peak, bytes_text),
        ("Bytes read", before.bytes_read, after.bytes_read, bytes_text),
        ("Bytes written", before.bytes_written, after.bytes_written, bytes_text),
    ]
    rows: list[tuple[Cell, ...]] = []
    for label, old, new, text in figures:
        first, second = ("" if label in _STORED else side.sign for side in (before, after))
        # the difference of two bounds is nothing that anybody knows
        delta = Span("?", "warning") if first or second else _delta(old, new, text)
        rows.append((Span(label, "quiet"), _figure(old, text, first), _figure(new, text, second), delta))
    columns = (Column("cost"), Column("before", "right"), Column("after", "right"), Column(""))
    return [Table(columns, rows), *_least(before, after)]


_STORED = ("Nodes", "Parameters", "Weight bytes")
"""Known of every node, whatever its shapes are."""


def _figure(value: int | None, text: Callable[[int | None], str], sign: str) -> str:
    """A total, or what it is at least or at most."""
    return f"{sign}{text(value)}" if value is not None else text(value)


def _delta(old: int | None, new: int | None, text: Callable[[int], str]) -> Cell:
    """The difference with its sign, and its size against what was: in percent, or as a factor."""
    if old is None or new is None:
        return Span("?", "warning")
    if old == new:
        return Span("unchanged", "quiet")
    sign = "+" if new > old else "-"
    share = ""
    if old and new >= 2 * old:
        share = f"  (x {new / old:.1f})"
    elif old:
        share = f"  ({100 * (new - old) / old:+.1f} %)"
    return f"{sign}{text(abs(new - old))}{share}"


def _least(before: Totals, after: Totals) -> list[Block]:
    lowest = min(before.coverage, after.coverage)
    if lowest >= 1:
        said = "Not every cost is exact: the totals with a sign are bounds, or rest on assumptions."
        return [Paragraph(said, "warning")] if before.sign or after.sign else []
    share = f"{int(lowest * 1000) / 10:.1f} %"
    return [
        Paragraph(
            f"Coverage, the share of nodes whose cost is known, is {share}; the other totals are lower"
            " bounds.",
            "warning",
        )
    ]
