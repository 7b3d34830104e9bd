"""The Diff tab: what changed against the model as opened, by operator and by node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from explorer.report.terms import field_terms
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.lines import (
    BLANK,
    Line,
    bytes_figure,
    count_figure,
    ending,
    fit,
    head,
    safe,
    signed,
    wrap,
)
from explorer.tui.widgets.fold_list import FoldEntry, FoldList

if TYPE_CHECKING:
    from explorer.facts import Diff, NodeDiff, OpDiff, Totals

_MARKS = {
    "added": ("+", "good"),
    "removed": ("-", "bad"),
    "changed": ("~", "warn"),
    "renamed": ("=", "dim"),
    "tiled": ("▦", "accent"),
    "merged": ("▣", "accent"),
}


class DiffTab(Tab[FoldList]):
    """What changed against the model as it was opened."""

    def paint(self) -> None:
        """The changes, or why there are none."""
        store = self.store
        if store.changes is not None:
            self.view.set_entries(diff_entries(store.changes, store.exact), keep=True)
        else:
            opened = ("This is the model as it was opened.", "Press t to tile it.")
            said = ("Not compared yet.", "Press d to compare.") if store.can_compare else opened
            self.view.set_entries([FoldEntry(partial(_dim, word)) for word in said])

    def on_open(self) -> None:
        """Compare, if there is something to compare with."""
        if self.store.changes is None and self.store.can_compare:
            self.ask("diff")

    @property
    def node(self) -> str:
        """The node of the row under the cursor, if that is where the user is."""
        view, changes = self.view, self.store.changes
        if not view.has_focus or changes is None:
            return ""
        # the nodes are the last of its entries
        at = view.current_entry - (view.entry_count - len(changes.nodes))
        node = changes.nodes[at] if at >= 0 else None
        return "" if node is None else node.before or node.after or ""


def _dim(word: str, width: int) -> Line:
    return ((fit(word, width), "dim"),)


def diff_headline(diff: Diff) -> str:
    """One line in words: what became of how many nodes."""
    if diff.equal:
        return "Equal: only names inside the graph differ" if diff.nodes else "No difference"
    counts: dict[str, int] = {}
    for node in diff.nodes:
        counts[node.status] = counts.get(node.status, 0) + 1
    if set(counts) == {"tiled"}:
        return f"{counts['tiled']:,} tiled, nothing else changed"
    order = ("tiled", "merged", "changed", "added", "removed", "renamed")
    return (
        ", ".join(f"{counts[status]:,} {status}" for status in order if status in counts) or "No node differs"
    )


def diff_entries(diff: Diff, exact: bool) -> list[FoldEntry]:
    """Summary by operator, cost before and after, then a row a difference."""
    entries = [_plain(((diff_headline(diff), "strong"),)), _plain(BLANK)]
    if diff.summary:
        entries.append(FoldEntry(_summary_head))
        entries.extend(FoldEntry(partial(_summary_row, row)) for row in diff.summary)
        entries.append(_plain(BLANK))
    entries.append(FoldEntry(_cost_head))
    entries.extend(
        FoldEntry(partial(_cost_row, *row, _signs(diff, row[0]), exact))
        for row in _costs(diff.totals_before, diff.totals_after)
    )
    said = {"": "", ">= ": "coverage is below 100 %: sums are lower bounds"}
    for sign in dict.fromkeys(_signs(diff, "MACs")):
        if text := said.get(sign, "not all is exact: sums are bounds, or rest on assumptions"):
            entries.append(_plain(((text, "warn"),)))
    if diff.nodes:
        entries += [_plain(BLANK), _plain(head("Nodes"))]
        entries.extend(FoldEntry(partial(_node_row, node), partial(_node_body, node)) for node in diff.nodes)
    return entries


def _plain(line: Line) -> FoldEntry:
    return FoldEntry(lambda width: line)


_COLUMNS = (
    ("total", "all"),
    ("changed", "chg"),
    ("unchanged", "same"),
    ("added", "new"),
    ("removed", "gone"),
)


def _summary_widths(width: int) -> tuple[int, int]:
    """Cells of the operator, and of a column."""
    each = 10 if width >= 62 else 6 if width >= 48 else 5
    return max(4, width - len(_COLUMNS) * each - 1), each


def _summary_head(width: int) -> Line:
    name, each = _summary_widths(width)
    cells = "".join(fit(long if width >= 62 else short, each, right=True) for long, short in _COLUMNS)
    return ((fit("Operators", name), "head"), (cells, "dim"))


def _summary_row(row: OpDiff, width: int) -> Line:
    first, each = _summary_widths(width)
    spans = [(fit(safe(row.op), first), "text")]
    roles = ("number", "warn", "dim", "good", "bad")
    for (name, _), role in zip(_COLUMNS, roles, strict=True):
        value = getattr(row, name)
        shown = f"{value:,}" if len(f"{value:,}") < each else f"{value}"
        spans.append((fit(shown if value else "·", each, right=True), role if value else "dim"))
    return tuple(spans)


def _costs(before: Totals, after: Totals) -> list[tuple[str, int | None, int | None, bool]]:
    return [
        ("MACs", before.macs, after.macs, False),
        ("elementwise", before.elementwise_ops, after.elementwise_ops, False),
        ("params", before.params, after.params, False),
        ("weights", before.weight_bytes, after.weight_bytes, True),
        ("activ. peak", before.activation_bytes_peak, after.activation_bytes_peak, True),
        ("bytes moved", _moved(before), _moved(after), True),
        ("operators", before.nodes, after.nodes, False),
    ]


def _moved(totals: Totals) -> int | None:
    if totals.bytes_read is None or totals.bytes_written is None:
        return None
    return totals.bytes_read + totals.bytes_written


def _cost_widths(width: int, exact: bool) -> tuple[int, int, int]:
    """Cells of the label, of a figure, of the change."""
    if width < 44:
        change = 6 if width >= 34 else 0
        return max(5, width - 2 * 11 - change - 1), 11, change
    figure = 20 if exact and width >= 66 else 12
    change = 10 if width >= 2 * figure + 22 else 8
    return max(5, width - 2 * figure - change - 1), figure, change


_SHORT = {"elementwise": "elemwise", "activ. peak": "peak", "bytes moved": "moved", "operators": "ops"}
"""Labels where half of 80 cells is all there is."""


def _cost_head(width: int) -> Line:
    label, figure, change = _cost_widths(width, False)
    columns = f"{'before':>{figure}}{'after':>{figure}}{'change' if change > 6 else '':>{change}}"
    return ((fit("Cost", label), "head"), (columns, "dim"))


_STORED = ("params", "weights", "operators")
"""Known of every node, whatever its shapes are."""


def _signs(diff: Diff, label: str) -> tuple[str, str]:
    """How the figures before and after are not exact: `Totals.sign`."""
    sides = (diff.totals_before, diff.totals_after)
    before, after = ("" if label in _STORED else side.sign for side in sides)
    return before, after


def _cost_row(
    label: str,
    before: int | None,
    after: int | None,
    size: bool,
    signs: tuple[str, str],
    exact: bool,
    width: int,
) -> Line:
    figure: Callable[[int | None, bool], str] = bytes_figure if size else count_figure
    name, room, rest = _cost_widths(width, exact)
    exact = exact and room > 12
    same = before == after and before is not None
    change = "same" if same else "?" if before is None or after is None else _change(before, after, rest)
    if any(signs):  # the difference of two bounds is nothing that anybody knows
        same, change = False, "?"
    shown = [
        signed(sign, figure(value, exact), value).replace(" ", "", bool(sign))
        for value, sign in zip((before, after), signs, strict=True)
    ]
    return (
        (fit(_SHORT.get(label, label) if name < len(label) else label, name), "text"),
        *((fit(text, room, right=True), "number") for text in shown),
        (fit(change, rest, right=True), "dim" if same else "warn"),
    )


def _change(before: int, after: int, room: int) -> str:
    """How much more or less, in fewer cells than `room`."""
    if not before:
        return f"+{after:,}" if len(f"{after:,}") + 2 <= room else "new"
    percent = 100 * (after - before) / before
    times = f"×{after / before:.1f}"
    full = times if percent >= 1000 else f"{percent:+.1f} %"
    return full if len(full) < room else f"×{after / before:.0f}" if percent >= 1000 else f"{percent:+.0f}%"


def _node_row(node: NodeDiff, width: int) -> Line:
    mark, role = _MARKS.get(node.status, ("?", "text"))
    what = safe(field_terms(node.what))
    room = width - 5
    full = safe(node.after or node.before or "")
    what_width = min(len(what), max(14, room - min(len(full), max(10, 4 * room // 9))))
    what = what if len(what) <= what_width else what.replace(" tile matmul", " matmul")
    name = full if len(full) <= room - what_width else safe(_place(node))
    return (
        (mark + " ", role),
        (fit(ending(name, max(8, room - what_width)), max(8, room - what_width)), "text"),
        ("  ", "text"),
        (fit(what, what_width).rstrip(), role),
    )


def _place(node: NodeDiff) -> str:
    """A node's name, without the operator where that stands beside it: /conv1/Conv is /conv1."""
    name = node.after or node.before or ""
    tiled = node.status in ("tiled", "merged")
    scope, _, last = name.rpartition("/")
    return scope if tiled and scope and last in (node.op_before, node.op_after) else name


def _node_body(node: NodeDiff, width: int) -> list[Line]:
    pairs = [
        ("before", " ".join(filter(None, (node.op_before, node.before)))),
        ("after", " ".join(filter(None, (node.op_after, node.after)))),
        ("what", field_terms(node.what)),
        ("matched by", f"{node.match}, confidence {node.confidence:.0%}" if node.match else ""),
    ]
    lines: list[Line] = []
    for label, said in pairs:
        if said:
            lines.extend(wrap(((f"      {label:<11}", "dim"), (safe(said), "text")), width - 1, 17))
    for op, count in node.children:
        spans = ((f"      {count:>9,}", "number"), (" × ", "dim"), (safe(op), "text"))
        lines.extend(wrap(spans, width - 1, 18))
    return lines
