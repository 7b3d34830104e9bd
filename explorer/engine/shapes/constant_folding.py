"""Constant folding: computes small values that are known without a run, such as shapes and axes.

Exporters compute target shapes from input shapes with a dozen operators, and onnx's inference supports only
some of them. Once the input shapes are numbers, these values are constant. Folding them makes the outputs of
Reshape, Expand and Range static. Large values are never computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from explorer.base.errors import BadModel
from explorer.engine.graph.model import DTYPES, Graph, Node, Tensor

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LARGEST = 1024
"""Maximum number of elements of a computed value."""

LARGEST_FLOATS = 16


def collect_small_constants(graph: Graph) -> dict[str, Array]:
    """Returns small initializers and the values of Constant nodes, by name."""
    arrays = {tensor.name: content(tensor) for tensor in graph.initializers.values()}
    for node in graph.nodes:
        if node.op == "Constant" and not node.domain and len(node.outputs) == 1:
            arrays[node.outputs[0]] = constant(node)
    return {name: value for name, value in arrays.items() if value is not None}


def content(tensor: Tensor) -> Array | None:
    """Returns the values of a small tensor, or None if it is large, has no data, or holds no numbers."""
    # large float tensors are weights; a scale or a limit is small
    largest = LARGEST_FLOATS if "float" in tensor.dtype else LARGEST
    if tensor.payload is None or tensor.elements > largest or tensor.dtype not in _NUMPY:
        return None
    try:
        return tensor.array()
    except BadModel:
        return None  # a tensor without data is unknown


_NUMPY = frozenset(
    d.name for d in DTYPES.values() if d.bits >= 8 and not d.name.startswith(("bfloat", "float8"))
)


def constant(node: Node) -> Array | None:
    """Returns the value of a Constant node, or None if it is large, sparse, or not numeric."""
    import numpy as np

    for name, value in node.attributes.items():
        if name == "value" and isinstance(value, Tensor):
            return content(value)
        dtype = {"value_int": np.int64, "value_float": np.float32}.get(name.removesuffix("s"))
        if dtype is not None and np.size(value) <= LARGEST:
            try:
                return np.array(value, dtype)
            except (TypeError, ValueError, OverflowError):
                return None
    return None


def _np() -> Any:
    import numpy

    return numpy


def _shape(attributes: Mapping[str, Any], shape: Array) -> Array:
    return shape[attributes.get("start", 0) : attributes.get("end", len(shape))]


def _cast(attributes: Mapping[str, Any], x: Array) -> Array | None:
    name = DTYPES[attributes["to"]].name
    return x.astype(name) if name in _NUMPY else None


def _axes(attributes: Mapping[str, Any], axes: Array | None) -> tuple[int, ...] | None:
    source = attributes.get("axes") if axes is None else axes
    return None if source is None else tuple(int(a) for a in source)


def _unsqueeze(attributes: Mapping[str, Any], x: Array, axes: Array | None = None) -> Array:
    new_axes = _axes(attributes, axes) or ()
    rank = x.ndim + len(new_axes)
    for axis in sorted(a % rank for a in new_axes):
        x = _np().expand_dims(x, axis)
    return x


def _squeeze(attributes: Mapping[str, Any], x: Array, axes: Array | None = None) -> Any:
    return x.squeeze(_axes(attributes, axes))


def _slice(
    attributes: Mapping[str, Any],
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    begin = attributes["starts"] if starts is None else starts.tolist()
    end = attributes["ends"] if ends is None else ends.tolist()
    sliced_axes = _axes(attributes, axes) or range(len(begin))
    step_list = [1] * len(begin) if steps is None else steps.tolist()
    index = [slice(None)] * x.ndim
    for a, b, e, s in zip(sliced_axes, begin, end, step_list, strict=True):
        # with a negative step, the smallest integer as an end means "including element 0"
        index[a] = slice(b, None if s < 0 and e < -x.shape[a] else e, s)
    return x[tuple(index)]


def _div(_: Mapping[str, Any], a: Array, b: Array) -> Any:
    if a.dtype.kind in "iu":
        # ONNX truncates toward zero
        return _np().trunc(_np().true_divide(a, b)).astype(a.dtype)
    return a / b


def _range(_: Mapping[str, Any], start: Array, limit: Array, delta: Array) -> Any:
    if (limit.item() - start.item()) / delta.item() > LARGEST:
        return None
    return _np().arange(start.item(), limit.item(), delta.item(), start.dtype)


def _constant_of_shape(attributes: Mapping[str, Any], shape: Array) -> Any:
    sizes = [int(d) for d in shape.tolist()]
    if math.prod(sizes) > LARGEST:
        return None
    value = attributes.get("value")
    fill = value.array().reshape(()) if isinstance(value, Tensor) else _np().float32(0)
    return _np().full(sizes, fill)


def _expand(_: Mapping[str, Any], x: Array, shape: Array) -> Array | None:
    np = _np()
    target = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    return None if np.prod(target) > LARGEST else np.broadcast_to(x, target)


def _reshape(_: Mapping[str, Any], x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[i] if d == 0 else int(d) for i, d in enumerate(shape)])


def _reduce(name: str) -> Callable[..., Array]:
    def reduce(attributes: Mapping[str, Any], x: Array, axes: Array | None = None) -> Any:
        keep = bool(attributes.get("keepdims", 1))
        value = getattr(_np(), name)(x, axis=_axes(attributes, axes), keepdims=keep)
        return _np().asarray(value, x.dtype)

    return reduce


def _binary(name: str) -> Callable[..., Array]:
    return lambda _, *xs: _np().asarray(getattr(_np(), name)(*xs))


FOLDABLE: Mapping[str, Callable[..., Array | None]] = {
    "Shape": _shape,
    "Size": lambda _, shape: _np().asarray(shape.prod(dtype="int64")),
    "Identity": lambda _, x: x,
    "Cast": _cast,
    "Gather": lambda at, x, i: _np().asarray(_np().take(x, i, axis=at.get("axis", 0))),
    "Concat": lambda at, *xs: _np().concatenate(xs, axis=at["axis"]),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Reshape": _reshape,
    "Expand": _expand,
    "Transpose": lambda at, x: x.transpose(at.get("perm")),
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Add": _binary("add"),
    "Sub": _binary("subtract"),
    "Mul": _binary("multiply"),
    "Div": _div,
    "Mod": lambda at, a, b: _np().asarray((_np().fmod if at.get("fmod") else _np().mod)(a, b)),
    "Neg": _binary("negative"),
    "Abs": _binary("abs"),
    "Floor": _binary("floor"),
    "Ceil": _binary("ceil"),
    "Sqrt": _binary("sqrt"),
    "Min": lambda _, *xs: _np().minimum.reduce(_np().broadcast_arrays(*xs)),
    "Max": lambda _, *xs: _np().maximum.reduce(_np().broadcast_arrays(*xs)),
    "Equal": _binary("equal"),
    "Less": _binary("less"),
    "LessOrEqual": _binary("less_equal"),
    "Greater": _binary("greater"),
    "GreaterOrEqual": _binary("greater_equal"),
    "Not": _binary("logical_not"),
    "And": _binary("logical_and"),
    "Or": _binary("logical_or"),
    "Where": _binary("where"),
    "ReduceProd": _reduce("prod"),
    "ReduceSum": _reduce("sum"),
    "ReduceMax": _reduce("max"),
    "ReduceMin": _reduce("min"),
}
"""Functions that compute an operator's output from attributes and arguments, or None if it is too large."""
