"""Figures of a tensor, computed from the number of occurrences of each value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.figures.intervals import compute_edges, compute_quantiles, find_intervals
from explorer.engine.values.figures.quantiles import NOTHING
from explorer.engine.values.numbers import Array, Numbers, read_chunks
from explorer.facts.values import Histogram


def compute_from_codes(
    numbers: Numbers, dtype: np.dtype[Any], bins: int, levels: Sequence[float], cancel: Cancel
) -> dict[str, Any]:
    """Computes the figures of a tensor with elements of one or two bytes, as fields of `TensorStats`.

    Such elements have at most 65,536 different values.
    """
    counts = CodeCounts(dtype)
    for chunk in read_chunks(numbers, cancel):
        counts.add(chunk)
    return compute_from_counts(
        *counts.list_occurring_values(), numbers.unstored_zeros, numbers.elements, bins, levels
    )


class CodeCounts:
    """Number of occurrences of each value of a type of one or two bytes."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._code = np.dtype(np.uint8 if dtype.itemsize == 1 else np.uint16)
        self._counts = np.zeros(1 << (8 * dtype.itemsize), np.int64)

    def add(self, values: Array) -> None:
        """Counts the values of a flat array."""
        codes = np.ascontiguousarray(values).view(self._code)
        self._counts += np.bincount(codes, minlength=self._counts.size)

    def list_occurring_values(self) -> tuple[Array, Array]:
        """Returns the values that occur, as float64, and their numbers of occurrences."""
        codes = np.flatnonzero(self._counts)
        with np.errstate(invalid="ignore"):
            values = codes.astype(self._code).view(np.bool_ if self.dtype.kind == "b" else self.dtype)
            return values.astype(np.float64), self._counts[codes]


def compute_from_counts(
    values: Array, counts: Array, zeros: int, elements: int, bins: int, levels: Sequence[float]
) -> dict[str, Any]:
    """Computes the figures of counted numbers, as fields of `TensorStats`.

    Args:
        values: Numbers, including NaN and infinite numbers, in any order.
        counts: Number of occurrences of each number.
        zeros: Number of additional zeros.
        elements: Number of all elements.
        bins: Number of intervals of the histogram.
        levels: Levels of the quantiles.
    """
    nan, inf = int(counts[np.isnan(values)].sum()), int(counts[np.isinf(values)].sum())
    is_finite = np.isfinite(values)
    # -0.0 and 0.0 have two codes but are one value
    numeric, value_index = np.unique(values[is_finite], return_inverse=True)
    merged_counts = np.zeros(numeric.size, np.int64)
    np.add.at(merged_counts, value_index, counts[is_finite])
    if zeros:
        numeric, merged_counts = _add_zeros(numeric, merged_counts, zeros)
    total = int(merged_counts.sum())
    if not total:
        return {**NOTHING, "zeros": 0.0, "nan": nan, "inf": inf}
    mean = math.fsum(numeric * merged_counts) / total
    variance = math.fsum((numeric - mean) ** 2 * merged_counts) / total
    cumulative = np.cumsum(merged_counts)
    low, high = float(numeric[0]), float(numeric[-1])
    edges = compute_edges(low, high, bins)
    bin_counts = np.zeros(bins, np.int64)
    np.add.at(bin_counts, find_intervals(numeric, edges), merged_counts)
    return {
        "minimum": low,
        "maximum": high,
        "mean": mean,
        "std": math.sqrt(variance),
        "zeros": int(merged_counts[numeric == 0].sum()) / elements,
        "nan": nan,
        "inf": inf,
        "quantiles": compute_quantiles(
            total, lambda rank: float(numeric[np.searchsorted(cumulative, rank, side="right")]), levels
        ),
        "histogram": Histogram(tuple(edges.tolist()), tuple(bin_counts.tolist())),
    }


def _add_zeros(values: Array, counts: Array, zeros: int) -> tuple[Array, Array]:
    """Returns sorted values and their counts after adding `zeros` zeros."""
    zero_index = int(np.searchsorted(values, 0.0))
    if zero_index == values.size or values[zero_index] != 0:
        values, counts = np.insert(values, zero_index, 0.0), np.insert(counts, zero_index, 0)
    counts[zero_index] += zeros
    return values, counts
