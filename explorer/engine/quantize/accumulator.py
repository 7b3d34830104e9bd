"""Accumulator width: bits that a sum of integer products needs.

There are two bounds: one for arbitrary weights and one for the stored weights. A product is (weight code -
zero point) x (input code - zero point). The sum begins with the bias. The bound for stored weights is tight:
the input with the largest code where the weight is positive, and with the smallest code where it is negative,
has that sum. In any order of summation, no partial sum exceeds the bound.
"""

from __future__ import annotations

import numpy as np

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import Array
from explorer.engine.quantize.choice import BIAS, LayerChoice
from explorer.engine.quantize.errors import GetGrid
from explorer.engine.quantize.grids import read_bias
from explorer.engine.tiling.accumulator import count_signed_bits
from explorer.facts.quantize import Accumulator

_SUMMED_OVER_ALL = ("Conv", "Conv1d", "Conv2d", "Conv3d")
"""Operators whose sums cover all axes of the weight except the axis of the output channels."""

_MATRICES = ("Gemm", "MatMul", "FusedMatMul", "Linear")
"""Operators whose sums cover the depth axis of the weight only."""


class WeightSums:
    """Range of the sums of an integer layer, computed from its weight slab by slab.

    Args:
        choice: Choice for the layer, which must pass `is_supported`.
        get_grid: Function that returns the grid of an operand.
    """

    def __init__(self, choice: LayerChoice, get_grid: GetGrid) -> None:
        self.choice, self.get_grid = choice, get_grid
        (operand,) = choice.layer.list_operands("weight")
        rank = len(operand.shape)
        depth = (-2 if operand.depth is None else operand.depth) % rank
        channel = (operand.channel or 0) % rank
        self.summed_axes = (
            (depth,) if choice.layer.op in _MATRICES else tuple(a for a in range(rank) if a != channel)
        )
        self.depth = int(np.prod([operand.shape[axis] for axis in self.summed_axes]))
        self.negative_sums: list[Array] = []
        self.positive_sums: list[Array] = []

    @staticmethod
    def is_supported(choice: LayerChoice, get_grid: GetGrid) -> bool:
        """Whether a layer sums integer products, with one scale for each sum."""
        layer = choice.layer
        weights = choice.layer.list_operands("weight")
        inputs = choice.layer.list_operands("input")
        is_product = layer.op in (*_SUMMED_OVER_ALL, *_MATRICES) and len(weights) == len(inputs) == 1
        if not (is_product and isinstance(choice.weight, Integer) and isinstance(choice.input, Integer)):
            return False
        if get_grid(choice, inputs[0]).scale.size != 1 or weights[0].channel is None:
            return False
        return not get_grid(choice, weights[0]).block

    def add(self, steps: Array) -> None:
        """Adds a slab of the weight: codes minus zero points, for some rows of the first axis."""
        # float64 sums integers exactly up to 2^53
        self.negative_sums.append(np.minimum(steps, 0).sum(axis=self.summed_axes, dtype=np.float64))
        self.positive_sums.append(np.maximum(steps, 0).sum(axis=self.summed_axes, dtype=np.float64))

    def find_accumulator(self) -> Accumulator:
        """Returns the range of the sums and the bits of the accumulator that they need."""
        choice, weight, inputs = self.choice, self.choice.weight, self.choice.input
        assert isinstance(weight, Integer)
        assert isinstance(inputs, Integer)
        zero = int(self.get_grid(choice, choice.layer.list_operands("input")[0]).zero.reshape(-1)[0])
        least, largest = inputs.least - zero, inputs.largest - zero
        below, above = self._sum_slabs(self.negative_sums), self._sum_slabs(self.positive_sums)
        bias = _read_bias(choice, self.get_grid, below.size)
        low, high = below * largest + above * least + bias, above * largest + below * least + bias
        channel = int(np.argmax(np.maximum(high, -low)))
        zeros = self.get_grid(choice, choice.layer.list_operands("weight")[0]).zero
        ends = weight.least - int(zeros.max()), weight.largest - int(zeros.min())
        products = [w * x for w in ends for x in (least, largest)]
        return Accumulator(
            self.depth,
            count_signed_bits(min(int(low.min()), 0), max(int(high.max()), 0)),
            count_signed_bits(min(self.depth * min(products), 0), max(self.depth * max(products), 0)),
            channel,
            int(high[channel] if high[channel] >= -low[channel] else low[channel]),
        )

    def _sum_slabs(self, parts: list[Array]) -> Array:
        """Combines the slabs into one sum per output channel.

        If the sum covers the first axis, each slab contributes to every sum. Otherwise each slab has its own
        channels.
        """
        sums = sum(parts[1:], parts[0]) if 0 in self.summed_axes else np.concatenate(parts)
        return sums.reshape(-1).astype(np.int64)


def _read_bias(choice: LayerChoice, get_grid: GetGrid, channels: int) -> Array:
    """Returns the initial value of each sum: the bias in units of products, or 0 without an int32 bias."""
    biases = choice.layer.list_operands("bias")
    if choice.bias is not BIAS or not biases or biases[0].tensor is None:
        return np.zeros((), np.int64)
    scale = get_grid(choice, biases[0]).scale.astype(np.float64)
    codes = np.rint(read_bias(biases[0]).astype(np.float64) / scale).reshape(-1)
    codes = np.clip(codes, -(2**31) + 1, 2**31 - 1)
    return codes.astype(np.int64) if codes.size == channels else np.zeros((), np.int64)
