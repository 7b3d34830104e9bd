"""Units in the last place between two numbers: how many numbers of their type separate them."""

from __future__ import annotations

import numpy as np

from explorer.engine.values.numbers import Array


def ulps(before: Array, after: Array) -> Array | None:
    """Steps from one number to the next of the type, of each pair; -1 where one is NaN or infinite.

    Of two different types, the unit is that of float32, or of float64 if one of them is. None unless both are
    floats.
    """
    if before.dtype != after.dtype and {before.dtype.kind, after.dtype.kind} <= set("fV"):
        wider = np.float64 if np.float64 in (before.dtype, after.dtype) else np.float32
        before, after = before.astype(wider), after.astype(wider)
    kind = before.dtype
    if kind != after.dtype or kind.kind not in "fV" or kind.itemsize not in (1, 2, 4, 8):
        return None
    places = [_places(values) for values in (before, after)]
    good = np.isfinite(before.astype(np.float64)) & np.isfinite(after.astype(np.float64))
    with np.errstate(over="ignore"):
        # of float64 the difference of places may take all 64 bits
        apart = np.where(
            places[0] > places[1],
            places[0].view(np.uint64) - places[1].view(np.uint64),
            places[1].view(np.uint64) - places[0].view(np.uint64),
        )
    many: Array = np.minimum(apart, np.uint64(2**63 - 1)).astype(np.int64)
    return np.where(good, many, -1)


def _places(values: Array) -> Array:
    """The rank of each number among all numbers of its type; 0 for zero of both signs."""
    width = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"i{width}").astype(np.int64)
    size = bits & ((1 << (8 * width - 1)) - 1)
    placed: Array = np.where(bits < 0, -size, size)
    return placed
