"""Collapsible list: rows that open to show lines under them: operators, a diff."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from explorer.tui.text.lines import Line, fit
from explorer.tui.widgets.line_view import LineList


class FoldEntry(Struct, frozen=True):
    """A row, and what lies under it; both made for a width when they are needed; `remark` is a sentence."""

    head: Callable[[int], Line]
    body: Callable[[int], Sequence[Line]] | None = None
    remark: bool = False


def note_entries(lines: Sequence[str]) -> list[FoldEntry]:
    """Lines that say why there are no rows."""
    return [FoldEntry(partial(_note, said)) for said in lines]


def _note(said: str, width: int) -> Line:
    return ((fit(said, width), "dim"),)


class FoldList(LineList):
    """Entries that open and close."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._entries: Sequence[FoldEntry] = ()
        self._opened: set[int] = set()
        self._rows: list[tuple[int, int]] = []  # (entry, -1 or line of its body)
        self._bodies: dict[tuple[int, int], Sequence[Line]] = {}

    def set_entries(self, entries: Sequence[FoldEntry], *, keep: bool = False) -> None:
        """Show other entries; `keep` leaves those open that were."""
        self._entries = entries
        self._bodies.clear()
        if not keep:
            self._opened.clear()
        self._lay_out()
        self.rows_changed(keep_cursor=keep)

    def _lay_out(self) -> None:
        self._rows = []
        for i in range(len(self._entries)):
            self._rows.append((i, -1))
            if i in self._opened:
                self._rows.extend((i, j) for j in range(len(self._body(i))))

    def _body(self, entry: int) -> Sequence[Line]:
        key = (entry, self.size.width)
        page = self._entries[entry].body
        if key not in self._bodies:
            self._bodies[key] = () if page is None else page(self.size.width)
        return self._bodies[key]

    def on_resize(self, event: object) -> None:
        """Lay out for the new width."""
        self._bodies.clear()
        self._lay_out()
        self.rows_changed()

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        entry, line = self._rows[index]
        if line >= 0:
            return self._body(entry)[line]
        row = self._entries[entry]
        glyph = "  " if row.body is None else "▾ " if entry in self._opened else "▸ "
        return ((glyph, "dim"), *row.head(width - 2))

    @property
    def entry_count(self) -> int:
        """How many entries there are, open or not."""
        return len(self._entries)

    @property
    def current_entry(self) -> int:
        """The entry under the cursor, or in whose lines it is; -1 without one."""
        return self._rows[self.cursor][0] if self._rows else -1

    def to_first_foldable(self) -> None:
        """Put the cursor on the first row that opens, unless that would scroll what stands above it away.

        A remark opens too, where it is longer than the pane is wide, and is not what one comes for.
        """
        entries = self._entries
        folds = (
            i
            for i, (at, line) in enumerate(self._rows)
            if line < 0 and entries[at].body and not entries[at].remark
        )
        first = next(folds, 0)
        self.move_to(first if first < self.size.height else 0)

    def toggle_row(self, index: int, want: bool | None = None) -> bool:
        """Open or close a row."""
        entry, line = self._rows[index]
        is_open = entry in self._opened
        if line >= 0 or self._entries[entry].body is None or (want is not None and is_open == want):
            return False
        (self._opened.discard if is_open else self._opened.add)(entry)
        self._lay_out()
        return True

    def parent_of(self, index: int) -> int | None:
        """The row that `index` lies in."""
        entry, line = self._rows[index]
        return self._rows.index((entry, -1)) if line >= 0 else None
