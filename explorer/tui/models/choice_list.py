"""Choice list: what can be opened, in parts, narrowed by what is typed and sorted by a column."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.facts.models.listing import KeptSession, ModelFile, NamedModel, RecentModel
from explorer.report.blocks import Table
from explorer.report.present.shell.list import Choice, choice_table, stored
from explorer.tui.text.drawing import row_line, title_line
from explorer.tui.text.lines import Line, fit
from explorer.tui.widgets.line_view import LineList

SESSIONS, RECENT = "Sessions to resume", "Recent"
_FEW = 8
"""Sessions and recent models that are shown while nothing is typed: a folder's models come below them."""

_ROOMY = 130
"""Cells in which all that is said of a model has room."""
_BAR = 1
"""Cells of the scroll bar."""

_Key = Callable[[Choice], Any]


def choice_name(one: Choice) -> str:
    """What a choice is called."""
    if isinstance(one, ModelFile):
        return one.path
    return one.name if isinstance(one, NamedModel) else one.source


def _bytes(one: Choice) -> int:
    return (one.bytes or 0) if isinstance(one, ModelFile) else 0


def _params(one: Choice) -> int:
    return 0 if isinstance(one, KeptSession) else one.params or 0


def _date(one: Choice) -> int:
    if isinstance(one, ModelFile):
        return one.modified or 0
    return one.opened if isinstance(one, RecentModel) else one.changed if isinstance(one, KeptSession) else 0


SORTS: Mapping[str, _Key | None] = {
    "as found": None,
    "name": lambda one: choice_name(one).lower(),
    "size": _bytes,
    "params": _params,
    "date": _date,
}
"""Orders of the rows of a part; figures have the largest first, and dates the newest."""


class ChoiceList(LineList, can_focus=False):
    """Rows in parts, each below a heading; the cursor stands on what can be opened.

    Attributes:
        parts: Title and choices of each part, in order.
        words: What is typed, each in the name, the format or the types.
        sort: One of `SORTS`.
        turned: The other way round.
    """

    def __init__(self) -> None:
        super().__init__(id="choices")
        self.parts: dict[str, Sequence[Choice]] = {}
        self.words: tuple[str, ...] = ()
        self.sort, self.turned = "as found", False
        self._moved = False
        self._rows: list[Choice | str] = []
        self._at: list[int] = []
        self._table: Table = choice_table(())

    @property
    def row_count(self) -> int:
        """How many rows there are, headings among them."""
        return len(self._rows)

    @property
    def shown(self) -> list[Choice]:
        """What can be opened of the rows, from the top."""
        return [row for row in self._rows if not isinstance(row, str)]

    @property
    def chosen(self) -> Choice | None:
        """What the cursor stands on."""
        row = self._rows[self.cursor] if self.cursor < len(self._rows) else None
        return None if isinstance(row, str) else row

    @property
    def in_view(self) -> list[Choice]:
        """What is on the screen now."""
        top = self.scroll_offset.y
        rows = self._rows[top : top + max(self.size.height, 1)]
        return [row for row in rows if not isinstance(row, str)]

    @property
    def short(self) -> bool:
        """Whether names need the room of what is said of them."""
        return self.size.width < _ROOMY

    def title(self, width: int) -> Line:
        """The titles of the columns."""
        return title_line(self._table, width - _BAR)

    def lay_out(self, *, keep: bool = True) -> None:
        """The parts, the words or the order have changed.

        `keep`: the cursor stays on what it was put on; else it goes to the first, where it begins.
        """
        self._moved = self._moved and keep
        before = self.chosen if self._moved else None
        name = choice_name(before) if before is not None else ""
        kind: Any = type(before)
        self._rows, self._at = [], []
        listed: list[Choice] = []
        for title, choices in self.parts.items():
            matches = self._narrowed(title, choices)
            if matches:
                cut = "" if self._all(title) else f"  {len(matches)} of {len(choices)}: type to find one"
                self._rows += [title + cut * (len(matches) < len(choices)), *matches]
                self._at += [-1, *range(len(listed), len(listed) + len(matches))]
                listed += matches
        self._table = choice_table(listed, "models", short=self.short)
        rows = enumerate(self._rows)
        if name:
            same = (at for at, row in rows if isinstance(row, kind) and choice_name(row) == name)
        else:  # what is called just so goes before what has it in its name
            typed = " ".join(self.words)
            same = (at for at, row in rows if not isinstance(row, str) and choice_name(row).lower() == typed)
        self.cursor = next(same, 0)
        self._leave_heading(1)
        self.rows_changed()

    def _all(self, title: str) -> bool:
        return bool(self.words) or title not in (SESSIONS, RECENT)

    def _narrowed(self, title: str, choices: Sequence[Choice]) -> list[Choice]:
        matches = [choice for choice in choices if self._fits(choice)]
        if not self._all(title):
            matches = matches[:_FEW]
        key = SORTS[self.sort]
        if key is not None:
            matches.sort(key=key, reverse=(self.sort != "name") != self.turned)
        elif self.turned:
            matches.reverse()
        return matches

    def _fits(self, choice: Choice) -> bool:
        if not self.words:
            return True
        about = f"{choice_name(choice)} {getattr(choice, 'format', '')}"
        if isinstance(choice, ModelFile):
            about = f"{about} {stored(choice)}"
        about = about.lower()
        return all(word in about for word in self.words)

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        row = self._rows[index]
        if isinstance(row, str):
            return ((fit(f" {row}", width), "head"),)
        return row_line(self._table, self._at[index], width - _BAR, here=index == self.cursor)

    def move_to(self, index: int) -> None:
        """Put the cursor on a row, or beyond a heading in the way."""
        down = index > self.cursor
        index = max(0, min(index, self.row_count - 1))
        if index < self.row_count and isinstance(self._rows[index], str):
            index += 1 if down or index == 0 else -1
        self._moved = True
        super().move_to(index)

    def _leave_heading(self, step: int) -> None:
        if self.cursor < len(self._rows) and isinstance(self._rows[self.cursor], str):
            self.cursor += step
