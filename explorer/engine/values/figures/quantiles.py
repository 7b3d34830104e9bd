"""Quantiles and moments of numbers of four or eight bytes, of any count.

Up to `_MAX_SORTED` numbers are sorted. More numbers are only counted, so that they need not fit in memory.
Moments are merged in float64 with the update of Chan, Golub and LeVeque (1983). Quantiles are found digit by
digit: the first pass counts the upper 16 bits of every number. Each further pass counts the next 16 bits of
the numbers whose earlier bits are those of a quantile. The first counts also fill most of the histogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.figures.intervals import (
    compute_edges,
    compute_quantiles,
    convert_from_ordered,
    convert_to_ordered,
    find_intervals,
    list_ranks,
)
from explorer.engine.values.numbers import Array, Numbers, read_chunks
from explorer.facts.values import Histogram

_MAX_SORTED = 1 << 16
"""Maximum count of numbers for which sorting is faster than counting."""

_TINY = 2.0**-600
"""Factor for numbers near the largest float64, so that the sum of their squares is finite."""

NOTHING: Mapping[str, Any] = {
    "minimum": None,
    "maximum": None,
    "mean": None,
    "std": None,
    "zeros": None,
    "nan": 0,
    "inf": 0,
}
"""Figures of a tensor without known numbers."""


class WideStatistics:
    """Statistics of numbers of four or eight bytes.

    Args:
        numbers: The tensor.
        dtype: Type of the numbers in slabs.
        bins: Number of intervals of the histogram.
        levels: Levels of the quantiles.
        cancel: Function called at every slab; True cancels.

    Attributes:
        nan, inf, zeros: Number of NaN, infinite and zero elements.
        low, high: Smallest and largest finite number.
        collected: Finite numbers, if they are sorted.
        is_sorted: Whether the numbers are sorted instead of counted.
        upper: Number of finite numbers by the upper 16 bits of their ordered integers, if they are counted.
    """

    def __init__(
        self, numbers: Numbers, dtype: np.dtype[Any], bins: int, levels: Sequence[float], cancel: Cancel
    ) -> None:
        self.numbers = numbers
        self.levels = levels
        self.dtype = dtype
        self.bins = bins
        self.cancel = cancel
        self.nan = self.inf = 0
        self.zeros = numbers.unstored_zeros
        self.low, self.high = math.inf, -math.inf
        self.collected: list[Array] = []
        self.is_sorted = numbers.elements <= _MAX_SORTED
        self.upper = np.zeros(1 << 16, np.int64)

    def compute_figures(self) -> Mapping[str, Any]:
        """Returns all figures, by the names of `TensorStats`."""
        count, mean, squares = self.make_first_pass()
        figures = {**NOTHING, "nan": self.nan, "inf": self.inf, "zeros": self.zeros / self.numbers.elements}
        if not count:
            return figures
        if not math.isfinite(squares):
            # only squares of float64 numbers can exceed float64
            count, mean, squares = self.compute_moments(_TINY)
            mean, deviation = mean / _TINY, math.sqrt(squares / count) / _TINY
        else:
            deviation = math.sqrt(squares / count)
        edges = compute_edges(self.low, self.high, self.bins)
        bin_counts = np.zeros(self.bins, np.int64)
        target_ranks = sorted(
            {rank for _, low, high, _ in list_ranks(count, self.levels) for rank in (low, high)}
        )
        if self.is_sorted:
            values = np.sort(np.concatenate(self.collected)) if self.collected else np.zeros(0)
            if self.numbers.unstored_zeros:
                zero_index = int(np.searchsorted(values, 0))
                values = np.insert(values, zero_index, np.zeros(self.numbers.unstored_zeros, values.dtype))
            numeric = values.astype(np.float64)
            bin_counts += np.bincount(find_intervals(numeric, edges), minlength=self.bins)
            order = {rank: float(numeric[rank]) for rank in target_ranks}
        else:
            order = self.select(target_ranks, edges, bin_counts)
        return {
            **figures,
            "minimum": self.low,
            "maximum": self.high,
            "mean": mean,
            "std": deviation,
            "quantiles": compute_quantiles(count, order.__getitem__, self.levels),
            "histogram": Histogram(tuple(edges.tolist()), tuple(bin_counts.tolist())),
        }

    def read_finite(self) -> Iterator[Array]:
        """Yields all finite numbers, a chunk at a time."""
        for chunk in read_chunks(self.numbers, self.cancel):
            if self.dtype.kind != "f":
                yield chunk
                continue
            is_finite = np.isfinite(chunk)
            yield chunk if is_finite.all() else chunk[is_finite]

    def make_first_pass(self) -> tuple[int, float, float]:
        """Makes the first pass, and returns count, mean and sum of squared deviations."""
        count, mean, squares = self.numbers.unstored_zeros, 0.0, 0.0
        if count:
            self.low = self.high = 0.0
            self.upper[int(convert_to_ordered(np.zeros(1, self.dtype))[0]) >> self.shift] += count
        for chunk in read_chunks(self.numbers, self.cancel):
            if self.dtype.kind == "f":
                is_finite = np.isfinite(chunk)
                if not is_finite.all():
                    nan = int(np.isnan(chunk).sum())
                    self.nan += nan
                    self.inf += chunk.size - int(is_finite.sum()) - nan
                    chunk = chunk[is_finite]
            if not chunk.size:
                continue
            self.zeros += chunk.size - int(np.count_nonzero(chunk))
            self.low = min(self.low, float(chunk.min()))
            self.high = max(self.high, float(chunk.max()))
            if self.is_sorted:
                self.collected.append(np.array(chunk))
            else:
                upper = (convert_to_ordered(chunk) >> self.shift).astype(np.intp)
                self.upper += np.bincount(upper, minlength=self.upper.size)
            count, mean, squares = _merge_moments(count, mean, squares, chunk.astype(np.float64))
        return count, mean, squares

    def compute_moments(self, scale: float) -> tuple[int, float, float]:
        """Returns count, mean and sum of squared deviations of the finite numbers times `scale`."""
        count, mean, squares = self.numbers.unstored_zeros, 0.0, 0.0
        for chunk in self.read_finite():
            if chunk.size:
                count, mean, squares = _merge_moments(count, mean, squares, chunk.astype(np.float64) * scale)
        return count, mean, squares

    @property
    def shift(self) -> int:
        """Number of bits below the upper 16 bits."""
        return 8 * self.dtype.itemsize - 16

    def select(self, target_ranks: Sequence[int], edges: Array, bin_counts: Array) -> dict[int, float]:
        """Finds the numbers at some ranks, and completes the histogram.

        Args:
            target_ranks: The ranks, ascending.
            edges: Edges of the histogram.
            bin_counts: Counts of the histogram, to which the function adds.

        Returns:
            The number at each rank.
        """
        crosses_edge = self.fill_histogram(edges, bin_counts)
        cumulative = np.cumsum(self.upper)
        prefix = {rank: int(np.searchsorted(cumulative, rank, side="right")) for rank in target_ranks}
        rank_in_prefix = {rank: rank - int(cumulative[p] - self.upper[p]) for rank, p in prefix.items()}
        has_prefix = np.zeros(1 << 16, np.bool_)
        has_prefix[list(prefix.values())] = True
        shift = self.shift
        while shift:
            prefixes = np.array(sorted(set(prefix.values())), dtype=f"u{self.dtype.itemsize}")
            counts = np.zeros((prefixes.size, 1 << 16), np.int64)
            is_first = shift == self.shift
            for chunk in self.read_finite():
                keys = convert_to_ordered(chunk)
                upper = (keys >> self.shift).astype(np.intp)
                if is_first:
                    boundary_numbers = chunk[crosses_edge[upper]].astype(np.float64)
                    bin_counts += np.bincount(find_intervals(boundary_numbers, edges), minlength=self.bins)
                self.count_digits(keys[has_prefix[upper]], prefixes, shift, counts, 1)
            if self.numbers.unstored_zeros:
                zero = convert_to_ordered(np.zeros(1, self.dtype))
                if is_first and crosses_edge[int(zero[0]) >> self.shift]:
                    bin_counts[find_intervals(np.zeros(1), edges)] += self.numbers.unstored_zeros
                self.count_digits(zero, prefixes, shift, counts, self.numbers.unstored_zeros)
            shift -= 16
            index_by_prefix = {int(p): position for position, p in enumerate(prefixes)}
            for rank, p in prefix.items():
                row = np.cumsum(counts[index_by_prefix[p]])
                digit = int(np.searchsorted(row, rank_in_prefix[rank], side="right"))
                rank_in_prefix[rank] -= int(row[digit] - counts[index_by_prefix[p]][digit])
                prefix[rank] = p << 16 | digit
            # free 7 MiB before the next round allocates as much
            del counts
        keys = np.array(list(prefix.values()), dtype=f"u{self.dtype.itemsize}")
        return dict(
            zip(prefix, convert_from_ordered(keys, self.dtype).astype(np.float64).tolist(), strict=True)
        )

    def fill_histogram(self, edges: Array, bin_counts: Array) -> Array:
        """Fills the histogram with all numbers whose upper 16 bits determine their interval.

        Returns:
            For each value of the upper 16 bits, whether its numbers cross an edge and must be counted one by
            one.
        """
        upper = np.flatnonzero(self.upper).astype(f"u{self.dtype.itemsize}")
        low = upper << upper.dtype.type(self.shift)
        high = low | upper.dtype.type((1 << self.shift) - 1)
        first, last = (
            find_intervals(convert_from_ordered(k, self.dtype).astype(np.float64), edges) for k in (low, high)
        )
        is_inside = first == last
        np.add.at(bin_counts, first[is_inside], self.upper[upper[is_inside]])
        crosses_edge = np.zeros(1 << 16, np.bool_)
        crosses_edge[upper[~is_inside]] = True
        return crosses_edge

    def count_digits(self, keys: Array, prefixes: Array, shift: int, counts: Array, weight: int) -> None:
        """Counts the 16 bits below `shift` of all keys whose upper bits are in `prefixes`.

        Args:
            keys: Ordered integers of the numbers.
            prefixes: Values of the upper bits, ascending.
            shift: Number of bits below `prefixes`.
            counts: Counts by prefix and digit, to which the function adds.
            weight: Number of times that each key counts.
        """
        upper = keys >> keys.dtype.type(shift)
        indices = np.searchsorted(prefixes, upper)
        indices[indices == prefixes.size] = 0
        matches = prefixes[indices] == upper
        digits = (keys[matches] >> keys.dtype.type(shift - 16)) & keys.dtype.type(0xFFFF)
        np.add.at(counts, (indices[matches], digits.astype(np.intp)), weight)


def _merge_moments(count: int, mean: float, squares: float, new_numbers: Array) -> tuple[int, float, float]:
    """Returns count, mean and sum of squared deviations after the numbers `new_numbers` are added."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = new_numbers.size
        new_mean = float(new_numbers.mean())
        deviations = new_numbers - new_mean
        new_squares = float(deviations @ deviations)
        if not count:
            return size, new_mean, new_squares
        mean_difference = new_mean - mean
        total = count + size
        return (
            total,
            mean + mean_difference * (size / total),
            squares + new_squares + mean_difference * mean_difference * (count * (size / total)),
        )
