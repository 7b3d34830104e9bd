"""Bias correction: compensates in the bias for the shift of the mean output that a rounded weight causes.

The shift is the mean of each input channel over the samples, times the error of the weights that read it. It
is known before a run and costs nothing at run time (Nagel et al., arXiv:1906.04721, section 4.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Inline, Tensor
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.grids import Grids, read_bias
from explorer.engine.quantize.integers.channel_means import ChannelMeans
from explorer.engine.quantize.layers import QuantizableLayer
from explorer.engine.quantize.weights import iterate_slabs

_OPERATORS = frozenset(("Conv", "Gemm"))
"""Operators whose bias can be corrected."""


def find_channel_axes(layers: Sequence[QuantizableLayer]) -> dict[str, int]:
    """Returns the channel axis (negative) of each input, by name, of layers with a correctable bias."""
    return {
        operand.value: operand.depth
        for layer in layers
        if _is_correctable(layer)
        for operand in layer.list_operands("input")
        if operand.depth is not None
    }


def _is_correctable(layer: QuantizableLayer) -> bool:
    weights, biases = layer.list_operands("weight"), layer.list_operands("bias")
    if layer.op not in _OPERATORS or len(weights) != 1 or not biases or biases[0].tensor is None:
        return False
    factors = (layer.node.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    return len(biases[0].shape) == 1 and all(float(factor) == 1.0 for factor in factors)


def correct_biases(
    choices: Sequence[LayerChoice], grids: Grids, channel_means: ChannelMeans
) -> tuple[LayerChoice, ...]:
    """Returns the choices with corrected biases, which replace the original biases.

    Args:
        choices: Choices for all layers, without NaN in stored numbers.
        grids: Grids of the weights and biases.
        channel_means: Channel means of the inputs.
    """
    return tuple(_correct_bias(choice, grids, channel_means) for choice in choices)


def _correct_bias(choice: LayerChoice, grids: Grids, channel_means: ChannelMeans) -> LayerChoice:
    """Returns a choice with a corrected bias; unchanged if the means of its input do not fit its weight."""
    layer = choice.layer
    if choice.reason or choice.weight is None or choice.bias is None or not _is_correctable(layer):
        return choice
    (weight,), (bias,), (activation, *_) = (layer.list_operands(part) for part in ("weight", "bias", "input"))
    mean = channel_means.get_mean(activation.value)
    grids.find_operand_grid(choice, bias)  # computed first, so that the scales fit the original bias
    if mean is None or weight.channel is None or weight.depth is None:
        return choice
    grid, errors = grids.find_operand_grid(choice, weight), []
    rank = len(weight.shape)
    is_channel_first = weight.channel % rank == 0
    if not is_channel_first and rank != 2:
        return choice
    for values, part in iterate_slabs(weight, grid):
        errors.append(choice.weight.round_values(values, part) - values)
    error = np.concatenate(errors).astype(np.float64)
    error = error if is_channel_first else error.T
    error = error.reshape(*error.shape[:2], -1).sum(axis=2)
    channels, depth = error.shape
    groups = mean.size // max(depth, 1)
    if depth * groups != mean.size or channels % max(groups, 1) or bias.shape != (channels,):
        return choice
    mean_by_channel = np.repeat(mean.reshape(groups, depth), channels // groups, axis=0)
    values = read_bias(bias).astype(np.float64) - (error * mean_by_channel).sum(axis=1)
    numbers = values.astype(np.float32)
    if not np.isfinite(numbers).all():
        return choice
    tensor = Tensor(bias.stored, "float32", numbers.shape, Inline(numbers.tobytes()))
    new_bias = replace(bias, tensor=tensor, axes=(0,))
    operands = tuple(new_bias if operand is bias else operand for operand in layer.operands)
    return replace(choice, layer=replace(layer, operands=operands))
