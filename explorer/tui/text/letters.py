"""Large letters: draws a word in block characters, three lines high, so that it can be read from far away.

Libraries for such letters (pyfiglet, art) contain hundreds of fonts, 2 MB. The verdicts need 16 letters.
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
"""Five rows of pixels per letter. A pixel is one cell wide and half a line high."""

_HALVES = {"..": " ", "#.": "▀", ".#": "▄", "##": "█"}


def draw_large(word: str, width: int) -> list[str]:
    """Draw a word in large letters.

    Args:
        word: Word in capitals.
        width: Available cells.

    Returns:
        Three lines, or an empty list if the word is too wide or contains an unsupported letter.
    """
    if not word or not all(letter in _GLYPHS for letter in word):
        return []
    glyphs = [_GLYPHS[letter].split() for letter in word]
    rows = [".".join(glyph[row] for glyph in glyphs) for row in range(5)]
    rows.append("." * len(rows[0]))
    lines = [
        "".join(_HALVES[upper + lower] for upper, lower in zip(rows[top_row], rows[top_row + 1], strict=True))
        for top_row in (0, 2, 4)
    ]
    return lines if len(lines[0]) <= width else []
