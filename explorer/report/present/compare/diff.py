"""Diff in text, what changed between two graphs: `explorer diff`, and the end of `explorer tile`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

from explorer.base.units import bytes_text, exact_text
from explorer.facts import Diff, NodeDiff, OpDiff
from explorer.facts.comparison import TreeDiff
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Rows, Span, Table, table_of
from explorer.report.present.figures import count, size
from explorer.report.present.row_groups import alike, and_more
from explorer.report.terms import field_terms

_ROW_ROLES: Mapping[str, Role] = {
    "folded": "good",
    "tiled": "good",
    "merged": "good",
    "quantized": "good",
    "changed": "warning",
    "added": "good",
    "removed": "bad",
    "renamed": "quiet",
}
_INSIDE_WIDTH = 56


def diff(fact: Diff) -> list[Block]:
    """The answer of `explorer diff`: by operator, row by row, cost before and after."""
    head = Line((Span(fact.before, "strong"), Span("   ->   ", "quiet"), Span(fact.after, "strong")))
    if fact.equal:
        word, why = _equality(fact)
        same = Line((Span(word, "good"), f"   {why}"), 2)
        return [head, Line(), same, *([Line(), *_rows(fact)] if fact.nodes else [])]
    return [head, Line(), by_operator(fact), Line(), *_rows(fact), Line(), costs(fact), *doubts(fact)]


def verdict(fact: Diff) -> str:
    """One line in words: what became of how many nodes."""
    if fact.equal:
        return ": ".join(_equality(fact))
    counts = Counter(node.status for node in fact.nodes)
    if len(counts) == 1 and (alone := next(iter(counts))) in ("folded", "tiled", "quantized"):
        return f"{counts[alone]:,} {alone}, nothing else changed"
    parts = [f"{counts[status]:,} {status}" for status in _ROW_ROLES if status in counts]
    return ", ".join(parts) or "no node differs"


def _equality(fact: Diff) -> tuple[str, str]:
    """In which way equal graphs are equal, and why."""
    if fact.nodes:
        return "equal", "nothing but names inside the graph differs"
    return "identical", "no node differs"


def changes(fact: Diff) -> list[Block]:
    """The rows and the cost, without the summary by operator."""
    return (
        [*_rows(fact), Line(), costs(fact), *doubts(fact)] if fact.nodes else [Paragraph("nothing", "quiet")]
    )


def by_operator(fact: Diff) -> Table:
    """How many of each operator changed, came and went."""

    def name(row: OpDiff) -> Span:
        return Span(row.op, "strong" if row.changed or row.added or row.removed else "")

    return table_of(
        fact.summary,
        (
            (Column("operator", shrink=True), name),
            (Column("before", "right", drop=2), lambda row: exact_text(row.total)),
            (Column("changed", "right"), lambda row: _count(row.changed, "warning")),
            (Column("unchanged", "right", drop=1), lambda row: _count(row.unchanged, "")),
            (Column("added", "right"), lambda row: _count(row.added, "good")),
            (Column("removed", "right"), lambda row: _count(row.removed, "bad")),
        ),
    )


def _count(value: int, role: Role) -> Span:
    return Span(exact_text(value), role) if value else Span("-", "quiet")


def _rows(fact: Diff) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for group in alike(fact.nodes, _sort):
        status, name, difference, match = _node(group[0])
        if len(group) > 1:
            name = and_more([node.before or node.after or "" for node in group])
        rows.append((status, name, difference, match))
        if group[0].status != "quantized":  # what rounds is the same everywhere
            rows += [("", "", Span(line, "quiet")) for line in _inside(group[0].children)]
    return (
        [Table((Column(""), Column("", shrink=True), Column(""), Column("", drop=1)), rows)] if rows else []
    )


def _node(row: NodeDiff) -> tuple[Cell, str, Cell, Cell]:
    """What became of a node, its name, what differs, and how the two were matched."""
    tiled = row.status in ("tiled", "merged")
    name, match = row.before or row.after or "", ""
    if row.before and row.after and row.before != row.after and not tiled:
        name = f"{row.before} -> {row.after}"
    if row.match and row.match != "name" and not tiled:
        match = f"matched by {row.match}, {100 * row.confidence:.0f} % sure"
    difference = field_terms(row.what) or Span(row.op_after or row.op_before or "", "quiet")
    return Span(row.status, _ROW_ROLES.get(row.status, "")), name, difference, Span(match, "quiet")


def nodes(fact: Diff) -> Table:
    """A row a node that is not the same in both; of many the first 200 say how wide a column is."""

    def row(node: NodeDiff) -> tuple[Cell, ...]:
        status, name, _, _ = _node(node)
        # of these the operator has a column of its own
        alone = node.status in ("tiled", "quantized")
        difference = field_terms((alone and node.became) or node.what)
        return (
            status,
            name,
            node.op_before or node.op_after or "",
            Span(difference, _ROW_ROLES.get(node.status, "")),
        )

    columns = (
        Column("node", drop=1),
        Column("name", shrink=True),
        Column("operator", role="kind", drop=2),
        Column("what differs", shrink=True),
    )
    return Table(columns, Rows(row, fact.nodes), what="nodes")


def node_blocks(row: NodeDiff) -> list[Block]:
    """Everything that is known of a node that is not the same in both, and the operators inside it."""
    pairs = (
        ("before", " ".join(filter(None, (row.op_before, row.before)))),
        ("after", " ".join(filter(None, (row.op_after, row.after)))),
        ("what", field_terms(row.what)),
        ("matched by", f"{row.match}, {100 * row.confidence:.0f} % sure" if row.match else ""),
        *(("" if at else "inside", line) for at, line in enumerate(_inside(row.children))),
    )
    rows = [(Span(label, "quiet"), text) for label, text in pairs if text]
    return [Table((Column(""), Column("")), rows, 4)]


def _sort(row: NodeDiff) -> Hashable:
    """What tiled rows have in common; every other row is one of a kind."""
    tiled = row.status in ("tiled", "merged")
    same = row.status, row.what, row.op_before, row.op_after, row.children
    return same if tiled else id(row)


def _inside(children: Sequence[tuple[str, int]]) -> Iterator[str]:
    """'9,216 2DMM_64x64x64, 64 Sum, ...', broken into lines."""
    line = ""
    for op, many in children:
        piece = f"{many:,} {op}"
        if line and len(line) + len(piece) > _INSIDE_WIDTH:
            yield line + ","
            line = piece
        else:
            line = f"{line}, {piece}" if line else piece
    if line:
        yield line


def costs(fact: Diff | TreeDiff, *, brief: bool = False) -> Table:
    """The cost before and after; `brief` with rounded figures, and of the difference its share alone."""
    before, after = fact.totals_before, fact.totals_after
    rows: list[tuple[Cell, ...]] = []
    for label, short, name, text in _COSTS:
        sides = (getattr(before, name), getattr(after, name))
        signs = ["" if name in _STORED else side.sign for side in (before, after)]
        # the difference of two bounds is nothing that anybody knows
        delta = Span("?", "warning") if any(signs) else _delta(*sides, text, brief=brief)
        figure = (size if text is bytes_text else count) if brief else partial(_figure, text)
        figures: list[Cell] = list(map(figure, sides, signs))
        rows.append((Span(short if brief else label, "quiet"), *figures, delta))
    change = Column("change" if brief else "")
    return Table(
        (
            Column("cost", shrink=brief),
            Column("before", "right", drop=brief),
            Column("after", "right"),
            change,
        ),
        rows,
    )


_COSTS: Sequence[tuple[str, str, str, Callable[[int | None], str]]] = (
    ("Nodes", "nodes", "nodes", exact_text),
    ("Parameters", "params", "params", exact_text),
    ("Weight bytes", "weights", "weight_bytes", bytes_text),
    ("MACs", "MACs", "macs", exact_text),
    ("Elementwise operations", "elemwise", "elementwise_ops", exact_text),
    ("Activations, sum", "act. sum", "activation_bytes_sum", bytes_text),
    ("Activations, peak", "act. peak", "activation_bytes_peak", bytes_text),
    ("Bytes read", "reads", "bytes_read", bytes_text),
    ("Bytes written", "writes", "bytes_written", bytes_text),
)
_STORED = ("nodes", "params", "weight_bytes")
"""Known of every node, whatever its shapes are."""


def _figure(text: Callable[[int | None], str], value: int | None, sign: str) -> str:
    """A total, or what it is at least or at most."""
    return f"{sign}{text(value)}" if value is not None else text(value)


def _delta(old: int | None, new: int | None, text: Callable[[int], str], *, brief: bool = False) -> Cell:
    """The difference with its sign, and its size against what was: in percent, or as a factor."""
    if old is None or new is None:
        return Span("?", "warning")
    if old == new:
        return Span("same" if brief else "unchanged", "quiet")
    share = ""
    if old and new >= 2 * old:
        share = f"x {new / old:.1f}"
    elif old:
        share = f"{100 * (new - old) / old:+.1f} %"
    if brief and share:
        return Span(share, "warning")
    sign = "+" if new > old else "-"
    return f"{sign}{text(abs(new - old))}{f'  ({share})' if share else ''}"


def doubts(fact: Diff | TreeDiff) -> list[Block]:
    """Why the costs are not exact, and what they are no costs of; nothing if there is nothing to say."""
    before, after = fact.totals_before, fact.totals_after
    notes: list[Block] = []
    if before.nodes != after.nodes:
        notes = [Paragraph(_FORM, "quiet")]
    lowest = min(before.coverage, after.coverage)
    if lowest >= 1:
        text = "Not every cost is exact: the totals with a sign are bounds, or rest on assumptions."
        return [Paragraph(text, "warning"), *notes] if before.sign or after.sign else notes
    share = f"{int(lowest * 1000) / 10:.1f} %"
    text = f"Coverage, the share of nodes whose cost is known, is {share}; the other totals are lower bounds."
    return [Paragraph(text, "warning"), *notes]


_FORM = (
    "Nodes, and the activations and bytes between them, are counted as the model is written down: they are no"
    " cost of the hardware."
)
