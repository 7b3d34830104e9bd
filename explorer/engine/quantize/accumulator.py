"""Accumulator width: bits that a sum of integer products needs, for any weights and for the stored ones.

A product is (weight code - zero point) x (input code - zero point); the sum begins at the bias. Of stored
weights the bound is met by an input: the largest code where a weight is above 0, the least where it is below.
No sum on the way to it is larger, in whatever order it is made.
"""

from __future__ import annotations

import numpy as np

from explorer.engine.quantize.choice import BIAS, LayerChoice
from explorer.engine.quantize.errors import GridOf
from explorer.engine.quantize.grids import bias_values
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.number_formats.integer import Integer
from explorer.engine.quantize.number_formats.number_format import Array
from explorer.engine.quantize.weights import slabs
from explorer.facts.quantize import Accumulator

_SUMMED_OVER_ALL = ("Conv", "Conv1d", "Conv2d", "Conv3d")
"""A sum takes all axes of the weight but that of the output channels; of matrices the depth alone."""

_MATRICES = ("Gemm", "MatMul", "FusedMatMul", "Linear")


def signed_bits(low: int, high: int) -> int:
    """Bits of the least two's complement integer that holds both, low <= 0 <= high."""
    return 1 + max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)


def accumulator(choice: LayerChoice, grid_of: GridOf) -> Accumulator | None:
    """What the sums of a layer of integers reach; None where it has none, or not one scale to a sum."""
    layer, weight, inputs = choice.layer, choice.weight, choice.input
    weights, given = layer.of("weight"), layer.of("input")
    known = layer.op in (*_SUMMED_OVER_ALL, *_MATRICES) and len(weights) == len(given) == 1
    if not (known and isinstance(weight, Integer) and isinstance(inputs, Integer)):
        return None
    operand, grid = weights[0], grid_of(choice, given[0])
    if grid.scale.size != 1 or operand.channel is None or grid_of(choice, operand).block:
        return None
    zero = int(grid.zero.reshape(-1)[0])
    least, largest = inputs.least - zero, inputs.largest - zero
    below, above, depth = _sums(choice, operand, weight, grid_of)
    start = _bias(choice, grid_of, below.size)
    low, high = below * largest + above * least + start, above * largest + below * least + start
    reaches = np.maximum(high, -low)
    channel = int(np.argmax(reaches))
    products = [w * x for w in _ends(weight, grid_of(choice, operand).zero) for x in (least, largest)]
    return Accumulator(
        depth,
        signed_bits(min(int(low.min()), 0), max(int(high.max()), 0)),
        signed_bits(min(depth * min(products), 0), max(depth * max(products), 0)),
        channel,
        int(high[channel] if high[channel] >= -low[channel] else low[channel]),
    )


def _ends(fmt: Integer, zero: Array) -> tuple[int, int]:
    """The least and the largest code of a weight, over all of its zero points."""
    return fmt.least - int(zero.max()), fmt.largest - int(zero.min())


def _sums(choice: LayerChoice, operand: Operand, fmt: Integer, grid_of: GridOf) -> tuple[Array, Array, int]:
    """Of each output channel the sum of what is below 0, of what is above, and how many are summed."""
    rank = len(operand.shape)
    channel = (operand.channel or 0) % rank
    depth_axis = (-2 if operand.depth is None else operand.depth) % rank
    over = tuple(a for a in range(rank) if a != channel)
    if choice.layer.op in _MATRICES:
        over = (depth_axis,)
    below, above = [], []
    for values, grid in slabs(operand, grid_of(choice, operand)):
        codes = fmt.codes(values, grid).astype(np.int64)
        zero = grid.zero if grid.axis is None else np.expand_dims(grid.zero, _others(rank, grid.axis % rank))
        codes -= zero
        below.append(np.minimum(codes, 0).sum(axis=over))
        above.append(np.maximum(codes, 0).sum(axis=over))
    depth = int(np.prod([operand.shape[axis] for axis in over]))
    if 0 in over:  # each slab has some of the depth
        return sum(below[1:], below[0]).reshape(-1), sum(above[1:], above[0]).reshape(-1), depth
    return np.concatenate(below).reshape(-1), np.concatenate(above).reshape(-1), depth


def _others(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(at for at in range(rank) if at != axis)


def _bias(choice: LayerChoice, grid_of: GridOf, channels: int) -> Array:
    """What each sum begins at: the bias in units of the products, or nothing."""
    biases = choice.layer.of("bias")
    if choice.bias is not BIAS or not biases or biases[0].tensor is None:
        return np.zeros((), np.int64)
    scale = grid_of(choice, biases[0]).scale.astype(np.float64)
    codes = np.rint(bias_values(biases[0]).astype(np.float64) / scale).reshape(-1)
    codes = np.clip(codes, -(2**31) + 1, 2**31 - 1)
    return codes.astype(np.int64) if codes.size == channels else np.zeros((), np.int64)
