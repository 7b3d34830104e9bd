"""Combo field: a dialog field with a few options that also accepts typed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from explorer.tui.text.lines import Line, escape_name
from explorer.tui.widgets.option_field import OptionField

_MAX_TEXT_LENGTH = 4_096
"""Maximum number of characters of the typed text."""


class ComboField(OptionField, inherit_bindings=False):
    """A choice between a few words, or typed text. An arrow key discards the typed text.

    Args:
        label: Label before the field.
        words: Options to choose from.
        value: Initial value: one of `words`, or any other text as if it were typed.
        id: ID of the widget.
        label_width: Width of the label in cells.
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
        self.set_value(value)

    def set_value(self, value: str) -> None:
        """Set the value: one of the words, or any other text as if it were typed."""
        if value in self.words:
            self.index, self.typed = self.words.index(value), ""
        else:
            self.typed = value

    @property
    def value(self) -> str:
        """The chosen word, or the typed text."""
        return self.typed or self.words[self.index]

    def line_at(self, y: int) -> Line:
        """Return line `y` of the field."""
        if not self.typed:
            return super().line_at(y)
        room = max(1, self.size.width - self._label_cells - 1)
        typed = escape_name(self.typed)
        # the end of a long text is visible, because the user types there
        text = typed if len(typed) <= room else f"…{typed[1 - room :]}"
        return ((self.label, "dim"), (f" {text} ", "mark" if self.has_focus else "head"))

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether the field accepts a key as input, so that it is not a shortcut of the dialog."""
        return character is not None and character.isprintable() and character != "?"

    def on_key(self, event: events.Key) -> None:
        """Edit the typed text. The key `?` opens the help of the dialog."""
        if event.character is not None and event.is_printable and event.character != "?":
            self._type((self.typed + event.character)[:_MAX_TEXT_LENGTH])
        elif event.key == "backspace" and self.typed:
            self._type(self.typed[:-1])
        elif event.key == "ctrl+u" and self.typed:
            self._type("")
        else:
            return
        event.stop()
        event.prevent_default()

    def on_paste(self, event: events.Paste) -> None:
        """Append the first line of the pasted text."""
        event.stop()
        self._type((self.typed + (event.text.splitlines() or [""])[0])[:_MAX_TEXT_LENGTH])

    def _type(self, text: str) -> None:
        self.typed = text
        self.refresh()
        self.post_message(self.WordChosen(self))

    def action_step(self, step: int) -> None:
        """Choose the neighboring word, or discard the typed text."""
        if self.typed:
            self._type("")
        else:
            super().action_step(step)
