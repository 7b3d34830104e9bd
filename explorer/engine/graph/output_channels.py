"""Output channels of a layer: their number, from its node and the shape of its weight.

QuantizeLinear has scales along one axis. A weight whose output channels lie along two (groups of a transposed
convolution, directions of an LSTM, a stack of matrices) has fewer scales than channels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from explorer.engine.graph.model import Node

Shape = tuple[int, ...]


def output_channels(node: Node, at: int, shape: Shape) -> int:
    """Number of output channels of a stored weight; 0 if unknown.

    Args:
        node: The layer.
        at: Index of the weight among the node's inputs.
        shape: Shape of the weight as the node reads it.
    """
    count = _COUNTS.get(node.op)
    return count(node, at, shape) if count is not None and len(shape) > 1 else 0


def channels_per_scale(node: Node, at: int, shape: Shape, scales: int) -> int:
    """Number of output channels that share a scale, for a weight with this many scales along an axis."""
    return max(output_channels(node, at, shape) // max(scales, 1), 1)


def _of_groups(node: Node, at: int, shape: Shape) -> int:
    """A weight is (in, out / groups, kernel)."""
    return int(node.attributes.get("group", 1)) * shape[1]


def _of_product(node: Node, at: int, shape: Shape) -> int:
    """The axes that are not summed over: each matrix of a stack has its own rows or columns."""
    turned = bool(node.attributes.get("transB" if at else "transA", 0))
    return prod(shape) // max(shape[-2 if bool(at) != turned else -1], 1)


def _of_equation(node: Node, at: int, shape: Shape) -> int:
    """The sizes of the letters that are in the result."""
    inputs, _, out = str(node.attributes["equation"]).replace(" ", "").partition("->")
    letters = inputs.split(",")[at]
    if len(letters) != len(shape):
        return 0
    return prod(size for letter, size in zip(letters, shape, strict=True) if letter in out)


def _of_directions(node: Node, at: int, shape: Shape) -> int:
    """A weight is (directions, gates x hidden, input or hidden)."""
    return prod(shape[:-1])


_COUNTS: Mapping[str, Callable[[Node, int, Shape], int]] = {
    "Conv": lambda node, at, shape: shape[0],
    "ConvTranspose": _of_groups,
    "Einsum": _of_equation,
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul"), _of_product),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _of_directions),
}
