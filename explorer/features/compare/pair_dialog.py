"""Pair dialog: which model is set beside the one on show: a state, a file or folder, or a name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.host import confinement
from explorer.tui.dialogs.dialogs import MenuItem, PickDialog
from explorer.tui.widgets.line_view import LineList

STATE, MODEL, FOLDER = "state:", "model:", "folder:"
"""What stands before the number of a state, a path or name, and a folder to look into."""
_MOST = 2_000
"""Files of a folder that are looked at."""
_SHOWN = 12


class PairDialog(PickDialog):
    """Asks for a model: states first, then files as they are typed.

    Args:
        states: Those of the history that could be meant.
        text: What stands in the entry at first.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("tab", "complete", show=False, priority=True)]

    def __init__(self, states: Sequence[MenuItem], text: str) -> None:
        self._states, self._text = states, text
        super().__init__("Set beside this model", (), typed=True)
        self.HINT = "a file, a folder or a name · Tab completes · Enter · Esc close"

    def on_mount(self, event: events.Mount | None = None) -> None:
        """Show what stands in the entry, and what it could become; in place of a list that does not grow."""
        if event is not None:
            event.prevent_default()
        rows, entry = self.query_one(LineList), self.query_one(Input)
        rows.styles.height = min(_SHOWN, max(3, self.app.size.height - 8))
        entry.value = self._text
        entry.cursor_position = len(self._text)
        entry.placeholder = "path or name of a model"
        self.narrow(self._text)
        entry.focus()

    def narrow(self, text: str) -> None:
        """Show the states with these words, files that begin so, the text as a name, other files with it."""
        words = text.lower().split()
        found = [s for s in self._states if all(w in f"{s.title} {s.tip}".lower() for w in words)]
        typed = text.strip()
        known = os.path.isfile(os.path.expanduser(typed)) or typed.endswith(("/", os.sep))
        own = [MenuItem(MODEL + typed, "", typed, "")] if typed else []
        files = [item for item in _files(typed) if item.id != MODEL + typed]
        begin = [item for item in files if item.title.startswith(typed)]
        within = [item for item in files if not item.title.startswith(typed)]
        self.show_choices([*(own if known else ()), *found, *begin, *(() if known else own), *within])

    def action_complete(self) -> None:
        """Take the chosen file or folder into the entry."""
        rows, entry = self.query_one(LineList), self.query_one(Input)
        item = rows.rows[rows.cursor] if rows.rows else None
        if item is None or item.id.startswith(STATE):
            self.app.bell()
            return
        entry.value = item.title
        entry.cursor_position = len(entry.value)


def _files(text: str) -> Iterator[MenuItem]:
    """Files and folders of the folder that is written, in whose names the rest stands."""
    folder, begin = os.path.split(text)
    try:
        where = os.path.expanduser(folder) or os.curdir
        confinement.check(where)
        with os.scandir(where) as entries:
            listed = sorted(islice(entries, _MOST), key=lambda entry: entry.name)
        for entry in listed:
            hidden = entry.name.startswith(".") and not begin.startswith(".")
            if begin.lower() in entry.name.lower() and not hidden:
                path = os.path.join(folder, entry.name)
                if entry.is_dir():
                    yield MenuItem(f"{FOLDER}{path}/", "", f"{path}/", "")
                else:
                    yield MenuItem(MODEL + path, "", path, "")
    except (OSError, Misuse):
        return
