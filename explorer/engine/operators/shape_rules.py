"""Shape rules that several families share: one input's shape, a broadcast, sizes from other inputs.

A rule keeps expressions, which onnx's own inference loses (`N+3` becomes an unknown), and answers None
where it does not understand; the node then goes to onnx. Each is asked once per distinct (operator,
attributes, types). Formulas are those of the ONNX operator specification (opsets 1 to 26), for
onnxruntime's operators, of which onnx's inference knows nothing, of its `docs/ContribOperators.md`.
"""

from __future__ import annotations

from typing import Any

from explorer.engine.operators.call import UNKNOWN, Answer, Call, ShapeRule
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def int_attributes(call: Call, name: str, index: int) -> list[Any] | None:
    """Integers that older opsets give as an attribute and newer ones as an input; None if unknown.

    Raises:
        LookupError: It is not given at all.
    """
    attribute = call.ints(name)
    if attribute is not None:
        return list(attribute)
    if call.has(index):
        elements = call.elements(index)
        return None if elements is None else list(elements)
    raise LookupError(name)


def axis_of(axis: Any, rank: int) -> int:
    """An axis counted from the front.

    Raises:
        IndexError: There is no such axis.
    """
    if not isinstance(axis, int) or not -rank <= axis < rank:
        raise IndexError(axis)
    return axis % rank


def broadcast(*shapes: Shape | None) -> Shape | None:
    """The shape that all broadcast to; None if the rank of one is unknown.

    Raises:
        ValueError: They do not fit together.
    """
    if len(shapes) == 2 and shapes[0] == shapes[1]:
        # an unknown dimension may be 1 in one shape and not in the other
        return shapes[0]
    if any(s is None for s in shapes):
        return None
    rank = max(len(s) for s in shapes if s is not None)
    result: list[Dim] = []
    for at in range(-rank, 0):
        size: Dim = 1
        for shape in shapes:
            assert shape is not None
            if -at > len(shape) or shape[at] == 1 or shape[at] == size:
                continue
            dim = shape[at]
            if size == 1:
                size = dim
            elif isinstance(size, int) and isinstance(dim, int):
                raise ValueError(f"{size} against {dim}")
            elif isinstance(size, int) or isinstance(dim, int):
                # a number above 1 wins over a name, which is then that number or 1
                size = size if isinstance(size, int) else dim
            else:
                size = dims.greatest(size, dim)
        result.append(size)
    return tuple(result)


def first(call: Call) -> Answer:
    """The first output like the first input; others are not known here."""
    return (call.type(0),) if call.count == 1 else None


def like(*places: int, dtype: str | int | None = None) -> ShapeRule:
    """Each output like the input at its place; of further ones nothing is known."""

    def rule(call: Call) -> Answer:
        types = [call.type(at) for at in places]
        if dtype is not None:
            types[0] = call.dtype(dtype), types[0][1]
        return [*types, *[UNKNOWN] * call.count][: call.count]

    return rule


def sized(*sizes: tuple[int, int] | str | int, dtype: str | int = 0) -> ShapeRule:
    """One output, each size the axis of an input, an attribute, or a number; of others nothing is known."""

    def rule(call: Call) -> Answer:
        shape: list[Dim] = []
        for size in sizes:
            if isinstance(size, tuple):
                source = call.known(size[0])
                shape.append(None if source is None else source[size[1]])
            else:
                shape.append(call.whole(size, -1) if isinstance(size, str) else size)
        return [(call.dtype(dtype), tuple(shape)), *[UNKNOWN] * call.count][: call.count]

    return rule


def together(*places: int, dtype: str | int = 0) -> ShapeRule:
    """Some inputs broadcast."""

    def rule(call: Call) -> Answer:
        return ((call.dtype(dtype), broadcast(*(call.known(i) for i in places))),)

    return rule


def size_of(value: Any) -> Dim:
    """A size from an element of a shape.

    Raises:
        ValueError: It is negative.
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
    """The sizes that an input holds; None if not even their number is known."""
    content = call.elements(index)
    if content is not None:
        return tuple(map(size_of, content))
    shape = call.known(index)
    if shape is not None and len(shape) == 1 and isinstance(shape[0], int) and shape[0] <= 64:
        return (None,) * shape[0]
    return None


def window_places(call: Call, sizes: Shape, kernel: Shape, *, ceil: bool = False) -> list[Dim] | None:
    """How many places a window takes on each axis: floor((size + pads - reach) / stride) + 1."""
    rank = len(sizes)
    strides = call.ints("strides") or (1,) * rank
    dilations = call.ints("dilations") or (1,) * rank
    pads = call.ints("pads") or (0,) * (2 * rank)
    auto = call.attributes.get("auto_pad", "NOTSET") or "NOTSET"
    if not (len(kernel) == len(strides) == len(dilations) == rank == len(pads) / 2) or min(strides) < 1:
        return None
    result: list[Dim] = []
    for at, (size, taps) in enumerate(zip(sizes, kernel, strict=True)):
        stride = strides[at]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            result.append(dims.ceil_div(size, stride))
            continue
        before, after = (pads[at], pads[at + rank]) if auto == "NOTSET" else (0, 0)
        reach = dims.add(dims.multiply(dims.subtract(taps, 1), dilations[at]), 1)
        room = dims.subtract(dims.add(size, before + after), reach)
        steps = dims.ceil_div(room, stride) if ceil else dims.floor_div(room, stride)
        if ceil and isinstance(reach, int) and after + stride > reach:
            # omit a window that would begin behind the data
            steps = dims.least(steps, dims.floor_div(dims.add(size, before - 1), stride))
        places = dims.add(steps, 1)
        if isinstance(places, int) and places < 0:
            return None
        result.append(places)
    return result
