"""Glyphs for the Linux console, whose font has at most 512 glyphs.

The font lacks braille, eighths of a block and small triangles, and shows the same lozenge for all of them.
They are replaced by glyphs of code page 437, which all console fonts have. Each replacement is one cell wide,
so pictures become coarser but keep their layout.
"""

from __future__ import annotations

import sys

_UPPER, _LOWER = 0x1B, 0xE4
"""Bits of a braille pattern for the dots in the upper and in the lower half of the cell."""


GLYPHS: dict[int, str] = {
    **{0x2800 + bits: " ▀▄█"[bool(bits & _UPPER) + 2 * bool(bits & _LOWER)] for bits in range(256)},
    **{
        ord(glyph): plain
        for glyph, plain in {
            "▸": "►", "▾": "▼", "▴": "▲", "◂": "◄", "◆": "♦", "●": "•", "▦": "▒", "▣": "■",
            "▏": "│", "▕": "│", "▎": "▌", "▍": "▌", "▋": "█", "▊": "█", "▉": "█",
            "▁": "▄", "▂": "▄", "▃": "▄", "▅": "▄", "▆": "█", "▇": "█",
            "…": "~", "–": "-", "×": "x", "✓": "√", "✗": "x",
            "╭": "┌", "╮": "┐", "╰": "└", "╯": "┘", "╷": "│", "╵": "│", "╴": "─", "╶": "─",
        }.items()
    },
}  # fmt: skip
"""Replacement of each character by its code point, one cell wide."""


def is_console(term: str) -> bool:
    """Whether TERM names the Linux console."""
    return sys.platform.startswith("linux") and term in ("linux", "linux-16color", "console")
