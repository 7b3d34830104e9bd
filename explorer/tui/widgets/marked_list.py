"""Marked list: rows that the user marks with Space. Letters show the order of the marks."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from explorer.tui.widgets.line_view import LineList

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MarkedList(LineList):
    """A list with several marked rows.

    Attributes:
        marked: Keys of the marked rows, in the order in which they were marked.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "mark", show=False)]

    class RowMarked(Message):
        """Sent when a row was marked or unmarked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.marked: list[Any] = []

    def key_of(self, index: int) -> Hashable:
        """Return the key that identifies a row, independent of its position."""
        raise NotImplementedError

    def letter(self, index: int) -> str:
        """Return the letter of a marked row, or a space."""
        key = self.key_of(index)
        return _LETTERS[min(self.marked.index(key), 25)] if key in self.marked else " "

    def action_mark(self) -> None:
        """Mark or unmark the row under the cursor."""
        if not self.row_count:
            return
        key = self.key_of(self.cursor)
        (self.marked.remove if key in self.marked else self.marked.append)(key)
        self.refresh()  # the letters of other rows may have changed
        self.post_message(self.RowMarked())
