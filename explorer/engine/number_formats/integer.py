"""Integers with scale and zero point, as QuantizeLinear has them (int8, uint4), and fixed point.

fixed8.4 is 8 bits, 4 of them behind the point; ufixed8.4 the same without a sign.
"""

from __future__ import annotations

import re
from typing import ClassVar, cast

import numpy as np

from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, Writing, along, scale_grid

MOST_BITS = 24
"""float32, in which the model computes, holds integers of so many bits exactly."""

MOST_FRACTION = 126
"""2**-126 is the smallest power of two that float32 has with all of its bits."""


class Integer(NumberFormat, frozen=True):
    """An integer of some bits; value = (code - zero) x scale, rounded half to even, saturated.

    https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """

    signed: bool = True
    scaled: ClassVar[bool] = True

    @property
    def writing(self) -> Writing:
        """QuantizeLinear has all of them."""
        return "linear"

    @property
    def element_type(self) -> str:
        """The integer type with as many bits; '' if only a function can express the format."""
        return f"{'' if self.signed else 'u'}int{self.bits}" if self.writing == "linear" else ""

    @property
    def least(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def largest(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    def grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Symmetric: +-largest for the larger end. Else 0 and both ends are on the grid, as near as may be.

        Symmetric unsigned integers have their zero point in the middle.
        """
        low = np.minimum(np.asarray(low, np.float32), 0)
        high = np.maximum(np.asarray(high, np.float32), 0)
        if symmetric:
            middle = 0 if self.signed else (self.largest + 1) // 2
            scale = np.maximum(-low, high) / np.float32(self.largest - middle)
            zero = np.full(scale.shape, middle, np.int32)
        else:
            scale = (high - low) / np.float32(self.largest - self.least)
            with np.errstate(divide="ignore", invalid="ignore"):
                zero = np.rint(self.least - np.where(scale > 0, low / scale, 0)).astype(np.int32)
            zero = np.clip(zero, self.least, self.largest)
        return scale_grid(scale, axis, np.asarray(zero, np.int32))

    def codes(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Codes rounded half to even, with the zero point, saturated; odd sizes use the next larger type."""
        wide = next(bits for bits in (8, 16, 32) if self.bits <= bits)
        return self._whole(values, grid).astype(f"{'' if self.signed else 'u'}int{wide}")

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """The values that DequantizeLinear computes from the codes."""
        return self.of_steps(self.steps(values, grid), grid)

    def steps(self, values: Array, grid: Grid) -> Array:
        """Codes minus their zero point, in a float that holds all of them exactly."""
        whole = self._whole(values, grid)
        if grid.zero.any():
            whole -= along(grid.zero.astype(whole.dtype), values.shape, grid)
        return whole

    def of_steps(self, steps: Array, grid: Grid) -> Array:
        """The values of `steps`, computed in place."""
        values = steps.astype(np.float32, copy=False)
        values *= along(grid.scale, steps.shape, grid)
        return values

    def _whole(self, values: Array, grid: Grid) -> Array:
        """The codes, in a float that holds all of them exactly."""
        wide = np.float32 if self.bits <= 24 else np.float64
        with np.errstate(over="ignore", invalid="ignore"):  # values beyond the float saturate anyway
            whole = np.asarray(np.divide(values, along(grid.scale, values.shape, grid), dtype=wide))
        np.rint(whole, out=whole)
        if grid.zero.any():
            whole += along(grid.zero.astype(wide), values.shape, grid)
        return np.clip(whole, self.least, self.largest, out=whole)

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """The values of the smallest and the largest code."""
        low = (self.least - grid.zero).astype(np.float32) * grid.scale
        high = (self.largest - grid.zero).astype(np.float32) * grid.scale
        return cast(Array, low), cast(Array, high)


class FixedPoint(Integer, frozen=True):
    """An integer whose scale is 2**-fraction, whatever the tensor: rounded half to even, saturated.

    With 4, 8 and 16 bits it equals QuantizeLinear with that scale and zero point 0.
    """

    fraction: int = 0
    scaled: ClassVar[bool] = False

    @property
    def writing(self) -> Writing:
        """QuantizeLinear has integers of 4, 8 and 16 bits."""
        return "linear" if self.bits in (4, 8, 16) else "function"

    def grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """One fixed scale, whatever `low` and `high` are."""
        return Grid(np.asarray(np.ldexp(np.float32(1), -self.fraction)), np.zeros((), np.int32))


def _made(match: re.Match[str]) -> Integer:
    return Integer(match[0], int(match[2]), not match[1])


def _fixed_point(match: re.Match[str]) -> FixedPoint:
    bits, fraction, signed = int(match[2]), int(match[3]), not match[1]
    if not 1 + signed <= bits <= MOST_BITS:
        why = f"fixed point has {1 + signed} to {MOST_BITS} bits, which float32 holds exactly, not {bits}"
        raise ValueError(why)
    if fraction > MOST_FRACTION:
        raise ValueError(f"at most {MOST_FRACTION} bits can be behind the point, not {fraction}")
    return FixedPoint(match[0], bits, signed, fraction)


FAMILY = ((r"(u?)int(4|8|16)", _made), (r"(u?)fixed(\d+)\.(\d+)", _fixed_point))

EXAMPLES = (
    *("int8", "uint8", "int4", "uint4", "int16", "uint16"),
    *("fixed8.4", "ufixed8.4", "fixed16.8", "fixed12.6"),
)
