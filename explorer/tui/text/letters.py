"""Large letters: a word in block characters, three lines high, for the one that must be seen across a room.

Libraries that draw such letters (pyfiglet, art) bring some hundred fonts, 2 MB; the verdicts need 16 letters.
"""

from __future__ import annotations

from collections.abc import Mapping

_GLYPHS: Mapping[str, str] = {
    "A": ".##. #..# #### #..# #..#",
    "C": ".### #... #... #... .###",
    "D": "###. #..# #..# #..# ###.",
    "E": "### #.. ##. #.. ###",
    "F": "### #.. ##. #.. #..",
    "I": "# # # # #",
    "L": "#.. #.. #.. #.. ###",
    "N": "#..# ##.# #.## #..# #..#",
    "O": ".##. #..# #..# #..# .##.",
    "P": "###. #..# ###. #... #...",
    "Q": ".##. #..# #..# #.## .###",
    "R": "###. #..# ###. #.#. #..#",
    "S": ".### #... .##. ...# ###.",
    "T": "### .#. .#. .#. .#.",
    "U": "#..# #..# #..# #..# .##.",
    "V": "#...# #...# .#.#. .#.#. ..#..",
    " ": ".. .. .. .. ..",
}
"""Five rows of cells each, half a line high."""

_HALVES = {"..": " ", "#.": "▀", ".#": "▄", "##": "█"}


def large(word: str, width: int) -> list[str]:
    """A word in letters of three lines.

    Args:
        word: In capitals.
        width: Cells there are.

    Returns:
        Its lines; none where it is wider, or a letter is not drawn here.
    """
    if not word or not all(letter in _GLYPHS for letter in word):
        return []
    glyphs = [_GLYPHS[letter].split() for letter in word]
    rows = [".".join(glyph[row] for glyph in glyphs) for row in range(5)]
    rows.append("." * len(rows[0]))
    lines = [
        "".join(_HALVES[upper + lower] for upper, lower in zip(rows[at], rows[at + 1], strict=True))
        for at in (0, 2, 4)
    ]
    return lines if len(lines[0]) <= width else []
