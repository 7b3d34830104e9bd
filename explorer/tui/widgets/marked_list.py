"""Marked list: rows that Space marks, each with a letter in the order in which they were marked."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.message import Message

from explorer.tui.widgets.line_view import LineList

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class MarkedList(LineList):
    """A list of which several rows are marked; `marked` are the keys of these, the first one first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("space", "mark", show=False)]

    class RowMarked(Message):
        """A row was marked, or is no more."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.marked: list[Any] = []

    def key_of(self, index: int) -> Hashable:
        """What a row is known by, wherever it stands."""
        raise NotImplementedError

    def letter(self, index: int) -> str:
        """The letter of a row that is marked; a blank for one that is not."""
        key = self.key_of(index)
        return _LETTERS[min(self.marked.index(key), 25)] if key in self.marked else " "

    def action_mark(self) -> None:
        """Mark the row under the cursor, or take its mark away."""
        if not self.row_count:
            return
        key = self.key_of(self.cursor)
        (self.marked.remove if key in self.marked else self.marked.append)(key)
        self.refresh()  # the letters of the others may be others now
        self.post_message(self.RowMarked())
