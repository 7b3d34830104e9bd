"""Computes the accumulator width of an integer matmul: the bits that its sums need for any input.

The matrix unit adds the stored codes in any order. The sum after removing the zero points and adding the bias
must fit, too. The bounds are tight: an input with the largest code where a weight is positive, and the
smallest code where it is negative, reaches the upper bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.engine.tiling.emit.weights import view_columns
from explorer.engine.tiling.sites import Weight
from explorer.facts.quantize import Accumulator

Array = np.ndarray[Any, np.dtype[Any]]

Ends = tuple[int, int]
"""The smallest and the largest code of an operand."""

_MAX_ELEMENTS = 1 << 20
"""Maximum number of elements of a weight that are widened to int64 at the same time."""


def count_signed_bits(low: int, high: int) -> int:
    """Computes the bits of the narrowest two's complement integer that holds `low` <= 0 and `high` >= 0."""
    return 1 + max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)


def find_accumulator(
    depth: int, x: Ends, a: int, right: Weight | Ends, b: Array | int, bias: Array | int, any_right: Ends
) -> Accumulator:
    """Computes the accumulator that the sums of a matmul need.

    Args:
        depth: K.
        x: Range of the left operand's codes.
        a: Zero point of the left operand.
        right: The stored weight, or the range of the right operand's codes if it is computed.
        b: Zero points of the right operand: a number, or an array in the product's shape: (N,) or (batch, 1,
            N).
        bias: The bias in the same shapes, or (M, N).
        any_right: Range of the right operand's type.
    """
    zeros = int(np.min(b)), int(np.max(b))
    any_least, any_largest = _bound_sums(depth, x, a, any_right, zeros)
    channel = 0
    if isinstance(right, tuple):
        least, largest = _bound_sums(depth, x, a, right, zeros)
        least, largest = least + min(0, int(np.min(bias))), largest + max(0, int(np.max(bias)))
    else:
        lows, highs = _bound_stored_sums(x, a, right, b)
        lows[1] += _reduce_bias(bias, right, np.min)
        highs[1] += _reduce_bias(bias, right, np.max)
        lower_by_column, upper_by_column = lows.min(0), highs.max(0)
        channel = int(np.argmax(np.maximum(upper_by_column, -lower_by_column)))
        least, largest = int(lower_by_column.min()), int(upper_by_column.max())
    return Accumulator(
        depth,
        count_signed_bits(min(least, 0), max(largest, 0)),
        count_signed_bits(min(any_least, 0), max(any_largest, 0)),
        channel,
        largest if largest >= -least else least,
    )


def _bound_sums(depth: int, x: Ends, a: int, w: Ends, zeros: Ends) -> Ends:
    """Computes the smallest and largest sum for operands in these ranges, with and without zero points."""
    stored_products = [p * q for p in x for q in w]
    shifted_products = [(p - a) * (q - b) for p in x for q in w for b in zeros]
    sums = [depth * product for product in (*stored_products, *shifted_products)]
    return min(sums), max(sums)


def _bound_stored_sums(x: Ends, a: int, weight: Weight, b: Array | int) -> tuple[Array, Array]:
    """Computes the smallest and largest sum of each column, (2, batch N), with and without zero points."""
    lows, highs = [], []
    zeros = np.broadcast_to(np.asarray(b, np.int64), (weight.batch, 1, weight.N))
    step = max(1, _MAX_ELEMENTS // max(1, weight.K))
    for matrix in range(weight.batch):
        for first in range(0, weight.N, step):
            codes = view_columns(weight, matrix, first, min(step, weight.N - first)).astype(np.int64)
            code_variants = codes, codes - zeros[matrix, :, first : first + step]
            ends = (x, (x[0] - a, x[1] - a))
            positive_sums = [np.maximum(w, 0).sum(0) for w in code_variants]
            negative_sums = [np.minimum(w, 0).sum(0) for w in code_variants]
            highs.append(
                [p * e[1] + n * e[0] for p, n, e in zip(positive_sums, negative_sums, ends, strict=True)]
            )
            lows.append(
                [p * e[0] + n * e[1] for p, n, e in zip(positive_sums, negative_sums, ends, strict=True)]
            )
    least, largest = (
        np.stack([np.concatenate([part[i] for part in parts]) for i in (0, 1)]) for parts in (lows, highs)
    )
    return least, largest


def _reduce_bias(bias: Array | int, weight: Weight, reduce: Callable[..., Any]) -> Array:
    """Reduces the bias to one value for each column, (batch N,), with `reduce`: minimum or maximum."""
    values = np.asarray(bias)
    if values.ndim > 1:
        values = reduce(values, axis=-2, keepdims=True)
    return np.broadcast_to(values, (weight.batch, 1, weight.N)).reshape(-1)
