"""Accumulator field: a dialog field for the accumulator width in bits."""

from __future__ import annotations

from explorer.base.options import find_option
from explorer.facts import TileSpec
from explorer.settings.option_values import read_option
from explorer.tui.widgets.combo import ComboField

_OPTION = find_option(TileSpec, "accumulator")
_WIDTHS = _OPTION.declared.words


class AccumulatorField(ComboField):
    """Offers common accumulator widths and accepts other numbers. Letters remain shortcuts of the dialog."""

    def __init__(self, bits: int, *, id: str, label_width: int) -> None:
        super().__init__(_OPTION.declared.label, _WIDTHS, self.word_of(bits), id=id, label_width=label_width)
        self.option = _OPTION

    @staticmethod
    def word_of(bits: int) -> str:
        """Return the text of the field for an accumulator width; 'none' for 0."""
        return str(bits or _WIDTHS[0])

    @property
    def bits(self) -> int:
        """Accumulator width in bits, or 0 for none.

        Raises:
            Misuse: The width is not supported.
        """
        typed = "0" if self.value == _WIDTHS[0] else self.value
        bits: int = read_option(_OPTION, typed, _OPTION.declared.label)
        return bits

    def check_consume_key(self, key: str, character: str | None) -> bool:
        """Whether the field accepts a key as input."""
        return character is not None and character.isdecimal()
