"""Shape rules and helpers that several operator families share.

A shape rule computes the output types of a node. It keeps symbolic expressions such as `N+3`, which the shape
inference of the onnx package loses. A rule that cannot handle a node returns None; the node then goes to
onnx's inference. A rule runs once for each distinct combination of operator, attributes and input types.

The formulas follow the ONNX operator specification (opsets 1 to 26). For onnxruntime's own operators, which
onnx cannot infer, they follow its `docs/ContribOperators.md`.
"""

from __future__ import annotations

from typing import Any

from explorer.engine.operators.call import UNKNOWN, Answer, Call, ShapeMismatch, ShapeRule
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def int_attributes(call: Call, name: str, index: int) -> list[Any] | None:
    """Reads a list of integers that is an attribute in older opsets and an input in newer opsets.

    Args:
        call: Node.
        name: Name of the attribute.
        index: Index of the input.

    Returns:
        The integers, or None if the input's elements are unknown.

    Raises:
        LookupError: The node has neither the attribute nor the input.
    """
    attribute = call.ints(name)
    if attribute is not None:
        return list(attribute)
    if call.has(index):
        elements = call.elements(index)
        return None if elements is None else list(elements)
    raise LookupError(name)


_LARGEST_ENDS = ((1 << 31) - 1, (1 << 63) - 1)
"""Ends that onnxruntime takes for the element before the first one if the step is negative."""


def get_slice(start: int, end: int, step: int, length: int) -> slice | None:
    """Returns the part of an axis that a Slice takes, or None if onnxruntime and ONNX disagree on it.

    With a negative step, a start before the axis is its first element, unlike in numpy.
    """
    if step >= 0:
        return slice(start, end, step)
    if end in _LARGEST_ENDS:
        return None
    return slice(max(start, -length), None if end < -length else end, step)


def normalize_axis(axis: Any, rank: int) -> int:
    """Converts a possibly negative axis to an index from 0.

    Raises:
        IndexError: A tensor of this rank has no such axis.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise IndexError(axis)
    return axis % rank


def broadcast(*shapes: Shape | None) -> Shape | None:
    """Returns the broadcast shape, or None if the rank of any shape is unknown.

    Raises:
        ShapeMismatch: The shapes are incompatible.
    """
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        # an unknown dimension may be 1 in one shape and not in the other
        return shapes[0]
    if any(s is None for s in shapes):
        return None
    rank = max(len(s) for s in shapes if s is not None)
    result: list[Dim] = []
    for index in range(-rank, 0):
        size: Dim = 1
        for shape in shapes:
            assert shape is not None
            if -index > len(shape) or shape[index] == 1 or shape[index] == size:
                continue
            dim = shape[index]
            if size == 1:
                size = dim
            elif isinstance(size, int) and isinstance(dim, int):
                raise ShapeMismatch(f"sizes {size:,} and {dim:,} of one axis do not broadcast")
            elif isinstance(size, int) or isinstance(dim, int):
                # a number above 1 decides the size: the symbolic size must equal it or be 1
                size = size if isinstance(size, int) else dim
            else:
                size = dims.greatest(size, dim)
        result.append(size)
    return tuple(result)


def like_first_input(call: Call) -> Answer:
    """Infers the type of a single output, which is that of the first input; None for several outputs."""
    return (call.type(0),) if call.output_count == 1 else None


def like(*indices: int, dtype: str | int | None = None) -> ShapeRule:
    """Makes a shape rule in which each output has the type of an input.

    Args:
        indices: Input index for each output. The types of further outputs are unknown.
        dtype: Element type of the first output, or the index of the input that has it.
    """

    def rule(call: Call) -> Answer:
        types = [call.type(index) for index in indices]
        if dtype is not None:
            types[0] = call.dtype(dtype), types[0][1]
        return [*types, *[UNKNOWN] * call.output_count][: call.output_count]

    return rule


def from_sizes(*sizes: tuple[int, int] | str | int, dtype: str | int = 0) -> ShapeRule:
    """Makes a shape rule that composes the first output's shape. Types of further outputs are unknown.

    Args:
        sizes: One entry for each axis: (input index, axis), the name of an attribute, or a number.
        dtype: Element type, or the index of the input that has it.
    """

    def rule(call: Call) -> Answer:
        shape: list[Dim] = []
        for size in sizes:
            if isinstance(size, tuple):
                source = call.shape_or_none(size[0])
                shape.append(None if source is None else source[size[1]])
            else:
                shape.append(call.integer(size, -1) if isinstance(size, str) else size)
        return [(call.dtype(dtype), tuple(shape)), *[UNKNOWN] * call.output_count][: call.output_count]

    return rule


def broadcast_inputs(*indices: int, dtype: str | int = 0) -> ShapeRule:
    """Makes a shape rule for the broadcast shape of the inputs at `indices`."""

    def rule(call: Call) -> Answer:
        return ((call.dtype(dtype), broadcast(*(call.shape_or_none(index) for index in indices))),)

    return rule


def size_of(value: Any) -> Dim:
    """Converts an element of a shape tensor to a dimension.

    Raises:
        ValueError: The element is negative.
    """
    if value is None:
        return None
    if isinstance(value, dims.Expression):
        return dims.dim(value)
    size = int(value)
    if size < 0:
        raise ValueError("a negative size")
    return size


def sizes_of(call: Call, index: int) -> Shape | None:
    """Returns the sizes in an input, or None if their number is unknown or, in a corrupt file, above 64."""
    content = call.elements(index)
    if content is not None:
        return tuple(map(size_of, content))
    shape = call.shape_or_none(index)
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] <= 64:
        return (None,) * shape[0]
    return None


def count_window_positions(
    call: Call, sizes: Shape, kernel: Shape, *, ceil: bool = False
) -> list[Dim] | None:
    """Counts the window positions on each axis: floor((size + pads - extent) / stride) + 1.

    The extent of a window is its size including dilation. Returns None if the attributes are invalid.
    """
    rank = len(sizes)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    auto = call.attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if not (len(kernel) == len(strides) == len(dilations) == rank == len(pads) / 2) or min(strides) < 1:
        return None
    result: list[Dim] = []
    for axis, (size, taps) in enumerate(zip(sizes, kernel, strict=True)):
        stride = strides[axis]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(dims.ceil_div(size, stride))
            continue
        pad_before, pad_after = (pads[axis], pads[axis + rank]) if auto == "NOTSET" else (0, 0)
        extent = dims.add(dims.multiply(dims.subtract(taps, 1), dilations[axis]), 1)
        free_size = dims.subtract(dims.add(size, pad_before + pad_after), extent)
        steps = dims.ceil_div(free_size, stride) if ceil else dims.floor_div(free_size, stride)
        if ceil and isinstance(extent, int) and pad_after + stride > extent:
            # omit a window that would start in the padding after the data
            steps = dims.find_smaller(steps, dims.floor_div(dims.add(size, pad_before - 1), stride))
        count = dims.add(steps, 1)
        if isinstance(count, int) and count < 0:
            return None
        result.append(count)
    return result
