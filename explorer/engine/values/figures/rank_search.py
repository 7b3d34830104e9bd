"""Exact quantiles of numbers that arrive several times and are never stored.

The search determines each quantile digit by digit, as in `quantiles`. A pass takes the numbers whose upper
bits equal the bits of the quantile found so far, and counts their next bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from explorer.engine.values.figures.intervals import convert_from_ordered, convert_to_ordered, list_ranks
from explorer.engine.values.numbers import Array

_MAX_BYTE_GROUPS = 256
"""Maximum number of groups for which a pass counts eight bits. For more groups, a pass counts four bits."""


class RankSearch:
    """Searches the numbers at the ranks of quantiles, separately in each group of numbers.

    A pass consists of `begin_pass`, `add` for all numbers, and `end_pass`.

    Args:
        dtype: Type of the numbers. They are compared as float32 if they are floats of at most 4 bytes, else
            as float64.
        totals: Number of finite numbers in each group.
        levels: Levels of the quantiles.

    Attributes:
        is_steady: Whether every pass had the same numbers.
    """

    def __init__(self, dtype: np.dtype[np.generic], totals: Array, levels: Sequence[float]) -> None:
        is_narrow = dtype.kind in "fV" and dtype.itemsize <= 4
        self._dtype = np.dtype(np.float32 if is_narrow else np.float64)
        self._totals, self._levels = totals, tuple(levels)
        self._bits = 8 if totals.size <= _MAX_BYTE_GROUPS else 4
        self._shift = 8 * self._dtype.itemsize
        target_ranks = [
            [rank for _, low, high, _ in list_ranks(max(int(total), 1), levels) for rank in (low, high)]
            for total in totals
        ]
        self._rank_in_prefix = np.array(target_ranks, np.int64)
        self._expected = np.repeat(totals[:, None], self._rank_in_prefix.shape[1], axis=1)
        self._prefix = np.zeros(self._rank_in_prefix.shape, np.uint64)
        self._counts: Array = np.zeros(0, np.int64)
        self.is_steady = True

    @property
    def is_done(self) -> bool:
        """Whether no further pass is needed."""
        return not self._shift or not self.is_steady

    def begin_pass(self) -> None:
        """Starts a pass."""
        self._shift -= self._bits
        self._counts = np.zeros((*self._rank_in_prefix.shape, 1 << self._bits), np.int64)

    def add(self, values: Array, group: Array | None) -> None:
        """Adds a flat array of numbers, with the group of each, or None if there is one group."""
        numbers = values.astype(self._dtype)
        is_finite = np.isfinite(numbers)
        # adding 0 makes -0.0 equal to 0.0
        keys = convert_to_ordered(numbers[is_finite] + 0).astype(np.uint64)
        group = np.zeros(keys.size, np.intp) if group is None else group[is_finite]
        digits = ((keys >> np.uint64(self._shift)) & np.uint64((1 << self._bits) - 1)).astype(np.intp)
        cells = group * (1 << self._bits) + digits
        upper_shift = self._shift + self._bits
        # processors cannot shift by all 64 bits, which would give 0
        upper = keys >> np.uint64(upper_shift) if upper_shift < 64 else np.zeros_like(keys)
        groups, rank_count, size = self._counts.shape
        for rank in range(rank_count):
            matches = upper == self._prefix[group, rank]
            self._counts[:, rank] += np.bincount(cells[matches], minlength=groups * size).reshape(
                groups, size
            )

    def end_pass(self) -> None:
        """Ends a pass: chooses the next bits of each quantile from the counts."""
        self.is_steady &= bool((self._counts.sum(axis=2) == self._expected).all())
        if not self.is_steady:
            return
        cumulative = self._counts.cumsum(axis=2)
        digit = np.minimum(
            (cumulative <= self._rank_in_prefix[:, :, None]).sum(axis=2), self._counts.shape[2] - 1
        )
        digit_index = digit[:, :, None]
        self._expected = np.take_along_axis(self._counts, digit_index, 2)[:, :, 0]
        self._rank_in_prefix -= np.take_along_axis(cumulative, digit_index, 2)[:, :, 0] - self._expected
        self._prefix = (self._prefix << np.uint64(self._bits)) | digit.astype(np.uint64)

    def compute_quantiles(self) -> dict[float, tuple[float | None, ...]]:
        """Returns the quantiles of each group by level, or None for a group without numbers."""
        numbers = convert_from_ordered(self._prefix.astype(f"u{self._dtype.itemsize}"), self._dtype)
        values_by_level: dict[float, list[float | None]] = {level: [] for level in self._levels}
        for row, total in zip(numbers, self._totals.tolist(), strict=True):
            for index, (level, _, _, fraction) in enumerate(list_ranks(max(total, 1), self._levels)):
                lower, upper = float(row[2 * index]), float(row[2 * index + 1])
                quantile = lower if lower == upper else lower * (1 - fraction) + upper * fraction
                values_by_level[level].append(quantile if total else None)
        return {level: tuple(values) for level, values in values_by_level.items()}
