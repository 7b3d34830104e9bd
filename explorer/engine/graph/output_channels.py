"""Number of output channels of a layer, from the node and the shape of its weight.

QuantizeLinear has scales along one axis. A weight can have its output channels on two axes: groups of a
transposed convolution, directions of an LSTM, a stack of matrices. Such a weight has fewer scales than
channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from explorer.engine.graph.model import Node

Shape = tuple[int, ...]


def count_output_channels(node: Node, index: int, shape: Shape) -> int:
    """Returns the number of output channels of a stored weight; 0 if unknown.

    Args:
        node: Layer.
        index: Index of the weight among the node's inputs.
        shape: Shape of the weight as the node reads it.
    """
    count = _COUNTS.get(node.op)
    return count(node, index, shape) if count is not None and len(shape) > 1 else 0


def count_channels_per_scale(node: Node, index: int, shape: Shape, scales: int) -> int:
    """Returns the number of output channels that share a scale.

    Args:
        node: Layer.
        index: Index of the weight among the node's inputs.
        shape: Shape of the weight as the node reads it.
        scales: Number of scales along one axis.
    """
    return max(count_output_channels(node, index, shape) // max(scales, 1), 1)


def _count_group_channels(node: Node, index: int, shape: Shape) -> int:
    """Counts the channels of a grouped weight (in, out / groups, kernel)."""
    return int(node.attributes.get("group", 1)) * shape[1]


def _count_product_channels(node: Node, index: int, shape: Shape) -> int:
    """Counts the channels of a matrix or stack of matrices: the product of all axes except the summed one."""
    is_transposed = bool(node.attributes.get("transB" if index else "transA", 0))
    return prod(shape) // max(shape[-2 if bool(index) != is_transposed else -1], 1)


def _count_equation_channels(node: Node, index: int, shape: Shape) -> int:
    """Counts the channels of an Einsum operand: the product of its sizes whose letters are in the result."""
    inputs, _, result_letters = str(node.attributes["equation"]).replace(" ", "").partition("->")
    letters = inputs.split(",")[index]
    if len(letters) != len(shape):
        return 0
    return prod(size for letter, size in zip(letters, shape, strict=True) if letter in result_letters)


def _count_direction_channels(node: Node, index: int, shape: Shape) -> int:
    """Counts the channels of a recurrent weight (directions, gates x hidden, input or hidden)."""
    return prod(shape[:-1])


_COUNTS: Mapping[str, Callable[[Node, int, Shape], int]] = {
    "Conv": lambda node, index, shape: shape[0],
    "ConvTranspose": _count_group_channels,
    "Einsum": _count_equation_channels,
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul"), _count_product_channels),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _count_direction_channels),
}
"""Functions that count the output channels, by operator."""
