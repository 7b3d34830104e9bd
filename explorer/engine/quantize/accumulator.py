"""Accumulator width: bits that a sum of integer products needs, for any weights and for the stored ones.

A product is (weight code - zero point) x (input code - zero point); the sum begins at the bias. Of stored
weights the bound is reached by an input: the largest code where a weight is above 0, the least where it is
below. No partial sum is larger, in any order of summation.
"""

from __future__ import annotations

import numpy as np

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import Array
from explorer.engine.quantize.choice import BIAS, LayerChoice
from explorer.engine.quantize.errors import GridOf
from explorer.engine.quantize.grids import bias_values
from explorer.engine.tiling.accumulator import signed_bits
from explorer.facts.quantize import Accumulator

_SUMMED_OVER_ALL = ("Conv", "Conv1d", "Conv2d", "Conv3d")
"""A sum takes all axes of the weight but that of the output channels; of matrices the depth alone."""

_MATRICES = ("Gemm", "MatMul", "FusedMatMul", "Linear")


class WeightSums:
    """The range of an integer layer's sums, from its weights slab by slab.

    Args:
        choice: The layer's choice; it must pass `can`.
        grid_of: The grids of its operands.
    """

    def __init__(self, choice: LayerChoice, grid_of: GridOf) -> None:
        self.choice, self.grid_of = choice, grid_of
        (operand,) = choice.layer.of("weight")
        rank = len(operand.shape)
        depth = (-2 if operand.depth is None else operand.depth) % rank
        channel = (operand.channel or 0) % rank
        self.over = (
            (depth,) if choice.layer.op in _MATRICES else tuple(a for a in range(rank) if a != channel)
        )
        self.depth = int(np.prod([operand.shape[axis] for axis in self.over]))
        self.below: list[Array] = []
        self.above: list[Array] = []

    @staticmethod
    def can(choice: LayerChoice, grid_of: GridOf) -> bool:
        """Whether a layer has sums of integers, with one scale for each sum."""
        layer, weights, inputs = choice.layer, choice.layer.of("weight"), choice.layer.of("input")
        is_product = layer.op in (*_SUMMED_OVER_ALL, *_MATRICES) and len(weights) == len(inputs) == 1
        if not (is_product and isinstance(choice.weight, Integer) and isinstance(choice.input, Integer)):
            return False
        if grid_of(choice, inputs[0]).scale.size != 1 or weights[0].channel is None:
            return False
        return not grid_of(choice, weights[0]).block

    def add(self, steps: Array) -> None:
        """Takes a slab in: codes less their zero points, the first axis cut."""
        # float64 holds the sums of any that float32 holds exactly
        self.below.append(np.minimum(steps, 0).sum(axis=self.over, dtype=np.float64))
        self.above.append(np.maximum(steps, 0).sum(axis=self.over, dtype=np.float64))

    def reach(self) -> Accumulator:
        """The range and the bits that an accumulator needs."""
        choice, weight, inputs = self.choice, self.choice.weight, self.choice.input
        assert isinstance(weight, Integer)
        assert isinstance(inputs, Integer)
        zero = int(self.grid_of(choice, choice.layer.of("input")[0]).zero.reshape(-1)[0])
        least, largest = inputs.least - zero, inputs.largest - zero
        below, above = self._summed(self.below), self._summed(self.above)
        start = _bias(choice, self.grid_of, below.size)
        low, high = below * largest + above * least + start, above * largest + below * least + start
        channel = int(np.argmax(np.maximum(high, -low)))
        zeros = self.grid_of(choice, choice.layer.of("weight")[0]).zero
        ends = weight.least - int(zeros.max()), weight.largest - int(zeros.min())
        products = [w * x for w in ends for x in (least, largest)]
        return Accumulator(
            self.depth,
            signed_bits(min(int(low.min()), 0), max(int(high.max()), 0)),
            signed_bits(min(self.depth * min(products), 0), max(self.depth * max(products), 0)),
            channel,
            int(high[channel] if high[channel] >= -low[channel] else low[channel]),
        )

    def _summed(self, parts: list[Array]) -> Array:
        """Sums of each output channel; if the first axis is summed over, a slab has a part of the depth."""
        whole = sum(parts[1:], parts[0]) if 0 in self.over else np.concatenate(parts)
        return whole.reshape(-1).astype(np.int64)


def _bias(choice: LayerChoice, grid_of: GridOf, channels: int) -> Array:
    """The start of each sum: the bias in units of the products, or 0."""
    biases = choice.layer.of("bias")
    if choice.bias is not BIAS or not biases or biases[0].tensor is None:
        return np.zeros((), np.int64)
    scale = grid_of(choice, biases[0]).scale.astype(np.float64)
    codes = np.rint(bias_values(biases[0]).astype(np.float64) / scale).reshape(-1)
    codes = np.clip(codes, -(2**31) + 1, 2**31 - 1)
    return codes.astype(np.int64) if codes.size == channels else np.zeros((), np.int64)
