"""Accumulator width of an integer product: the bits that its sums need, for any input.

The matrix unit adds the stored codes in any order; the sum with zero points removed and the bias added must
fit as well. Some input reaches both bounds: the largest code where a weight is positive, the smallest where
it is negative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from explorer.engine.tiling.emit.weights import matrix_of
from explorer.engine.tiling.sites import Weight
from explorer.facts.quantize import Accumulator

Array = np.ndarray[Any, np.dtype[Any]]

Ends = tuple[int, int]
"""The smallest and the largest code of an operand."""

_AT_ONCE = 1 << 20
"""Elements of a weight that are widened at once."""


def signed_bits(low: int, high: int) -> int:
    """Bits of the narrowest two's complement integer that holds both; low <= 0 <= high."""
    return 1 + max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)


def reach(
    depth: int, x: Ends, a: int, right: Weight | Ends, b: Array | int, bias: Array | int, any_right: Ends
) -> Accumulator:
    """The accumulator that the sums of a product need.

    Args:
        depth: K.
        x: Codes of the left operand.
        a: The zero point of the left operand.
        right: The stored codes of the right operand, or the ends of computed ones.
        b: Their zero points: one, or in the product's shape, (N,) or (batch, 1, N).
        bias: The bias, in the same shapes, or (M, N).
        any_right: Ends of the right operand's type.
    """
    zeros = int(np.min(b)), int(np.max(b))
    any_least, any_largest = _any_sums(depth, x, a, any_right, zeros)
    channel = 0
    if isinstance(right, tuple):
        least, largest = _any_sums(depth, x, a, right, zeros)
        least, largest = least + min(0, int(np.min(bias))), largest + max(0, int(np.max(bias)))
    else:
        lows, highs = _stored_sums(x, a, right, b)
        lows[1] += _column_bias(bias, right, np.min)
        highs[1] += _column_bias(bias, right, np.max)
        least_of, largest_of = lows.min(0), highs.max(0)
        channel = int(np.argmax(np.maximum(largest_of, -least_of)))
        least, largest = int(least_of.min()), int(largest_of.max())
    return Accumulator(
        depth,
        signed_bits(min(least, 0), max(largest, 0)),
        signed_bits(min(any_least, 0), max(any_largest, 0)),
        channel,
        largest if largest >= -least else least,
    )


def _any_sums(depth: int, x: Ends, a: int, w: Ends, zeros: Ends) -> Ends:
    """The smallest and largest sum over all operands with these ends, with and without zero points."""
    as_stored = [p * q for p in x for q in w]
    centred = [(p - a) * (q - b) for p in x for q in w for b in zeros]
    every = [depth * product for product in (*as_stored, *centred)]
    return min(every), max(every)


def _stored_sums(x: Ends, a: int, weight: Weight, b: Array | int) -> tuple[Array, Array]:
    """The smallest and largest sum of each column, (2, batch N), with and without zero points."""
    lows, highs = [], []
    zeros = np.broadcast_to(np.asarray(b, np.int64), (weight.batch, 1, weight.N))
    step = max(1, _AT_ONCE // max(1, weight.K))
    for at in range(weight.batch):
        for first in range(0, weight.N, step):
            codes = matrix_of(weight, at, first, min(step, weight.N - first)).astype(np.int64)
            each = codes, codes - zeros[at, :, first : first + step]
            ends = (x, (x[0] - a, x[1] - a))
            above = [np.maximum(w, 0).sum(0) for w in each]
            below = [np.minimum(w, 0).sum(0) for w in each]
            highs.append([p * e[1] + n * e[0] for p, n, e in zip(above, below, ends, strict=True)])
            lows.append([p * e[0] + n * e[1] for p, n, e in zip(above, below, ends, strict=True)])
    least, largest = (
        np.stack([np.concatenate([part[i] for part in parts]) for i in (0, 1)]) for parts in (lows, highs)
    )
    return least, largest


def _column_bias(bias: Array | int, weight: Weight, most: Callable[..., Any]) -> Array:
    """The smallest or largest bias of each column, (batch N,)."""
    values = np.asarray(bias)
    if values.ndim > 1:
        values = most(values, axis=-2, keepdims=True)
    return np.broadcast_to(values, (weight.batch, 1, weight.N)).reshape(-1)
