"""Tooltip of shortened text: finds the full form of a text that is cut under the mouse.

A name that does not fit loses some of its parts. The full text is searched in the same lines, drawn with more
room.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from explorer.tui.text.lines import Line, line_text

CUT = "…"
"""Character that replaces the omitted part of a text."""

UNCUT_WIDTH = 1000
"""Width in cells in which no text is cut."""

_WORDS = (re.compile(r"\S+(?: \S+)*"), re.compile(r"\S+"))
"""Patterns of the texts in a table: separated by two spaces or, in narrow tables, by one."""


def find_full_text(line: Line, x: int, lines: Iterable[Line]) -> str:
    """Return the full form of the text that is cut at column `x` of a line.

    Args:
        line: The line as shown.
        x: Column of the mouse.
        lines: Lines that contain the same texts, drawn with more room.

    Returns:
        The full text, or '' if no text is cut there or `lines` do not contain it.
    """
    text, texts = line_text(line), None
    for words in _WORDS:
        cut = next((word.group() for word in words.finditer(text) if word.start() <= x < word.end()), "")
        if CUT in cut:
            texts = texts or [line_text(each_line) for each_line in lines]
            if full_text := _find_full_text(cut, texts, words) or _find_full_name(cut, texts):
                return full_text
    return ""


def _find_full_text(cut: str, lines: Iterable[str], words: re.Pattern[str]) -> str:
    first, *between, last = cut.split(CUT)
    for text in (word.group() for line in lines for word in words.finditer(line)):
        middle = text[len(first) : len(text) - len(last)]
        if (
            text.count(CUT) < cut.count(CUT)  # some columns have a maximum width
            and len(text) >= len(first) + len(last)
            and text.startswith(first)
            and text.endswith(last)
            and all(part in middle for part in between)
        ):
            return text
    return ""


def _find_full_name(cut: str, lines: Iterable[str]) -> str:
    """Return the name that contains the remaining parts of a shortened name, in their order."""
    parts = [re.escape(part) for part in re.split(f"[{CUT} ]+", cut) if part]
    if not parts:
        return ""
    pattern = re.compile("".join(rf"[^\s{CUT}]*?(?<![^/.:_-]){part}" for part in parts) + "$")
    names = (name for line in lines for name in line.split() if CUT not in name)
    return next((name for name in names if pattern.match(name)), "")
