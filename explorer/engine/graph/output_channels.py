"""Output channels of a layer: their number, from the node and the shape of its weight.

QuantizeLinear has scales along one axis. A weight whose output channels are spread over two axes (groups of a
transposed convolution, directions of an LSTM, a stack of matrices) has fewer scales than channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from explorer.engine.graph.model import Node

Shape = tuple[int, ...]


def output_channels(node: Node, index: int, shape: Shape) -> int:
    """Returns the number of output channels of a stored weight; 0 if unknown.

    Args:
        node: Layer.
        index: Index of the weight among the node's inputs.
        shape: Shape of the weight as the node reads it.
    """
    count = _COUNTS.get(node.op)
    return count(node, index, shape) if count is not None and len(shape) > 1 else 0


def channels_per_scale(node: Node, index: int, shape: Shape, scales: int) -> int:
    """Number of output channels that share a scale, for a weight with `scales` scales along an axis."""
    return max(output_channels(node, index, shape) // max(scales, 1), 1)


def _group_channels(node: Node, index: int, shape: Shape) -> int:
    """Channels of a grouped weight (in, out / groups, kernel)."""
    return int(node.attributes.get("group", 1)) * shape[1]


def _product_channels(node: Node, index: int, shape: Shape) -> int:
    """Returns the channels of a matrix or stack of matrices: all axes except the summed axis."""
    is_transposed = bool(node.attributes.get("transB" if index else "transA", 0))
    return prod(shape) // max(shape[-2 if bool(index) != is_transposed else -1], 1)


def _equation_channels(node: Node, index: int, shape: Shape) -> int:
    """Channels of an Einsum operand: the sizes of its letters that are in the result."""
    inputs, _, result_letters = str(node.attributes["equation"]).replace(" ", "").partition("->")
    letters = inputs.split(",")[index]
    if len(letters) != len(shape):
        return 0
    return prod(size for letter, size in zip(letters, shape, strict=True) if letter in result_letters)


def _direction_channels(node: Node, index: int, shape: Shape) -> int:
    """Channels of a recurrent weight (directions, gates x hidden, input or hidden)."""
    return prod(shape[:-1])


_COUNTS: Mapping[str, Callable[[Node, int, Shape], int]] = {
    "Conv": lambda node, at, shape: shape[0],
    "ConvTranspose": _group_channels,
    "Einsum": _equation_channels,
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul"), _product_channels),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _direction_channels),
}
