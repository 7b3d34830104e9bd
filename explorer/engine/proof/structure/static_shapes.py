"""Rules of the normal form that need all sizes of a value.

If the sizes are fixed, a Reshape, Flatten, Squeeze or Unsqueeze is a reshape to known sizes, an index counts
from the front, and a Slice ends within the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from explorer.engine.proof.structure.normal_node import Ints, NormalNode, Rule


def _get_fixed_shape(node: NormalNode) -> Ints | None:
    """Returns the shape of the first input, or None if a size is open or unknown."""
    rank = node.rank(0)
    sizes = [node.size(0, axis) for axis in range(rank or 0)]
    known_sizes = [size for size in sizes if size is not None]
    return tuple(known_sizes) if rank is not None and len(known_sizes) == rank else None


_OPEN = (1 << 61) - 1
"""Stands for an open size. It is prime: a product is a multiple of it only if the size is a factor."""


def _normalize_reshape(node: NormalNode) -> None:
    """Replaces an operator that only changes the shape by a Reshape, and joins several in a row.

    One size may be open. The size of the result that contains it becomes -1.
    """
    rank = node.rank(0)
    sizes_or_open = [node.size(0, axis) for axis in range(rank or 0)]
    shape = tuple(_OPEN if size is None else size for size in sizes_or_open)
    open_count = shape.count(_OPEN)
    if rank is None or 0 in shape or open_count > 1 or not isinstance(node.inputs[0], int):
        return
    if open_count and node.op == "Squeeze" and len(node.inputs) < 2 and "axes" not in node.attributes:
        return  # the open size may be 1
    sizes = _RESHAPED_SIZES[node.op](node, shape)
    if sizes is None or math.prod(sizes) != math.prod(shape):
        return
    sizes = tuple(-1 if open_count and size % _OPEN == 0 else size for size in sizes)
    node.op, node.attributes = "Reshape", {}
    node.inputs = [node.sources.reshaped.get(node.inputs[0], node.inputs[0]), ("shape", sizes)]


def _compute_reshaped_sizes(node: NormalNode, shape: Ints) -> Ints | None:
    target = node.read_integers(1) if len(node.inputs) > 1 else node.attributes.get("shape")
    if not isinstance(target, tuple) or target.count(-1) > 1:
        return None
    if 0 in target and (node.attributes.get("allowzero") or 0 in target[len(shape) :]):
        return None
    sizes = [shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    known_count = math.prod(size for size in sizes if size != -1)
    return tuple(math.prod(shape) // known_count if size == -1 else size for size in sizes)


def _compute_flattened_sizes(node: NormalNode, shape: Ints) -> Ints | None:
    axis = node.attributes.get("axis", 1)
    if not isinstance(axis, int) or not -len(shape) <= axis <= len(shape):
        return None
    axis = axis + len(shape) if axis < 0 else axis
    return math.prod(shape[:axis]), math.prod(shape[axis:])


def _compute_squeezed_sizes(node: NormalNode, shape: Ints) -> Ints | None:
    axes = node.read_integer_list("axes", 1) if len(node.inputs) > 1 or "axes" in node.attributes else ()
    if axes is None:
        return None
    removed_axes = {axis % len(shape) for axis in axes if -len(shape) <= axis < len(shape)}
    return tuple(size for axis, size in enumerate(shape) if not (axis in removed_axes if axes else size == 1))


def _compute_unsqueezed_sizes(node: NormalNode, shape: Ints) -> Ints | None:
    axes = node.read_integer_list("axes", 1)
    rank = len(shape) + len(axes or ())
    if not axes or not all(-rank <= axis < rank for axis in axes):
        return None
    sizes, added_axes = iter(shape), {axis % rank for axis in axes}
    if len(added_axes) == len(axes):
        return tuple(1 if axis in added_axes else next(sizes) for axis in range(rank))
    return None


_RESHAPED_SIZES = {
    "Reshape": _compute_reshaped_sizes,
    "Flatten": _compute_flattened_sizes,
    "Squeeze": _compute_squeezed_sizes,
    "Unsqueeze": _compute_unsqueezed_sizes,
}
"""Functions that return the sizes of the result, by operator; None if they are unknown."""


def _normalize_gather(node: NormalNode) -> None:
    """Counts stored indices from the front, in one type."""
    indices, axis = node.read_numbers(1), node.attributes.get("axis", 0)
    if indices is None or indices.dtype.kind not in "iu" or not isinstance(axis, int):
        return
    length = node.size(0, axis)
    if length is not None:
        indices = np.where(indices < 0, indices + length, indices)
    elif indices.min(initial=0) < 0:
        return
    node.inputs[1] = ("indices", (indices.shape, tuple(map(int, indices.reshape(-1)))))


def _normalize_slice(node: NormalNode) -> None:
    """Counts starts and ends from the front and limits them to the axis, if all steps are 1."""
    if len(node.inputs) != 4:
        return
    starts, ends, axes = (node.read_integers(index) for index in (1, 2, 3))
    if starts is None or ends is None or axes is None or not len(starts) == len(ends) == len(axes):
        return
    lengths = [node.size(0, axis) for axis in axes]
    known_lengths = [length for length in lengths if length is not None]
    if len(known_lengths) < len(axes) or len({*axes}) < len(axes):
        return

    def limit_to_axis(indices: Ints) -> list[int]:
        pairs = zip(indices, known_lengths, strict=True)
        return [min(max(index + length if index < 0 else index, 0), length) for index, length in pairs]

    parts = sorted(zip(axes, limit_to_axis(starts), limit_to_axis(ends), known_lengths, strict=True))
    parts = [part for part in parts if part[1:3] != (0, part[3])]
    if not parts:
        node.equal_value = node.inputs[0]
        return
    for index, name in enumerate(("axes", "starts", "ends")):
        node.inputs[(3, 1, 2)[index]] = name, tuple(part[index] for part in parts)


def _remove_empty_expand(node: NormalNode) -> None:
    """Removes an Expand to the sizes that the value has."""
    target, shape = node.read_integers(1), _get_fixed_shape(node)
    if target is None or shape is None or len(target) > len(shape):
        return
    last_sizes = shape[len(shape) - len(target) :]
    if all(size in (1, length) for size, length in zip(target, last_sizes, strict=True)):
        node.equal_value = node.inputs[0]


def _normalize_resize(node: NormalNode) -> None:
    """Replaces the scales of a Resize by the sizes of its result, if these sizes lead to the same scales.

    A Resize to the nearest element then gets a list of indices in place of its rules for rounding.
    """
    attributes, shape = node.attributes, _get_fixed_shape(node)
    if node.opset < 11 or "before" in attributes or shape is None or 0 in shape or len(node.inputs) < 3:
        return
    if attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return
    axes = attributes.get("axes") or tuple(range(len(shape)))
    sizes = node.read_integers(3)
    if isinstance(node.inputs[2], tuple) and len(node.inputs[2][1]) == len(shape):
        lengths = np.asarray(shape, np.float32)
        scales = np.asarray([float.fromhex(text) for text in node.inputs[2][1]], np.float32)
        axes, sizes = tuple(range(len(shape))), tuple(int(size) for size in scales * lengths)
        # a runtime computes scales from sizes by division by the lengths
        if not np.array_equal(np.asarray(sizes, np.float32) / lengths, scales):
            return
    if sizes is None or len(sizes) != len(axes) or (node.inputs[2] != 0 and len(node.inputs) > 3):
        return
    result = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    for name in ("axes", "keep_aspect_ratio_policy"):
        attributes.pop(name, None)
    node.inputs[1:] = [("sizes", tuple(result))]
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "pytorch_half_pixel" and all(
        new > 1 or new == old for old, new in zip(shape, result, strict=True)
    ):
        attributes["coordinate_transformation_mode"] = mode = "half_pixel"
    if attributes.get("mode", "nearest") != "nearest" or attributes.get("antialias"):
        return
    rounding = attributes.get("nearest_mode", "round_prefer_floor")
    indices = [_list_nearest(*lengths, mode, rounding) for lengths in zip(shape, result, strict=True)]
    if all(axis is not None for axis in indices):
        for name in ("coordinate_transformation_mode", "nearest_mode"):
            attributes.pop(name, None)
        attributes["indices"] = tuple(axis for axis in indices if axis is not None)


_HALF = Fraction(1, 2)

_MAX_RESIZED = 1 << 16
"""Largest size of an axis whose indices are listed. Their places are exact in float32 up to 2^16 elements."""

_COORDINATES: Mapping[str, Callable[[int, Fraction], Fraction]] = {
    "asymmetric": lambda index, scale: index / scale,
    "half_pixel": lambda index, scale: (index + _HALF) / scale - _HALF,
}
"""Place in the input of an element of a Resize, by 'coordinate_transformation_mode'."""

_NEAREST: Mapping[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda place: math.ceil(place - _HALF),
    "round_prefer_ceil": lambda place: math.floor(place + _HALF),
}
"""Index of the nearest element, by 'nearest_mode'."""


def _list_nearest(old: int, new: int, mode: str, rounding: str) -> Ints | None:
    """Lists the index in the input of each element of an axis, or returns None if a runtime may differ.

    A runtime computes places in float32. These are exact if the scale is a power of 2.
    """
    if new == old:
        return tuple(range(old))
    if mode not in _COORDINATES or rounding not in _NEAREST or max(old, new) > _MAX_RESIZED:
        return None
    scale = Fraction(new, old)
    if any(number & (number - 1) for number in (scale.numerator, scale.denominator)):
        return None
    places = (_COORDINATES[mode](index, scale) for index in range(new))
    return tuple(min(max(_NEAREST[rounding](place), 0), old - 1) for place in places)


STATIC_SHAPE_RULES: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys(_RESHAPED_SIZES, (_normalize_reshape,)),
    "Expand": (_remove_empty_expand,),
    "Gather": (_normalize_gather,),
    "Resize": (_normalize_resize,),
    "Slice": (_normalize_slice,),
}
"""Rules by standard operator. They apply after the other rules."""
