"""Number format: the interface of every family (integer, fixed point, float, block, binary)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

Array = np.ndarray[Any, np.dtype[Any]]

Writing = Literal["linear", "cast", "function"]
"""How ONNX expresses a format: QuantizeLinear and DequantizeLinear, two Casts, or a function."""


class Grid(Struct, frozen=True):
    """The numbers of a format for one tensor: value = (code - zero) x scale.

    Attributes:
        scale: Scales as float32: of shape (), or one per index of `axis`. With blocks, the tensor's shape
            with `axis` divided by `block`.
        zero: Zero points, integers of the same shape.
        axis: Axis with separate scales, or None for a single scale.
        block: Number of elements along `axis` that share a scale, or 0 for one scale per index.
    """

    scale: Array
    zero: Array
    axis: int | None = None
    block: int = 0


class NumberFormat(Struct, frozen=True):
    """A number format; subclasses implement it.

    Attributes:
        name: Name of the format: 'int8', 'fixed8.4', 'mxfp8'.
        bits: Bits of one stored number.
        scaled: Whether the scale depends on the tensor's range (calibration).
    """

    name: str
    bits: int
    scaled: ClassVar[bool] = False

    @property
    def stored_bits(self) -> float:
        """Bits of a number, including its share of the bits that a block shares."""
        return float(self.bits)

    @property
    def writing(self) -> Writing:
        """The form in ONNX: 'linear' (QuantizeLinear, DequantizeLinear), 'cast' (two Casts) or 'function'."""
        return "function"

    @property
    def element_type(self) -> str:
        """The ONNX element type for 'linear' and 'cast', in numpy's or ml_dtypes' spelling; else ''."""
        return ""

    def build_grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """Returns the grid for values between `low` and `high`.

        Both are float32, of shape () or with one entry for each index of `axis`. With `symmetric`, zero
        points do not depend on the values. A format that is not `scaled` ignores the range.
        """
        scale = np.ones((), np.float32)
        return Grid(scale, np.zeros((), np.int32))

    def fit_grid(
        self, values: Array, *, axis: int | None = None, block: int = 0, symmetric: bool = True
    ) -> Grid:
        """Returns the grid for a tensor with known values, such as a weight.

        Args:
            values: float32 array of any shape.
            axis: Axis with one scale per index, or None for a single scale.
            block: Number of elements along `axis` that share a scale, or 0. With blocks, the scales have the
                shape of `values` with `axis` divided by `block`, rounded up.
            symmetric: Whether zero points do not depend on the values.
        """
        if not self.scaled:
            return self.build_grid(values, values)
        low, high = (find_ends(values, reduce, axis, block) for reduce in (np.minimum, np.maximum))
        return replace(self.build_grid(low, high, axis=axis, symmetric=symmetric), block=block)

    def encode(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Returns the stored codes. Formats with the form 'function' have none, except integers.

        The dtype is `element_type`; 4-bit types use int8 or uint8 with one number per byte.
        """
        raise NotImplementedError

    def round_values(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Returns the values rounded to the format, as float32; in most formats, large values saturate.

        NaN stays NaN. `axis` is the axis of a block format's own blocks, which is the depth of a product.
        """
        raise NotImplementedError

    def find_limits(self, grid: Grid) -> tuple[Array, Array]:
        """Returns the smallest and largest value of a grid, where it saturates."""
        raise NotImplementedError


def find_ends(values: Array, reduce: np.ufunc, axis: int | None = None, block: int = 0) -> Array:
    """Returns the minimum or maximum of the values that share a scale, with the arguments of `fit_grid`."""
    if axis is None:
        return np.asarray(reduce.reduce(values, axis=None), np.float32)
    axis %= values.ndim
    if block:
        starts = np.arange(0, values.shape[axis], block)
        return np.asarray(reduce.reduceat(values, starts, axis=axis), np.float32)
    other_axes = tuple(index for index in range(values.ndim) if index != axis)
    return np.asarray(reduce.reduce(values, axis=other_axes), np.float32)


def reshape_for_tensor(values: Array, shape: tuple[int, ...], grid: Grid) -> Array:
    """Returns scales or zero points of a grid, in a shape that broadcasts to the tensor's shape."""
    if grid.axis is None or values.ndim == 0:
        return values.reshape(())
    axis = grid.axis % len(shape)
    if grid.block:
        repeated = np.repeat(values, grid.block, axis)
        return repeated[tuple(slice(n) for n in shape)]
    return values.reshape([-1 if index == axis else 1 for index in range(len(shape))])


def build_scale_grid(scale: Array, axis: int | None, zero: Array | None = None) -> Grid:
    """Returns the grid with these scales; 1 replaces a scale of 0 or below the normal numbers of float32."""
    scale = np.where(scale > np.finfo(np.float32).tiny, scale, 1).astype(np.float32)
    return Grid(scale, np.zeros(scale.shape, np.int32) if zero is None else zero, axis)


NamePattern = tuple[str, Callable[[re.Match[str]], NumberFormat]]
"""Regular expression for the names of some formats, and the function that creates the format of a match.

The function raises ValueError with the reason if no format has these parameters.
"""
