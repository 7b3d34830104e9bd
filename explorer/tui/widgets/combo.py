"""Combo field of a dialog: one of a few words, or another that is typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from explorer.tui.text.lines import Line, safe
from explorer.tui.widgets.option_field import OptionField

_LONGEST = 4_096
"""Characters that are typed at most."""


class ComboField(OptionField, inherit_bindings=False):
    """One of a few words; what is typed stands in their place until an arrow leads back to them.

    Args:
        label: Before it.
        words: To choose from.
        value: What it says at first: one of them, or another as if it were typed.
        id: For queries and styles.
        label_width: Cells of the label.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "step(-1)", show=False),
        Binding("right", "step(1)", show=False),
    ]

    def __init__(
        self, label: str, words: Sequence[str], value: str = "", *, id: str, label_width: int = 12
    ) -> None:
        super().__init__(label, words, id=id, label_width=label_width)
        self.typed = ""
        self.take(value)

    def take(self, value: str) -> None:
        """Say this."""
        if value in self.words:
            self.index, self.typed = self.words.index(value), ""
        else:
            self.typed = value

    @property
    def value(self) -> str:
        """The word chosen or typed."""
        return self.typed or self.words[self.index]

    def line_at(self, y: int) -> Line:
        """The line in row `y`."""
        if not self.typed:
            return super().line_at(y)
        room = max(1, self.size.width - self._room - 1)
        typed = safe(self.typed)
        text = typed if len(typed) <= room else f"…{typed[1 - room :]}"  # one looks at the end that one types
        return ((self.label, "dim"), (f" {text} ", "mark" if self.has_focus else "head"))

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether a key is typed into it: no dialog has it then."""
        return character is not None and character.isprintable()

    def on_key(self, event: events.Key) -> None:
        """Type."""
        if event.character is not None and event.is_printable:
            self._type((self.typed + event.character)[:_LONGEST])
        elif event.key == "backspace" and self.typed:
            self._type(self.typed[:-1])
        elif event.key == "ctrl+u" and self.typed:
            self._type("")
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Type what is pasted."""
        event.stop()
        self._type((self.typed + (event.text.splitlines() or [""])[0])[:_LONGEST])

    def _type(self, text: str) -> None:
        self.typed = text
        self.refresh()
        self.post_message(self.OptionChanged(self))

    def action_step(self, step: int) -> None:
        """The word beside; from what was typed back to the words."""
        if self.typed:
            self._type("")
        else:
            super().action_step(step)
