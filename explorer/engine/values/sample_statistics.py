"""Statistics of one output of a layer over many runs, one for each sample of a file.

Moments are merged run by run. Complex numbers are always stored. Other numbers are stored while the stored
numbers of all outputs fit in a budget; after that, occurrences are counted instead. Types of 8 or 16 bits
have a count for every value. Wider types have a count for the upper 16 bits of the number as float32, which
determine it to 2^-8 of its size. Further runs of the same samples then make requested quantiles exact
(`RankSearch`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.progress import Cancel
from explorer.engine.values.figures.code_counts import CodeCounts, compute_from_counts
from explorer.engine.values.figures.intervals import QUANTILES
from explorer.engine.values.figures.moments import Moments, compute_moments, compute_statistics, find_groups
from explorer.engine.values.figures.rank_search import RankSearch
from explorer.engine.values.numbers import Array, Numbers, read_chunks
from explorer.engine.values.statistics import (
    compute_figures,
    compute_quantiles_along,
    list_quantile_levels,
    select_reported_quantiles,
)
from explorer.facts import TensorInfo
from explorer.facts.values import TensorStats
from explorer.settings.statistics import Choice

MAX_STORED_BYTES = 1 << 28
"""Maximum bytes of stored activations over all outputs."""


class OutputSamples:
    """One output of a layer, over the runs added so far.

    Args:
        first: Output of the first run.
        choices: Additional statistics.
        axis: Axis of a run's tensor. The additional statistics are computed for each of its indices, or over
            all numbers if None.

    Attributes:
        runs: Number of runs added so far.
        stored_bytes: Bytes of the stored numbers.
    """

    def __init__(self, first: Numbers, choices: Sequence[Choice], axis: int | None) -> None:
        self._first, self._choices = first, choices
        rank = len(first.shape)
        self._is_axis_valid = axis is None or -rank <= axis < rank
        self._axis = axis % rank if axis is not None and self._is_axis_valid else None
        self._moments = Moments()
        self._can_be_ordered = True
        self._axis_moments: Moments | None = (
            Moments(first.shape[self._axis]) if self._axis is not None else None
        )
        self._stored_runs: list[Numbers] = []
        self._counts: CodeCounts | None = None
        self._counts_every_value = False
        self._dtype: np.dtype[Any] = np.dtype(np.float32)
        self._zeros = 0
        self._search: RankSearch | None = None
        self.runs = self._elements = self._bytes = self.stored_bytes = 0

    def add(self, numbers: Numbers, free_bytes: int, cancel: Cancel) -> None:
        """Adds a run.

        Args:
            numbers: Output of the run.
            free_bytes: Number of further bytes that may be stored.
            cancel: Function called at every slab; True cancels.
        """
        self.runs += 1
        self._elements += numbers.elements
        self._bytes += numbers.nbytes
        run_moments = compute_moments(numbers, None, cancel)
        if run_moments is None:
            self._can_be_ordered = False  # complex numbers
        else:
            self._moments.join(run_moments)
        if self._axis is not None and self._axis_moments is not None:
            self._axis_moments = self._extend_axis_moments(self._axis_moments, numbers, cancel)
        if not self._can_be_ordered or (self._counts is None and numbers.nbytes <= free_bytes):
            pieces = [np.array(slab) for slab in numbers.slabs()]
            self._stored_runs.append(replace(numbers, slabs=lambda: iter(pieces)))
            self.stored_bytes += sum(piece.nbytes for piece in pieces)
            return
        for run in (*self._stored_runs, numbers):
            for chunk in read_chunks(run, cancel):
                self._count(chunk)
        self._stored_runs.clear()
        self.stored_bytes = 0

    def _extend_axis_moments(self, moments: Moments, numbers: Numbers, cancel: Cancel) -> Moments | None:
        """Adds a run to the moments along the axis.

        Returns None if the numbers have no moments, or if the length of the axis differs between runs.
        """
        axis = self._axis or 0
        if axis >= len(numbers.shape) or numbers.shape[axis] != moments.groups:
            return None
        run_moments = compute_moments(numbers, axis, cancel)
        if run_moments is None:
            return None
        moments.join(run_moments)
        return moments

    def _count(self, values: Array) -> None:
        """Counts the occurrences of each value, or of the upper 16 bits of each value."""
        if self._counts is None:
            self._dtype = values.dtype
            self._counts_every_value = values.dtype.itemsize <= 2
            self._counts = CodeCounts(values.dtype if self._counts_every_value else np.dtype(np.uint16))
        if self._counts_every_value:
            self._counts.add(values)
            return
        # zero shares its upper 16 bits with the smallest numbers, so it is counted on its own
        nonzero = values[values != 0]
        self._zeros += values.size - nonzero.size
        largest = np.finfo(np.float32).max
        nonzero = np.where(np.isfinite(nonzero), np.clip(nonzero, -largest, largest), nonzero)
        bits = nonzero.astype(np.float32).view(np.uint32)
        self._counts.add((bits >> 16).astype(np.uint16))

    def start_search(self) -> RankSearch | None:
        """Returns a search for quantiles in further runs, or None if no search is needed or possible."""
        levels = list_quantile_levels(self._choices)
        sums = self._moments if self._axis is None else self._axis_moments
        is_exact = self._counts is None or (self._counts_every_value and self._axis is None)
        if levels and self._is_axis_valid and self._can_be_ordered and sums is not None and not is_exact:
            searched_levels = sorted({*QUANTILES, *levels}) if self._axis is None else levels
            self._search = RankSearch(self._dtype, sums.count, searched_levels)
        return self._search

    def search_in(self, numbers: Numbers, cancel: Cancel) -> None:
        """Adds a repeated run to the search."""
        assert self._search is not None
        position = 0
        for chunk in read_chunks(numbers, cancel):
            group = None
            if self._axis is not None:
                inner = math.prod(numbers.shape[self._axis + 1 :])
                group = find_groups(position, chunk.size, inner, numbers.shape[self._axis])
            self._search.add(chunk, group)
            position += chunk.size

    def compute_stats(self, bins: int, call: int, cancel: Cancel) -> TensorStats:
        """Returns the statistics over all runs.

        Args:
            bins: Number of intervals of the histogram.
            call: Number of the call of the layer, counted from 0.
            cancel: Function called at every slab; True cancels.
        """
        levels = list_quantile_levels(self._choices)
        if self._counts is None:
            slabs = [slab for run in self._stored_runs for slab in run.slabs()]
            all_numbers = replace(self._first, shape=(self._elements,), slabs=lambda: iter(slabs))
            stats_fields = compute_figures(all_numbers, bins, levels, cancel)
        else:
            stats_fields = self._compute_from_counts(self._counts, bins, levels)
        quantiles = dict(stats_fields.pop("quantiles", ()))
        is_searched = self._search is not None and self._search.is_steady and self._axis is None
        if is_searched:
            quantiles = self._replace_by_exact(quantiles)
        return TensorStats(
            TensorInfo(self._first.name, self._first.dtype, self._first.shape, "observed"),
            self._first.layer,
            self._elements,
            self._bytes,
            call=call,
            quantiles=select_reported_quantiles(quantiles),
            quantiles_exact=self._counts is None or self._counts_every_value or is_searched,
            runs=self.runs,
            chosen=self._compute_chosen(quantiles, levels),
            **stats_fields,
        )

    def _replace_by_exact(self, quantiles: dict[float, float]) -> dict[float, float]:
        """Returns the quantiles by level, with the results of the search in place of estimates."""
        assert self._search is not None
        exact = {q: values[0] for q, values in self._search.compute_quantiles().items()}
        return quantiles | {q: value for q, value in exact.items() if value is not None}

    def _compute_chosen(
        self, quantiles: dict[float, float], levels: Sequence[float]
    ) -> dict[str, tuple[float | None, ...]]:
        """Computes the additional statistics over all runs, by label."""
        if not self._choices or not self._is_axis_valid or not self._can_be_ordered:
            return {}
        if self._axis is None:
            return compute_statistics(
                self._moments, self._choices, {q: (value,) for q, value in quantiles.items()}
            )
        if self._axis_moments is None:
            return {}
        quantiles_by_level: Mapping[float, Sequence[float | None]] = {}
        if self._search is not None and self._search.is_steady:
            quantiles_by_level = self._search.compute_quantiles()
        elif levels and self._counts is None:
            quantiles_by_level = compute_quantiles_along(self._stored_runs, self._axis, levels)
        return compute_statistics(self._axis_moments, self._choices, quantiles_by_level)

    def _compute_from_counts(
        self, code_counts: CodeCounts, bins: int, levels: Sequence[float]
    ) -> dict[str, Any]:
        """Returns the figures of counted numbers. Exact values from the moments replace estimated values."""
        values, counts = code_counts.list_occurring_values()
        if not self._counts_every_value:
            # each code stands for the middle of the numbers that share its upper 16 bits
            bits = (values.astype(np.uint32) << 16) | 0x8000
            values = bits.view(np.float32).astype(np.float64)
            # the middle for the code of infinity is NaN
            values[(bits & 0x7FFF0000) == 0x7F800000] = np.inf
        stats_fields = compute_from_counts(
            values, counts, self._zeros, self._elements, bins, sorted({*QUANTILES, *levels})
        )
        exact = compute_statistics(self._moments, [Choice(name, name) for name in _EXACT.values()], {})
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
"""Names of statistics that are computed from moments, by the field of `TensorStats`."""
