"""Key bindings: the keys of all screens and widgets, with descriptions.

Each screen and widget has a table of its keys. The main screen's is `tui/commands/key_table.py`. The
bindings, the footer, the `?` help, the palette, the action menu and the key table of the manual are generated
from these tables, so they always agree. Only plain letters and arrows are used, because terminals and
multiplexers use Ctrl+A, B, H, I, J, M, S and Alt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from textual.binding import Binding, BindingType

from explorer.tui.text.lines import Line, fit, line_width

LOOK, CHANGE, MOVE, PROGRAM = "Look", "Change the model", "Get around", "Program"
"""Headings in the help."""
NO_KEY = ": name"
"""Shown instead of a key for a command without one: the user presses `:` and types the name."""


class Key(Struct, frozen=True):
    """An action of the user and its keys.

    Attributes:
        id: Action in Textual's notation.
        keys: Key names in Textual's notation.
        shown: Keys as shown to the user, or `NO_KEY`.
        title: Title in the palette and the help.
        tip: One-sentence description.
        group: Heading in the help.
    """

    id: str
    keys: tuple[str, ...]
    shown: str
    title: str
    tip: str
    group: str

    @property
    def action(self) -> str:
        """Action string for Textual."""
        return self.id


def key_group(group: str, *keys: tuple[str, tuple[str, ...], str, str, str]) -> tuple[Key, ...]:
    """Create the keys of one heading from their other fields, in the order of `Key`."""
    return tuple(Key(*fields, group) for fields in keys)


def bindings(keys: Iterable[Key]) -> list[BindingType]:
    """Convert keys to Textual bindings."""
    return [Binding(",".join(k.keys), k.action, k.title, show=False, tooltip=k.tip) for k in keys if k.keys]


_HELP: Line = (("?", "key"), (" keys  ", "dim"))
"""Reference to the help, which lists the keys that do not fit."""


def keys_line(keys: Sequence[tuple[str, str]], width: int, text: str = "") -> Line:
    """Draw as many keys with their labels as fit. The last key is always shown, the help key if possible.

    Args:
        keys: Pairs of a key and its label, the most used first. The last one leaves the screen.
        width: Width in cells.
        text: Text before the keys.
    """
    *other_keys, (key, label) = keys
    back: Line = ((key, "key"), (f" {label}" if label else "", "dim"))
    if line_width((*_HELP, *back)) + 3 <= width:
        back = (*_HELP, *back)
    room = width - line_width(back)
    line = [(f" {fit(text, min(line_width(((text, ''),)), max(room - 3, 0)))}  " if text else " ", "dim")]
    for key, label in other_keys:
        spans = ((key, "key"), (f" {label}  ", "dim"))
        if line_width((*line, *spans)) <= room:
            line += spans
    return (*line, *back)
