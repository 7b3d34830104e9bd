"""Tracks the number of tensors in a sequence, and their common type and shape.

Shape inference gives the type of a sequence but not its length, and a SequenceMap runs its body once per
element.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, MutableMapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.costs.onnx.values import GraphContext
from explorer.engine.graph.model import Node
from explorer.facts import Dim, TensorInfo

SEQUENCE_OPERATORS = frozenset((
    "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "SequenceErase", "SplitToSequence",
    "Identity", "Optional", "OptionalGetElement",
))  # fmt: skip
"""Operators that produce a sequence of known length if the length of their input is known."""


class SequenceElements(Struct, frozen=True):
    """The elements of a sequence.

    Attributes:
        length: Number of tensors, or None if only a run shows it.
        each: Common type and shape, or None if they differ or are unknown.
    """

    length: Dim
    each: TensorInfo | None = None


def record_sequence(
    sequences: MutableMapping[Hashable, SequenceElements], context: GraphContext, node: Node
) -> None:
    """Records the elements of the sequence that `node` produces, if it produces one and they are known."""
    elements = _find_elements(sequences, context, node)
    if elements is not None and node.outputs and node.outputs[0]:
        sequences[context.get_key(node.outputs[0])] = elements


def _find_elements(
    sequences: Mapping[Hashable, SequenceElements], context: GraphContext, node: Node
) -> SequenceElements | None:
    """Returns the elements of the sequence that `node` produces, or None if they are unknown."""
    if node.op == "SequenceEmpty":
        return SequenceElements(0)
    if not node.inputs:
        return None
    if node.op == "SequenceConstruct":
        return SequenceElements(len(node.inputs), _merge_infos([context.get_info(n) for n in node.inputs]))
    if node.op == "SplitToSequence":
        return _split(context, node)
    source_elements = sequences.get(context.get_key(node.inputs[0]))
    if source_elements is None:
        return None
    if node.op == "SequenceInsert" and len(node.inputs) > 1:
        new = context.get_info(node.inputs[1])
        element = (
            new
            if source_elements.length == 0
            else None
            if source_elements.each is None
            else _merge_infos([source_elements.each, new])
        )
        return SequenceElements(_change_length(source_elements.length, 1), element)
    if node.op == "SequenceErase":
        return replace(source_elements, length=_change_length(source_elements.length, -1))
    return source_elements


def _merge_infos(tensors: list[TensorInfo]) -> TensorInfo | None:
    """Returns the common type and shape of tensors, or None if they differ."""
    first = tensors[0]
    all_equal = all((t.dtype, t.shape) == (first.dtype, first.shape) for t in tensors)
    return first if all_equal else None


def _change_length(length: Dim, change: int) -> Dim:
    return max(length + change, 0) if isinstance(length, int) else None


def _split(context: GraphContext, node: Node) -> SequenceElements:
    """Returns the pieces of a split along an axis: of size 1 by default, of a given size or given sizes."""
    source = context.get_info(node.inputs[0])
    split_name = node.inputs[1] if len(node.inputs) > 1 else ""
    sizes: Any = context.shapes.constants.get(split_name) if split_name else None
    shape = source.shape
    axis = node.attributes.get("axis", 0)
    if shape is None or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return SequenceElements(int(sizes.size) if sizes is not None and sizes.ndim else None)
    axis_index = axis % len(shape)
    size = shape[axis_index]
    if not split_name:
        keep = node.attributes.get("keepdims", 1)
        piece_shape = (
            (*shape[:axis_index], 1, *shape[axis_index + 1 :])
            if keep
            else (*shape[:axis_index], *shape[axis_index + 1 :])
        )
        return SequenceElements(size, replace(source, shape=piece_shape))
    if sizes is None:
        return SequenceElements(None)
    if sizes.ndim:
        widths = [int(s) for s in sizes]
        is_even = len(set(widths)) == 1
        part_shape = (*shape[:axis_index], widths[0], *shape[axis_index + 1 :]) if is_even else None
        return SequenceElements(len(widths), replace(source, shape=part_shape) if is_even else None)
    width = int(sizes)
    if not isinstance(size, int) or width < 1:
        return SequenceElements(None)
    part_shape = (*shape[:axis_index], width, *shape[axis_index + 1 :])
    return SequenceElements(
        -(-size // width), replace(source, shape=part_shape) if size % width == 0 else None
    )
