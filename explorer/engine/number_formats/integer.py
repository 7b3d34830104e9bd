"""Integers with scale and zero point: int8, uint8, int4, uint4, int16, uint16, as QuantizeLinear has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import numpy as np

from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, Writing, along


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
        """The integer of as many bits; '' where only a function says the format."""
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
        # a tensor of zeros alone (or of numbers too small to be told apart) is exact with any scale
        scale = np.where(scale > np.finfo(np.float32).tiny, scale, 1).astype(np.float32)
        return Grid(scale, np.asarray(zero, np.int32), axis)

    def codes(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Rounded half to even, with the zero point, saturated; of odd sizes in the next larger integer."""
        wide = next(bits for bits in (8, 16, 32) if self.bits <= bits)
        return self._whole(values, grid).astype(f"{'' if self.signed else 'u'}int{wide}")

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """What DequantizeLinear gives of the codes."""
        return self.of_steps(self.steps(values, grid), grid)

    def steps(self, values: Array, grid: Grid) -> Array:
        """Codes less their zero point, in a float that holds all of them exactly."""
        whole = self._whole(values, grid)
        if grid.zero.any():
            whole -= along(grid.zero.astype(whole.dtype), values.shape, grid)
        return whole

    def of_steps(self, steps: Array, grid: Grid) -> Array:
        """The values of `steps`, whose memory they take."""
        values = steps.astype(np.float32, copy=False)
        values *= along(grid.scale, steps.shape, grid)
        return values

    def _whole(self, values: Array, grid: Grid) -> Array:
        """The codes, in a float that holds all of them exactly."""
        wide = np.float32 if self.bits <= 24 else np.float64
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # what is beyond the float by now saturates all the same
            whole = np.asarray(np.divide(values, along(grid.scale, values.shape, grid), dtype=wide))
        np.rint(whole, out=whole)
        if grid.zero.any():
            whole += along(grid.zero.astype(wide), values.shape, grid)
        return np.clip(whole, self.least, self.largest, out=whole)

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """Of the smallest and the largest code."""
        low = (self.least - grid.zero).astype(np.float32) * grid.scale
        high = (self.largest - grid.zero).astype(np.float32) * grid.scale
        return cast(Array, low), cast(Array, high)


def _made(found: re.Match[str]) -> Integer:
    return Integer(found[0], int(found[2]), not found[1])


FAMILY: Sequence[tuple[str, Callable[[re.Match[str]], NumberFormat]]] = ((r"(u?)int(4|8|16)", _made),)

EXAMPLES = ("int8", "uint8", "int4", "uint4", "int16", "uint16")
