"""Tooltip of shortened text: finds the full form of a text that is cut under the mouse.

A name that does not fit is shown without some of its parts. The full text is searched in the same lines,
drawn in a width in which no text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from explorer.tui.text.lines import Line, line_text

CUT = "…"
"""Character that replaces the omitted part of a text."""

UNCUT_WIDTH = 1000
"""Width in cells in which no text is cut."""

_TEXT_PATTERNS = (re.compile(r"\S+(?: \S+)*"), re.compile(r"\S+"))
"""Patterns of a text in a table: texts are separated by two spaces or, in narrow tables, by one."""


def find_full_text(line: Line, x: int, lines: Iterable[Line]) -> str:
    """Return the full form of the text that is cut at column `x` of a line.

    Args:
        line: The line as shown.
        x: Column of the mouse.
        lines: Lines that contain the same texts, drawn in a larger width.

    Returns:
        The full text, or '' if no text is cut there or `lines` do not contain it.
    """
    text, texts = line_text(line), None
    for pattern in _TEXT_PATTERNS:
        cut = next((word.group() for word in pattern.finditer(text) if word.start() <= x < word.end()), "")
        if CUT in cut:
            texts = texts or [line_text(each_line) for each_line in lines]
            if full_text := _find_full_text(cut, texts, pattern) or _find_full_name(cut, texts):
                return full_text
    return ""


def _find_full_text(cut: str, lines: Iterable[str], pattern: re.Pattern[str]) -> str:
    """Return the text of the lines that equals `cut` with a text in place of each '…', or ''."""
    first, *between, last = cut.split(CUT)
    for text in (word.group() for line in lines for word in pattern.finditer(line)):
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
