"""Option field of a dialog (radio buttons): one of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from explorer.tui.text.lines import Line, fit
from explorer.tui.widgets.line_view import RoleLines

_LABEL = 12
"""Cells before what a field says; a word has one of them for its own highlight."""
STACKED = "-fields-below"
"""Class of a screen that has room for each field in a row of its own, so that arrows go from row to row."""


class OptionField(RoleLines, can_focus=True):
    """One of a few words; left and right change it.

    Args:
        label: Before them.
        words: To choose from.
        value: The one that is chosen at first; the first of them, where it is none.
        id: For queries and styles.
        label_width: Cells of the label.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", show=False),
        Binding("right,l,space", "step(1)", show=False),
    ]
    DEFAULT_CSS = "OptionField { height: 1; width: 1fr; }"

    class OptionChanged(Message):
        """Another word was chosen."""

        def __init__(self, field: OptionField) -> None:
            super().__init__()
            self.field = field

        @property
        def control(self) -> OptionField:
            """Whose it is."""
            return self.field

    def __init__(
        self, label: str, words: Sequence[str], value: str = "", *, id: str, label_width: int = _LABEL
    ) -> None:
        super().__init__(id=id)
        self._label, self._beside = label, label_width
        self.words = tuple(words)
        self.index = self.words.index(value) if value in self.words else 0

    @property
    def _room(self) -> int:
        """Cells before the words: fields that stand below each other all have as many."""
        return _LABEL if self._beside > 1 and self.screen.has_class(STACKED) else self._beside

    @property
    def label(self) -> str:
        """The label, as wide as it is drawn."""
        return fit(self._label, self._room - 1)

    @property
    def value(self) -> str:
        """The word chosen."""
        return self.words[self.index]

    def set_words(self, words: Sequence[str]) -> None:
        """Other words, in the same places."""
        self.words = tuple(words)
        self.refresh()

    def line_at(self, y: int) -> Line:
        """The line in row `y`."""
        start, stop = self._shown()
        label = self.label[:-1] + "…" if start and self.label.endswith(" ") else self.label
        spans: list[tuple[str, str]] = [(label, "dim")]
        for i, word in enumerate(self.words[start:stop], start):
            role = "mark" if self.has_focus else "head"  # bold: without colours it must differ too
            spans += [(f" {word} ", role if i == self.index else "dim"), (" ", "text")]
        return (*spans[:-1], ("…" if stop < len(self.words) else "", "dim"))

    def _shown(self) -> tuple[int, int]:
        """The first word on show and the one behind the last: around the chosen one as many as fit whole."""
        room, start, stop = self.size.width - self._room + 1, self.index, self.index + 1
        while start and self._cells(start - 1, stop) <= room:
            start -= 1
        while stop < len(self.words) and self._cells(start, stop + 1) <= room:
            stop += 1
        return start, stop

    def _cells(self, start: int, stop: int) -> int:
        """Cells of these words; where there are more, a sign stands in the last gap."""
        return sum(len(word) + 3 for word in self.words[start:stop]) - (stop == len(self.words))

    def action_step(self, step: int) -> None:
        """The word beside."""
        self.index = (self.index + step) % len(self.words)
        self.refresh()
        self.post_message(self.OptionChanged(self))

    async def on_click(self, event: events.Click) -> None:
        """Handles a click."""
        x, (start, stop) = self._room - 1, self._shown()
        for i, word in enumerate(self.words[start:stop], start):
            if x <= event.x < x + len(word) + 2:
                self.index = i
                self.refresh()
                self.post_message(self.OptionChanged(self))
                return
            x += len(word) + 3
