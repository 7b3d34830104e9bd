"""The Diff tab: what changed against the model as opened, by operator and by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.report.blocks import Block, Table
from explorer.report.present.compare.diff import by_operator, costs, doubts, node_blocks, nodes, verdict
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.lines import BLANK, Line, cut
from explorer.tui.widgets.fold_list import FoldEntry, FoldList, note_entries

if TYPE_CHECKING:
    from explorer.facts import Diff


class DiffTab(Tab[FoldList]):
    """What changed against the model as it was opened."""

    def paint(self) -> None:
        """The changes, or why there are none."""
        store = self.store
        if store.changes is not None:
            self.view.set_entries(diff_entries(store.changes, store.exact), keep=True)
        else:
            opened = (
                "This is the model as it was opened.",
                "Press t to tile it, = to set another model beside it.",
            )
            notes = ("Not compared yet.", "Press d to compare.") if store.can_compare else opened
            self.view.set_entries(note_entries(notes))

    def paint_outline(self) -> None:
        """That there is nothing to compare."""
        self.view.set_entries(note_entries(self.closed))

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


def diff_entries(diff: Diff, exact: bool) -> list[FoldEntry]:
    """What became of the nodes, by operator, cost before and after, then a row a node that differs."""
    entries = [_plain(((verdict(diff), "strong"),)), _plain(BLANK)]
    if diff.summary:
        entries += [*_rows(by_operator(diff), exact), _plain(BLANK)]
    entries += _rows(costs(diff, brief=True), exact)
    entries += [_sentence(block) for block in doubts(diff)]
    if diff.nodes:
        entries += [_plain(BLANK), *_rows(nodes(diff), exact, lambda at: node_blocks(diff.nodes[at]))]
    return entries


def _rows(
    table: Table, exact: bool, inside: Callable[[int], Sequence[Block]] | None = None
) -> list[FoldEntry]:
    """The titles of a table, and its rows, with what lies in them."""
    table = replace(table, indent=0)

    def row(at: int, width: int) -> Line:
        return row_line(table, at, width - 1, exact, mark=(" ", "text"))

    def body(at: int, width: int) -> list[Line]:
        return draw(inside(at) if inside else (), width - 1, exact)

    return [
        FoldEntry(lambda width: title_line(table, width - 1, exact)),
        *(
            FoldEntry(partial(row, at), partial(body, at) if inside else None)
            for at in range(len(table.rows))
        ),
    ]


def _sentence(block: Block) -> FoldEntry:
    """A sentence that opens where it is longer than the pane is wide."""
    return FoldEntry(
        lambda width: cut(draw([block], 999)[0], width - 1),
        lambda width: draw([block], width - 1),
        remark=True,
    )


def _plain(line: Line) -> FoldEntry:
    return FoldEntry(lambda width: line)
