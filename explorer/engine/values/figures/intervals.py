"""Intervals of a histogram, and ranks of quantiles."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from explorer.engine.values.numbers import Array

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Levels of the quantiles that are reported for every tensor."""

_MAX_FLOAT = sys.float_info.max


def list_ranks(total: int, levels: Sequence[float]) -> Iterator[tuple[float, int, int, float]]:
    """Yields each level with the ranks of the two numbers around its quantile, and the fraction between them.

    The interpolation is numpy's default (method 7 of Hyndman and Fan).
    """
    for level in levels:
        position = level * (total - 1)
        low = min(int(position), total - 1)
        yield level, low, min(low + 1, total - 1), position - low


def compute_quantiles(
    total: int, get_number: Callable[[int], float], levels: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    """Returns pairs of a level and its quantile.

    Args:
        total: Count of the numbers.
        get_number: Function that returns the number at a rank. The smallest number has rank 0.
        levels: Levels of the quantiles, from 0 to 1.
    """
    pairs = []
    for level, low, high, fraction in list_ranks(total, levels):
        lower, upper = get_number(low), get_number(high)
        pairs.append((level, lower if lower == upper else lower * (1 - fraction) + upper * fraction))
    return tuple(pairs)


def convert_to_ordered(values: Array) -> Array:
    """Converts numbers to unsigned integers in the same order.

    The bits of positive floats are in the order of the numbers, and those of negative floats in the reverse
    order. Therefore all bits of negative floats are inverted, and only the top bit of other floats and of
    signed integers. Unsigned integers stay.
    """
    width, kind = 8 * values.itemsize, values.dtype.kind
    unsigned = np.dtype(f"u{values.itemsize}")
    bits: Array = np.ascontiguousarray(values).view(unsigned)
    inverted = unsigned.type(1 << (width - 1))
    if kind == "u":
        return bits
    if kind == "f":
        inverted = (bits.view(f"i{values.itemsize}") >> (width - 1)).view(unsigned) | inverted
    keys: Array = bits ^ inverted
    return keys


def convert_from_ordered(keys: Array, dtype: np.dtype[Any]) -> Array:
    """Converts ordered integers back to numbers of a type."""
    top = keys.dtype.type(1 << (8 * dtype.itemsize - 1))
    bits: Array = keys
    if dtype.kind == "i":
        bits = keys ^ top
    elif dtype.kind == "f":
        bits = np.where(keys & top != 0, keys ^ top, ~keys)
    return bits.view(dtype)


def compute_edges(low: float, high: float, bins: int) -> Array:
    """Returns the edges of equal intervals.

    A range of a single value is widened to 1, as numpy does, or to more for large values.
    """
    if low == high:
        half_width = max(0.5, abs(low) * 2.0**-40)
        low, high = max(low - half_width, -_MAX_FLOAT), min(high + half_width, _MAX_FLOAT)
    if math.isfinite(high - low):
        return np.linspace(low, high, bins + 1)
    return np.linspace(low / 2, high / 2, bins + 1) * 2


def find_intervals(values: Array, edges: Array) -> Array:
    """Returns the index of the interval of each value. The last interval is closed."""
    bins = edges.size - 1
    low, high = float(edges[0]), float(edges[-1])
    half_span = high / 2 - low / 2
    if not half_span or not math.isfinite(bins / half_span):
        return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1)
    # computed by division, then corrected if rounding crossed an edge
    bin_index = ((values / 2 - low / 2) * (bins / half_span)).astype(np.intp)
    np.clip(bin_index, 0, bins - 1, out=bin_index)
    bin_index -= values < edges[bin_index]
    bin_index += (values >= edges[bin_index + 1]) & (bin_index < bins - 1)
    return bin_index
