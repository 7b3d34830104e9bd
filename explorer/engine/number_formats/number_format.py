"""Number format: the interface of every family (integer, fixed point, float, block, binary)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

Array = np.ndarray[Any, np.dtype[Any]]

Writing = Literal["linear", "cast", "function"]


class Grid(Struct, frozen=True):
    """The numbers of a format for one tensor: value = (code - zero) x scale.

    Attributes:
        scale: float32, of shape () or, for a scale each, one along `axis`; of blocks the shape of the tensor
            with `axis` divided by `block`.
        zero: Zero points, integers of the same shape.
        axis: None for one scale in all.
        block: Elements along `axis` that share a scale; 0: each index of `axis` has its own.
    """

    scale: Array
    zero: Array
    axis: int | None = None
    block: int = 0


class NumberFormat(Struct, frozen=True):
    """A number format; subclasses implement it.

    Attributes:
        name: Its name: 'int8', 'fixed8.4', 'mxfp8'.
        bits: Bits of one stored number.
        scaled: Whether a tensor needs a range (calibration) to choose its scale.
    """

    name: str
    bits: int
    scaled: ClassVar[bool] = False

    @property
    def stored_bits(self) -> float:
        """Bits of a number, including its share of the common bits of a block."""
        return float(self.bits)

    @property
    def writing(self) -> Writing:
        """Its form in ONNX: QuantizeLinear and DequantizeLinear, a Cast there and back, or a function."""
        return "function"

    @property
    def element_type(self) -> str:
        """For 'linear' and 'cast': the ONNX element type, in numpy's or ml_dtypes' spelling; else ''."""
        return ""

    def grid(self, low: Array, high: Array, *, axis: int | None = None, symmetric: bool = True) -> Grid:
        """The grid for values between `low` and `high`, float32 of shape () or one along `axis`.

        Formats that are not `scaled` have the grid of scale 1.
        """
        scale = np.ones((), np.float32)
        return Grid(scale, np.zeros((), np.int32))

    def fitted(
        self, values: Array, *, axis: int | None = None, block: int = 0, symmetric: bool = True
    ) -> Grid:
        """The grid for a tensor whose numbers are known, such as a weight.

        Args:
            values: float32, of any shape.
            axis: None for one scale in all; else each index of it has a scale of its own.
            block: Elements along `axis` that share a scale: then the scales are of the shape of `values` with
                `axis` divided by `block`, rounded up.
            symmetric: Whether zero points stay 0.
        """
        if not self.scaled:
            return self.grid(values, values)
        low, high = (ends(values, reduce, axis, block) for reduce in (np.minimum, np.maximum))
        return replace(self.grid(low, high, axis=axis, symmetric=symmetric), block=block)

    def codes(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Of 'linear' and 'cast': what is stored, in `element_type` (4-bit types as int8 or uint8, one a
        number); of every integer and fixed point.
        """
        raise NotImplementedError

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """The values rounded to the format, in float32; values beyond its range are saturated.

        A NaN stays one. `axis` is the one along which a format's own blocks lie (the depth of a product).
        """
        raise NotImplementedError

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """The smallest and the largest value on a grid, where it saturates."""
        raise NotImplementedError


def ends(values: Array, reduce: np.ufunc, axis: int | None = None, block: int = 0) -> Array:
    """The smallest or largest of the values that share a scale; arguments as for `NumberFormat.fitted`."""
    if axis is None:
        return np.asarray(reduce.reduce(values, axis=None), np.float32)
    axis %= values.ndim
    if block:
        starts = np.arange(0, values.shape[axis], block)
        return np.asarray(reduce.reduceat(values, starts, axis=axis), np.float32)
    others = tuple(at for at in range(values.ndim) if at != axis)
    return np.asarray(reduce.reduce(values, axis=others), np.float32)


def along(values: Array, shape: tuple[int, ...], grid: Grid) -> Array:
    """Scales or zero points of a grid, in a shape that broadcasts with the tensor's."""
    if grid.axis is None or values.ndim == 0:
        return values.reshape(())
    axis = grid.axis % len(shape)
    if grid.block:
        whole = np.repeat(values, grid.block, axis)
        return whole[tuple(slice(n) for n in shape)]
    return values.reshape([-1 if at == axis else 1 for at in range(len(shape))])


def scale_grid(scale: Array, axis: int | None, zero: Array | None = None) -> Grid:
    """The grid of these scales; a scale too small for float32 becomes 1: zeros are exact with any scale."""
    scale = np.where(scale > np.finfo(np.float32).tiny, scale, 1).astype(np.float32)
    return Grid(scale, np.zeros(scale.shape, np.int32) if zero is None else zero, axis)
