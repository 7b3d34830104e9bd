"""Integers with scale and zero point as in QuantizeLinear (int8, uint4), and fixed-point numbers.

fixed8.4 has 8 bits, 4 of them after the binary point. ufixed8.4 is the same without a sign.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np

from explorer.engine.number_formats.number_format import (
    Array,
    Grid,
    NamePattern,
    NumberFormat,
    Writing,
    build_scale_grid,
    reshape_for_tensor,
)

MAX_BITS = 24
"""Number of bits of integers that float32, in which the model computes, represents exactly."""

MAX_FRACTION = 126
"""2**-126 is the smallest power of two that float32 represents as a normal number."""


class Integer(NumberFormat, frozen=True):
    """An integer format; value = (code - zero) x scale, rounded half to even, saturated.

    https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html
    """

    signed: bool = True
    scaled: ClassVar[bool] = True

    @property
    def writing(self) -> Writing:
        """'linear', because QuantizeLinear supports every width of `Integer`."""
        return "linear"

    @property
    def element_type(self) -> str:
        """The integer dtype with this number of bits; '' if only a function can express the format."""
        return f"{'' if self.signed else 'u'}int{self.bits}" if self.writing == "linear" else ""

    @property
    def least(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def largest(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1

    def build_grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Returns the grid of a range: symmetric, or with a zero point.

        A symmetric grid maps the largest magnitude of the range to the largest code. Its unsigned codes have
        their zero point in the middle. Any other grid contains 0 exactly, and both ends approximately.
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
        return build_scale_grid(scale, axis, np.asarray(zero, np.int32))

    def encode(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Returns the saturated codes, rounded half to even. Unusual widths use the next wider dtype."""
        width = next(bits for bits in (8, 16, 32) if self.bits <= bits)
        return self._compute_codes(values, grid).astype(f"{'' if self.signed else 'u'}int{width}")

    def round_values(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Returns the values that DequantizeLinear computes from the codes."""
        return self.decode_steps(self.count_steps(values, grid), grid)

    def count_steps(self, values: Array, grid: Grid) -> Array:
        """Returns the codes minus their zero point, in a float dtype that represents them exactly."""
        codes = self._compute_codes(values, grid)
        if grid.zero.any():
            codes -= reshape_for_tensor(grid.zero.astype(codes.dtype), values.shape, grid)
        return codes

    def decode_steps(self, steps: Array, grid: Grid) -> Array:
        """Returns `steps` times the scale as float32. A float32 array is changed in place."""
        values = steps.astype(np.float32, copy=False)
        values *= reshape_for_tensor(grid.scale, steps.shape, grid)
        return values

    def _compute_codes(self, values: Array, grid: Grid) -> Array:
        """Returns the saturated codes, in a float dtype that represents them exactly."""
        width = np.float32 if self.bits <= 24 else np.float64
        with np.errstate(over="ignore", invalid="ignore"):  # values beyond the dtype saturate below
            codes = np.asarray(
                np.divide(values, reshape_for_tensor(grid.scale, values.shape, grid), dtype=width)
            )
        np.rint(codes, out=codes)
        if grid.zero.any():
            codes += reshape_for_tensor(grid.zero.astype(width), values.shape, grid)
        return np.clip(codes, self.least, self.largest, out=codes)

    def find_limits(self, grid: Grid) -> tuple[Array, Array]:
        """Returns the values of the smallest and the largest code."""
        low = (self.least - grid.zero).astype(np.float32) * grid.scale
        high = (self.largest - grid.zero).astype(np.float32) * grid.scale
        return cast(Array, low), cast(Array, high)


class FixedPoint(Integer, frozen=True):
    """An integer format with the fixed scale 2**-fraction: rounded half to even, saturated.

    With 4, 8 and 16 bits it equals QuantizeLinear with that scale and zero point 0.
    """

    fraction: int = 0
    scaled: ClassVar[bool] = False

    @property
    def writing(self) -> Writing:
        """'linear' for 4, 8 and 16 bits, which QuantizeLinear supports; else 'function'."""
        return "linear" if self.bits in (4, 8, 16) else "function"

    def build_grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Returns the grid of the fixed scale, which does not depend on the range."""
        return Grid(np.asarray(np.ldexp(np.float32(1), -self.fraction)), np.zeros((), np.int32))


def _create_integer(match: re.Match[str]) -> Integer:
    return Integer(match[0], int(match[2]), not match[1])


def _parse_fixed_point(match: re.Match[str]) -> FixedPoint:
    bits, fraction, signed = int(match[2]), int(match[3]), not match[1]
    if not 1 + signed <= bits <= MAX_BITS:
        why = f"a fixed-point format has {1 + signed} to {MAX_BITS} bits, which float32 holds exactly"
        raise ValueError(why)
    if fraction > MAX_FRACTION:
        raise ValueError(f"at most {MAX_FRACTION} bits can follow the point, not {fraction}")
    return FixedPoint(match[0], bits, signed, fraction)


NAME_PATTERNS: Sequence[NamePattern] = (
    (r"(u?)int(4|8|16)", _create_integer),
    (r"(u?)fixed(\d+)\.(\d+)", _parse_fixed_point),
)

EXAMPLES = (
    *("int8", "uint8", "int4", "uint4", "int16", "uint16"),
    *("fixed8.4", "ufixed8.4", "fixed16.8", "fixed12.6"),
)
