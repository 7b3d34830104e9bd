"""Exact quantiles of numbers that are passed several times and never held.

The search is digit by digit, as for quantiles of one tensor: each pass counts the next bits of the numbers
that can still be at a rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from explorer.engine.values.figures.intervals import from_ordered, ordered, ranks
from explorer.engine.values.numbers import Array

_MANY = 256
"""Groups up to which eight bits are counted at a time, of more of them four."""


class RankSearch:
    """The numbers at the ranks of quantiles, in each group of the numbers.

    Args:
        kind: The type of the numbers; 64-bit keys unless it is a float of at most 4 bytes.
        totals: Finite numbers of each group.
        shares: Shares of the quantiles.

    Attributes:
        steady: Whether every pass had the same numbers.
    """

    def __init__(self, kind: np.dtype[np.generic], totals: Array, shares: Sequence[float]) -> None:
        narrow = kind.kind in "fV" and kind.itemsize <= 4
        self._kind = np.dtype(np.float32 if narrow else np.float64)
        self._totals, self._shares = totals, tuple(shares)
        self._bits = 8 if totals.size <= _MANY else 4
        self._shift = 8 * self._kind.itemsize
        places = [[r for _, a, b, _ in ranks(max(int(n), 1), shares) for r in (a, b)] for n in totals]
        self._below = np.array(places, np.int64)
        self._expected = np.repeat(totals[:, None], self._below.shape[1], axis=1)
        self._prefix = np.zeros(self._below.shape, np.uint64)
        self._counts: Array = np.zeros(0, np.int64)
        self.steady = True

    @property
    def done(self) -> bool:
        """Whether the numbers need not come by again."""
        return not self._shift or not self.steady

    def begin(self) -> None:
        """All numbers come by."""
        self._shift -= self._bits
        self._counts = np.zeros((*self._below.shape, 1 << self._bits), np.int64)

    def add(self, values: Array, group: Array | None) -> None:
        """Adds some of the numbers, a flat array, and the group of each; None if there is one group."""
        numbers = values.astype(self._kind)
        good = np.isfinite(numbers)
        keys = ordered(numbers[good] + 0).astype(np.uint64)  # both zeros are one
        group = np.zeros(keys.size, np.intp) if group is None else group[good]
        digits = ((keys >> np.uint64(self._shift)) & np.uint64((1 << self._bits) - 1)).astype(np.intp)
        cells = group * (1 << self._bits) + digits
        above = self._shift + self._bits
        # a shift by all bits of a number gives 0; processors shift by less
        upper = keys >> np.uint64(above) if above < 64 else np.zeros_like(keys)
        groups, many, size = self._counts.shape
        for rank in range(many):
            near = upper == self._prefix[group, rank]
            self._counts[:, rank] += np.bincount(cells[near], minlength=groups * size).reshape(groups, size)

    def end(self) -> None:
        """All came by."""
        self.steady &= bool((self._counts.sum(axis=2) == self._expected).all())
        if not self.steady:
            return
        reached = self._counts.cumsum(axis=2)
        digit = np.minimum((reached <= self._below[:, :, None]).sum(axis=2), self._counts.shape[2] - 1)
        here = digit[:, :, None]
        self._expected = np.take_along_axis(self._counts, here, 2)[:, :, 0]
        self._below -= np.take_along_axis(reached, here, 2)[:, :, 0] - self._expected
        self._prefix = (self._prefix << np.uint64(self._bits)) | digit.astype(np.uint64)

    def quantiles(self) -> dict[float, tuple[float | None, ...]]:
        """Quantiles of each group, by share; None for a group without numbers."""
        numbers = from_ordered(self._prefix.astype(f"u{self._kind.itemsize}"), self._kind)
        values_by_share: dict[float, list[float | None]] = {q: [] for q in self._shares}
        for row, total in zip(numbers, self._totals.tolist(), strict=True):
            for at, (q, _, _, part) in enumerate(ranks(max(total, 1), self._shares)):
                a, b = float(row[2 * at]), float(row[2 * at + 1])
                values_by_share[q].append((a if a == b else a * (1 - part) + b * part) if total else None)
        return {q: tuple(values) for q, values in values_by_share.items()}
