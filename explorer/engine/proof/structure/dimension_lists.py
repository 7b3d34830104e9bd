"""Lists of sizes of which some are open, such as a Shape or the target of a Reshape.

Exporters select sizes from a Shape with Gather or Slice, and join them with Concat. Each element of such a
list is a fixed size, or the open size of a value along an axis. Lists with equal elements are equal for every
input.
"""

from __future__ import annotations

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.graph.model import Tensor
from explorer.engine.proof.structure.normal_node import ABSENT, DimensionList, NormalNode, OpenSize
from explorer.engine.shapes.constant_folding import FOLDABLE

_MAX_SIZES = 64
"""Maximum number of elements of a stored list of sizes."""

_SELECTIONS = frozenset(("Concat", "Gather", "Reshape", "Slice", "Squeeze", "Unsqueeze"))
"""Operators that select or join sizes."""


def find_dimensions(node: NormalNode) -> DimensionList | None:
    """Returns the list of sizes that a node computes, or None for any other node."""
    if node.domain or node.outputs != 1 or node.op not in ("Shape", *_SELECTIONS):
        return None
    try:
        return _list_sizes(node) if node.op == "Shape" else _select_sizes(node)
    except (BadModel, LookupError, TypeError, ValueError):
        return None  # the runtime reports a malformed node


def _list_sizes(node: NormalNode) -> DimensionList | None:
    """Returns the sizes of the input of a Shape."""
    rank, number = node.rank(0), node.inputs[0]
    axes = None if rank is None else FOLDABLE["Shape"](node.attributes, np.arange(rank))
    if axes is None:
        return None
    sizes = [(node.size(0, axis), axis) for axis in axes.tolist()]
    return DimensionList(tuple((number, axis) if size is None else size for size, axis in sizes))


def _select_sizes(node: NormalNode) -> DimensionList | None:
    """Applies a node to the positions of the sizes that it reads, and returns the sizes at the result."""
    count = len(node.inputs) if node.op == "Concat" else 1
    lists = [_read_list(node, number) for number in node.inputs[:count]]
    if node.attributes.get("allowzero") or None in lists:
        return None
    sizes: list[int | OpenSize] = []
    arguments = []
    for part in lists:
        assert part is not None
        positions = np.arange(len(sizes), len(sizes) + len(part.elements))
        arguments.append(positions.reshape(()) if part.is_scalar else positions)
        sizes += part.elements
    settings = [node.read_numbers(index) for index in range(count, len(node.inputs))]
    if any(a is None and node.inputs[count + index] != ABSENT for index, a in enumerate(settings)):
        return None
    result = FOLDABLE[node.op](node.attributes, *arguments, *settings)
    if result is None or result.ndim > 1:
        return None
    return DimensionList(tuple(sizes[position] for position in result.reshape(-1)), result.ndim == 0)


def _read_list(node: NormalNode, number: int) -> DimensionList | None:
    """Returns a computed or stored list of sizes, or None for other values."""
    if number in node.sources.dimensions:
        return node.sources.dimensions[number]
    tensor: Tensor | None = node.sources.tensors.get(number)
    if tensor is None or tensor.payload is None or tensor.dtype != "int64":
        return None
    if len(tensor.shape) > 1 or tensor.elements > _MAX_SIZES:
        return None
    return DimensionList(tuple(map(int, tensor.array().reshape(-1))), not tensor.shape)


def replace_by_dimensions(node: NormalNode, dimensions: DimensionList) -> None:
    """Replaces a node by the list of sizes that it computes."""
    node.op, node.attributes = "DimensionList", {}
    node.inputs = [("dimensions", (dimensions.is_scalar, dimensions.elements))]


def normalize_target(node: NormalNode) -> None:
    """Replaces an open size of the input in the target of a Reshape by 0, which copies that size."""
    x, target = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else ABSENT
    dimensions = _read_list(node, target) if isinstance(target, int) else None
    if dimensions is None or dimensions.is_scalar or node.attributes.get("allowzero"):
        return
    sizes = [0 if size == (x, axis) else size for axis, size in enumerate(dimensions.elements)]
    if all(isinstance(size, int) for size in sizes):
        node.set_form(1, "shape", tuple(sizes))
