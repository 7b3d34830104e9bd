"""Floats: float16 and bfloat16, a Cast there and a Cast back; minifloats, among them ONNX's float8."""

from __future__ import annotations

import re
from typing import ClassVar, cast

import numpy as np

from explorer.engine.graph.dtypes import numpy_type
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, Writing, along, scale_grid

SLAB = 1 << 18
"""Elements computed at a time: intermediate values take a few MiB, however large a weight is."""

MOST_EXPONENT, MOST_MANTISSA = 7, 14
"""Beyond these limits libraries round float32 numbers differently, because a logarithm gives the exponent."""


class Half(NumberFormat, frozen=True):
    """A float of 16 bits. Cast does not saturate: values beyond its range become infinite, as in hardware."""

    @property
    def writing(self) -> Writing:
        """Cast has both, from operator set 13 on."""
        return "cast"

    @property
    def element_type(self) -> str:
        """Its own name."""
        return self.name

    def codes(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Codes rounded half to even."""
        with np.errstate(over="ignore"):
            return values.astype(numpy_type(self.name))

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Rounded values in float32."""
        return self.codes(values, grid).astype(np.float32)

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """Plus and minus the largest finite number; larger values become infinite."""
        # 65504; all bits of bfloat16's eight below 2**128
        high = np.asarray(65504 if self.name == "float16" else 2.0**128 - 2.0**120, np.float32)
        return cast(Array, -high), high


class Minifloat(NumberFormat, frozen=True):
    """value = (-1)**sign x 2**(e - bias) x 1.m, or 2**(1 - bias) x 0.m where e is 0.

    Every code is a number, none is left for infinity or NaN unless `largest` leaves it: as QONNX's FloatQuant
    has it by default, so that floatE4M3 reaches 480, and float8e4m3 448. Rounded to nearest, ties to the even
    significand (without a mantissa: to the larger, as IEEE 754 says), saturated.

    Attributes:
        exponent, mantissa: Bits of them.
        bias: Of the exponent; 2**(exponent - 1) - 1 as a rule.
        largest: The largest finite number.
    """

    exponent: int
    mantissa: int
    bias: int
    largest: float

    def grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Scale 1, for a format that is not `scaled`; else the larger end becomes `largest`."""
        if not self.scaled:
            return Grid(np.ones((), np.float32), np.zeros((), np.int32))
        return scale_grid(larger_end(low, high) / np.float32(self.largest), axis)

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Values divided by the scale, rounded, and multiplied by the scale."""
        scale = along(grid.scale, values.shape, grid)
        with np.errstate(over="ignore", invalid="ignore"):  # values beyond float32 saturate anyway
            out = np.asarray(np.divide(values, scale, dtype=np.float32))
        flat = out.reshape(-1)
        for start in range(0, flat.size, SLAB):
            flat[start : start + SLAB] = self.nearest(flat[start : start + SLAB])
        out *= scale
        return out

    def nearest(self, values: Array) -> Array:
        """The nearest numbers of scale 1, saturated; a NaN stays one."""
        near: Array = np.clip(values, np.float32(-self.largest), np.float32(self.largest))
        exponent = (near.view(np.int32) >> 23 & 255) - 127
        # between two powers of two the step is the mantissa's last bit; subnormals have that of the smallest
        step = np.maximum(exponent, 1 - self.bias) - self.mantissa
        near *= _power_of_two(-step)
        np.rint(near, out=near)
        near *= _power_of_two(step)
        return near

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """Plus and minus the largest number."""
        high = np.float32(self.largest) * grid.scale
        return cast(Array, -high), cast(Array, high)


def larger_end(low: Array, high: Array) -> Array:
    """Larger distance of the ends of a range from zero, float32."""
    return np.maximum(np.abs(np.asarray(low, np.float32)), np.abs(np.asarray(high, np.float32)))


def _power_of_two(exponent: Array) -> Array:
    """2**exponent, float32, of an int32 between -126 and 127."""
    return (exponent + 127 << 23).view(np.float32)


class Float8(Minifloat, frozen=True):
    """8-bit floats as ONNX has them (float8e4m3fn, float8e5m2), with a scale: QuantizeLinear, saturating.

    The scale takes the range of the tensor to the format's largest number. QuantizeLinear has them from
    operator set 19 on: https://onnx.ai/onnx/technical/float8.html
    """

    scaled: ClassVar[bool] = True

    @property
    def writing(self) -> Writing:
        """QuantizeLinear has both."""
        return "linear"

    @property
    def element_type(self) -> str:
        """The type's name in ml_dtypes."""
        return "float8_e4m3fn" if self.exponent == 4 else "float8_e5m2"

    def codes(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Codes of ml_dtypes' type."""
        unit_grid = Grid(np.ones((), np.float32), np.zeros((), np.int32))
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = np.divide(values, along(grid.scale, values.shape, grid), dtype=np.float32)
        return self.rounded(scaled, unit_grid).astype(numpy_type(self.element_type))


def minifloat(name: str, exponent: int, mantissa: int, bias: int | None = None) -> Minifloat:
    """A minifloat whose codes are all numbers."""
    bias = (1 << (exponent - 1)) - 1 if bias is None else bias
    largest = 2.0 ** ((1 << exponent) - 1 - bias) * (2 - 2.0**-mantissa)
    return Minifloat(name, 1 + exponent + mantissa, exponent, mantissa, bias, largest)


E4M3 = Float8("float8e4m3", 8, 4, 3, 7, 448.0)
E5M2 = Float8("float8e5m2", 8, 5, 2, 15, 57344.0)


def _named(match: re.Match[str]) -> Minifloat:
    exponent, mantissa = int(match[1]), int(match[2])
    if not (1 <= exponent <= MOST_EXPONENT and mantissa <= MOST_MANTISSA):
        why = f"a minifloat has 1 to {MOST_EXPONENT} bits of exponent and at most {MOST_MANTISSA} of mantissa"
        raise ValueError(why + ("; bfloat16 has 8" if exponent == 8 else ""))
    return minifloat(match[0], exponent, mantissa)


FAMILY = (
    (r"b?float16", lambda found: Half(found[0], 16)),
    (r"float8e4m3", lambda found: E4M3),
    (r"float8e5m2", lambda found: E5M2),
    (r"floatE(\d+)M(\d+)", _named),
)

EXAMPLES = ("float16", "bfloat16", "float8e4m3", "float8e5m2", "floatE4M3", "floatE5M10")
