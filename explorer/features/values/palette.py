"""Colours of a heat map: two scales that part at zero, by what a terminal can show.

Entries of the xterm palette, as those of the themes. The weakest step is still told from zero, which is the
background. Without colours there are shades, one number a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from explorer.features.values.tensor_words import level


class Palette(NamedTuple):
    """Colours of numbers by sign and magnitude, weakest first; of zero, of no number, of the cursor."""

    negative: Sequence[str]
    positive: Sequence[str]
    zero: str
    missing: str
    cursor: str

    def colour(self, value: float | None, largest: float) -> str:
        """The colour of a number where the largest magnitude has the strongest."""
        if value is None:
            return self.missing
        scale = self.positive if value > 0 else self.negative
        step = min(level(value, largest, len(scale) + 1), len(scale))
        return scale[step - 1] if step else self.zero


_DARK = Palette(
    ("#00005f", "#000087", "#005faf", "#0087d7", "#5fafff", "#afd7ff"),
    ("#5f0000", "#870000", "#af5f00", "#d78700", "#ffaf5f", "#ffd7af"),
    "#121212",
    "#8700af",
    "#ffffff",
)
_LIGHT = Palette(
    ("#d7d7ff", "#afd7ff", "#5fafff", "#0087d7", "#005faf", "#00005f"),
    ("#ffd7d7", "#ffd7af", "#ffaf5f", "#d78700", "#af5f00", "#5f0000"),
    "#ffffff",
    "#af00d7",
    "#000000",
)
# a console has the first eight for backgrounds, and no others
_DARK_16 = Palette(("#0000aa", "#00aaaa"), ("#aa0000", "#aa5500"), "#000000", "#aa00aa", "#ffffff")
_LIGHT_16 = Palette(("#00aaaa", "#0000aa"), ("#aa5500", "#aa0000"), "#aaaaaa", "#aa00aa", "#000000")


def palette(dark: bool, color_system: str | None) -> Palette:
    """The palette for a theme and what a terminal can show, as rich calls it."""
    few = color_system in ("standard", "windows")
    return (_DARK_16 if few else _DARK) if dark else (_LIGHT_16 if few else _LIGHT)
