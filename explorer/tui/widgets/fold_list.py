"""Collapsible list: rows that can be opened to show lines below them. Used for operators and diffs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from explorer.tui.text.lines import Line, fit
from explorer.tui.widgets.line_view import LineList


class FoldEntry(Struct, frozen=True):
    """A row of the list.

    Attributes:
        head: Function that draws the row in a width.
        body: Function that draws the lines below an open row in a width, or None if the row cannot be opened.
        remark: Whether the row is a sentence, whose body is only the sentence in full.
    """

    head: Callable[[int], Line]
    body: Callable[[int], Sequence[Line]] | None = None
    remark: bool = False


def note_entries(lines: Sequence[str]) -> list[FoldEntry]:
    """Build entries of plain lines, such as the reason that there are no rows."""
    return [FoldEntry(partial(_draw_note, text)) for text in lines]


def _draw_note(text: str, width: int) -> Line:
    return ((fit(text, width), "dim"),)


class FoldList(LineList):
    """List of entries that can be opened and closed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._entries: Sequence[FoldEntry] = ()
        self._opened: set[int] = set()
        # each row is the index of its entry, and the index of a line of the entry's body, or -1 for its head
        self._rows: list[tuple[int, int]] = []
        self._bodies: dict[tuple[int, int], Sequence[Line]] = {}

    def set_entries(self, entries: Sequence[FoldEntry], *, keep: bool = False) -> None:
        """Show other entries. With `keep`, open entries stay open."""
        self._entries = entries
        self._bodies.clear()
        if not keep:
            self._opened.clear()
        self._lay_out()
        self.refresh_rows(keep_cursor=keep)

    def _lay_out(self) -> None:
        self._rows = []
        for entry in range(len(self._entries)):
            self._rows.append((entry, -1))
            if entry in self._opened:
                self._rows.extend((entry, line) for line in range(len(self._body(entry))))

    def _body(self, entry: int) -> Sequence[Line]:
        key = (entry, self.size.width)
        page = self._entries[entry].body
        if key not in self._bodies:
            self._bodies[key] = () if page is None else page(self.size.width)
        return self._bodies[key]

    def on_resize(self, event: object) -> None:
        """Lay out the list for the new width."""
        self._bodies.clear()
        self._lay_out()
        self.refresh_rows()

    @property
    def row_count(self) -> int:
        """Number of visible rows."""
        return len(self._rows)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        entry, line = self._rows[index]
        if line >= 0:
            return self._body(entry)[line]
        row = self._entries[entry]
        glyph = "  " if row.body is None else "▾ " if entry in self._opened else "▸ "
        return ((glyph, "dim"), *row.head(width - 2))

    @property
    def entry_count(self) -> int:
        """Number of entries, open or closed."""
        return len(self._entries)

    @property
    def current_entry(self) -> int:
        """Index of the entry that contains the cursor, or -1 for an empty list."""
        return self._rows[self.cursor][0] if self._rows else -1

    def move_to_first_foldable(self) -> None:
        """Move the cursor to the first row that can be opened, if it is visible without scrolling.

        Remarks are skipped.
        """
        entries = self._entries
        folds = (
            i
            for i, (entry, line) in enumerate(self._rows)
            if line < 0 and entries[entry].body and not entries[entry].remark
        )
        first = next(folds, 0)
        self.move_to(first if first < self.size.height else 0)

    def toggle_row(self, index: int, should_open: bool | None = None) -> bool:
        """Open or close a row. `should_open` is whether it must be open, or None to switch.

        Returns whether it changed.
        """
        entry, line = self._rows[index]
        is_open = entry in self._opened
        if line >= 0 or self._entries[entry].body is None or is_open is should_open:
            return False
        (self._opened.discard if is_open else self._opened.add)(entry)
        self._lay_out()
        return True

    def parent_of(self, index: int) -> int | None:
        """Return the index of the head of a body line, or None for a head."""
        entry, line = self._rows[index]
        return self._rows.index((entry, -1)) if line >= 0 else None
