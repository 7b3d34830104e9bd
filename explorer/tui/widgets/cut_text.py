"""Tooltip of what is cut: the whole of a text that stands shortened under the mouse.

A name that does not fit loses its middle. What it was is looked for in the same lines as they would be with
room for everything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from explorer.tui.text.lines import Line, line_text

CUT = "…"
"""What stands where something was left out."""

ROOM = 1000
"""Cells in which nothing is cut."""

_WORDS = (re.compile(r"\S+(?: \S+)*"), re.compile(r"\S+"))
"""What stands between two gaps of a table, or between two blanks where its columns stand close."""


def whole_text(line: Line, x: int, lines: Iterable[Line]) -> str:
    """The whole of what is cut in column `x` of a line.

    Args:
        line: As it is shown.
        x: Where the mouse is.
        lines: Those that hold the same with room for everything.

    Returns:
        The text; '' if nothing is cut there, or the lines do not have it.
    """
    text, texts = line_text(line), None
    for words in _WORDS:
        cut = next((word.group() for word in words.finditer(text) if word.start() <= x < word.end()), "")
        if CUT in cut:
            texts = texts or [line_text(each_line) for each_line in lines]
            if whole := _whole(cut, texts, words):
                return whole
    return ""


def _whole(cut: str, lines: Iterable[str], words: re.Pattern[str]) -> str:
    first, *between, last = cut.split(CUT)
    for text in (word.group() for line in lines for word in words.finditer(line)):
        inside = text[len(first) : len(text) - len(last)]
        if (
            text.count(CUT) < cut.count(CUT)  # some columns are cut whatever room there is
            and len(text) >= len(first) + len(last)
            and text.startswith(first)
            and text.endswith(last)
            and all(part in inside for part in between)
        ):
            return text
    return ""
