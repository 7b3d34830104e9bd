"""Quantiles and moments of numbers of four or eight bytes, of any count, without sorting them.

Moments are merged in float64 by the update of Chan, Golub and LeVeque (1983). Quantiles are found digit by
digit: the first pass counts the upper 16 bits of every number. Each further pass counts the next 16 bits, of
numbers that can still be one of the quantiles. The same counts fill most of the histogram.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.figures.intervals import edges_of, from_ordered, ordered, places, quantiles, ranks
from explorer.engine.values.numbers import Array, Numbers, chunks
from explorer.facts.values import Histogram

_SORTED = 1 << 16
"""Numbers up to which sorting is faster than counting."""

_TINY = 2.0**-600
"""Scale at which the squares of the largest float64 can be added up."""

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
    """Figures of numbers of four or eight bytes."""

    def __init__(
        self, numbers: Numbers, kind: np.dtype[Any], bins: int, shares: Sequence[float], cancel: Cancel
    ) -> None:
        self.numbers = numbers
        self.shares = shares
        self.kind = kind
        self.bins = bins
        self.cancel = cancel
        self.nan = self.inf = 0
        self.zeros = numbers.zeros
        self.low, self.high = math.inf, -math.inf
        self.few: list[Array] = []
        self.sorting = numbers.elements <= _SORTED
        self.upper = np.zeros(1 << 16, np.int64)

    def figures(self) -> Mapping[str, Any]:
        """All figures, by the names of `TensorStats`."""
        count, mean, squares = self.look()
        figures = {**NOTHING, "nan": self.nan, "inf": self.inf, "zeros": self.zeros / self.numbers.elements}
        if not count:
            return figures
        if not math.isfinite(squares):
            # only float64 numbers have squares that float64 cannot hold
            count, mean, squares = self.moments(_TINY)
            mean, deviation = mean / _TINY, math.sqrt(squares / count) / _TINY
        else:
            deviation = math.sqrt(squares / count)
        edges = edges_of(self.low, self.high, self.bins)
        filled = np.zeros(self.bins, np.int64)
        target_ranks = sorted({rank for _, low, high, _ in ranks(count, self.shares) for rank in (low, high)})
        if self.sorting:
            values = np.sort(np.concatenate(self.few)) if self.few else np.zeros(0)
            if self.numbers.zeros:
                at = int(np.searchsorted(values, 0))
                values = np.insert(values, at, np.zeros(self.numbers.zeros, values.dtype))
            numeric = values.astype(np.float64)
            filled += np.bincount(places(numeric, edges), minlength=self.bins)
            order = {rank: float(numeric[rank]) for rank in target_ranks}
        else:
            order = self.select(target_ranks, edges, filled)
        return {
            **figures,
            "minimum": self.low,
            "maximum": self.high,
            "mean": mean,
            "std": deviation,
            "quantiles": quantiles(count, order.__getitem__, self.shares),
            "histogram": Histogram(tuple(edges.tolist()), tuple(filled.tolist())),
        }

    def finite(self) -> Iterator[Array]:
        """All finite numbers, a chunk at a time."""
        for chunk in chunks(self.numbers, self.cancel):
            if self.kind.kind != "f":
                yield chunk
                continue
            good = np.isfinite(chunk)
            yield chunk if good.all() else chunk[good]

    def look(self) -> tuple[int, float, float]:
        """The first pass: all figures that do not need the range."""
        count, mean, squares = self.numbers.zeros, 0.0, 0.0
        if count:
            self.low = self.high = 0.0
            self.upper[int(ordered(np.zeros(1, self.kind))[0]) >> self.shift] += count
        for chunk in chunks(self.numbers, self.cancel):
            if self.kind.kind == "f":
                good = np.isfinite(chunk)
                if not good.all():
                    nan = int(np.isnan(chunk).sum())
                    self.nan += nan
                    self.inf += chunk.size - int(good.sum()) - nan
                    chunk = chunk[good]
            if not chunk.size:
                continue
            self.zeros += chunk.size - int(np.count_nonzero(chunk))
            self.low = min(self.low, float(chunk.min()))
            self.high = max(self.high, float(chunk.max()))
            if self.sorting:
                self.few.append(np.array(chunk))
            else:
                upper = (ordered(chunk) >> self.shift).astype(np.intp)
                self.upper += np.bincount(upper, minlength=self.upper.size)
            count, mean, squares = _merged(count, mean, squares, chunk.astype(np.float64))
        return count, mean, squares

    def moments(self, scale: float) -> tuple[int, float, float]:
        """Count, mean and sum of squared deviations of the finite numbers, times `scale`."""
        count, mean, squares = self.numbers.zeros, 0.0, 0.0
        for chunk in self.finite():
            if chunk.size:
                count, mean, squares = _merged(count, mean, squares, chunk.astype(np.float64) * scale)
        return count, mean, squares

    @property
    def shift(self) -> int:
        """Bits below the upper 16."""
        return 8 * self.kind.itemsize - 16

    def select(self, target_ranks: Sequence[int], edges: Array, filled: Array) -> dict[int, float]:
        """The numbers of the ranks `target_ranks`; also fills the histogram."""
        split = self.fill(edges, filled)
        cumulative = np.cumsum(self.upper)
        prefix = {rank: int(np.searchsorted(cumulative, rank, side="right")) for rank in target_ranks}
        below = {rank: rank - int(cumulative[p] - self.upper[p]) for rank, p in prefix.items()}
        near = np.zeros(1 << 16, np.bool_)
        near[list(prefix.values())] = True
        shift = self.shift
        while shift:
            prefixes = np.array(sorted(set(prefix.values())), dtype=f"u{self.kind.itemsize}")
            counts = np.zeros((prefixes.size, 1 << 16), np.int64)
            first = shift == self.shift
            for chunk in self.finite():
                keys = ordered(chunk)
                upper = (keys >> self.shift).astype(np.intp)
                if first:
                    across = chunk[split[upper]].astype(np.float64)
                    filled += np.bincount(places(across, edges), minlength=self.bins)
                self.next(keys[near[upper]], prefixes, shift, counts, 1)
            if self.numbers.zeros:
                zero = ordered(np.zeros(1, self.kind))
                if first and split[int(zero[0]) >> self.shift]:
                    filled[places(np.zeros(1), edges)] += self.numbers.zeros
                self.next(zero, prefixes, shift, counts, self.numbers.zeros)
            shift -= 16
            index = {int(p): at for at, p in enumerate(prefixes)}
            for rank, p in prefix.items():
                row = np.cumsum(counts[index[p]])
                digit = int(np.searchsorted(row, below[rank], side="right"))
                below[rank] -= int(row[digit] - counts[index[p]][digit])
                prefix[rank] = p << 16 | digit
            # free 7 MiB before the next round allocates as much
            del counts
        keys = np.array(list(prefix.values()), dtype=f"u{self.kind.itemsize}")
        return dict(zip(prefix, from_ordered(keys, self.kind).astype(np.float64).tolist(), strict=True))

    def fill(self, edges: Array, filled: Array) -> Array:
        """Counts numbers with the same upper 16 bits together, where all of them lie in one interval.

        Returns:
            For each upper 16 bits, whether they cross an edge, so that their numbers must be counted one by
            one.
        """
        upper = np.flatnonzero(self.upper).astype(f"u{self.kind.itemsize}")
        low = upper << upper.dtype.type(self.shift)
        high = low | upper.dtype.type((1 << self.shift) - 1)
        first, last = (places(from_ordered(k, self.kind).astype(np.float64), edges) for k in (low, high))
        whole = first == last
        np.add.at(filled, first[whole], self.upper[upper[whole]])
        split = np.zeros(1 << 16, np.bool_)
        split[upper[~whole]] = True
        return split

    def next(self, keys: Array, prefixes: Array, shift: int, counts: Array, times: int) -> None:
        """Counts the 16 bits below `shift` of those keys whose upper bits are among `prefixes`."""
        upper = keys >> keys.dtype.type(shift)
        at = np.searchsorted(prefixes, upper)
        at[at == prefixes.size] = 0
        hit = prefixes[at] == upper
        digits = (keys[hit] >> keys.dtype.type(shift - 16)) & keys.dtype.type(0xFFFF)
        np.add.at(counts, (at[hit], digits.astype(np.intp)), times)


def _merged(count: int, mean: float, squares: float, more: Array) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations with the numbers `more` added."""
    with np.errstate(over="ignore", invalid="ignore"):
        size = more.size
        centre = float(more.mean())
        rest = more - centre
        more_squares = float(rest @ rest)
        if not count:
            return size, centre, more_squares
        gap = centre - mean
        whole = count + size
        return (
            whole,
            mean + gap * (size / whole),
            squares + more_squares + gap * gap * (count * (size / whole)),
        )
