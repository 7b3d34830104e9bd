"""Text input of one line, quick at what is typed ahead and quiet where blinking costs bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from textual import events
from textual.widgets import Input

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
    """A one-line entry whose keys take effect in the order in which they are typed.

    Textual's own hands what is no letter up to the screen first: of keys that come together, as over a slow
    line, the letters are then in before the backspace that was typed ahead of them.

    What stands in it is selected when it is entered: what is typed takes its place, and a key that edits goes
    on behind it.
    """

    _entered = False
    """Whether no key was pressed since."""

    def on_mount(self) -> None:
        """The cursor blinks only where that costs nothing."""
        self.cursor_blink = not self.app.has_class("remote")

    def on_focus(self) -> None:
        """It was entered."""
        self._entered = True

    def insert_text_at_cursor(self, text: str) -> None:
        """Insert what there is room for."""
        room = len(text) if not self.max_length else max(0, self.max_length - len(self.value))
        if room < len(text):
            self.restricted()
        if room:
            super().insert_text_at_cursor(text[:room])

    def on_key(self, event: events.Key) -> None:
        """Edits at once."""
        edit, entered, self._entered = _EDITS.get(event.key), self._entered, False
        if edit is not None:
            event.stop()
            event.prevent_default()
            if entered and self.selected_text == self.value:
                self.cursor_position = len(self.value)
            edit(self)


LONGEST = 4_097
"""Characters of an entry: one more than a path may have, so that what was cut names no file. An entry costs a
key as much as it is long."""


def text_input(
    value: str = "",
    *,
    placeholder: str = "",
    id: str | None = None,
    longest: int = LONGEST,
) -> Input:
    """A one-line entry."""
    return TextInput(value=value, placeholder=placeholder, compact=True, id=id, max_length=longest)
