"""Agreement of two outputs: signal-to-noise ratio, cosine, top-1 and top-5, computed batch by batch.

Every figure is computed from sums over elements and counts of rows. The figures are therefore independent of
the size of the batches, and no batch is stored.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.decibels import compute_decibels
from explorer.engine.values.numbers import Array

_SLAB = 1 << 14
"""Elements compared at a time, so that the float64 intermediates stay in the processor's cache."""


def compute_snr_db(signal: float, noise: float) -> float:
    """Returns 10 log10(signal / noise) for sums of squares.

    The result is infinite for no noise, and minus infinity for infinite noise or noise without a signal.
    """
    if not noise:
        return math.inf
    if not signal or not math.isfinite(noise):
        return -math.inf
    return compute_decibels(signal, noise)


def compute_cosine(dot: float, a: float, b: float) -> float | None:
    """Returns the cosine of the angle between two vectors, given their dot product and their squared norms.

    The result is None if a vector is zero.
    """
    if not a or not b:
        return None
    return max(-1.0, min(1.0, dot / (math.sqrt(a) * math.sqrt(b))))


def rank_classes(scores: Array, classes: Array) -> Array:
    """Returns the rank of one class in each row of scores: 0 is the best, and -1 marks a row with a NaN.

    Among equal scores the class with the lower number ranks first, as for argmax.

    Args:
        scores: Scores of shape [rows, classes], in one of numpy's own types.
        classes: Class of each row, of shape [rows].
    """
    class_scores = np.take_along_axis(scores, classes[:, None], axis=1)
    has_lower_number = np.arange(scores.shape[1])[None, :] < classes[:, None]
    ranks: Array = ((scores > class_scores) | ((scores == class_scores) & has_lower_number)).sum(axis=1)
    ranks[find_unordered(scores)] = -1
    return ranks


def find_unordered(scores: Array) -> Array:
    """Returns for each row of [rows, classes] whether it holds a NaN, and so has no best class."""
    return np.asarray(np.isnan(scores).any(axis=1))


class Agreement(Struct):
    """Differences between the outputs `before` and `after`, over all batches added so far.

    Attributes:
        elements: Number of elements that are finite in both outputs.
        nonfinite: Number of elements that are NaN or Inf in one output and have another value in the other.
        max_abs: Largest |after - before| of the elements that are finite in both outputs.
        rows: Number of rows along the last axis; each row holds the scores of one choice.
        classes: Length of that axis, or 0 if batches differ in it.
    """

    elements: int = 0
    nonfinite: int = 0
    max_abs: float = 0.0
    rows: int = 0
    classes: int = 0
    _signal: float = 0.0
    _after: float = 0.0
    _noise: float = 0.0
    _dot: float = 0.0
    _top_one: int = 0
    _top_five: int = 0

    def add(self, before: Array, after: Array) -> None:
        """Adds one batch.

        Args:
            before: Array of any shape and any real type, including types of ml_dtypes.
            after: Array of the same shape.

        Raises:
            ValueError: The shapes differ.
        """
        if before.shape != after.shape:
            raise ValueError(f"{before.shape} beside {after.shape}")
        old, new = before.reshape(-1), after.reshape(-1)
        for start in range(0, old.size, _SLAB):
            self._add(
                _convert_to_float64(old[start : start + _SLAB]),
                _convert_to_float64(new[start : start + _SLAB]),
            )
        if before.ndim and before.shape[-1] > 1:
            self._rank(before.reshape(-1, before.shape[-1]), after.reshape(-1, before.shape[-1]))

    def _add(self, old: Array, new: Array) -> None:
        """Adds flat arrays of float64 to the sums over elements."""
        is_finite = np.isfinite(old) & np.isfinite(new)
        if not is_finite.all():
            is_same = (old == new) | (np.isnan(old) & np.isnan(new))
            self.nonfinite += int(np.count_nonzero(~is_finite & ~is_same))
            old, new = old[is_finite], new[is_finite]
        if not old.size:
            return
        difference = new - old
        self.elements += old.size
        self.max_abs = max(self.max_abs, float(np.abs(difference).max()))
        with np.errstate(over="ignore"):
            self._signal += _compute_dot_product(old, old)
            self._after += _compute_dot_product(new, new)
            self._noise += _compute_dot_product(difference, difference)
            self._dot += _compute_dot_product(old, new)

    def _rank(self, old: Array, new: Array) -> None:
        """Adds arrays of shape [rows, classes] to the counts of rows."""
        self.classes = old.shape[1] if not self.rows or self.classes == old.shape[1] else 0
        self.rows += len(old)
        step = max(_SLAB // old.shape[1], 1)
        for start in range(0, len(old), step):
            old_scores, new_scores = (_convert_to_float64(side[start : start + step]) for side in (old, new))
            class_ranks = rank_classes(new_scores, old_scores.argmax(axis=1))
            class_ranks[find_unordered(old_scores)] = -1
            self._top_one += int(np.count_nonzero(class_ranks == 0))
            self._top_five += int(np.count_nonzero((class_ranks >= 0) & (class_ranks < 5)))

    @property
    def snr_db(self) -> float | None:
        """10 log10(sum before**2 / sum (after - before)**2), or infinity if nothing differs.

        The value is minus infinity if only one side has a NaN or Inf. It is None if nothing was compared, or
        the squares exceed float64.
        """
        if self.nonfinite:
            return -math.inf
        is_computable = self.elements and math.isfinite(self._signal)
        return compute_snr_db(self._signal, self._noise) if is_computable else None

    @property
    def largest_error(self) -> float | None:
        """Largest |after - before|: infinity if only one side has a NaN or Inf, None without elements."""
        if self.nonfinite:
            return math.inf
        return self.max_abs if self.elements else None

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between the outputs, or None if one is zero or only one has a NaN or Inf."""
        return None if self.nonfinite else compute_cosine(self._dot, self._signal, self._after)

    @property
    def rms(self) -> float | None:
        """Root of the mean squared difference: infinity if only one side has a NaN or Inf, None if empty."""
        if self.nonfinite:
            return math.inf
        return math.sqrt(self._noise / self.elements) if self.elements else None

    @property
    def top1(self) -> float | None:
        """Share of rows with the same best class. None without rows, for one class, or if batches differ."""
        return self._top_one / self.rows if self.rows and self.classes > 1 else None

    @property
    def top5(self) -> float | None:
        """Share of rows in which the best class of `before` is among the five best classes of `after`.

        The value is None for five classes or fewer, because it would always be 1. It is also None without
        rows, or if batches differ in the number of classes.
        """
        return self._top_five / self.rows if self.rows and self.classes > 5 else None


def _convert_to_float64(array: Array) -> Array:
    return array.astype(np.float64)


def _compute_dot_product(a: Array, b: Array) -> Any:
    """Returns the dot product, without BLAS: starting its threads would take longer than the product."""
    return float(np.einsum("i,i->", a, b))
