"""Statistics over many samples: of one output of a layer, in all runs of a file's samples.

Moments are merged run by run. The numbers are kept as long as those of all outputs fit in a budget. For an
output that does not fit, occurrences are counted: of every value of a type of 8 or 16 bits, and of the upper
16 bits of a float32, which give a number to 2^-8 of its size, for a wider type. Chosen quantiles are then
found in further runs of the same samples (`RankSearch`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.progress import Cancel
from explorer.engine.values.figures.code_counts import CodeCounts, of_counts
from explorer.engine.values.figures.intervals import QUANTILES
from explorer.engine.values.figures.moments import Moments, figures, groups_of, moments
from explorer.engine.values.figures.rank_search import RankSearch
from explorer.engine.values.numbers import Array, Numbers, chunks
from explorer.engine.values.statistics import figures_of, quantiles_along, shares_of, usual
from explorer.facts import TensorInfo
from explorer.facts.values import TensorStats
from explorer.settings.statistics import Choice

KEPT = 1 << 28
"""Bytes of activations that are kept, over all outputs."""


class OutputSamples:
    """One output of a layer, over the runs added so far.

    Args:
        first: The output of the first run.
        choices: Additional statistics.
        axis: The axis of a run's tensor with an additional statistic per index.

    Attributes:
        held: Bytes that are kept.
    """

    def __init__(self, first: Numbers, choices: Sequence[Choice], axis: int | None) -> None:
        self._first, self._choices = first, choices
        rank = len(first.shape)
        self._placed = axis is None or -rank <= axis < rank
        self._axis = axis % rank if axis is not None and self._placed else None
        self._whole = Moments()
        self._ordered = True
        self._along: Moments | None = Moments(first.shape[self._axis]) if self._axis is not None else None
        self._kept_runs: list[Numbers] = []
        self._counts: CodeCounts | None = None
        self._by_code = False
        self._kind: np.dtype[Any] = np.dtype(np.float32)
        self._zeros = 0
        self._search: RankSearch | None = None
        self.runs = self._elements = self._bytes = self.held = 0

    def add(self, numbers: Numbers, room: int, cancel: Cancel) -> None:
        """Adds a run; `room` is how many more bytes may be kept in memory."""
        self.runs += 1
        self._elements += numbers.elements
        self._bytes += numbers.nbytes
        run_moments = moments(numbers, None, cancel)
        if run_moments is None:
            self._ordered = False  # complex numbers
        else:
            self._whole.join(run_moments)
        if self._axis is not None and self._along is not None:
            self._along = self._extended(self._along, numbers, cancel)
        if not self._ordered or (self._counts is None and numbers.nbytes <= room):
            pieces = [np.array(slab) for slab in numbers.slabs()]
            self._kept_runs.append(replace(numbers, slabs=lambda: iter(pieces)))
            self.held += sum(piece.nbytes for piece in pieces)
            return
        for run in (*self._kept_runs, numbers):
            for chunk in chunks(run, cancel):
                self._count(chunk)
        self._kept_runs.clear()
        self.held = 0

    def _extended(self, along: Moments, numbers: Numbers, cancel: Cancel) -> Moments | None:
        axis = self._axis or 0
        if axis >= len(numbers.shape) or numbers.shape[axis] != along.groups:
            return None  # the axis is longer in one run than in another
        run_moments = moments(numbers, axis, cancel)
        if run_moments is not None:
            along.join(run_moments)
        return along if run_moments is not None else None

    def _count(self, values: Array) -> None:
        if self._counts is None:
            self._kind = values.dtype
            self._by_code = values.dtype.itemsize <= 2
            self._counts = CodeCounts(values.dtype if self._by_code else np.dtype(np.uint16))
        if self._by_code:
            self._counts.add(values)
            return
        # zero has a code with the smallest numbers, and is no small number
        some = values[values != 0]
        self._zeros += values.size - some.size
        most = np.finfo(np.float32).max
        some = np.where(np.isfinite(some), np.clip(some, -most, most), some)
        bits = some.astype(np.float32).view(np.uint32)
        self._counts.add((bits >> 16).astype(np.uint16))

    def search(self) -> RankSearch | None:
        """The search for chosen quantiles in further runs; None where they are exact already."""
        shares, sums = shares_of(self._choices), self._whole if self._axis is None else self._along
        exact = self._counts is None or (self._by_code and self._axis is None)
        if shares and self._placed and self._ordered and sums is not None and not exact:
            searched_shares = sorted({*QUANTILES, *shares}) if self._axis is None else shares
            self._search = RankSearch(self._kind, sums.count, searched_shares)
        return self._search

    def search_in(self, numbers: Numbers, cancel: Cancel) -> None:
        """Take in a run once more, for the search."""
        assert self._search is not None
        at = 0
        for chunk in chunks(numbers, cancel):
            group = None
            if self._axis is not None:
                inner = math.prod(numbers.shape[self._axis + 1 :])
                group = groups_of(at, chunk.size, inner, numbers.shape[self._axis])
            self._search.add(chunk, group)
            at += chunk.size

    def stats(self, bins: int, call: int, cancel: Cancel) -> TensorStats:
        """The statistics of all runs together."""
        shares = shares_of(self._choices)
        if self._counts is None:
            slabs = [slab for run in self._kept_runs for slab in run.slabs()]
            whole = replace(self._first, shape=(self._elements,), slabs=lambda: iter(slabs))
            stats_fields = figures_of(whole, bins, shares, cancel)
        else:
            stats_fields = self._of_counts(self._counts, bins, shares)
        quantiles = dict(stats_fields.pop("quantiles", ()))
        searched = self._search is not None and self._search.steady and self._axis is None
        if searched:
            quantiles = self._with_exact(quantiles)
        return TensorStats(
            TensorInfo(self._first.name, self._first.dtype, self._first.shape, "observed"),
            self._first.layer,
            self._elements,
            self._bytes,
            call=call,
            quantiles=usual(quantiles),
            quantiles_exact=self._counts is None or self._by_code or searched,
            runs=self.runs,
            chosen=self._chosen_statistics(quantiles, shares),
            **stats_fields,
        )

    def _with_exact(self, rough: dict[float, float]) -> dict[float, float]:
        assert self._search is not None
        exact = {q: values[0] for q, values in self._search.quantiles().items()}
        return rough | {q: value for q, value in exact.items() if value is not None}

    def _chosen_statistics(
        self, quantiles: dict[float, float], shares: Sequence[float]
    ) -> dict[str, tuple[float | None, ...]]:
        if not self._choices or not self._placed or not self._ordered:
            return {}
        if self._axis is None:
            return figures(self._whole, self._choices, {q: (value,) for q, value in quantiles.items()})
        if self._along is None:
            return {}
        quantiles_by_share: Mapping[float, Sequence[float | None]] = {}
        if self._search is not None and self._search.steady:
            quantiles_by_share = self._search.quantiles()
        elif shares and self._counts is None:
            quantiles_by_share = quantiles_along(self._kept_runs, self._axis, shares)
        return figures(self._along, self._choices, quantiles_by_share)

    def _of_counts(self, code_counts: CodeCounts, bins: int, shares: Sequence[float]) -> dict[str, Any]:
        """Figures of counted numbers; the moments give their exact values where they can."""
        values, counts = code_counts.told()
        if not self._by_code:
            # the middle of the numbers that share their upper 16 bits
            bits = (values.astype(np.uint32) << 16) | 0x8000
            values = bits.view(np.float32).astype(np.float64)
            # the code of infinity has NaN in its middle
            values[(bits & 0x7FFF0000) == 0x7F800000] = np.inf
        stats_fields = of_counts(
            values, counts, self._zeros, self._elements, bins, sorted({*QUANTILES, *shares})
        )
        exact = figures(self._whole, [Choice(name, name) for name in _EXACT.values()], {})
        return {**stats_fields, **{field: exact[name][0] for field, name in _EXACT.items()}}


_EXACT = {
    "minimum": "min",
    "maximum": "max",
    "mean": "mean",
    "std": "std",
    "zeros": "zeros",
    "nan": "nan",
    "inf": "inf",
}
"""Fields of `TensorStats` that moments know, and the statistic that each is."""
