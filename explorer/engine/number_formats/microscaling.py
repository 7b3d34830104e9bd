"""Microscaling (MX) of the Open Compute Project: blocks of 32 narrow numbers with a common power of two.

"OCP Microscaling Formats (MX) Specification", version 1.0 (2023): 5.3 has the formats, 6.3 the conversion.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import numpy as np

from explorer.engine.number_formats.minifloat import E4M3, E5M2, SLAB, Minifloat, minifloat
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat

BLOCK = 32
"""Elements that share an exponent."""

SCALE_BITS = 8
"""Bits of the shared exponent: E8M0, powers of two from 2**-127 to 2**127, and NaN."""

LEAST_EXPONENT = -127
"""Smallest exponent of E8M0."""


class Microscaling(NumberFormat, frozen=True):
    """value = 2**shared x element; shared = floor(log2(the block's largest magnitude)) - `reach`.

    Elements are rounded half to even and saturate. The last block of an axis may be short. A block that holds
    a NaN or an infinity has no such power of two: its scale is NaN, and so are all its numbers. Values too
    small for 2**-127 are rounded with it.

    Attributes:
        element: Format of the numbers in a block.
    """

    element: Minifloat

    @property
    def stored_bits(self) -> float:
        """Bits of a number, including a 32nd of the shared exponent."""
        return self.bits + SCALE_BITS / BLOCK

    @property
    def reach(self) -> int:
        """The exponent of the element's largest number."""
        return int(np.frexp(self.element.largest)[1]) - 1

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """Rounds block by block along `axis`; the grid is not used."""
        flat = values.reshape(1, 1) if values.ndim == 0 else values
        out = np.empty(flat.shape, np.float32)
        for where, blocks in _slabs(flat.shape, axis % flat.ndim):
            piece = flat[where].reshape(blocks).astype(np.float32, copy=False)
            scale = self.scales(np.abs(piece).max(2, keepdims=True))
            with np.errstate(invalid="ignore"):
                near = self.element.nearest(piece / scale) * scale
            out[where] = near.reshape(out[where].shape)
        return out.reshape(values.shape)

    def scales(self, largest: Array) -> Array:
        """The powers of two for blocks of these largest magnitudes, float32."""
        # zero has no exponent; with any scale it stays zero
        _, exponent = np.frexp(np.where(largest > 0, largest, 1).astype(np.float32))
        shared = np.maximum(exponent - 1 - self.reach, LEAST_EXPONENT)
        scale = np.ldexp(np.float32(1), shared)
        return np.where(np.isfinite(largest), scale, np.float32(np.nan))

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """No limits: the shared exponent covers the range of float32."""
        return np.asarray(-np.inf, np.float32), np.asarray(np.inf, np.float32)


def _slabs(shape: tuple[int, ...], axis: int) -> Iterator[tuple[tuple[slice, ...], tuple[int, ...]]]:
    """Pieces of whole blocks: the place of each, and its shape as (before, blocks, elements, after)."""
    length = shape[axis]
    before, behind = int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))
    whole = length - length % BLOCK
    step = max(1, SLAB // max(1, before * behind * BLOCK)) * BLOCK
    for start in range(0, whole, step):
        stop = min(whole, start + step)
        yield (*(slice(None),) * axis, slice(start, stop)), (before, (stop - start) // BLOCK, BLOCK, behind)
    if whole < length:
        yield (*(slice(None),) * axis, slice(whole, length)), (before, 1, length - whole, behind)


# 8-bit integers of MX are the multiples of 1/64 up to 127/64, either way: so are the floats with one bit of
# exponent, whose normal numbers have the step of the subnormal ones
ELEMENTS: Mapping[str, Minifloat] = {
    "mxint8": minifloat("int8", 1, 6, bias=1),
    "mxfp8": E4M3,
    "mxfp8e4m3": E4M3,
    "mxfp8e5m2": E5M2,
    "mxfp6": minifloat("e2m3", 2, 3),
    "mxfp6e2m3": minifloat("e2m3", 2, 3),
    "mxfp6e3m2": minifloat("e3m2", 3, 2),
    "mxfp4": minifloat("e2m1", 2, 1),
}
"""The formats by name, with their element formats; a family's name means the one with more mantissa."""


def _made(match: re.Match[str]) -> Microscaling:
    element = ELEMENTS[match[0]]
    return Microscaling(match[0], element.bits, element)


FAMILY = (("|".join(ELEMENTS), _made),)

EXAMPLES = tuple(ELEMENTS)
