"""One-line text input that handles keys in the order typed, opens the help, and does not blink over SSH."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.cells import cell_len
from textual import events
from textual.strip import Strip
from textual.widgets import Input

from explorer.tui.text.lines import fit

_EDITS: Mapping[str, Callable[[Input], None]] = {
    "backspace": Input.action_delete_left,
    "delete": Input.action_delete_right,
    "ctrl+w": Input.action_delete_left_word,
    "ctrl+u": Input.action_delete_left_all,
    "left": Input.action_cursor_left,
    "right": Input.action_cursor_right,
    "home": Input.action_home,
    "end": Input.action_end,
}


class TextInput(Input):
    """A one-line input that handles keys in the order in which they were typed.

    Textual's Input sends editing keys to the screen first. If several keys arrive together, as over a slow
    connection, it inserts letters before it handles a backspace that was typed earlier.

    Focusing the input selects its text: typing replaces it, and an editing key continues at its end.

    The key `?` opens the help of the dialog. Only an input that accepts wildcards takes it as text, after the
    first character.
    """

    accepts_wildcards = False
    """Whether `?` is text after the first character."""
    _is_untouched = False
    """Whether no key was pressed since the input was focused."""

    def on_mount(self) -> None:
        """Blink the cursor only on a local terminal, because over SSH each blink sends bytes."""
        self.cursor_blink = not self.app.has_class("remote")

    def on_focus(self) -> None:
        """Remember that no key was pressed yet."""
        self._is_untouched = True

    def render_line(self, y: int) -> Strip:
        """Render the line. An ellipsis marks a placeholder that does not fit."""
        placeholder, room = self.placeholder, self.scrollable_content_region.width
        if self.value or cell_len(placeholder) <= room:
            return super().render_line(y)
        self.set_reactive(TextInput.placeholder, fit(placeholder, room))
        strip = super().render_line(y)
        self.set_reactive(TextInput.placeholder, placeholder)
        return strip

    def insert_text_at_cursor(self, text: str) -> None:
        """Insert as much of the text as the maximum length allows."""
        room = len(text) if not self.max_length else max(0, self.max_length - len(self.value))
        if room < len(text):
            self.restricted()
        if room:
            super().insert_text_at_cursor(text[:room])

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether the input accepts a key as text, so that it is not a shortcut of the dialog."""
        if key == "question_mark" and not (self.accepts_wildcards and self.value):
            return False
        return super().check_consume_key(key, character)

    def on_key(self, event: events.Key) -> None:
        """Handle editing keys immediately, and leave `?` to the dialog."""
        if event.key == "question_mark" and not self.check_consume_key(event.key, event.character):
            event.prevent_default()
            return
        edit, was_untouched, self._is_untouched = _EDITS.get(event.key), self._is_untouched, False
        if edit is not None:
            event.stop()
            event.prevent_default()
            if was_untouched and self.selected_text == self.value:
                self.cursor_position = len(self.value)
            edit(self)


MAX_LENGTH = 4_097
"""Default maximum number of characters: one more than a path may have, so that a cut path names no file.

The time that a key press takes is proportional to the length of the text.
"""


def create_text_input(
    value: str = "",
    *,
    placeholder: str = "",
    id: str | None = None,
    max_length: int = MAX_LENGTH,
    accepts_wildcards: bool = False,
) -> Input:
    """Create a one-line input. `accepts_wildcards` as in `TextInput`."""
    entry = TextInput(value=value, placeholder=placeholder, compact=True, id=id, max_length=max_length)
    entry.accepts_wildcards = accepts_wildcards
    return entry
