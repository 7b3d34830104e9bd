"""The Linux console: a font of 512 glyphs at most, without braille, eighths of a block and small triangles.

What it lacks it draws as a lozenge, every one the same. So what the screen draws is put into the glyphs that
every console font has had since code page 437, cell for cell: the picture gets coarser, and stays one.
"""

from __future__ import annotations

import sys

_UPPER, _LOWER = 0x1B, 0xE4
"""Bits of a braille pattern whose dots lie in the upper half of the cell, and in the lower."""


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
"""Characters by what stands for them, each of one cell."""


def is_console(term: str) -> bool:
    """Whether TERM names the Linux console itself."""
    return sys.platform.startswith("linux") and term in ("linux", "linux-16color", "console")
