"""Units in the last place (ULPs) between two numbers: how many numbers of their type separate them."""

from __future__ import annotations

import numpy as np

from explorer.engine.values.numbers import Array


def compute_ulps(before: Array, after: Array) -> Array | None:
    """Returns the ULPs between the two numbers of each pair, or -1 if one of them is NaN or infinite.

    Numbers of two different types are compared as float32, or as float64 if one of the types is float64. The
    result is None unless both types are floats.
    """
    if before.dtype != after.dtype and {before.dtype.kind, after.dtype.kind} <= set("fV"):
        wider = np.float64 if np.float64 in (before.dtype, after.dtype) else np.float32
        before, after = before.astype(wider), after.astype(wider)
    dtype = before.dtype
    if dtype != after.dtype or dtype.kind not in "fV" or dtype.itemsize not in (1, 2, 4, 8):
        return None
    ranks = [_rank_numbers(values) for values in (before, after)]
    is_finite = np.isfinite(before.astype(np.float64)) & np.isfinite(after.astype(np.float64))
    with np.errstate(over="ignore"):
        # differences of float64 ranks may take all 64 bits
        distances = np.where(
            ranks[0] > ranks[1],
            ranks[0].view(np.uint64) - ranks[1].view(np.uint64),
            ranks[1].view(np.uint64) - ranks[0].view(np.uint64),
        )
    clipped: Array = np.minimum(distances, np.uint64(2**63 - 1)).astype(np.int64)
    return np.where(is_finite, clipped, -1)


def _rank_numbers(values: Array) -> Array:
    """Returns the rank of each number among all numbers of its type; 0.0 and -0.0 have rank 0."""
    width = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"i{width}").astype(np.int64)
    size = bits & ((1 << (8 * width - 1)) - 1)
    ranks: Array = np.where(bits < 0, -size, size)
    return ranks
