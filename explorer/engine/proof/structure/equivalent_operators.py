"""Rules for operators that can express each other, such as a causal Attention and one with a triangular mask.

Each rule preserves the result bit for bit for every input, including NaN, infinity and the sign of zero. A
rule that needs types or sizes does nothing if inference does not know them. Binarizer has no rule, because
onnxruntime refuses NaN in its input, but not in that of a Greater.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.model import DTYPES, Tensor
from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.structure.normal_node import ABSENT, NormalNode, Rule

_MAX_CHANNELS = 1 << 14
"""Maximum number of channels of a GroupNormalization whose scale and bias are compared as numbers."""

_MAX_MASK = 1 << 24
"""Maximum number of elements of a mask that is compared with a triangle."""


def _normalize_group_normalization(node: NormalNode) -> None:
    """Repeats the scale and the bias of each group for its channels, as from opset 21 on.

    In float32, both versions compute the same operations in the same order. In other types, the precision of
    the statistics differs.
    """
    groups, channels = node.attributes.get("num_groups"), node.size(0, 1)
    is_old = node.opset < 21
    if node.dtype(0) != "float32" or not isinstance(groups, int) or groups < 1 or not channels:
        return
    if channels % groups or channels > _MAX_CHANNELS or node.attributes.get("stash_type", 1) != 1:
        return
    tensors = [node.get_tensor(1), node.get_tensor(2)]
    if any(
        tensor is None
        or tensor.payload is None
        or tensor.dtype != "float32"
        or tensor.shape != ((groups if is_old else channels),)
        for tensor in tensors
    ):
        return
    for index, (name, tensor) in enumerate(zip(("scale", "bias"), tensors, strict=True), 1):
        assert tensor is not None
        numbers = tensor.array().repeat(channels // groups if is_old else 1)
        node.inputs[index] = name, numbers.tobytes()
    if is_old:
        node.opset = 21
        node.attributes = {**get_default_attributes("", "GroupNormalization", 21), **node.attributes}


def _normalize_causal_mask(node: NormalNode) -> None:
    """Replaces a stored triangular bool mask by `is_causal`, and removes a mask that hides nothing.

    Without earlier keys, query i of a causal Attention reads the keys from 0 to i. A mask of floats is added
    to the scores. In onnxruntime, it differs from a bool mask if a score is infinite.
    """
    axis = {3: 1, 4: 2}.get(node.rank(0) or 0)
    if (
        axis is None
        or node.rank(1) != node.rank(0)
        or node.outputs > 1
        or any(number != ABSENT for number in node.inputs[4:])
    ):
        return
    rows, columns = node.size(0, axis), node.size(1, axis)
    if not rows or not columns or rows * columns > _MAX_MASK:
        return
    causal = np.tri(rows, columns, dtype=np.bool_)
    visible = causal if node.attributes.get("is_causal") else np.ones_like(causal)
    if len(node.inputs) > 3 and node.inputs[3] != ABSENT:
        heads = node.size(0, 1) if axis == 2 else node.attributes.get("q_num_heads")
        mask = _read_common_mask(node.get_tensor(3), (node.size(0, 0), heads), (rows, columns))
        if mask is None:
            return
        visible = visible & mask
    if visible.all() or np.array_equal(visible, causal):
        node.attributes["is_causal"] = 0 if visible.all() else 1
        node.remove_input(3)


def _read_common_mask(
    tensor: Tensor | None, copies: tuple[Any, Any], sizes: tuple[int, int]
) -> np.ndarray[Any, Any] | None:
    """Returns the stored bool mask of all matrices, or None if it is not stored or the masks differ.

    Args:
        tensor: Stored mask of an Attention.
        copies: Batch size and number of heads; the mask may be repeated for each.
        sizes: Numbers of queries and of keys.
    """
    if tensor is None or tensor.payload is None or tensor.dtype != "bool" or len(tensor.shape) > 4:
        return None
    repeated = tensor.shape[:-2]
    expected = copies[len(copies) - len(repeated) :]
    if tensor.shape[-2:] != sizes or tensor.elements > _MAX_MASK or 0 in repeated:
        return None
    if not all(count in (1, size) for count, size in zip(repeated, expected, strict=True)):
        return None
    masks = tensor.array().reshape(-1, *sizes)
    return masks[0] if (masks == masks[0]).all() else None


def _replace_choice_of_bits(node: NormalNode) -> None:
    """Replaces a Where between the numbers 1 and 0 by a Cast of the condition."""
    tensors = [node.get_tensor(index) for index in (1, 2)]
    rank, numbers = node.rank(0), [node.read_numbers(index) for index in (1, 2)]
    one, zero = numbers
    if rank is None or one is None or zero is None or one.size != 1 or zero.size != 1:
        return
    if one.dtype.kind not in "fiu" or max(one.ndim, zero.ndim) > rank or tensors[0] is None:
        return
    if one.reshape(()) == 1 and zero.reshape(()) == 0 and not np.signbit(zero.reshape(())):
        node.op, node.inputs = "Cast", node.inputs[:1]
        node.attributes = {"to": _TYPE_CODES[tensors[0].dtype]}


_TYPE_CODES = {dtype.name: code for code, dtype in DTYPES.items()}
"""ONNX's number of each element type."""


# sequences of known length


def _read_position(node: NormalNode, index: int, length: int, largest: int) -> int | None:
    """Returns a stored position in a sequence, counted from the front, or None for any other input."""
    number = node.read_numbers(index)
    if number is None or number.ndim or number.dtype.kind != "i":
        return None
    position = int(number) + length if number < 0 else int(number)
    return position if 0 <= position <= largest else None


def _normalize_sequence_at(node: NormalNode) -> None:
    """Replaces an element of a sequence by its value, or counts its position from the front."""
    elements = _get_elements(node)
    if elements is None:
        return
    position = _read_position(node, 1, len(elements), len(elements) - 1)
    if position is None:
        return
    node.equal_value = elements[position]
    node.inputs[1] = "position", position


def _replace_by_concat(node: NormalNode) -> None:
    """Replaces a ConcatFromSequence by a Concat of the elements."""
    elements, axis = _get_elements(node), node.attributes.get("axis")
    if not elements or None in elements or node.attributes.get("new_axis"):
        return
    if len(elements) == 1:
        node.equal_value = elements[0]
    elif isinstance(axis, int) and axis >= 0:
        node.op, node.attributes, node.inputs = "Concat", {"axis": axis}, list(elements)


def _get_elements(node: NormalNode) -> tuple[int | None, ...] | None:
    """Returns the elements of the first input, a sequence, or None if its length is unknown."""
    return node.sources.sequences.get(node.inputs[0]) if node.inputs else None


def find_elements(node: NormalNode) -> tuple[int | None, ...] | None:
    """Returns the value numbers of the elements of the sequence that a node computes, or None.

    None instead of a number is an unknown element. The result is None for another node and for a sequence of
    unknown length.
    """
    find = _SEQUENCES.get(node.op) if not node.domain else None
    return None if find is None else find(node)


def _find_split_elements(node: NormalNode) -> tuple[None, ...] | None:
    """Returns one None for each element of a SplitToSequence, or None if their number is unknown."""
    axis = node.attributes.get("axis", 0)
    size = node.size(0, axis) if isinstance(axis, int) else None
    has_parts = len(node.inputs) > 1 and node.inputs[1] != ABSENT
    parts = node.read_numbers(1) if has_parts else np.asarray(1)
    if parts is None or (parts.ndim == 0 and (not size or parts < 1)):
        return None
    return (None,) * (len(parts) if parts.ndim else -(-(size or 0) // int(parts)))


def _find_elements_after_insertion(node: NormalNode) -> tuple[int | None, ...] | None:
    """Returns the elements after a SequenceInsert, or None if the length or the position is unknown."""
    elements = _get_elements(node)
    if elements is None:
        return None
    count = len(elements)
    position = _read_position(node, 2, count, count) if len(node.inputs) > 2 else count
    return None if position is None else (*elements[:position], node.inputs[1], *elements[position:])


def _find_elements_after_erasure(node: NormalNode) -> tuple[int | None, ...] | None:
    """Returns the elements after a SequenceErase, or None if the length or the position is unknown."""
    elements = _get_elements(node)
    if not elements:
        return None
    last = len(elements) - 1
    position = _read_position(node, 1, len(elements), last) if len(node.inputs) > 1 else last
    return None if position is None else (*elements[:position], *elements[position + 1 :])


_SEQUENCES: Mapping[str, Callable[[NormalNode], tuple[int | None, ...] | None]] = {
    "SequenceConstruct": lambda node: tuple(node.inputs),
    "SequenceEmpty": lambda node: (),
    "SequenceErase": _find_elements_after_erasure,
    "SequenceInsert": _find_elements_after_insertion,
    "SplitToSequence": _find_split_elements,
}
"""Functions that return the elements of a sequence, by operator that computes it."""

EQUIVALENT_OPERATORS: Mapping[str, Sequence[Rule]] = {
    "Attention": (_normalize_causal_mask,),
    "ConcatFromSequence": (_replace_by_concat,),
    "GroupNormalization": (_normalize_group_normalization,),
    "SequenceAt": (_normalize_sequence_at,),
    "Where": (_replace_choice_of_bits,),
}
"""Rules in order of application, by standard operator. They apply after `IDENTITIES`."""
