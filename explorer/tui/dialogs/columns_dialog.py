"""The columns dialog: chooses the columns of the layer tree and their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from explorer.settings.columns import COLUMNS, LayerColumn
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import Line, fit
from explorer.tui.tree.table import DEFAULT_COLUMNS
from explorer.tui.widgets.line_view import LineList

_MARGIN = 8
"""Number of screen rows that the dialog leaves free."""


class _ColumnRows(LineList):
    """List of the columns: the visible columns from left to right, then the hidden columns."""

    def __init__(self, visible_columns: Sequence[str], columns: Mapping[str, LayerColumn]) -> None:
        super().__init__()
        self._columns = columns
        self.rows: list[str] = [*visible_columns, *(name for name in columns if name not in visible_columns)]
        self.visible_columns = set(visible_columns)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        column = self._columns[self.rows[index]]
        is_visible = column.name in self.visible_columns
        return (
            (" ✓ " if is_visible else "   ", "accent"),
            (fit(column.head, 14), "text" if is_visible else "dim"),
            ("  " + fit(column.about, max(0, width - 20)), "dim"),
        )

    def toggle_row(self, index: int, should_open: bool | None = None) -> bool:
        """Show or hide a column.

        Columns have no branches. Keys that open or close branches set `should_open`; they change nothing,
        and the result is False.
        """
        if should_open is None:
            self.visible_columns ^= {self.rows[index]}
        return should_open is None

    def carry(self, step: int) -> None:
        """Move the column under the cursor by `step` positions, together with the cursor."""
        target = self.cursor + step
        if 0 <= target < len(self.rows):
            self.rows.insert(target, self.rows.pop(self.cursor))
            self.refresh()
            self.move_to(target)


class ColumnsDialog(Dialog[tuple[str, ...]]):
    """Lets the user choose columns.

    Args:
        visible_columns: Visible columns; empty for the default columns.
        columns: All columns by name.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("left,h", "carry(-1)", show=False, priority=True),
        Binding("right,l", "carry(1)", show=False, priority=True),
        Binding("r", "reset", show=False),
    ]
    TITLE_TEXT = "Columns of the tree"
    HINT = "Space show · ←→ order · r reset · Enter apply · Esc cancel"

    def __init__(self, visible_columns: Sequence[str], columns: Mapping[str, LayerColumn] = COLUMNS) -> None:
        super().__init__()
        self._columns = columns
        known_columns = [name for name in visible_columns if name in columns]
        self._rows = _ColumnRows(known_columns or DEFAULT_COLUMNS, columns)

    def compose_body(self) -> ComposeResult:
        """Yield the contents of the box."""
        yield self._rows

    def on_mount(self) -> None:
        """Set the height of the list and focus it."""
        self._rows.styles.height = max(3, min(len(self._columns), self.app.size.height - _MARGIN))
        self._rows.refresh_rows(keep_cursor=False)
        self._rows.focus()

    def action_carry(self, step: int) -> None:
        """Move the column under the cursor by `step` positions, and so left or right in the table."""
        self._rows.carry(step)

    def action_reset(self) -> None:
        """Restore the default columns."""
        self._rows.rows, self._rows.visible_columns = (
            [*DEFAULT_COLUMNS, *(name for name in self._columns if name not in DEFAULT_COLUMNS)],
            set(DEFAULT_COLUMNS),
        )
        self._rows.refresh_rows()

    def action_apply(self) -> None:
        """Close the dialog with the visible columns, or () for the default columns."""
        visible_columns = tuple([name for name in self._rows.rows if name in self._rows.visible_columns])
        self.dismiss(() if visible_columns == DEFAULT_COLUMNS else visible_columns)
