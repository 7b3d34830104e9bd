"""Heat map: a matrix of a tensor, reduced to a grid of cells, and the outliers of the whole tensor."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from explorer.base.errors import Misuse
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.values.numbers import Array, Numbers
from explorer.engine.values.slices.read import split_selection
from explorer.engine.values.slices.table import SlicedTensor, read_with_codes
from explorer.facts.values import Outlier
from explorer.settings.slices import Selection


def locate_matrix(shape: tuple[int, ...], place: Sequence[int]) -> tuple[tuple[range, ...], tuple[int, int]]:
    """Returns the position of a matrix in a tensor, and the number of its rows and columns.

    The matrix lies on the last two axes. Its position is a range of one index for each axis before them.

    Args:
        shape: Shape of the tensor.
        place: Index of the matrix on the first axes; missing indices are 0.

    Raises:
        Misuse: The position is not in the tensor.
    """
    columns = shape[-1] if shape else 1
    rows = shape[-2] if len(shape) > 1 else 1
    outer = shape[:-2]
    if len(place) > len(outer) or any(
        not 0 <= index < size for index, size in zip(place, outer, strict=False)
    ):
        raise Misuse(
            f"{list(place)} is not a position on the axes before the last two of {list(shape)}", where="--at"
        )
    indices = (*place, *(0,) * (len(outer) - len(place)))
    return tuple(range(index, index + 1) for index in indices), (rows, columns)


def compute_cells(
    sliced: SlicedTensor,
    outer: tuple[range, ...],
    rows: range,
    columns: range,
    cell_rows: int,
    cell_columns: int,
    cancel: Cancel = None,
) -> Array:
    """Returns the finite number with the largest magnitude in each cell, or NaN for a cell without numbers.

    Args:
        sliced: The tensor.
        outer: Position of the matrix: one index of each axis before the last two.
        rows: Rows that are drawn.
        columns: Columns that are drawn.
        cell_rows: Number of cells from top to bottom; at most the number of rows.
        cell_columns: Number of cells from left to right.
        cancel: Function called at every part; True cancels.
    """
    largest = np.full((cell_rows, cell_columns), np.nan)
    rank = len(sliced.numbers.shape)
    cell_of_column = np.arange(len(columns)) * cell_columns // max(len(columns), 1)
    starts = np.flatnonzero(np.diff(cell_of_column, prepend=-1))
    for part in split_selection(Selection((rows, columns))):
        stop_if(cancel)
        part_selection = Selection((*outer, *part.indices)[len(outer) + 2 - rank :])
        values = sliced.read_reals(part_selection).astype(np.float64, copy=False).reshape(part.sizes)
        values[~np.isfinite(values)] = np.nan
        first = part.indices[1][0] - columns[0]
        boundaries = starts[(starts >= first) & (starts < first + values.shape[1])] - first
        boundaries = np.union1d(boundaries, [0])
        cell_indices = cell_of_column[boundaries + first]
        smallest = np.fmin.reduceat(values, boundaries, 1)
        greatest = np.fmax.reduceat(values, boundaries, 1)
        extremes = np.where(np.fmax(-smallest, greatest) == greatest, greatest, smallest)
        for row_index, row in zip(part.indices[0], extremes, strict=True):
            cell_row_values = largest[(row_index - rows[0]) * cell_rows // len(rows)]
            previous = cell_row_values[cell_indices]
            is_larger = np.isnan(previous) | (np.abs(row) > np.abs(previous))
            cell_row_values[cell_indices] = np.where(is_larger, row, previous)
    return largest


def read_codes(
    sliced: SlicedTensor, outer: tuple[range, ...], rows: range, columns: range
) -> dict[str, tuple[Any, ...] | None]:
    """Reads the codes and scales of a matrix as fields of `HeatMap`. Returns {} if it is not quantized."""
    ranges = (*outer, rows, columns)
    return read_with_codes(sliced.numbers, Selection(ranges[len(ranges) - len(sliced.numbers.shape) :]))[1]


def find_outliers(
    sliced: SlicedTensor, mean: float | None, std: float | None, count: int, cancel: Cancel
) -> tuple[Outlier, ...]:
    """Returns the `count` finite numbers that are farthest from the mean, the farthest first.

    Numbers at the same distance are in the order of the tensor.
    """
    if mean is None:
        return ()
    shape = sliced.numbers.shape
    # (distance, negated flat position, value): the negation sorts equal distances by position
    outliers: list[tuple[float, int, float]] = []
    position = 0
    for part in split_selection(Selection(tuple(range(size) for size in shape))):
        stop_if(cancel)
        values = sliced.read_reals(part).reshape(-1)
        distances = np.abs(values - mean)
        distances[~np.isfinite(distances)] = -1
        candidates = (
            np.argpartition(-distances, min(count, distances.size - 1))[:count]
            if distances.size > count
            else range(distances.size)
        )
        outliers += [
            (float(distances[i]), -(position + int(i)), float(values[i]))
            for i in candidates
            if distances[i] >= 0
        ]
        outliers = heapq.nlargest(count, outliers)
        position += values.size
    return tuple(
        Outlier(
            tuple(int(i) for i in np.unravel_index(-negated_position, shape)) if shape else (),
            value,
            distance / std if std else None,
        )
        for distance, negated_position, value in outliers
    )


def build_real_tensor(sliced: SlicedTensor) -> Numbers:
    """Returns the complete tensor with dequantized numbers, or with magnitudes of complex numbers.

    The statistics of the tensor are computed from them.
    """
    numbers = sliced.numbers
    if numbers.scales is None and not numbers.dtype.startswith("complex"):
        return numbers
    everything = Selection(tuple(range(size) for size in numbers.shape))
    return Numbers(
        numbers.name,
        numbers.dtype,
        numbers.shape,
        numbers.nbytes,
        lambda: (sliced.read_reals(part).reshape(-1) for part in split_selection(everything)),
        numbers.layer,
    )
