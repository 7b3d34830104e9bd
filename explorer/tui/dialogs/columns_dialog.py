"""The columns dialog: which columns the layer tree has as a table, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from explorer.settings.columns import COLUMNS, LayerColumn
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import Line, fit
from explorer.tui.tree.table import SHOWN
from explorer.tui.widgets.line_view import LineList

_MARGIN = 8
"""Rows of the screen that the dialog leaves free."""


class _Rows(LineList):
    """The columns: those that are shown, from left to right, then the others."""

    def __init__(self, shown: Sequence[str], known: Mapping[str, LayerColumn]) -> None:
        super().__init__()
        self._known = known
        self.rows: list[str] = [*shown, *(name for name in known if name not in shown)]
        self.shown = set(shown)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        column = self._known[self.rows[index]]
        is_chosen = column.name in self.shown
        return (
            (" ✓ " if is_chosen else "   ", "accent"),
            (fit(column.head, 14), "text" if is_chosen else "dim"),
            ("  " + fit(column.about, max(0, width - 20)), "dim"),
        )

    def toggle_row(self, index: int, want: bool | None = None) -> bool:
        """Show or hide a column."""
        if want is None:
            self.shown ^= {self.rows[index]}
        return want is None

    def carry(self, step: int) -> None:
        """Move the column under the cursor, and the cursor with it."""
        to = self.cursor + step
        if 0 <= to < len(self.rows):
            self.rows.insert(to, self.rows.pop(self.cursor))
            self.refresh()
            self.move_to(to)


class ColumnsDialog(Dialog[tuple[str, ...]]):
    """Asks for columns.

    Args:
        chosen: Those of the tree; empty for those that are shown first.
        known: Those that there are.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("left,h", "carry(-1)", show=False, priority=True),
        Binding("right,l", "carry(1)", show=False, priority=True),
        Binding("r", "reset", show=False),
    ]
    TITLE_TEXT = "Columns of the tree"
    HINT = "Space show · ←→ order · r reset · Enter apply · Esc"

    def __init__(self, chosen: Sequence[str], known: Mapping[str, LayerColumn] = COLUMNS) -> None:
        super().__init__()
        self._known = known
        self._rows = _Rows([name for name in chosen if name in known] or SHOWN, known)

    def body(self) -> ComposeResult:
        """What is in the box."""
        yield self._rows

    def on_mount(self) -> None:
        """Go to the list."""
        self._rows.styles.height = max(3, min(len(self._known), self.app.size.height - _MARGIN))
        self._rows.rows_changed(keep_cursor=False)
        self._rows.focus()

    def action_carry(self, step: int) -> None:
        """Further to the left or to the right in the table."""
        self._rows.carry(step)

    def action_reset(self) -> None:
        """What is shown unless something is chosen."""
        self._rows.rows, self._rows.shown = (
            [*SHOWN, *(name for name in self._known if name not in SHOWN)],
            set(SHOWN),
        )
        self._rows.rows_changed()

    def action_apply(self) -> None:
        """Answer with the columns that are shown; none is what is shown first."""
        shown = tuple([name for name in self._rows.rows if name in self._rows.shown])
        self.dismiss(() if shown == SHOWN else shown)
