"""The Diff tab: the changes since the model was opened, by operator and by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.report.blocks import Block, Table
from explorer.report.present.compare.diff import (
    build_cost_table,
    build_node_table,
    count_by_operator,
    list_cost_notes,
    node_blocks,
    summarize_changes,
)
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.lines import BLANK, Line, cut_line
from explorer.tui.widgets.fold_list import FoldEntry, FoldList, note_entries

if TYPE_CHECKING:
    from explorer.facts import Diff


class DiffTab(Tab[FoldList]):
    """Shows the changes since the model was opened."""

    def paint(self) -> None:
        """Show the changes, or why there are none."""
        store = self.store
        if store.changes is not None:
            self.view.set_entries(diff_entries(store.changes, store.exact), keep=True)
        else:
            no_changes = (
                "This is the original model.",
                "Nothing has changed yet.",
                "Press t to tile it.",
                "Press = to compare two models.",
            )
            notes = ("Not compared yet.", "Press d to compare.") if store.can_compare else no_changes
            self.view.set_entries(note_entries(notes))

    def paint_outline(self) -> None:
        """Show that the model is not open, so that nothing can be compared."""
        self.view.set_entries(note_entries(self.closed_message))

    def on_open(self) -> None:
        """Start the comparison if the state has a predecessor and was not compared yet."""
        if self.store.changes is None and self.store.can_compare:
            self.ask("diff")

    @property
    def node(self) -> str:
        """Name of the node under the cursor, or '' if the tab is not focused or the row has no node."""
        view, changes = self.view, self.store.changes
        if not view.has_focus or changes is None:
            return ""
        # the node rows are the last entries of the list
        index = view.current_entry - (view.entry_count - len(changes.nodes))
        node = changes.nodes[index] if index >= 0 else None
        return "" if node is None else node.before or node.after or ""


def diff_entries(diff: Diff, exact: bool) -> list[FoldEntry]:
    """Build the entries of the tab: the verdict, changes by operator, costs, and one row per changed node."""
    entries = [_build_line(((summarize_changes(diff), "strong"),)), _build_line(BLANK)]
    if diff.summary:
        entries += [*_build_entries(count_by_operator(diff), exact), _build_line(BLANK)]
    entries += _build_entries(build_cost_table(diff, brief=True), exact)
    entries += [_build_sentence(block) for block in list_cost_notes(diff)]
    if diff.nodes:
        entries += [
            _build_line(BLANK),
            *_build_entries(build_node_table(diff), exact, lambda index: node_blocks(diff.nodes[index])),
        ]
    return entries


def _build_entries(
    table: Table, exact: bool, details: Callable[[int], Sequence[Block]] | None = None
) -> list[FoldEntry]:
    """Build one entry for the titles of a table, and one per row. `details` returns the details of a row."""
    table = replace(table, indent=0)

    def row(index: int, width: int) -> Line:
        return row_line(table, index, width - 1, exact, mark=(" ", "text"))

    def body(index: int, width: int) -> list[Line]:
        return draw(details(index) if details else (), width - 1, exact)

    return [
        FoldEntry(lambda width: title_line(table, width - 1, exact)),
        *(FoldEntry(partial(row, i), partial(body, i) if details else None) for i in range(len(table.rows))),
    ]


def _build_sentence(block: Block) -> FoldEntry:
    """Build an entry of one sentence. If it is longer than the pane is wide, the entry can be opened."""
    return FoldEntry(
        lambda width: cut_line(draw([block], 999)[0], width - 1),  # 999 cells: the sentence unwrapped
        lambda width: draw([block], width - 1),
        remark=True,
    )


def _build_line(line: Line) -> FoldEntry:
    return FoldEntry(lambda width: line)
