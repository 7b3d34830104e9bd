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


class OptionField(RoleLines, can_focus=True):
    """One of a few words; left and right change it."""

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

    def __init__(self, label: str, words: Sequence[str], *, id: str, label_width: int = _LABEL) -> None:
        super().__init__(id=id)
        self._room = label_width
        self.label, self.words, self.index = fit(label, label_width - 1), tuple(words), 0

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
        spans: list[tuple[str, str]] = [(self.label, "dim")]
        start = self._start()
        for i, word in enumerate(self.words[start:], start):
            chosen = "mark" if self.has_focus else "head"  # bold: without colours it must differ too
            spans += [(f" {word} ", chosen if i == self.index else "dim"), (" ", "text")]
        return tuple(spans)

    def _start(self) -> int:
        """The first word on show: of many, those before the chosen one that would push it out are not."""
        room, start = self.size.width - self._room, self.index
        # behind the last word there is no gap
        while start and sum(len(w) + 3 for w in self.words[start - 1 : self.index + 1]) - 1 <= room:
            start -= 1
        return start

    def action_step(self, step: int) -> None:
        """The word beside."""
        self.index = (self.index + step) % len(self.words)
        self.refresh()
        self.post_message(self.OptionChanged(self))

    async def _on_click(self, event: events.Click) -> None:
        x, start = self._room - 1, self._start()
        for i, word in enumerate(self.words[start:], start):
            if x <= event.x < x + len(word) + 2:
                self.index = i
                self.refresh()
                self.post_message(self.OptionChanged(self))
                return
            x += len(word) + 3
