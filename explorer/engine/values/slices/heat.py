"""Heat map: a matrix of a tensor, in as many cells as fit, and statistics of the whole tensor."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from explorer.base.errors import Misuse
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.values.numbers import Array, Numbers
from explorer.engine.values.slices.read import parts
from explorer.engine.values.slices.table import SlicedTensor, with_codes
from explorer.facts.values import Outlier
from explorer.settings.slices import Selection


def matrix(shape: tuple[int, ...], place: Sequence[int]) -> tuple[tuple[range, ...], tuple[int, int]]:
    """Ranges of the axes before the last two, at a place; and the numbers of rows and columns behind them.

    Raises:
        Misuse: The place is not in the tensor.
    """
    rows, columns = ((1, 1), *((1, n) for n in shape[-1:]), shape[-2:])[min(len(shape), 2)]
    outer = shape[:-2]
    if len(place) > len(outer) or any(not 0 <= at < size for at, size in zip(place, outer, strict=False)):
        raise Misuse(f"{list(place)} is no place before the last two axes of {list(shape)}", where="--at")
    full = (*place, *(0,) * (len(outer) - len(place)))
    return tuple(range(at, at + 1) for at in full), (rows, columns)


def cells(
    sliced: SlicedTensor,
    outer: tuple[range, ...],
    rows: range,
    columns: range,
    heights: int,
    widths: int,
    cancel: Cancel = None,
) -> Array:
    """The finite number of the largest magnitude in each cell; NaN where there is none.

    Args:
        sliced: The tensor.
        outer: The place of the matrix: one index of each axis before the last two.
        rows: The rows that are drawn.
        columns: The columns that are drawn.
        heights: Number of cells downwards; not more than rows.
        widths: Number of cells across.
        cancel: Called at every piece.
    """
    largest = np.full((heights, widths), np.nan)
    rank = len(sliced.numbers.shape)
    across = np.arange(len(columns)) * widths // max(len(columns), 1)
    starts = np.flatnonzero(np.diff(across, prepend=-1))
    for part in parts(Selection((rows, columns))):
        stop_if(cancel)
        inside = Selection((*outer, *part.indices)[len(outer) + 2 - rank :])
        values = sliced.reals(inside).astype(np.float64, copy=False).reshape(part.sizes)
        values[~np.isfinite(values)] = np.nan
        first = part.indices[1][0] - columns[0]
        cut = starts[(starts >= first) & (starts < first + values.shape[1])] - first
        cut = np.union1d(cut, [0])
        places = across[cut + first]
        least = np.fmin.reduceat(values, cut, 1)
        most = np.fmax.reduceat(values, cut, 1)
        widest = np.where(np.fmax(-least, most) == most, most, least)
        for at, row in zip(part.indices[0], widest, strict=True):
            line = largest[(at - rows[0]) * heights // len(rows)]
            old = line[places]
            take = np.isnan(old) | (np.abs(row) > np.abs(old))
            line[places] = np.where(take, row, old)
    return largest


def codes(
    sliced: SlicedTensor, outer: tuple[range, ...], rows: range, columns: range
) -> dict[str, tuple[Any, ...] | None]:
    """The codes and scales of a matrix, by the names of `HeatMap`; {} if it is not quantized."""
    every = (*outer, rows, columns)
    return with_codes(sliced.numbers, Selection(every[len(every) - len(sliced.numbers.shape) :]))[1]


def outliers(
    sliced: SlicedTensor, mean: float | None, std: float | None, many: int, cancel: Cancel
) -> tuple[Outlier, ...]:
    """The finite numbers that are farthest from the mean, the farthest first; of equal ones the first."""
    if mean is None:
        return ()
    shape = sliced.numbers.shape
    best: list[tuple[float, int, float]] = []
    at = 0
    for part in parts(Selection(tuple(range(size) for size in shape))):
        stop_if(cancel)
        values = sliced.reals(part).reshape(-1)
        far = np.abs(values - mean)
        far[~np.isfinite(far)] = -1
        some = np.argpartition(-far, min(many, far.size - 1))[:many] if far.size > many else range(far.size)
        best += [(float(far[i]), -(at + int(i)), float(values[i])) for i in some if far[i] >= 0]
        best = heapq.nlargest(many, best)
        at += values.size
    return tuple(
        Outlier(
            tuple(int(i) for i in np.unravel_index(-place, shape)) if shape else (),
            value,
            distance / std if std else None,
        )
        for distance, place, value in best
    )


def whole(sliced: SlicedTensor) -> Numbers:
    """The tensor with its dequantized numbers, for its statistics."""
    numbers = sliced.numbers
    if numbers.scales is None and not numbers.dtype.startswith("complex"):
        return numbers
    everything = Selection(tuple(range(size) for size in numbers.shape))
    return Numbers(
        numbers.name,
        numbers.dtype,
        numbers.shape,
        numbers.nbytes,
        lambda: (sliced.reals(part).reshape(-1) for part in parts(everything)),
        numbers.layer,
    )
