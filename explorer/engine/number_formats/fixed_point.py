"""Fixed point: fixed8.4 is 8 bits, 4 of them behind the point; ufixed8.4 the same without a sign."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, Writing

MOST_BITS = 24
"""float32, in which the model computes, holds integers of so many bits exactly."""

MOST_FRACTION = 126
"""2**-126 is the smallest power of two that float32 has with all of its bits."""


class FixedPoint(Integer, frozen=True):
    """An integer whose scale is 2**-fraction, whatever the tensor: rounded half to even, saturated.

    Of 4, 8 and 16 bits it is what QuantizeLinear says, with that scale and zero point 0.
    """

    fraction: int = 0
    scaled: ClassVar[bool] = False

    @property
    def writing(self) -> Writing:
        """QuantizeLinear has integers of 4, 8 and 16 bits."""
        return "linear" if self.bits in (4, 8, 16) else "function"

    def grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """One scale for all, whatever lies between `low` and `high`."""
        return Grid(np.asarray(np.ldexp(np.float32(1), -self.fraction)), np.zeros((), np.int32))

    def fitted(
        self, values: Array, *, axis: int | None = None, block: int = 0, symmetric: bool = True
    ) -> Grid:
        """The same grid, and no look at the values."""
        return self.grid(values, values)


def _made(found: re.Match[str]) -> FixedPoint:
    bits, fraction, signed = int(found[2]), int(found[3]), not found[1]
    if not 1 + signed <= bits <= MOST_BITS:
        why = f"fixed point has {1 + signed} to {MOST_BITS} bits, which float32 holds exactly, not {bits}"
        raise ValueError(why)
    if fraction > MOST_FRACTION:
        raise ValueError(f"at most {MOST_FRACTION} bits can be behind the point, not {fraction}")
    return FixedPoint(found[0], bits, signed, fraction)


FAMILY: Sequence[tuple[str, Callable[[re.Match[str]], NumberFormat]]] = ((r"(u?)fixed(\d+)\.(\d+)", _made),)

EXAMPLES = ("fixed8.4", "ufixed8.4", "fixed16.8", "fixed12.6")
