"""Moments of numbers that arrive in pieces: count, mean, spread and range.

The moments cover a whole tensor, or each index of an axis. Pieces are merged in float64 with the update of
Chan, Golub and LeVeque (1983), applied to the root of the squared deviations. A piece whose squares are too
large or too small for float64 is first scaled by a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.values.numbers import Array, Numbers, read_chunks
from explorer.settings.statistics import STATISTICS, Choice

_MAX_SQUARED, _MIN_SQUARED = 2.0**500, 2.0**-400
"""Magnitudes beyond which a square, or a sum of squares, overflows or loses digits in float64."""


class Moments:
    """Moments of the numbers added so far. Every field is an array with one number for each group.

    Args:
        groups: Number of groups: 1 for a whole tensor, or the size of an axis.

    Attributes:
        elements: Number of all elements.
        count: Number of finite elements.
        nan: Number of NaN elements.
        inf: Number of infinite elements.
        zeros: Number of elements that are 0.
        mean: Mean of the finite numbers.
        absolute: Mean of their absolute values.
        least: Smallest finite number, or infinity.
        greatest: Largest finite number, or minus infinity.
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
        """Largest magnitude of the finite numbers."""
        size: Array = np.maximum(np.abs(self.least), np.abs(self.greatest))
        return size

    def add(self, values: Array, group: Array | None = None) -> None:
        """Adds numbers.

        Args:
            values: One-dimensional array of any real type.
            group: Group of each number, or None if there is one group.
        """
        numbers = values.astype(np.float64)
        group = np.zeros(numbers.size, np.intp) if group is None else group
        self.elements += self._count_by_group(group)
        is_finite = np.isfinite(numbers)
        if not is_finite.all():
            nan = np.isnan(numbers)
            self.nan += self._count_by_group(group[nan])
            self.inf += self._count_by_group(group[~is_finite & ~nan])
            numbers, group = numbers[is_finite], group[is_finite]
        self.zeros += self._count_by_group(group[numbers == 0])
        if numbers.size:
            self._merge(numbers, group)

    def add_zeros(self, count: int) -> None:
        """Adds zeros that are not stored. There must be one group."""
        if not count:
            return
        self.elements += count
        self.zeros += count
        self.least, self.greatest = np.minimum(self.least, 0.0), np.maximum(self.greatest, 0.0)
        zero = np.zeros(1)
        self._join(np.array([count]), zero, zero, zero)

    def join(self, added: Moments) -> None:
        """Merges the moments of other numbers with the same number of groups."""
        for name in ("elements", "nan", "inf", "zeros"):
            getattr(self, name)[:] += getattr(added, name)
        self.least = np.minimum(self.least, added.least)
        self.greatest = np.maximum(self.greatest, added.greatest)
        self._join(added.count, added.mean, added._root, added.absolute)

    def _count_by_group(self, group: Array) -> Array:
        if self.groups == 1:
            return np.array([group.size])
        return np.bincount(group, minlength=self.groups)

    def _sum_by_group(self, values: Array, group: Array) -> Array:
        if self.groups == 1:
            return np.array([values.sum()])
        sums: Array = np.bincount(group, values, self.groups)
        return sums

    def _merge(self, values: Array, group: Array) -> None:
        """Adds finite numbers to the range, mean and spread of their groups."""
        least, greatest = np.full(self.groups, np.inf), np.full(self.groups, -np.inf)
        if self.groups == 1:
            least[0], greatest[0] = values.min(), values.max()
        else:
            np.minimum.at(least, group, values)
            np.maximum.at(greatest, group, values)
        self.least = np.minimum(self.least, least)
        self.greatest = np.maximum(self.greatest, greatest)
        largest = np.maximum(np.abs(least), np.abs(greatest))
        is_small = (largest < _MIN_SQUARED) & (largest > 0)
        factors = np.where(largest > _MAX_SQUARED, 2.0**-560, np.where(is_small, 2.0**500, 1.0))
        if (factors != 1).any():
            values = values * factors[group]
        count = self._count_by_group(group)
        divisor = np.maximum(count, 1)
        mean = self._sum_by_group(values, group) / divisor
        deviations = values - (mean if self.groups == 1 else mean[group])
        root = np.sqrt(self._sum_by_group(deviations * deviations, group))
        absolute = self._sum_by_group(np.abs(values), group) / divisor
        self._join(count, mean / factors, root / factors, absolute / factors)

    def _join(self, count: Array, mean: Array, root: Array, absolute: Array) -> None:
        """Merges the mean and spread of other numbers; `root` is the root of their squared deviations."""
        total = self.count + count
        share = count / np.maximum(total, 1)
        difference = mean - self.mean
        weight = np.sqrt(self.count * share)
        self._root = np.hypot(np.hypot(self._root, root), difference * weight)
        # a mean of means, so that no sum exceeds float64
        self.mean = np.where(self.count == 0, mean, self.mean + difference * share)
        self.absolute = self.absolute + (absolute - self.absolute) * share
        self.count = total


def compute_moments(numbers: Numbers, axis: int | None = None, cancel: Cancel = None) -> Moments | None:
    """Computes the moments of a tensor.

    The result is None for text, for complex numbers, and for sparse tensors along an axis.

    Args:
        numbers: The tensor.
        axis: Non-negative axis whose indices are the groups, or None for one group.
        cancel: Function called at every slab; True cancels.

    Raises:
        Cancelled: `cancel` returned True.
    """
    if axis is not None and numbers.unstored_zeros:
        return None
    sums = Moments(1 if axis is None else numbers.shape[axis])
    inner = 1 if axis is None else math.prod(numbers.shape[axis + 1 :])
    position = 0
    for chunk in read_chunks(numbers, cancel):
        if chunk.dtype.kind in "cOUSM":
            return None
        sums.add(
            chunk, None if axis is None else find_groups(position, chunk.size, inner, numbers.shape[axis])
        )
        position += chunk.size
    sums.add_zeros(numbers.unstored_zeros)
    return sums


def find_groups(start: int, size: int, inner: int, groups: int) -> Array:
    """Returns for consecutive elements of a tensor the index of each on an axis.

    Args:
        start: Position of the first element in the tensor.
        size: Number of elements.
        inner: Number of elements for each index of the axis: the product of the sizes after it.
        groups: Size of the axis.
    """
    positions: Array = np.arange(start, start + size)
    return positions // inner % groups


def compute_statistics(
    sums: Moments, choices: Sequence[Choice], quantiles: Mapping[float, Sequence[float | None]]
) -> dict[str, tuple[float | None, ...]]:
    """Computes the requested statistics.

    Returns:
        A number for each group, by the label of the statistic. It is None for a group without finite numbers.

    Args:
        sums: The moments.
        choices: The statistics.
        quantiles: Quantiles of each group by level. A missing level is unknown.
    """
    values_by_label: dict[str, tuple[float | None, ...]] = {}
    empty = (None,) * sums.groups
    for choice in choices:
        formula = STATISTICS[choice.name].formula
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
            float(n) if group_count else None for n, group_count in zip(values, counts, strict=True)
        )
    return values_by_label
