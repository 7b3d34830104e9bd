"""Floats: float16 and bfloat16 (a Cast and a Cast back), and minifloats such as ONNX's float8."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np

from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.number_formats.number_format import (
    Array,
    Grid,
    NamePattern,
    NumberFormat,
    Writing,
    build_scale_grid,
    reshape_for_tensor,
)

SLAB = 1 << 18
"""Number of elements computed at a time, which limits intermediate values to a few MiB."""

MAX_EXPONENT, MAX_MANTISSA = 7, 14
"""Maximum numbers of bits. Beyond them, libraries disagree: they compute the exponent with a logarithm."""


class Half(NumberFormat, frozen=True):
    """A float of 16 bits. Values beyond its range become infinite, as in hardware, because Cast does so."""

    @property
    def writing(self) -> Writing:
        """'cast', because Cast supports both formats from opset 13 on."""
        return "cast"

    @property
    def element_type(self) -> str:
        """The name of the format."""
        return self.name

    def encode(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Returns the values cast to the dtype, rounded half to even."""
        with np.errstate(over="ignore"):
            return values.astype(get_numpy_type(self.name))

    def round_values(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Returns the rounded values in float32."""
        return self.encode(values, grid).astype(np.float32)

    def find_limits(self, grid: Grid) -> tuple[Array, Array]:
        """Returns minus and plus the largest finite number. Larger values become infinite."""
        # 65504 for float16; for bfloat16, 8 significant bits below 2**128
        high = np.asarray(65504 if self.name == "float16" else 2.0**128 - 2.0**120, np.float32)
        return cast(Array, -high), high


class Minifloat(NumberFormat, frozen=True):
    """value = (-1)**sign x 2**(e - bias) x 1.m, or 2**(1 - bias) x 0.m if e is 0.

    By default every code is a number, as in QONNX's FloatQuant, so floatE4M3 reaches 480. `largest` may
    reserve codes for infinity or NaN, so float8e4m3 reaches 448. Values are rounded to the nearest number and
    saturate. A tie goes to the even significand or, in a format without mantissa bits, to the larger one.

    Attributes:
        exponent, mantissa: Numbers of bits.
        bias: Bias of the exponent, usually 2**(exponent - 1) - 1.
        largest: Largest finite number.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: float

    def build_grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Returns a grid that maps the largest magnitude to `largest`, or scale 1 if not `scaled`."""
        if not self.scaled:
            return Grid(np.ones((), np.float32), np.zeros((), np.int32))
        return build_scale_grid(find_largest_magnitude(low, high) / np.float32(self.largest), axis)

    def round_values(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Returns the values divided by the scale, rounded, and multiplied by the scale."""
        scale = reshape_for_tensor(grid.scale, values.shape, grid)
        with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32 saturate anyway
            rounded = np.asarray(np.divide(values, scale, dtype=np.float32))
        flat = rounded.reshape(-1)
        for start in range(0, flat.size, SLAB):
            flat[start : start + SLAB] = self.round_to_nearest(flat[start : start + SLAB])
        rounded *= scale
        return rounded

    def round_to_nearest(self, values: Array) -> Array:
        """Returns the nearest numbers at scale 1, saturated; NaN stays NaN."""
        result: Array = np.clip(values, np.float32(-self.largest), np.float32(self.largest))
        exponent = (result.view(np.int32) >> 23 & 255) - 127
        # between two powers of two, the step is the last bit of the mantissa; subnormals use the smallest
        # exponent
        step = np.maximum(exponent, 1 - self.bias) - self.mantissa
        result *= _compute_power_of_two(-step)
        np.rint(result, out=result)
        result *= _compute_power_of_two(step)
        return result

    def find_limits(self, grid: Grid) -> tuple[Array, Array]:
        """Returns minus and plus the largest number."""
        high = np.float32(self.largest) * grid.scale
        return cast(Array, -high), cast(Array, high)


def find_largest_magnitude(low: Array, high: Array) -> Array:
    """Returns the largest magnitude of the values between `low` and `high`, as float32."""
    return np.maximum(np.abs(np.asarray(low, np.float32)), np.abs(np.asarray(high, np.float32)))


def _compute_power_of_two(exponent: Array) -> Array:
    """Returns 2**exponent as float32, for int32 exponents from -126 to 127."""
    return (exponent + 127 << 23).view(np.float32)


class Float8(Minifloat, frozen=True):
    """ONNX's 8-bit floats (float8e4m3fn, float8e5m2) with a scale, saturated like QuantizeLinear.

    The scale maps the tensor's range to the largest number. QuantizeLinear supports them from opset 19 on:
    https://onnx.ai/onnx/technical/float8.html
    """

    scaled: ClassVar[bool] = True

    @property
    def writing(self) -> Writing:
        """'linear', because QuantizeLinear supports both formats."""
        return "linear"

    @property
    def element_type(self) -> str:
        """The type's name in ml_dtypes."""
        return "float8_e4m3fn" if self.exponent == 4 else "float8_e5m2"

    def encode(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Returns codes in the dtype of ml_dtypes."""
        unit_grid = Grid(np.ones((), np.float32), np.zeros((), np.int32))
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.divide(values, reshape_for_tensor(grid.scale, values.shape, grid), dtype=np.float32)
        return self.round_values(scaled, unit_grid).astype(get_numpy_type(self.element_type))


def create_minifloat(name: str, exponent: int, mantissa: int, bias: int | None = None) -> Minifloat:
    """Returns a minifloat without codes for infinity or NaN."""
    bias = (1 << (exponent - 1)) - 1 if bias is None else bias
    largest = 2.0 ** ((1 << exponent) - 1 - bias) * (2 - 2.0**-mantissa)
    return Minifloat(name, 1 + exponent + mantissa, exponent, mantissa, bias, largest)


E4M3 = Float8("float8e4m3", 8, 4, 3, 7, 448.0)
E5M2 = Float8("float8e5m2", 8, 5, 2, 15, 57344.0)


def _create_custom(match: re.Match[str]) -> Minifloat:
    exponent, mantissa = int(match[1]), int(match[2])
    if not (1 <= exponent <= MAX_EXPONENT and mantissa <= MAX_MANTISSA):
        why = f"a minifloat has 1 to {MAX_EXPONENT} bits of exponent and at most {MAX_MANTISSA} of mantissa"
        raise ValueError(why + ("; bfloat16 has 8" if exponent == 8 else ""))
    return create_minifloat(match[0], exponent, mantissa)


NAME_PATTERNS: Sequence[NamePattern] = (
    (r"b?float16", lambda match: Half(match[0], 16)),
    (r"float8e4m3", lambda match: E4M3),
    (r"float8e5m2", lambda match: E5M2),
    (r"floatE(\d+)M(\d+)", _create_custom),
)

EXAMPLES = ("float16", "bfloat16", "float8e4m3", "float8e5m2", "floatE4M3", "floatE5M10")
