"""Agreement of two outputs, fed batch by batch: signal to noise, cosine, top-1 and top-5, in one place.

Everything is a sum over elements or a count of rows, so batches of any size give the same figures, and
nothing is held.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.decibels import decibels
from explorer.engine.values.numbers import Array

_SLAB = 1 << 14
"""Elements compared at a time: their float64 intermediates stay in the processor's cache."""


def snr_db(signal: float, noise: float) -> float:
    """10 log10(signal / noise), both as sums of squares.

    Infinite for no noise; minus infinity for infinite noise, or noise without a signal.
    """
    if not noise:
        return math.inf
    if not signal or not math.isfinite(noise):
        return -math.inf
    return decibels(signal, noise)


def cosine(dot: float, a: float, b: float) -> float | None:
    """Cosine of the angle between two vectors, from their dot product and their squares.

    None if one of them is zero throughout.
    """
    if not a or not b:
        return None
    return max(-1.0, min(1.0, dot / (math.sqrt(a) * math.sqrt(b))))


def places(scores: Array, classes: Array) -> Array:
    """The rank of one class in each row of scores: 0 is the best; -1 in a row with a NaN.

    Of equal scores the class with the lower number ranks first, as for argmax: in a row of equal scores,
    only class 0 has rank 0.

    Args:
        scores: [rows, classes], in a type of numpy's own.
        classes: [rows], a class each.
    """
    class_scores = np.take_along_axis(scores, classes[:, None], axis=1)
    before = np.arange(scores.shape[1])[None, :] < classes[:, None]
    class_places: Array = ((scores > class_scores) | ((scores == class_scores) & before)).sum(axis=1)
    class_places[unordered(scores)] = -1
    return class_places


def unordered(scores: Array) -> Array:
    """[rows]: which rows of [rows, classes] hold a NaN, and so have no best class."""
    return np.asarray(np.isnan(scores).any(axis=1))


class Agreement(Struct):
    """How far the output `after` is from `before`, over all batches that were added.

    Attributes:
        elements: That are finite in both.
        nonfinite: NaN or Inf in one of the two, or not the same one.
        max_abs: Largest |after - before|.
        rows: Rows along the last axis, each the scores of one choice.
        classes: Length of that axis; 0 as soon as batches differ in it.
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
    _first: int = 0
    _five: int = 0

    def add(self, before: Array, after: Array) -> None:
        """Adds one batch.

        Args:
            before: An array of any shape and any type of real numbers, ml_dtypes' too.
            after: An array of the same shape.

        Raises:
            ValueError: The shapes differ.
        """
        if before.shape != after.shape:
            raise ValueError(f"{before.shape} beside {after.shape}")
        old, new = before.reshape(-1), after.reshape(-1)
        for at in range(0, old.size, _SLAB):
            self._add(_float64(old[at : at + _SLAB]), _float64(new[at : at + _SLAB]))
        if before.ndim and before.shape[-1] > 1:
            self._rank(before.reshape(-1, before.shape[-1]), after.reshape(-1, before.shape[-1]))

    def _add(self, old: Array, new: Array) -> None:
        finite = np.isfinite(old) & np.isfinite(new)
        if not finite.all():
            same = (old == new) | (np.isnan(old) & np.isnan(new))
            self.nonfinite += int(np.count_nonzero(~finite & ~same))
            old, new = old[finite], new[finite]
        if not old.size:
            return
        gap = new - old
        self.elements += old.size
        self.max_abs = max(self.max_abs, float(np.abs(gap).max()))
        with np.errstate(over="ignore"):
            self._signal += _product(old, old)
            self._after += _product(new, new)
            self._noise += _product(gap, gap)
            self._dot += _product(old, new)

    def _rank(self, old: Array, new: Array) -> None:
        self.classes = old.shape[1] if not self.rows or self.classes == old.shape[1] else 0
        self.rows += len(old)
        step = max(_SLAB // old.shape[1], 1)
        for at in range(0, len(old), step):
            first, second = (_float64(side[at : at + step]) for side in (old, new))
            place = places(second, first.argmax(axis=1))
            place[unordered(first)] = -1
            self._first += int(np.count_nonzero(place == 0))
            self._five += int(np.count_nonzero((place >= 0) & (place < 5)))

    @property
    def snr_db(self) -> float | None:
        """10 log10(sum before**2 / sum (after - before)**2): infinite if nothing differs.

        Minus infinity where only one side has a NaN or Inf; None if nothing was compared, or the squares
        exceed float64.
        """
        if self.nonfinite:
            return -math.inf
        is_computable = self.elements and math.isfinite(self._signal)
        return snr_db(self._signal, self._noise) if is_computable else None

    @property
    def cosine(self) -> float | None:
        """Cosine of the angle between the two; None if one is zero throughout."""
        return cosine(self._dot, self._signal, self._after)

    @property
    def rms(self) -> float | None:
        """Root of the mean squared difference."""
        return math.sqrt(self._noise / self.elements) if self.elements else None

    @property
    def top1(self) -> float | None:
        """Share of rows with the same best class; None if there is only one class."""
        return self._first / self.rows if self.rows and self.classes > 1 else None

    @property
    def top5(self) -> float | None:
        """Share of rows where the best class of `before` is among the five best of `after`.

        None for five classes or fewer, where it would mean nothing.
        """
        return self._five / self.rows if self.rows and self.classes > 5 else None


def _float64(array: Array) -> Array:
    return array.astype(np.float64)


def _product(a: Array, b: Array) -> Any:
    """The dot product without BLAS, whose threads wait for each other longer than the product takes."""
    return float(np.einsum("i,i->", a, b))
