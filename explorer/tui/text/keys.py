"""Key bindings: what each key does, in words.

Every screen and widget has a table of its keys; the main screen's is `tui/commands/key_table.py`. Its
bindings, the footer, the `?` help, the palette, the action menu and the manual's key table are all made from
these tables, so that none of them can tell a user something else. Plain letters and arrows only: Ctrl+A, B,
H, I, J, M, S and Alt are taken by terminals and multiplexers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from textual.binding import Binding, BindingType

from explorer.tui.text.lines import Line, fit, line_width

LOOK, CHANGE, MOVE, PROGRAM = "Look", "Change the model", "Get around", "Program"
"""Headings in the help."""


class Key(Struct, frozen=True):
    """Something that a user can do.

    Attributes:
        id: The action as Textual spells it.
        keys: Names of keys as Textual spells them.
        shown: The keys as a user reads them.
        title: What the palette and the help call it.
        tip: One sentence more.
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
        """What Textual is asked to run."""
        return self.id


def key_group(group: str, *keys: tuple[str, tuple[str, ...], str, str, str]) -> tuple[Key, ...]:
    """Keys of one heading."""
    return tuple(Key(*words, group) for words in keys)


def bindings(keys: Iterable[Key]) -> list[BindingType]:
    """The keys as Textual wants them."""
    return [Binding(",".join(k.keys), k.action, k.title, show=False, tooltip=k.tip) for k in keys if k.keys]


_HELP: Line = (("?", "key"), (" keys  ", "dim"))
"""What tells of the keys that have no room."""


def keys_line(keys: Sequence[tuple[str, str]], width: int, text: str = "") -> Line:
    """Keys and what they do, each whole, as many as there is room for; `?` and the last, the way back, stay.

    Args:
        keys: They, those used most first.
        width: In cells.
        text: What stands before them.
    """
    *others, (key, label) = keys
    back: Line = ((key, "key"), (f" {label}" if label else "", "dim"))
    if line_width((*_HELP, *back)) + 3 <= width:
        back = (*_HELP, *back)
    room = width - line_width(back)
    line = [(f" {fit(text, min(line_width(((text, ''),)), max(room - 3, 0)))}  " if text else " ", "dim")]
    for key, label in others:
        piece = ((key, "key"), (f" {label}  ", "dim"))
        if line_width((*line, *piece)) <= room:
            line += piece
    return (*line, *back)
