"""Transposed copies of matrices, in square blocks.

numpy copies a transposed matrix element by element and jumps a full row for each element. If the row length
is a power of two, the jumps hit the same few cache lines. For 150 MB with 2,048 numbers per row this takes 14
times as long as the block copy here.
"""

from __future__ import annotations

import numpy as np

from explorer.engine.runtime.onnxruntime import Array

_SIDE = 256
"""Side of a block that fits in the cache for source and target."""


def copy_matrix(into: Array, matrix: Array) -> None:
    """Copies `matrix`, in any memory order, into `into` of the same shape (rows, columns)."""
    rows, columns = matrix.shape
    for row in range(0, rows, _SIDE):
        for column in range(0, columns, _SIDE):
            cut = slice(row, row + _SIDE), slice(column, column + _SIDE)
            into[cut] = matrix[cut]


def in_order(array: Array) -> Array:
    """The array in C order; the same object if it already is."""
    if array.ndim != 2 or array.flags.c_contiguous:
        return np.ascontiguousarray(array)
    ordered = np.empty(array.shape, array.dtype)
    copy_matrix(ordered, array)
    return ordered
