"""Operators that move or create data: reshape, slice, split, concat, pad, constants, random tensors.

They do no arithmetic on elements, so their cost is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer.engine.graph.layouts import MS, NHWC
from explorer.engine.graph.model import DTYPES, Tensor
from explorer.engine.operators.call import Answer, Call, ShapeMismatch
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import (
    broadcast,
    get_slice,
    int_attributes,
    like,
    like_first_input,
    normalize_axis,
    sizes_of,
)
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

_TO_END = 1 << 31
"""Smallest end index that means "to the end", for which exporters write the largest integer."""


def _transpose(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    order = call.ints("perm") or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        return None
    return ((dtype, tuple(shape[i] for i in order)),)


def _reshape(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    try:
        target = int_attributes(call, "shape", 1)
    except LookupError:
        return None
    if target is None:
        target_shape = call.shape_or_none(1)
        count = target_shape[0] if target_shape is not None and len(target_shape) == 1 else None
        return ((dtype, (None,) * count if isinstance(count, int) and count <= 64 else None),)
    keeps_zero_sizes = not call.integer("allowzero", 0)
    result: list[Dim] = []
    inferred_axis: int | None = None
    for axis, size in enumerate(target):
        if isinstance(size, dims.Expression):
            constant = size.constant
            size = dims.dim(size) if constant is None else constant
        if size == -1 and inferred_axis is None:
            inferred_axis = axis
            result.append(None)
        elif size == 0 and keeps_zero_sizes:
            if shape is not None and axis >= len(shape):
                return None
            result.append(None if shape is None else shape[axis])
        elif isinstance(size, int) and size < 0:
            return None
        else:
            result.append(size)
    if shape is None:
        return ((dtype, tuple(result)),)
    known_sizes = [d for i, d in enumerate(result) if i != inferred_axis]
    if inferred_axis is not None:
        result[inferred_axis] = _remaining_size(shape, known_sizes)
        if result[inferred_axis] is None and _has_remainder(shape, known_sizes):
            raise _reshape_error(shape, target)
    elif result.count(None) == 1 and None not in shape:
        # a single unknown size follows from the others
        result[result.index(None)] = _remaining_size(shape, [d for d in result if d is not None])
    elif None not in result and None not in shape:
        source_count, target_count = dims.product(shape), dims.product(result)
        if isinstance(source_count, int) and isinstance(target_count, int) and source_count != target_count:
            raise _reshape_error(shape, target)
    return ((dtype, tuple(result)),)


def _reshape_error(shape: Shape, target: Sequence[Any]) -> ShapeMismatch:
    return ShapeMismatch(f"{dims.product(shape):,} elements cannot take the shape {list(target)}")


def _has_remainder(shape: Shape, known_sizes: Sequence[Dim]) -> bool:
    """Whether the product of `known_sizes` does not divide the number of elements of `shape`."""
    source_count, known_count = dims.product(shape), dims.product(known_sizes)
    return (
        isinstance(source_count, int)
        and isinstance(known_count, int)
        and known_count > 0
        and source_count % known_count > 0
    )


def _remaining_size(shape: Shape, known_sizes: Sequence[Dim]) -> Dim:
    """Returns the missing size when a tensor of `shape` is reshaped to `known_sizes` and one more size."""
    if 0 in shape:
        return 0 if known_sizes and 0 not in known_sizes else None
    numerator, denominator = list(shape), list(known_sizes)
    # equal sizes cancel, even if they are symbolic
    for size in known_sizes:
        if size is not None and size in numerator:
            numerator.remove(size)
            denominator.remove(size)
    return dims.quotient(dims.product(numerator), dims.product(denominator))


def _flatten(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, (None, None)),)
    axis = call.integer("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis <= len(shape):
        return None
    return ((dtype, (dims.product(shape[:axis]), dims.product(shape[axis:]))),)


def _squeeze(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    try:
        axes = int_attributes(call, "axes", 1)
    except LookupError:
        # without axes, every size of 1 is removed, but a symbolic size may or may not be 1
        if all(isinstance(d, int) for d in shape):
            return ((dtype, tuple(d for d in shape if d != 1)),)
        return ((dtype, None),)
    if axes is None:
        return ((dtype, None),)
    removed_axes = {normalize_axis(a, len(shape)) for a in axes}
    if any(isinstance(shape[i], int) and shape[i] != 1 for i in removed_axes):
        return None
    return ((dtype, tuple(d for i, d in enumerate(shape) if i not in removed_axes)),)


def _unsqueeze(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    axes = int_attributes(call, "axes", 1)
    if shape is None or axes is None:
        return ((dtype, None),)
    rank = len(shape) + len(axes)
    inserted_axes = {normalize_axis(a, rank) for a in axes}
    if len(inserted_axes) != len(axes):
        return None
    remaining_sizes = iter(shape)
    return ((dtype, tuple(1 if i in inserted_axes else next(remaining_sizes) for i in range(rank))),)


def concat(call: Call) -> Answer:
    """Infers the output type of Concat."""
    shapes = [call.shape_or_none(i) for i in range(len(call.inputs))]
    known_shapes = [s for s in shapes if s is not None]
    dtype = call.dtype(0)
    if not known_shapes:
        return ((dtype, None),)
    rank = len(known_shapes[0])
    if any(len(s) != rank for s in known_shapes):
        return None
    axis = normalize_axis(call.attributes.get("axis", 1 if call.opset < 4 else None), rank)
    result: list[Dim] = []
    for index in range(rank):
        if index == axis:
            size: Dim = 0 if len(known_shapes) == len(shapes) else None
            for shape in known_shapes if len(known_shapes) == len(shapes) else ():
                size = dims.add(size, shape[index])
            result.append(size)
            continue
        sizes = [s[index] for s in known_shapes]
        numbers = {d for d in sizes if isinstance(d, int)}
        if len(numbers) > 1:
            raise ShapeMismatch(f"its inputs have other sizes on axis {index}: {sorted(numbers)}")
        # the sizes must be equal, so prefer a number to a symbolic size
        result.append(next(iter(numbers), next((d for d in sizes if d is not None), None)))
    return ((dtype, tuple(result)),)


def _split(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),) * call.output_count
    axis = normalize_axis(call.integer("axis", 0), len(shape))
    sizes: list[Dim]
    try:
        split_sizes = int_attributes(call, "split", 1)
    except LookupError:
        parts = call.integer("num_outputs", call.output_count)
        if parts != call.output_count:
            return None  # the file could ask for a list of any length
        axis_size = shape[axis]
        part_size = dims.ceil_div(axis_size, parts)
        last_size = dims.subtract(axis_size, dims.multiply(part_size, parts - 1))
        sizes = [part_size] * (parts - 1) + [last_size]
        if not isinstance(axis_size, int) and "num_outputs" not in call.attributes:
            # assume an even split, as exporters write it
            sizes = [dims.floor_div(axis_size, parts)] * parts
    else:
        sizes = [None] * call.output_count if split_sizes is None else [dims.dim(v) for v in split_sizes]
    if len(sizes) != call.output_count:
        return None
    if all(isinstance(d, int) for d in (*sizes, shape[axis])) and sum(sizes) != shape[axis]:  # type: ignore[arg-type]
        return None
    return tuple((dtype, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes)


def _slice(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    if "starts" in call.attributes:
        starts: Sequence[Any] | None = call.ints("starts")
        ends: Sequence[Any] | None = call.ints("ends")
        axes: Sequence[Any] | None = call.ints("axes")
        steps: Sequence[Any] | None = None
    else:
        starts, ends = call.elements(1), call.elements(2)
        axes = call.elements(3) if call.has(3) else None
        steps = call.elements(4) if call.has(4) else None
    if axes is None and call.has(3) and "starts" not in call.attributes:
        return ((dtype, (None,) * len(shape)),)
    count = next((len(v) for v in (axes, starts, ends) if v is not None), None)
    if count is None:
        return ((dtype, (None,) * len(shape)),)
    if axes is None:
        axes = range(count)
    result: list[Dim] = list(shape)
    for index, axis in enumerate(axes):
        axis_index = normalize_axis(axis, len(shape))
        start = None if starts is None else starts[index]
        end = None if ends is None else ends[index]
        step = (
            1 if not call.has(4) or "starts" in call.attributes else None if steps is None else steps[index]
        )
        result[axis_index] = _slice_length(shape[axis_index], start, end, step)
    return ((dtype, tuple(result)),)


def _slice_length(size: Dim, start: Any, end: Any, step: Any) -> Dim:
    """Returns the number of elements in a slice, or None if unknown."""
    if isinstance(step, dims.Expression):
        step = step.constant
    if size is None or start is None or end is None or not step:
        return None
    if all(isinstance(v, int) for v in (size, start, end)):
        assert isinstance(size, int)
        part = get_slice(start, end, step, size)
        return None if part is None else len(range(*part.indices(size)))
    try:
        size_expression = dims.expression(size)
        if step < 0:
            starts_at_end = start == -1 or (isinstance(start, int) and start >= _TO_END - 1)
            ends_at_front = isinstance(end, int) and end <= -_TO_END
            return dims.ceil_div(size, -step) if starts_at_end and ends_at_front else None
        first, last = (_clamp_position(start, size_expression), _clamp_position(end, size_expression))
        length = dims.dim(last - first)
        if (dims.find_minimum(length) or -1) < 0 and length != 0:
            length = dims.greatest(length, 0)
        return dims.ceil_div(length, step)
    except dims.UndecidedSize:
        return None


def _clamp_position(position: Any, size: dims.Expression) -> dims.Expression:
    """Converts the start or end of a slice to a position from the front, limited to 0 to `size`.

    Raises:
        UndecidedSize: The position may count from the front or from the back.
    """
    zero = dims.expression(0)
    if isinstance(position, int):
        if position >= _TO_END - 1:
            return size
        if position <= -_TO_END:
            return zero
        if position < 0:
            return dims.build_extremum("max", size + position, zero)
        return dims.build_extremum("min", dims.expression(position), size)
    least = dims.find_minimum(dims.dim(position))
    if least is not None and least >= 0:
        return dims.build_extremum("min", position, size)
    # a negated computed value, as in x[-n:]
    least_negated = dims.find_minimum(dims.dim(-position))
    if least_negated is not None and least_negated > 0:
        return dims.build_extremum("max", size + position, zero)
    # a value that is at least -1, such as n - 1 with n >= 1
    if least is not None and least >= -1 and dims.is_less(zero, position + 2):
        return dims.build_extremum("min", dims.build_extremum("max", position, zero), size)
    raise dims.UndecidedSize


def _expand(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    target = sizes_of(call, 1)
    if target is None:
        return ((dtype, None),)
    return ((dtype, broadcast(shape, target)),)


def _tile(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None or call.opset < 6:
        return ((dtype, None),)
    repeats = sizes_of(call, 1) or (None,) * len(shape)
    if len(repeats) != len(shape):
        return None
    return ((dtype, tuple(dims.multiply(d, t) for d, t in zip(shape, repeats, strict=True))),)


def _pad(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    name = "pads" if "pads" in call.attributes else "paddings"
    try:
        pads = int_attributes(call, name, 1)
    except LookupError:
        return None
    axes: Sequence[Any] | None = range(len(shape))
    if call.has(3) and name not in call.attributes:
        axes = call.elements(3)
    if pads is None or axes is None:
        return ((dtype, (None,) * len(shape)),)
    if len(pads) != 2 * len(axes):
        return None
    result: list[Dim] = list(shape)
    for index, axis in enumerate(axes):
        axis_index = normalize_axis(axis, len(shape))
        for value in (pads[index], pads[index + len(axes)]):
            result[axis_index] = dims.add(result[axis_index], dims.dim(value))
    if any(isinstance(d, int) and d < 0 for d in result):
        return None
    return ((dtype, tuple(result)),)


def _depth_to_space(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    if shape is None or len(shape) != 4:
        return None if shape is not None else ((dtype, (None,) * 4),)
    block = call.integer("blocksize", 0)
    if block < 1:
        return None
    batch, channels, height, width = shape
    if call.op == "DepthToSpace":
        if isinstance(channels, int) and channels % (block * block):
            raise ShapeMismatch(f"{channels:,} channels do not divide into blocks of {block} x {block}")
        spatial = dims.multiply(height, block), dims.multiply(width, block)
        return ((dtype, (batch, dims.quotient(channels, block * block), *spatial)),)
    channels = dims.multiply(channels, block * block)
    return ((dtype, (batch, channels, dims.floor_div(height, block), dims.floor_div(width, block))),)


def _expand_dims(call: Call) -> Answer:
    source, axis = call.shape_or_none(0), call.elements(1)
    if source is None or not axis or not isinstance(axis[0], int):
        return ((call.dtype(0), None if source is None else (None,) * (len(source) + 1)),)
    axis_index = normalize_axis(axis[0], len(source) + 1)
    return ((call.dtype(0), (*source[:axis_index], 1, *source[axis_index:])),)


def _unfold(call: Call) -> Answer:
    """Infers the output type of UnfoldTensor: windows of `size` elements at each `step`, as a new axis."""
    source = call.shape_or_none(0)
    if source is None:
        return ((call.dtype(0), None),)
    size, step = call.integer("size", 0), call.integer("step", 1)
    axis = normalize_axis(call.integer("dim", -1), len(source))
    window_count = dims.add(dims.floor_div(dims.subtract(source[axis], size), step), 1)
    return ((call.dtype(0), (*source[:axis], window_count, *source[axis + 1 :], size)),)


def _constant(call: Call) -> Answer:
    for name, value in call.attributes.items():
        if name == "value" and isinstance(value, Tensor):
            return ((value.dtype, value.shape),)
        dtype = {"value_int": "int64", "value_float": "float32", "value_string": "string"}.get(
            name.removesuffix("s") if name != "value_s" else name
        )
        if dtype is not None:
            return ((dtype, (len(value),) if name.endswith("s") else ()),)
    return None


def _shape_of(call: Call) -> Answer:
    shape = call.shape_or_none(0)
    if shape is None:
        return (("int64", (None,)),)
    rank = len(shape)
    return (
        ("int64", (len(range(rank)[call.attributes.get("start", 0) : call.attributes.get("end", rank)]),)),
    )


def _constant_of_shape(call: Call) -> Answer:
    value = call.attributes.get("value")
    dtype = value.dtype if isinstance(value, Tensor) else "float32"
    return ((dtype, sizes_of(call, 0)),)


def _range(call: Call) -> Answer:
    limits = [call.elements(i) for i in range(3)]
    size: Dim = None
    if all(v is not None and len(v) == 1 and v[0] is not None for v in limits):
        start, limit, delta = (v[0] for v in limits if v is not None)
        if isinstance(delta, dims.Expression):
            delta = delta.constant
        if delta is not None and delta > 0 and isinstance(start, (int, dims.Expression)):
            distance = limit - start
            size = dims.ceil_div(dims.dim(distance), delta)
            if isinstance(size, int):
                size = max(size, 0)
            elif (dims.find_minimum(size) or -1) < 0:
                size = dims.greatest(size, 0)
        elif not any(isinstance(v, dims.Expression) for v in (start, limit, delta)) and delta:
            steps = (limit - start) / delta
            size = max(int(-(-steps // 1)), 0)
    return ((call.dtype(0), (size,)),)


def _eye_like(call: Call) -> Answer:
    code = call.attributes.get("dtype", 0)
    return ((DTYPES[code].name if code else call.dtype(0), call.shape_or_none(0)),)


def _random_shape(call: Call) -> Answer:
    """Infers the output types of random tensors whose shape is an attribute."""
    shape = call.ints("shape")
    return None if shape is None else ((DTYPES[call.integer("dtype", 1)].name, shape),)


OPERATORS = (
    Operator("Identity", free, shape=like_first_input, position="each", same_parameter=True, view=True),
    Operator("Transpose", free, shape=_transpose, same_parameter=True),
    Operator(
        "Reshape", free, shape=_reshape, shape_reads=(1,), settings=(1,), same_parameter=True, view=True
    ),
    Operator("Flatten", free, shape=_flatten, same_parameter=True, view=True),
    Operator(
        "Squeeze", free, shape=_squeeze, shape_reads=(1,), settings=(1,), same_parameter=True, view=True
    ),
    Operator(
        "Unsqueeze", free, shape=_unsqueeze, shape_reads=(1,), settings=(1,), same_parameter=True, view=True
    ),
    Operator("Concat", free, shape=concat),
    Operator("Split", free, shape=_split, shape_reads=(1,), settings=(1,)),
    Operator("Slice", free, shape=_slice, shape_reads=(1, 2, 3, 4), settings=(1, 2, 3, 4)),
    Operator("Expand", free, shape=_expand, shape_reads=(1,), settings=(1,)),
    Operator("Tile", free, shape=_tile, shape_reads=(1,), settings=(1,)),
    Operator("Pad", free, ("", MS), _pad, shape_reads=(1, 3), settings=(1, 2, 3)),
    Operator("DepthToSpace SpaceToDepth", free, ("", NHWC), _depth_to_space),
    Operator("ReverseSequence", free, shape=like_first_input),
    Operator("MemcpyFromHost MemcpyToHost", free, shape=like(0)),
    Operator("CenterCropPad", free, settings=(1,)),
    Operator("BitCast Crop DynamicSlice", free),
    Operator("ExpandDims", free, MS, _expand_dims, shape_reads=(1,)),
    Operator("UnfoldTensor", free, MS, _unfold),
    Operator("Constant", free, shape=_constant, reads_only_shape=True),
    Operator("Shape", free, shape=_shape_of, reads_only_shape=True),
    Operator("Size", free, shape=lambda _: (("int64", ()),), reads_only_shape=True),
    Operator(
        "ConstantOfShape", free, shape=_constant_of_shape, shape_reads=(0,), gradient=blocked, settings=(0,)
    ),
    Operator("Range", free, ("", MS), _range, shape_reads=(0, 1, 2), settings=(0, 1, 2)),
    Operator("Bernoulli EyeLike RandomNormalLike RandomUniformLike", free, shape=_eye_like, gradient=blocked),
    Operator("RandomNormal RandomUniform", free, shape=_random_shape),
    Operator("Multinomial", free, gradient=blocked),
    Operator("GivenTensorFill", free),
)
