"""Folds constants: computes small values that are known without a run, such as shapes and axes.

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
from explorer.engine.operators.shape_rules import get_slice

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 1024
"""Maximum number of elements of a computed value."""

MAX_FLOATS = 16
"""Maximum number of elements of a stored float tensor that is read."""


def collect_small_constants(graph: Graph) -> dict[str, Array]:
    """Returns small initializers and the values of Constant nodes, by name."""
    arrays = {tensor.name: read_small_tensor(tensor) for tensor in graph.initializers.values()}
    for node in graph.nodes:
        if node.op == "Constant" and not node.domain and len(node.outputs) == 1:
            arrays[node.outputs[0]] = read_constant(node)
    return {name: value for name, value in arrays.items() if value is not None}


def read_small_tensor(tensor: Tensor) -> Array | None:
    """Returns the values of a small tensor, or None if it is large, has no data, or numpy lacks its type."""
    # a large float tensor is a weight; a scale or a limit has few elements
    max_elements = MAX_FLOATS if "float" in tensor.dtype else MAX_ELEMENTS
    if tensor.payload is None or tensor.elements > max_elements or tensor.dtype not in _NUMPY_TYPES:
        return None
    try:
        return tensor.array()
    except BadModel:
        return None  # a tensor without data is unknown


_NUMPY_TYPES = frozenset(
    d.name for d in DTYPES.values() if d.bits >= 8 and not d.name.startswith(("bfloat", "float8"))
)
"""Element types that numpy supports without ml_dtypes."""


def read_constant(node: Node) -> Array | None:
    """Returns the value of a Constant node, or None if it is large, sparse, or not numeric."""
    import numpy as np

    for name, value in node.attributes.items():
        if name == "value" and isinstance(value, Tensor):
            return read_small_tensor(value)
        dtype = {"value_int": np.int64, "value_float": np.float32}.get(name.removesuffix("s"))
        if dtype is not None and np.size(value) <= MAX_ELEMENTS:
            try:
                return np.array(value, dtype)
            except (TypeError, ValueError, OverflowError):
                return None
    return None


def _import_numpy() -> Any:
    import numpy

    return numpy


def _fold_shape(attributes: Mapping[str, Any], shape: Array) -> Array:
    return shape[attributes.get("start", 0) : attributes.get("end", len(shape))]


def _fold_cast(attributes: Mapping[str, Any], x: Array) -> Array | None:
    name = DTYPES[attributes["to"]].name
    return x.astype(name) if name in _NUMPY_TYPES else None


def _read_axes(attributes: Mapping[str, Any], axes: Array | None) -> tuple[int, ...] | None:
    source = attributes.get("axes") if axes is None else axes
    return None if source is None else tuple(int(a) for a in source)


def _fold_unsqueeze(attributes: Mapping[str, Any], x: Array, axes: Array | None = None) -> Array:
    new_axes = _read_axes(attributes, axes) or ()
    rank = x.ndim + len(new_axes)
    for axis in sorted(a % rank for a in new_axes):
        x = _import_numpy().expand_dims(x, axis)
    return x


def _fold_squeeze(attributes: Mapping[str, Any], x: Array, axes: Array | None = None) -> Any:
    return x.squeeze(_read_axes(attributes, axes))


def _fold_slice(
    attributes: Mapping[str, Any],
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array | None:
    start_list = attributes["starts"] if starts is None else starts.tolist()
    end_list = attributes["ends"] if ends is None else ends.tolist()
    sliced_axes = _read_axes(attributes, axes) or range(len(start_list))
    step_list = [1] * len(start_list) if steps is None else steps.tolist()
    slices = [slice(None)] * x.ndim
    for axis, first, last, step in zip(sliced_axes, start_list, end_list, step_list, strict=True):
        axis_slice = get_slice(first, last, step, x.shape[axis])
        if axis_slice is None:
            return None
        slices[axis] = axis_slice
    return x[tuple(slices)]


def _fold_div(_: Mapping[str, Any], a: Array, b: Array) -> Any:
    if a.dtype.kind in "iu":
        # ONNX truncates toward zero
        return _import_numpy().trunc(_import_numpy().true_divide(a, b)).astype(a.dtype)
    return a / b


def _fold_range(_: Mapping[str, Any], start: Array, limit: Array, delta: Array) -> Any:
    if (limit.item() - start.item()) / delta.item() > MAX_ELEMENTS:
        return None
    return _import_numpy().arange(start.item(), limit.item(), delta.item(), start.dtype)


def _fold_constant_of_shape(attributes: Mapping[str, Any], shape: Array) -> Any:
    sizes = [int(d) for d in shape.tolist()]
    if math.prod(sizes) > MAX_ELEMENTS:
        return None
    value = attributes.get("value")
    fill_value = value.array().reshape(()) if isinstance(value, Tensor) else _import_numpy().float32(0)
    return _import_numpy().full(sizes, fill_value)


def _fold_expand(_: Mapping[str, Any], x: Array, shape: Array) -> Array | None:
    np = _import_numpy()
    target = np.broadcast_shapes(x.shape, tuple(int(d) for d in shape))
    return None if np.prod(target) > MAX_ELEMENTS else np.broadcast_to(x, target)


def _fold_reshape(_: Mapping[str, Any], x: Array, shape: Array) -> Array:
    return x.reshape([x.shape[i] if d == 0 else int(d) for i, d in enumerate(shape)])


def _make_reduction(name: str) -> Callable[..., Array]:
    """Returns the function of an operator that reduces axes with the numpy function `name`."""

    def reduce(attributes: Mapping[str, Any], x: Array, axes: Array | None = None) -> Any:
        keeps_dims = bool(attributes.get("keepdims", 1))
        value = getattr(_import_numpy(), name)(x, axis=_read_axes(attributes, axes), keepdims=keeps_dims)
        return _import_numpy().asarray(value, x.dtype)

    return reduce


def _make_elementwise(name: str) -> Callable[..., Array]:
    """Returns the function of an operator that applies the numpy function `name` to its inputs."""
    return lambda _, *xs: _import_numpy().asarray(getattr(_import_numpy(), name)(*xs))


FOLDABLE: Mapping[str, Callable[..., Array | None]] = {
    "Shape": _fold_shape,
    "Size": lambda _, shape: _import_numpy().asarray(shape.prod(dtype="int64")),
    "Identity": lambda _, x: x,
    "Cast": _fold_cast,
    "Gather": lambda at, x, i: _import_numpy().asarray(_import_numpy().take(x, i, axis=at.get("axis", 0))),
    "Concat": lambda at, *xs: _import_numpy().concatenate(xs, axis=at["axis"]),
    "Unsqueeze": _fold_unsqueeze,
    "Squeeze": _fold_squeeze,
    "Slice": _fold_slice,
    "Reshape": _fold_reshape,
    "Expand": _fold_expand,
    "Transpose": lambda at, x: x.transpose(at.get("perm")),
    "ConstantOfShape": _fold_constant_of_shape,
    "Range": _fold_range,
    "Add": _make_elementwise("add"),
    "Sub": _make_elementwise("subtract"),
    "Mul": _make_elementwise("multiply"),
    "Div": _fold_div,
    "Mod": lambda at, a, b: _import_numpy().asarray(
        (_import_numpy().fmod if at.get("fmod") else _import_numpy().mod)(a, b)
    ),
    "Neg": _make_elementwise("negative"),
    "Abs": _make_elementwise("abs"),
    "Floor": _make_elementwise("floor"),
    "Ceil": _make_elementwise("ceil"),
    "Sqrt": _make_elementwise("sqrt"),
    "Min": lambda _, *xs: _import_numpy().minimum.reduce(_import_numpy().broadcast_arrays(*xs)),
    "Max": lambda _, *xs: _import_numpy().maximum.reduce(_import_numpy().broadcast_arrays(*xs)),
    "Equal": _make_elementwise("equal"),
    "Less": _make_elementwise("less"),
    "LessOrEqual": _make_elementwise("less_equal"),
    "Greater": _make_elementwise("greater"),
    "GreaterOrEqual": _make_elementwise("greater_equal"),
    "Not": _make_elementwise("logical_not"),
    "And": _make_elementwise("logical_and"),
    "Or": _make_elementwise("logical_or"),
    "Where": _make_elementwise("where"),
    "ReduceProd": _make_reduction("prod"),
    "ReduceSum": _make_reduction("sum"),
    "ReduceMax": _make_reduction("max"),
    "ReduceMin": _make_reduction("min"),
}
"""Functions that compute an operator's output from attributes and arguments.

They return None for a result that is too large or has a type that numpy lacks, and raise errors for malformed
operands.
Shape and Size get the shape of their input instead of its values.
"""
