"""Moments of numbers that come in pieces: count, mean, spread, range, of a whole tensor or along an axis.

Pieces are merged in float64 by the update of Chan, Golub and LeVeque (1983), applied to the root of the
squared deviations. A piece whose squares exceed float64 is scaled by a power of two first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.numbers import Array, Numbers, chunks
from explorer.settings.statistics import STATISTICS, Choice

_LARGE, _SMALL = 2.0**500, 2.0**-400
"""Beyond these the square of a number, or the sum of some, is no longer a float64 with all its digits."""


class Moments:
    """Moments of the numbers added so far; every field is an array with a number for each group.

    Args:
        groups: Number of groups: 1 for a tensor, else the size of an axis.

    Attributes:
        elements: Count of all elements; `count` of them are finite, `zeros` are 0.
        mean, absolute: Means of x and of |x|.
        least, greatest: The least and the largest finite number.
    """

    def __init__(self, groups: int = 1) -> None:
        self.groups = groups
        self.elements, self.count, self.nan, self.inf, self.zeros = (
            np.zeros(groups, np.int64) for _ in range(5)
        )
        self.mean, self.absolute, self._root = (np.zeros(groups) for _ in range(3))
        self.least, self.greatest = np.full(groups, np.inf), np.full(groups, -np.inf)

    @property
    def std(self) -> Array:
        """Population standard deviation."""
        deviation: Array = self._root / np.sqrt(self.count)
        return deviation

    @property
    def root_mean_square(self) -> Array:
        """Root mean square of the finite numbers."""
        root: Array = np.hypot(self.mean, self.std)
        return root

    @property
    def farthest(self) -> Array:
        """The greatest magnitude."""
        size: Array = np.maximum(np.abs(self.least), np.abs(self.greatest))
        return size

    def add(self, values: Array, group: Array | None = None) -> None:
        """Adds numbers.

        Args:
            values: One-dimensional, of any real type.
            group: The group of each; None if there is one group.
        """
        numbers = values.astype(np.float64)
        group = np.zeros(numbers.size, np.intp) if group is None else group
        self.elements += self._counted(group)
        good = np.isfinite(numbers)
        if not good.all():
            nan = np.isnan(numbers)
            self.nan += self._counted(group[nan])
            self.inf += self._counted(group[~good & ~nan])
            numbers, group = numbers[good], group[good]
        self.zeros += self._counted(group[numbers == 0])
        if numbers.size:
            self._merge(numbers, group)

    def add_zeros(self, many: int) -> None:
        """Take in zeros that are not stored; there must be one group."""
        if not many:
            return
        self.elements += many
        self.zeros += many
        self.least, self.greatest = np.minimum(self.least, 0.0), np.maximum(self.greatest, 0.0)
        none = np.zeros(1)
        self._join(np.array([many]), none, none, none)

    def join(self, other: Moments) -> None:
        """Adds other moments with the same number of groups."""
        for name in ("elements", "nan", "inf", "zeros"):
            getattr(self, name)[:] += getattr(other, name)
        self.least = np.minimum(self.least, other.least)
        self.greatest = np.maximum(self.greatest, other.greatest)
        self._join(other.count, other.mean, other._root, other.absolute)

    def _counted(self, group: Array) -> Array:
        if self.groups == 1:
            return np.array([group.size])
        return np.bincount(group, minlength=self.groups)

    def _summed(self, values: Array, group: Array) -> Array:
        if self.groups == 1:
            return np.array([values.sum()])
        sums: Array = np.bincount(group, values, self.groups)
        return sums

    def _merge(self, values: Array, group: Array) -> None:
        least, greatest = np.full(self.groups, np.inf), np.full(self.groups, -np.inf)
        if self.groups == 1:
            least[0], greatest[0] = values.min(), values.max()
        else:
            np.minimum.at(least, group, values)
            np.maximum.at(greatest, group, values)
        self.least = np.minimum(self.least, least)
        self.greatest = np.maximum(self.greatest, greatest)
        size = np.maximum(np.abs(least), np.abs(greatest))
        far = np.where(size > _LARGE, 2.0**-560, np.where((size < _SMALL) & (size > 0), 2.0**500, 1.0))
        if (far != 1).any():
            values = values * far[group]
        count = self._counted(group)
        some = np.maximum(count, 1)
        mean = self._summed(values, group) / some
        rest = values - (mean if self.groups == 1 else mean[group])
        root = np.sqrt(self._summed(rest * rest, group))
        absolute = self._summed(np.abs(values), group) / some
        self._join(count, mean / far, root / far, absolute / far)

    def _join(self, count: Array, mean: Array, root: Array, absolute: Array) -> None:
        whole = self.count + count
        part = count / np.maximum(whole, 1)
        gap = mean - self.mean
        weight = np.sqrt(self.count * part)
        self._root = np.hypot(np.hypot(self._root, root), gap * weight)
        # a mean of means, so that no sum outgrows float64
        self.mean = np.where(self.count == 0, mean, self.mean + gap * part)
        self.absolute = self.absolute + (absolute - self.absolute) * part
        self.count = whole


def moments(numbers: Numbers, axis: int | None = None, cancel: Cancel = None) -> Moments | None:
    """The moments of a tensor; None for text, complex numbers, or zeros without a place on the axis.

    Args:
        numbers: The tensor.
        axis: The axis, from 0, whose indices are the groups; None makes one group.
        cancel: Called at every slab.

    Raises:
        Cancelled: `cancel` returned True.
    """
    if axis is not None and numbers.zeros:
        return None
    sums = Moments(1 if axis is None else numbers.shape[axis])
    inner = 1 if axis is None else math.prod(numbers.shape[axis + 1 :])
    at = 0
    for chunk in chunks(numbers, cancel):
        if chunk.dtype.kind in "cOUSM":
            return None
        sums.add(chunk, None if axis is None else groups_of(at, chunk.size, inner, numbers.shape[axis]))
        at += chunk.size
    sums.add_zeros(numbers.zeros)
    return sums


def groups_of(start: int, size: int, inner: int, groups: int) -> Array:
    """The index on an axis of elements that lie one after the other."""
    place: Array = np.arange(start, start + size)
    return place // inner % groups


def figures(
    sums: Moments, choices: Sequence[Choice], quantiles: Mapping[float, Sequence[float | None]]
) -> dict[str, tuple[float | None, ...]]:
    """The chosen statistics by label, a number for each group; None where there is no finite number.

    Args:
        sums: The moments.
        choices: The statistics.
        quantiles: By share, a number for each group; a missing share is unknown.
    """
    values_by_label: dict[str, tuple[float | None, ...]] = {}
    empty = (None,) * sums.groups
    for choice in choices:
        formula = STATISTICS[choice.name].of
        if formula is None:
            values_by_label[choice.label] = tuple(quantiles.get(choice.argument, empty))
            continue
        with np.errstate(invalid="ignore", divide="ignore"):
            values: Any = formula(sums, choice.argument)
        if values.dtype.kind == "i":
            values_by_label[choice.label] = tuple(int(n) for n in values)
            continue
        counts = sums.elements if choice.name == "zeros" else sums.count
        values_by_label[choice.label] = tuple(
            float(n) if some else None for n, some in zip(values, counts, strict=True)
        )
    return values_by_label
