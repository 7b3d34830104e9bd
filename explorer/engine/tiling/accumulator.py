"""Computes the accumulator width of an integer matmul: the bits that its sums need for any input.

Codes are the stored integers. The matrix unit adds their products in any order, so every
partial sum must fit. The sum of the products after the zero points are subtracted, plus the bias, must fit
too. The bounds are tight: an input reaches the upper bound if it has the largest code where a weight is
positive, and the smallest code where a weight is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.engine.tiling.emit.weights import view_columns
from explorer.engine.tiling.sites import Weight
from explorer.facts.quantize import Accumulator

Array = np.ndarray[Any, np.dtype[Any]]

CodeRange = tuple[int, int]
"""The smallest and the largest code of an operand."""

_MAX_ELEMENTS = 1 << 20
"""Maximum number of elements of a weight that are widened to int64 at the same time."""


def count_signed_bits(low: int, high: int) -> int:
    """Computes the bits of the narrowest two's complement integer that holds `low` <= 0 and `high` >= 0."""
    return 1 + max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)


def find_accumulator(
    depth: int,
    left_codes: CodeRange,
    left_zero: int,
    right: Weight | CodeRange,
    right_zeros: Array | int,
    bias: Array | int,
    right_type_codes: CodeRange,
) -> Accumulator:
    """Computes the accumulator that the sums of a matmul need.

    Args:
        depth: K.
        left_codes: Range of the left operand's codes.
        left_zero: Zero point of the left operand.
        right: The stored weight, or the range of the right operand's codes if it is computed.
        right_zeros: Zero points of the right operand: a number, or an array (N,) or (batch, 1, N),
            which broadcasts to the product.
        bias: The bias in the same shapes, or (M, N).
        right_type_codes: Range of all codes of the right operand's type.

    Returns:
        The accumulator, with its width for this weight and for any weight of this type.
    """
    zero_range = int(np.min(right_zeros)), int(np.max(right_zeros))
    type_least, type_largest = _bound_sums(depth, left_codes, left_zero, right_type_codes, zero_range)
    channel = 0
    if isinstance(right, tuple):
        least, largest = _bound_sums(depth, left_codes, left_zero, right, zero_range)
        least, largest = least + min(0, int(np.min(bias))), largest + max(0, int(np.max(bias)))
    else:
        lows, highs = _bound_stored_sums(left_codes, left_zero, right, right_zeros)
        lows[1] += _reduce_bias(bias, right, np.min)
        highs[1] += _reduce_bias(bias, right, np.max)
        lower_by_column, upper_by_column = lows.min(0), highs.max(0)
        channel = int(np.argmax(np.maximum(upper_by_column, -lower_by_column)))
        least, largest = int(lower_by_column.min()), int(upper_by_column.max())
    return Accumulator(
        depth,
        count_signed_bits(min(least, 0), max(largest, 0)),
        count_signed_bits(min(type_least, 0), max(type_largest, 0)),
        channel,
        largest if largest >= -least else least,
    )


def _bound_sums(
    depth: int, left_codes: CodeRange, left_zero: int, right_codes: CodeRange, right_zeros: CodeRange
) -> tuple[int, int]:
    """Bounds the sums of products, as stored and with the zero points subtracted, for these ranges."""
    stored_products = [left * right for left in left_codes for right in right_codes]
    shifted_products = [
        (left - left_zero) * (right - right_zero)
        for left in left_codes
        for right in right_codes
        for right_zero in right_zeros
    ]
    sums = [depth * product for product in (*stored_products, *shifted_products)]
    return min(sums), max(sums)


def _bound_stored_sums(
    left_codes: CodeRange, left_zero: int, weight: Weight, right_zeros: Array | int
) -> tuple[Array, Array]:
    """Computes the smallest and the largest sum of each column of a stored weight.

    Returns:
        Two arrays (2, batch * N). Row 0 is without zero points, row 1 with zero points.
    """
    lows, highs = [], []
    zeros = np.broadcast_to(np.asarray(right_zeros, np.int64), (weight.batch, 1, weight.N))
    column_count = max(1, _MAX_ELEMENTS // max(1, weight.K))
    left_low, left_high = left_codes
    left_ranges = (left_codes, (left_low - left_zero, left_high - left_zero))
    for matrix in range(weight.batch):
        for first in range(0, weight.N, column_count):
            count = min(column_count, weight.N - first)
            codes = view_columns(weight, matrix, first, count).astype(np.int64)
            right_variants = codes, codes - zeros[matrix, :, first : first + count]
            low_rows, high_rows = [], []
            for right, (low, high) in zip(right_variants, left_ranges, strict=True):
                positive_sum, negative_sum = np.maximum(right, 0).sum(0), np.minimum(right, 0).sum(0)
                low_rows.append(positive_sum * low + negative_sum * high)
                high_rows.append(positive_sum * high + negative_sum * low)
            lows.append(np.stack(low_rows))
            highs.append(np.stack(high_rows))
    return np.concatenate(lows, axis=1), np.concatenate(highs, axis=1)


def _reduce_bias(bias: Array | int, weight: Weight, reduce: Callable[..., Any]) -> Array:
    """Reduces the bias to one value for each column, (batch * N,), with `reduce`: minimum or maximum."""
    values = np.asarray(bias)
    if values.ndim > 1:
        values = reduce(values, axis=-2, keepdims=True)
    return np.broadcast_to(values, (weight.batch, 1, weight.N)).reshape(-1)
