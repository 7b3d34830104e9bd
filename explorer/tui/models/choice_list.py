"""Choice list: the models that can be opened, in sections. Typed words filter it, and columns sort it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.facts.models.listing import KeptSession, ModelFile, NamedModel, RecentModel
from explorer.report.blocks import Table
from explorer.report.present.shell.list import Choice, choice_table, describe_stored, format_session_path
from explorer.tui.text.drawing import row_line, title_line
from explorer.tui.text.lines import Line, fit
from explorer.tui.widgets.line_view import LineList

SESSIONS, RECENT = "Sessions to resume", "Recent"
_MAX_SHORTLIST = 8
"""Maximum number of sessions and recent models without typed words, so that the folder's models are visible.
"""

_ROOMY = 130
"""Width in cells from which all columns fit."""
_MIN_TYPES_WIDTH = 100
"""Width in cells below which only the largest of a file's data types is shown."""
_SCROLL_BAR = 1
"""Width of the scroll bar in cells."""

_Key = Callable[[Choice], Any]


def choice_name(choice: Choice) -> str:
    """Return the name of a choice: a path, a model name, or the path of a session's model."""
    if isinstance(choice, ModelFile):
        return choice.path
    if isinstance(choice, KeptSession):
        return format_session_path(choice)
    return choice.name if isinstance(choice, NamedModel) else choice.source


def _get_size(choice: Choice) -> int:
    return (choice.bytes or 0) if isinstance(choice, ModelFile) else 0


def _get_params(choice: Choice) -> int:
    return 0 if isinstance(choice, KeptSession) else choice.params or 0


def _get_date(choice: Choice) -> int:
    if isinstance(choice, ModelFile):
        return choice.modified or 0
    return (
        choice.opened
        if isinstance(choice, RecentModel)
        else choice.changed
        if isinstance(choice, KeptSession)
        else 0
    )


SORTS: Mapping[str, _Key | None] = {
    "as found": None,
    "name": lambda choice: choice_name(choice).lower(),
    "size": _get_size,
    "params": _get_params,
    "date": _get_date,
}
"""Sort keys by name. Figures are sorted from the largest, and dates from the newest."""


class ChoiceList(LineList, can_focus=False):
    """Rows in sections with a heading each. The cursor skips the headings.

    Attributes:
        parts: Choices of each section by its title, in display order.
        words: Typed words. A choice matches if its name, format or data types contain all of them.
        sort: Name of the order in `SORTS`.
        turned: Whether the sort order is reversed.
    """

    def __init__(self) -> None:
        super().__init__(id="choices")
        self.parts: dict[str, Sequence[Choice]] = {}
        self.words: tuple[str, ...] = ()
        self.sort, self.turned = "as found", False
        self._is_cursor_moved = False
        self._rows: list[Choice | str] = []
        self._table_indices: list[int] = []
        self._table: Table = choice_table(())

    @property
    def row_count(self) -> int:
        """Number of rows, including the headings."""
        return len(self._rows)

    @property
    def shown(self) -> list[Choice]:
        """All choices in the list, whether scrolled into view or not, from top to bottom."""
        return [row for row in self._rows if not isinstance(row, str)]

    @property
    def current_choice(self) -> Choice | None:
        """The choice under the cursor, or None."""
        row = self._rows[self.cursor] if self.cursor < len(self._rows) else None
        return None if isinstance(row, str) else row

    @property
    def in_view(self) -> list[Choice]:
        """The choices that are on the screen."""
        top = self.scroll_offset.y
        rows = self._rows[top : top + max(self.size.height, 1)]
        return [row for row in rows if not isinstance(row, str)]

    @property
    def is_short(self) -> bool:
        """Whether the list is too narrow for all columns."""
        return self.size.width < _ROOMY

    def title(self, width: int) -> Line:
        """Draw the titles of the columns."""
        return title_line(self._table, width - _SCROLL_BAR)

    def lay_out(self, *, keep: bool = True) -> None:
        """Lay out the list after its sections, words or order changed.

        If `keep` and the user has moved the cursor, it stays on the same choice. Otherwise it goes to the
        first choice, or to the first of those that match the typed words best.
        """
        self._is_cursor_moved = self._is_cursor_moved and keep
        old_choice = self.current_choice if self._is_cursor_moved else None
        name = choice_name(old_choice) if old_choice is not None else ""
        kind: Any = type(old_choice)
        self._rows, self._table_indices = [], []
        listed: list[Choice] = []
        for title, choices in self.parts.items():
            matches = self._filter_and_sort(title, choices)
            if matches:
                cut = (
                    ""
                    if self._is_unlimited(title)
                    else f"  {len(matches)} of {len(choices)}: type to find one"
                )
                self._rows += [title + cut * (len(matches) < len(choices)), *matches]
                self._table_indices += [-1, *range(len(listed), len(listed) + len(matches))]
                listed += matches
        self._table = choice_table(
            listed, "models", short=self.is_short, brief=self.size.width < _MIN_TYPES_WIDTH
        )
        rows = enumerate(self._rows)
        if name:
            same = (index for index, row in rows if isinstance(row, kind) and choice_name(row) == name)
            self.cursor = next(same, 0)
        else:
            ranks = [(self._rank(row), index) for index, row in rows if not isinstance(row, str)]
            self.cursor = min(ranks, default=(0, 0))[1]
        self._leave_heading(1)
        self.refresh_rows()

    def _is_unlimited(self, title: str) -> bool:
        return bool(self.words) or title not in (SESSIONS, RECENT)

    def _filter_and_sort(self, title: str, choices: Sequence[Choice]) -> list[Choice]:
        """Return the choices of a section that match the words. Without words, two sections are cut."""
        matches = [choice for choice in choices if self._matches_words(choice)]
        if not self._is_unlimited(title):
            matches = matches[:_MAX_SHORTLIST]
        key = SORTS[self.sort]
        if key is not None:
            matches.sort(key=key, reverse=(self.sort != "name") != self.turned)
        elif self.turned:
            matches.reverse()
        else:
            matches.sort(key=self._rank)
        return matches

    def _rank(self, choice: Choice) -> int:
        """Return how well the typed words match a choice; smaller is better.

        0: the words are the name, or no word is typed. 1: the name, or its last part, begins with the words.
        2: the name contains them. 3: only the name together with the format and the data types contains them.
        """
        typed, name = " ".join(self.words), choice_name(choice).lower()
        last_part = name.rpartition("/")[2]
        if not typed or typed in (name, last_part, last_part.partition(".")[0]):
            return 0
        if name.startswith(typed) or last_part.startswith(typed):
            return 1
        return 2 if all(word in name for word in self.words) else 3

    def _matches_words(self, choice: Choice) -> bool:
        if not self.words:
            return True
        about = f"{choice_name(choice)} {getattr(choice, 'format', '')}"
        if isinstance(choice, ModelFile):
            about = f"{about} {describe_stored(choice)}"
        about = about.lower()
        return all(word in about for word in self.words)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        row = self._rows[index]
        if isinstance(row, str):
            return ((fit(f" {row}", width), "head"),)
        return row_line(
            self._table, self._table_indices[index], width - _SCROLL_BAR, is_current=index == self.cursor
        )

    def move_to(self, index: int) -> None:
        """Move the cursor to a row. If the row is a heading, move past it."""
        is_downward = index > self.cursor
        index = max(0, min(index, self.row_count - 1))
        if index < self.row_count and isinstance(self._rows[index], str):
            index += 1 if is_downward or index == 0 else -1
        self._is_cursor_moved = True
        super().move_to(index)

    def _leave_heading(self, step: int) -> None:
        if self.cursor < len(self._rows) and isinstance(self._rows[self.cursor], str):
            self.cursor += step
