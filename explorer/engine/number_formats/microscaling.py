"""Microscaling (MX) of the Open Compute Project: blocks of 32 narrow numbers that share a power of two.

"OCP Microscaling Formats (MX) Specification", version 1.0 (2023): section 5.3 defines the formats, 6.3 the
conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.number_formats.minifloat import E4M3, E5M2, SLAB, Minifloat, create_minifloat
from explorer.engine.number_formats.number_format import Array, Grid, NamePattern, NumberFormat

BLOCK = 32
"""Number of elements that share an exponent."""

SCALE_BITS = 8
"""Bits of the shared exponent (E8M0): powers of two from 2**-127 to 2**127, and NaN."""

MIN_EXPONENT = -127
"""Smallest exponent of E8M0."""


class Microscaling(NumberFormat, frozen=True):
    """A block format: value = 2**shared x element.

    The exponent `shared` is floor(log2(the block's largest magnitude)) - `largest_exponent`, and at
    least -127. Elements are rounded half to even and saturate. The last block of an axis may be shorter. A
    block that contains NaN or infinity has the scale NaN, so all its numbers become NaN.

    Attributes:
        element: Format of the numbers in a block.
    """

    element: Minifloat

    @property
    def stored_bits(self) -> float:
        """Bits of an element, plus its share (1/32) of the bits of the shared exponent."""
        return self.bits + SCALE_BITS / BLOCK

    @property
    def largest_exponent(self) -> int:
        """Exponent of the largest number of the element format (emax in the specification)."""
        return int(np.frexp(self.element.largest)[1]) - 1

    def round_values(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Rounds block by block along `axis`; the grid is not used."""
        flat = values.reshape(1, 1) if values.ndim == 0 else values
        rounded = np.empty(flat.shape, np.float32)
        for location, blocks in _iterate_slabs(flat.shape, axis % flat.ndim):
            piece = flat[location].reshape(blocks).astype(np.float32, copy=False)
            scale = self.compute_scales(np.abs(piece).max(2, keepdims=True))
            with np.errstate(invalid="ignore"):
                nearest = self.element.round_to_nearest(piece / scale) * scale
            rounded[location] = nearest.reshape(rounded[location].shape)
        return rounded.reshape(values.shape)

    def compute_scales(self, largest: Array) -> Array:
        """Returns the scale of each block as float32, from the block's largest magnitude."""
        # frexp needs a positive number; a block of zeros stays zero with any scale
        _, exponent = np.frexp(np.where(largest > 0, largest, 1).astype(np.float32))
        shared = np.maximum(exponent - 1 - self.largest_exponent, MIN_EXPONENT)
        scale = np.ldexp(np.float32(1), shared)
        return np.where(np.isfinite(largest), scale, np.float32(np.nan))

    def find_limits(self, grid: Grid) -> tuple[Array, Array]:
        """Returns minus and plus infinity, because the shared exponent covers the range of float32."""
        return np.asarray(-np.inf, np.float32), np.asarray(np.inf, np.float32)


def _iterate_slabs(shape: tuple[int, ...], axis: int) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """Yields slabs of undivided blocks: the location, and the shape as (outer, blocks, elements, inner).

    If the last block of the axis is shorter, it is the last slab.
    """
    length = shape[axis]
    outer, inner = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
    full_length = length - length % BLOCK
    step = max(1, SLAB // max(1, outer * inner * BLOCK)) * BLOCK
    for start in range(0, full_length, step):
        stop = min(full_length, start + step)
        yield (*(slice(None),) * axis, slice(start, stop)), (outer, (stop - start) // BLOCK, BLOCK, inner)
    if full_length < length:
        yield (*(slice(None),) * axis, slice(full_length, length)), (outer, 1, length - full_length, inner)


# mxint8 holds the multiples of 1/64 up to 127/64. A float with one exponent bit has the same numbers, because
# its normal and subnormal numbers have the same step.
ELEMENTS: Mapping[str, Minifloat] = {
    "mxint8": create_minifloat("int8", 1, 6, bias=1),
    "mxfp8": E4M3,
    "mxfp8e4m3": E4M3,
    "mxfp8e5m2": E5M2,
    "mxfp6": create_minifloat("e2m3", 2, 3),
    "mxfp6e2m3": create_minifloat("e2m3", 2, 3),
    "mxfp6e3m2": create_minifloat("e3m2", 3, 2),
    "mxfp4": create_minifloat("e2m1", 2, 1),
}
"""Element formats by format name. 'mxfp8' and 'mxfp6' mean the element format with the larger mantissa."""


def _create_microscaling(match: re.Match[str]) -> Microscaling:
    element = ELEMENTS[match[0]]
    return Microscaling(match[0], element.bits, element)


NAME_PATTERNS: Sequence[NamePattern] = (("|".join(ELEMENTS), _create_microscaling),)

EXAMPLES = tuple(ELEMENTS)
