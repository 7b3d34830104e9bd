"""Accumulator field of a dialog: bits of the hardware's accumulator, chosen or typed, or none."""

from __future__ import annotations

from explorer.base.options import option_of
from explorer.facts import TileSpec
from explorer.settings.option_values import read_option
from explorer.tui.widgets.combo import ComboField

_WIDTHS = ("none", "16", "20", "24", "32", "48")


class AccumulatorField(ComboField):
    """Widths to choose from; any other is typed, and letters are keys of the dialog."""

    def __init__(self, bits: int, *, id: str, label_width: int) -> None:
        super().__init__("acc bits", _WIDTHS, self.word_of(bits), id=id, label_width=label_width)

    @staticmethod
    def word_of(bits: int) -> str:
        """What stands in it for so many bits."""
        return str(bits or _WIDTHS[0])

    @property
    def bits(self) -> int:
        """What it says, 0 for none.

        Raises:
            Misuse: There is no such accumulator.
        """
        typed = "0" if self.value == _WIDTHS[0] else self.value
        bits: int = read_option(option_of(TileSpec, "accumulator"), typed, "acc bits")
        return bits

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether a key is typed into it."""
        return character is not None and character.isdecimal()
