"""Text output of `explorer diff`, also used at the end of `explorer tile`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial

from explorer.base.units import bytes_text, dims_text, exact_text, printable
from explorer.facts import Diff, NodeDiff, OpDiff
from explorer.facts.comparison import TreeDiff
from explorer.facts.site_names import format_site
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Rows, Span, Table, table_of
from explorer.report.present.figures import count, size
from explorer.report.present.row_groups import group_rows, list_first_names
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
"""Role of each status of a row, in the order of the summary."""
_INSIDE_WIDTH = 56
"""Characters of a line that lists the operators inside a row; a longer item has a line of its own."""


def diff(fact: Diff, exported: Sequence[str] = ()) -> list[Block]:
    """Return the answer of `explorer diff`: changes by operator and by node, and costs before and after.

    Args:
        fact: The differences.
        exported: Models that are compared as their ONNX exports, as the user named them.
    """
    head = Line((Span(fact.before, "strong"), Span("   ->   ", "quiet"), Span(fact.after, "strong")))
    if fact.equal:
        word, reason = _describe_equality(fact)
        equality_line = Line((Span(word, "good"), f"   {reason}"), 2)
        return [head, Line(), equality_line, *([Line(), *_build_node_rows(fact)] if fact.nodes else [])]
    return [
        head,
        Line(),
        count_by_operator(fact),
        Line(),
        *_build_node_rows(fact),
        Line(),
        build_cost_table(fact),
        *list_cost_notes(fact),
        *_list_export_notes(fact, exported),
    ]


def _list_export_notes(fact: Diff, exported: Sequence[str]) -> list[Block]:
    """Return a note on models that are compared as their ONNX exports, whose figures differ from `info`."""
    if not exported:
        return []
    names = " and ".join(exported)
    verb = "is compared as its ONNX export" if len(exported) == 1 else "are compared as their ONNX exports"
    text = f"{names} {verb}."
    if any(row.op == "BatchNormalization" for row in fact.summary):
        text += " There, the running statistics of batch normalization count as parameters."
    return [Paragraph(printable(text), "quiet")]


def summarize_changes(fact: Diff) -> str:
    """Summarize the changes of the nodes in one line."""
    if fact.equal:
        return ": ".join(_describe_equality(fact))
    counts = Counter(node.status for node in fact.nodes)
    if len(counts) == 1 and (only_status := next(iter(counts))) in ("folded", "tiled", "quantized"):
        return f"{counts[only_status]:,} {only_status}, nothing else changed"
    parts = [f"{counts[status]:,} {status}" for status in _ROW_ROLES if status in counts]
    return ", ".join(parts) or "no node differs"


def _describe_equality(fact: Diff) -> tuple[str, str]:
    """Return the kind of equality of equal graphs, and its explanation."""
    if fact.nodes:
        return "equal", "only names inside the graph differ"
    return "identical", "no node differs"


def build_changes(fact: Diff) -> list[Block]:
    """Return the changes by node and the costs, without the summary by operator."""
    return (
        [*_build_node_rows(fact), Line(), build_cost_table(fact), *list_cost_notes(fact)]
        if fact.nodes
        else [Paragraph("nothing", "quiet")]
    )


def count_by_operator(fact: Diff) -> Table:
    """Return the number of changed, unchanged, added and removed nodes per operator.

    An operator that several nodes replace is one changed operator. A kind of change that does not occur has
    no column.
    """

    def name(row: OpDiff) -> Span:
        return Span(row.op, "strong" if row.changed or row.added or row.removed else "")

    changes: tuple[tuple[str, Role], ...] = (("changed", "warning"), ("added", "good"), ("removed", "bad"))
    columns: list[tuple[Column, Callable[[OpDiff], Cell]]] = [
        (Column("operator", shrink=True), name),
        (Column("before", "right", drop=2), lambda row: exact_text(row.total)),
        (Column("unchanged", "right", drop=1), lambda row: _count(row.unchanged, "")),
    ]
    columns += [
        (Column(kind, "right"), partial(_count_changes, kind=kind, role=role))
        for kind, role in changes
        if any(getattr(row, kind) for row in fact.summary)
    ]
    return table_of(fact.summary, columns)


def _count_changes(row: OpDiff, *, kind: str, role: Role) -> Span:
    return _count(getattr(row, kind), role)


def _count(value: int, role: Role) -> Span:
    return Span(exact_text(value), role) if value else Span("-", "quiet")


def _build_node_rows(fact: Diff) -> list[Block]:
    rows: list[tuple[Cell, ...]] = []
    for group in group_rows(fact.nodes, _group_key):
        status, name, difference, match = _node_cells(group[0])
        if len(group) > 1:
            name = list_first_names([_name_node(node) for node in group])
        rows.append((status, name, difference, match))
        if group[0].status != "quantized":  # the rounding operators are the same everywhere
            rows += [("", "", Span(line, "quiet")) for line in _wrap_children(group[0].children)]
    return (
        [Table((Column(""), Column("", shrink=True), Column(""), Column("", drop=1)), rows)] if rows else []
    )


def _node_cells(row: NodeDiff) -> tuple[Cell, Cell, Cell, Cell]:
    """Return the cells of a node: status, name, difference, and the way in which it was matched."""
    tiled = row.status in ("tiled", "merged")
    name: Cell = _name_node(row)
    match = ""
    if row.before and row.after and row.before != row.after and not tiled:
        name = row.before, " -> ", row.after
    if row.match and row.match != "name" and not tiled:
        match = f"matched by {row.match}, {100 * row.confidence:.0f} % sure"
    difference = field_terms(row.what) or Span(row.op_after or row.op_before or "", "quiet")
    return Span(row.status, _ROW_ROLES.get(row.status, "")), name, difference, Span(match, "quiet")


def _name_node(row: NodeDiff) -> str:
    return format_site(row.before or row.after or "", row.layer)


def build_node_table(fact: Diff) -> Table:
    """Return a table with one row per node that differs. The first 200 rows determine the column widths."""

    def row(node: NodeDiff) -> tuple[Cell, ...]:
        status, name, _, _ = _node_cells(node)
        # such rows show the operator in its own column
        has_own_column = node.status in ("tiled", "quantized")
        difference = field_terms((has_own_column and node.became) or node.what)
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
    """Return the details of a node that differs, and the operators inside it."""
    pairs = (
        ("before", " ".join(filter(None, (row.op_before, row.before)))),
        ("after", " ".join(filter(None, (row.op_after, row.after)))),
        ("layer", row.layer),
        ("what", field_terms(row.what)),
        ("matched by", f"{row.match}, {100 * row.confidence:.0f} % sure" if row.match else ""),
        *(("" if index else "inside", line) for index, line in enumerate(_wrap_children(row.children))),
    )
    rows = [(Span(label, "quiet"), text) for label, text in pairs if text]
    return [Table((Column(""), Column("")), rows, 4)]


def _group_key(row: NodeDiff) -> Hashable:
    """Return a key that is equal for rows that are shown as one.

    Tiled, merged, added and removed rows with the same change are shown as one, every other row alone.
    """
    can_be_grouped = row.status in ("tiled", "merged") or (row.what and row.status in ("added", "removed"))
    group_key = row.status, row.what, row.op_before, row.op_after, row.children
    return group_key if can_be_grouped else id(row)


def _wrap_children(children: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield lines such as '9,216 2DMM_64x64x64, 64 Sum, ...'."""
    line = ""
    for op, op_count in children:
        item_text = f"{op_count:,} {op}"
        if line and len(line) + len(item_text) > _INSIDE_WIDTH:
            yield line + ","
            line = item_text
        else:
            line = f"{line}, {item_text}" if line else item_text
    if line:
        yield line


def build_cost_table(fact: Diff | TreeDiff, *, brief: bool = False) -> Table:
    """Return the costs before and after. `brief` rounds the figures and shows the change only as a share."""
    before, after = fact.totals_before, fact.totals_after
    rows: list[tuple[Cell, ...]] = []
    for label, short, name, text in _COSTS:
        sides = (getattr(before, name), getattr(after, name))
        signs = ["" if name in _ALWAYS_KNOWN else side.sign_of(name) for side in (before, after)]
        if not any(signs):
            delta = _format_difference(*sides, text, brief=brief)
        elif signs == ["<= ", "<= "] and sides[0] == sides[1]:
            delta = Span("same bound", "quiet")
        else:  # the difference of two bounds is unknown
            delta = Span("?", "warning")
        figure = size if text is bytes_text else count if brief else partial(_format_total, text)
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
    ("Elementwise operations", "elementwise", "elementwise_ops", exact_text),
    ("Activations, sum", "activ. sum", "activation_bytes_sum", bytes_text),
    ("Activations, peak", "activ. peak", "activation_bytes_peak", bytes_text),
    ("Bytes read", "reads", "bytes_read", bytes_text),
    ("Bytes written", "writes", "bytes_written", bytes_text),
)
_ALWAYS_KNOWN = ("nodes", "params", "weight_bytes")
"""Totals that are known even if shapes are unknown."""


def _format_total(text: Callable[[int | None], str], value: int | None, sign: str) -> str:
    """Format a total with its sign: a bound or an assumption."""
    return f"{sign}{text(value)}" if value is not None else text(value)


def _format_difference(
    old: int | None, new: int | None, text: Callable[[int], str], *, brief: bool = False
) -> Cell:
    """Format a difference with its sign, and its ratio to the old value: in percent, or as a factor."""
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
    exact = f"{sign}{exact_text(abs(new - old))}"
    return Span(f"{sign}{text(abs(new - old))}", exact=exact), f"  ({share})" if share else ""


def list_cost_notes(fact: Diff | TreeDiff) -> list[Block]:
    """Return notes about inexact costs, and about costs that do not describe hardware; [] if none applies."""
    before, after = fact.totals_before, fact.totals_after
    notes: list[Block] = []
    if before.nodes != after.nodes:
        notes = [Paragraph(_NOT_HARDWARE, "quiet")]
    if isinstance(fact, Diff) and fact.dims:
        notes.append(Paragraph(f"The costs are for {dims_text(fact.dims)}.", "quiet"))
    rows = fact.nodes if isinstance(fact, Diff) else ()
    if after.params < before.params and any(
        row.status == "tiled" and row.op_before in _WITH_TWO_BIASES for row in rows
    ):
        notes.append(Paragraph(_ONE_BIAS, "quiet"))
    lowest = min(before.coverage, after.coverage)
    if lowest >= 1:
        text = "Not every cost is exact: the totals with a sign are bounds, or rest on assumptions."
        return [Paragraph(text, "warning"), *notes] if before.sign or after.sign else notes
    share = f"{int(lowest * 1000) / 10:.1f} %"
    text = f"Coverage, the share of nodes whose cost is known, is {share}; the other totals are lower bounds."
    return [Paragraph(text, "warning"), *notes]


_WITH_TWO_BIASES = ("LSTM", "GRU", "RNN")
"""Operators that store a bias for the input and one for the state."""

_ONE_BIAS = (
    "An LSTM, GRU or RNN stores two biases, one for the input and one for the state. A tiled one stores their"
    " sum, so it has fewer parameters."
)

_NOT_HARDWARE = (
    "Nodes, activations and bytes are those of the graph in the file. They are not what hardware moves:"
    " `explorer plan` prints its traffic."
)
