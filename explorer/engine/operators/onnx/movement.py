"""Data movement and creation: reshaping, cutting, joining, padding, constants, counts, random tensors.

Nothing of them is a product, nor arithmetic on elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from explorer.engine.graph.layouts import MS, NHWC
from explorer.engine.graph.model import DTYPES, Tensor
from explorer.engine.operators.call import Answer, Call, ShapeMismatch
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import axis_of, broadcast, first, int_attributes, like, sizes_of
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

_FAR = 1 << 31
"""Exporters write the largest integer for "to the end"; anything from here on means that."""


def _transpose(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    order = call.ints("perm") or tuple(reversed(range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        return None
    return ((dtype, tuple(shape[i] for i in order)),)


def _reshape(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    try:
        target = int_attributes(call, "shape", 1)
    except LookupError:
        return None
    if target is None:
        target_shape = call.known(1)
        count = target_shape[0] if target_shape is not None and len(target_shape) == 1 else None
        return ((dtype, (None,) * count if isinstance(count, int) and count <= 64 else None),)
    keep = not call.whole("allowzero", 0)
    result: list[Dim] = []
    open_: int | None = None
    for at, size in enumerate(target):
        if isinstance(size, dims.Expression):
            constant = size.constant
            size = dims.dim(size) if constant is None else constant
        if size == -1 and open_ is None:
            open_ = at
            result.append(None)
        elif size == 0 and keep:
            if shape is not None and at >= len(shape):
                return None
            result.append(None if shape is None else shape[at])
        elif isinstance(size, int) and size < 0:
            return None
        else:
            result.append(size)
    if shape is None:
        return ((dtype, tuple(result)),)
    known_sizes = [d for i, d in enumerate(result) if i != open_]
    if open_ is not None:
        result[open_] = _rest(shape, known_sizes)
        if result[open_] is None and _remainder(shape, known_sizes):
            raise _lost(shape, target)
    elif result.count(None) == 1 and None not in shape:
        # a single unknown size follows from the others
        result[result.index(None)] = _rest(shape, [d for d in result if d is not None])
    elif None not in result and None not in shape:
        before, after = dims.product(shape), dims.product(result)
        if isinstance(before, int) and isinstance(after, int) and before != after:
            raise _lost(shape, target)
    return ((dtype, tuple(result)),)


def _lost(shape: Shape, target: Sequence[Any]) -> ShapeMismatch:
    return ShapeMismatch(f"{dims.product(shape):,} elements cannot take the shape {list(target)}")


def _remainder(shape: Shape, others: Sequence[Dim]) -> bool:
    """Whether the sizes in `others` leave a remainder of the elements of `shape`, all of them known."""
    before, after = dims.product(shape), dims.product(others)
    return isinstance(before, int) and isinstance(after, int) and after > 0 and before % after > 0


def _rest(shape: Shape, others: Sequence[Dim]) -> Dim:
    """The remaining size when a tensor of `shape` takes the sizes in `others`."""
    if 0 in shape:
        return 0 if others and 0 not in others else None
    mine, theirs = list(shape), list(others)
    # a size on both sides cancels, even if it is a name
    for size in others:
        if size is not None and size in mine:
            mine.remove(size)
            theirs.remove(size)
    return dims.quotient(dims.product(mine), dims.product(theirs))


def _flatten(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    if shape is None:
        return ((dtype, (None, None)),)
    axis = call.whole("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    if not 0 <= axis <= len(shape):
        return None
    return ((dtype, (dims.product(shape[:axis]), dims.product(shape[axis:]))),)


def _squeeze(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),)
    try:
        axes = int_attributes(call, "axes", 1)
    except LookupError:
        # without axes every 1 is removed; whether a name is 1 is unknown
        if all(isinstance(d, int) for d in shape):
            return ((dtype, tuple(d for d in shape if d != 1)),)
        return ((dtype, None),)
    if axes is None:
        return ((dtype, None),)
    gone = {axis_of(a, len(shape)) for a in axes}
    if any(isinstance(shape[i], int) and shape[i] != 1 for i in gone):
        return None
    return ((dtype, tuple(d for i, d in enumerate(shape) if i not in gone)),)


def _unsqueeze(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    axes = int_attributes(call, "axes", 1)
    if shape is None or axes is None:
        return ((dtype, None),)
    rank = len(shape) + len(axes)
    new = {axis_of(a, rank) for a in axes}
    if len(new) != len(axes):
        return None
    rest = iter(shape)
    return ((dtype, tuple(1 if i in new else next(rest) for i in range(rank))),)


def concat(call: Call) -> Answer:
    """All inputs one behind the other."""
    shapes = [call.known(i) for i in range(len(call.inputs))]
    known_shapes = [s for s in shapes if s is not None]
    dtype = call.dtype(0)
    if not known_shapes:
        return ((dtype, None),)
    rank = len(known_shapes[0])
    if any(len(s) != rank for s in known_shapes):
        return None
    axis = axis_of(call.attributes.get("axis", 1 if call.opset < 4 else None), rank)
    result: list[Dim] = []
    for at in range(rank):
        if at == axis:
            size: Dim = 0 if len(known_shapes) == len(shapes) else None
            for shape in known_shapes if len(known_shapes) == len(shapes) else ():
                size = dims.add(size, shape[at])
            result.append(size)
            continue
        sizes = [s[at] for s in known_shapes]
        numbers = {d for d in sizes if isinstance(d, int)}
        if len(numbers) > 1:
            return None
        # all have to be equal; a number is the most precise
        result.append(next(iter(numbers), next((d for d in sizes if d is not None), None)))
    return ((dtype, tuple(result)),)


def _split(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    if shape is None:
        return ((dtype, None),) * call.count
    axis = axis_of(call.whole("axis", 0), len(shape))
    sizes: list[Dim]
    try:
        split_sizes = int_attributes(call, "split", 1)
    except LookupError:
        parts = call.whole("num_outputs", call.count)
        if parts != call.count:
            return None  # do not make a list of any length
        whole = shape[axis]
        each = dims.ceil_div(whole, parts)
        last = dims.subtract(whole, dims.multiply(each, parts - 1))
        sizes = [each] * (parts - 1) + [last]
        if not isinstance(whole, int) and "num_outputs" not in call.attributes:
            # exporters split evenly
            sizes = [dims.floor_div(whole, parts)] * parts
    else:
        sizes = [None] * call.count if split_sizes is None else [dims.dim(v) for v in split_sizes]
    if len(sizes) != call.count:
        return None
    if all(isinstance(d, int) for d in (*sizes, shape[axis])) and sum(sizes) != shape[axis]:  # type: ignore[arg-type]
        return None
    return tuple((dtype, (*shape[:axis], size, *shape[axis + 1 :])) for size in sizes)


def _slice(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
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
    for at, axis in enumerate(axes):
        place = axis_of(axis, len(shape))
        start = None if starts is None else starts[at]
        end = None if ends is None else ends[at]
        step = 1 if not call.has(4) or "starts" in call.attributes else None if steps is None else steps[at]
        result[place] = _cut(shape[place], start, end, step)
    return ((dtype, tuple(result)),)


def _cut(size: Dim, start: Any, end: Any, step: Any) -> Dim:
    """How many elements a slice takes."""
    if isinstance(step, dims.Expression):
        step = step.constant
    if size is None or start is None or end is None or not step:
        return None
    if all(isinstance(v, int) for v in (size, start, end)):
        assert isinstance(size, int)
        return len(range(*slice(start, end, step).indices(size)))
    try:
        whole = dims.expression(size)
        if step < 0:
            backwards = start == -1 or (isinstance(start, int) and start >= _FAR - 1)
            to_front = isinstance(end, int) and end <= -_FAR
            return dims.ceil_div(size, -step) if backwards and to_front else None
        first, last = _clamped(start, whole), _clamped(end, whole)
        length = dims.dim(last - first)
        if (dims.known_least(length) or -1) < 0 and length != 0:
            length = dims.greatest(length, 0)
        return dims.ceil_div(length, step)
    except dims.UndecidedSize:
        return None


def _clamped(place: Any, size: dims.Expression) -> dims.Expression:
    """Where a slice begins or ends on an axis, counted from its front.

    Raises:
        Undecided: Whether it counts from the front or the back is not known.
    """
    zero = dims.expression(0)
    if isinstance(place, int):
        if place >= _FAR - 1:
            return size
        if place <= -_FAR:
            return zero
        if place < 0:
            return dims.compared("max", size + place, zero)
        return dims.compared("min", dims.expression(place), size)
    low = dims.known_least(dims.dim(place))
    if low is not None and low >= 0:
        return dims.compared("min", place, size)
    # x[-n:] with a computed n
    negative = dims.known_least(dims.dim(-place))
    if negative is not None and negative > 0:
        return dims.compared("max", size + place, zero)
    # n - 1 for an n of which only n >= 1 is known, and the like
    if low is not None and low >= -1 and dims.less(zero, place + 2):
        return dims.compared("min", dims.compared("max", place, zero), size)
    raise dims.UndecidedSize


def _expand(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    target = sizes_of(call, 1)
    if target is None:
        return ((dtype, None),)
    return ((dtype, broadcast(shape, target)),)


def _tile(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    if shape is None or call.opset < 6:
        return ((dtype, None),)
    times = sizes_of(call, 1) or (None,) * len(shape)
    if len(times) != len(shape):
        return None
    return ((dtype, tuple(dims.multiply(d, t) for d, t in zip(shape, times, strict=True))),)


def _pad(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
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
    for at, axis in enumerate(axes):
        place = axis_of(axis, len(shape))
        for value in (pads[at], pads[at + len(axes)]):
            result[place] = dims.add(result[place], dims.dim(value))
    if any(isinstance(d, int) and d < 0 for d in result):
        return None
    return ((dtype, tuple(result)),)


def _depth_to_space(call: Call) -> Answer:
    shape, dtype = call.known(0), call.dtype(0)
    if shape is None or len(shape) != 4:
        return None if shape is not None else ((dtype, (None,) * 4),)
    block = call.whole("blocksize", 0)
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
    source, axis = call.known(0), call.elements(1)
    if source is None or not axis or not isinstance(axis[0], int):
        return ((call.dtype(0), None if source is None else (None,) * (len(source) + 1)),)
    at = axis_of(axis[0], len(source) + 1)
    return ((call.dtype(0), (*source[:at], 1, *source[at:])),)


def _unfold(call: Call) -> Answer:
    """Windows of `size` elements along an axis, `step` apart; the window is a new last axis."""
    source = call.known(0)
    if source is None:
        return ((call.dtype(0), None),)
    size, step = call.whole("size", 0), call.whole("step", 1)
    at = axis_of(call.whole("dim", -1), len(source))
    places = dims.add(dims.floor_div(dims.subtract(source[at], size), step), 1)
    return ((call.dtype(0), (*source[:at], places, *source[at + 1 :], size)),)


def _constant(call: Call) -> Answer:
    for name, value in call.attributes.items():
        if name == "value" and isinstance(value, Tensor):
            return ((value.dtype, value.shape),)
        kind = {"value_int": "int64", "value_float": "float32", "value_string": "string"}.get(
            name.removesuffix("s") if name != "value_s" else name
        )
        if kind is not None:
            return ((kind, (len(value),) if name.endswith("s") else ()),)
    return None


def _shape_of(call: Call) -> Answer:
    shape = call.known(0)
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
            elif (dims.known_least(size) or -1) < 0:
                size = dims.greatest(size, 0)
        elif not any(isinstance(v, dims.Expression) for v in (start, limit, delta)) and delta:
            steps = (limit - start) / delta
            size = max(int(-(-steps // 1)), 0)
    return ((call.dtype(0), (size,)),)


def _eye_like(call: Call) -> Answer:
    code = call.attributes.get("dtype", 0)
    return ((DTYPES[code].name if code else call.dtype(0), call.known(0)),)


def _drawn(call: Call) -> Answer:
    """Random tensors of a shape given as attribute."""
    shape = call.ints("shape")
    return None if shape is None else ((DTYPES[call.whole("dtype", 1)].name, shape),)


OPERATORS = (
    Operator("Identity", free, shape=first, position="each", alias=True, view=True),
    Operator("Transpose", free, shape=_transpose, alias=True),
    Operator("Reshape", free, shape=_reshape, reads=(1,), settings=(1,), alias=True, view=True),
    Operator("Flatten", free, shape=_flatten, alias=True, view=True),
    Operator("Squeeze", free, shape=_squeeze, reads=(1,), settings=(1,), alias=True, view=True),
    Operator("Unsqueeze", free, shape=_unsqueeze, reads=(1,), settings=(1,), alias=True, view=True),
    Operator("Concat", free, shape=concat),
    Operator("Split", free, shape=_split, reads=(1,), settings=(1,)),
    Operator("Slice", free, shape=_slice, reads=(1, 2, 3, 4), settings=(1, 2, 3, 4)),
    Operator("Expand", free, shape=_expand, reads=(1,), settings=(1,)),
    Operator("Tile", free, shape=_tile, reads=(1,), settings=(1,)),
    Operator("Pad", free, ("", MS), _pad, reads=(1, 3), settings=(1, 2, 3)),
    Operator("DepthToSpace SpaceToDepth", free, ("", NHWC), _depth_to_space),
    Operator("ReverseSequence", free, shape=first),
    Operator("MemcpyFromHost MemcpyToHost", free, shape=like(0)),
    Operator("CenterCropPad", free, settings=(1,)),
    Operator("BitCast Crop DynamicSlice", free),
    Operator("ExpandDims", free, MS, _expand_dims, reads=(1,)),
    Operator("UnfoldTensor", free, MS, _unfold),
    Operator("Constant", free, shape=_constant, unread=True),
    Operator("Shape", free, shape=_shape_of, unread=True),
    Operator("Size", free, shape=lambda _: (("int64", ()),), unread=True),
    Operator("ConstantOfShape", free, shape=_constant_of_shape, reads=(0,), gradient=blocked, settings=(0,)),
    Operator("Range", free, ("", MS), _range, reads=(0, 1, 2), settings=(0, 1, 2)),
    Operator("Bernoulli EyeLike RandomNormalLike RandomUniformLike", free, shape=_eye_like, gradient=blocked),
    Operator("RandomNormal RandomUniform", free, shape=_drawn),
    Operator("Multinomial", free, gradient=blocked),
    Operator("GivenTensorFill", free),
)
