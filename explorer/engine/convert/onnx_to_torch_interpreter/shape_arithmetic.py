"""Shape arithmetic on small integers, as Python numbers instead of tensors.

In ONNX, shapes, indices and axes pass through the same operators as data. If they were tensors, the
interpreter would have to read their values during the run, and torch.export could not leave a dimension open.
A Python number can also be a torch symbol, which this arithmetic keeps. The numbers are in numpy arrays:
numpy does the indexing and broadcasting, and Python operators do the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from explorer.engine.operators.shape_rules import get_slice

HostArray = np.ndarray[Any, Any]
"""Array in host memory: of dtype object (Python numbers and torch symbols), or of integers or booleans."""
Rule = Callable[[Mapping[str, Any], Sequence[Any]], Any]
"""Returns the result of an operator from its attributes and its inputs (None for an omitted input)."""

_INTEGER_TYPES = 6, 7
"""ONNX's codes of int32 and int64."""

_MAX_ELEMENTS = 64
"""Largest array that ConstantOfShape creates here; torch creates larger ones."""


def convert_to_host(values: Any) -> HostArray:
    """Converts numbers or torch symbols to an object array. An array stays unchanged."""
    if isinstance(values, np.ndarray):
        return values
    if isinstance(values, (list, tuple)):
        array = np.empty(len(values), object)
        for index, value in enumerate(values):
            array[index] = value
        return array
    array = np.empty((), object)
    array[()] = values
    return array


def _convert_to_objects(value: Any) -> HostArray:
    objects: HostArray = value if value.dtype == object else value.astype(object)
    return objects


def _make_elementwise_rule(function: Callable[..., Any]) -> Rule:
    """Makes a rule that applies a function to each element, with numpy's broadcasting."""

    def rule(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray:
        arrays = np.broadcast_arrays(*(_convert_to_objects(a) for a in args))
        result = np.empty(arrays[0].shape, object)
        for index in np.ndindex(result.shape):
            result[index] = function(*(a[index] for a in arrays))
        return result

    return rule


def _make_pairwise_rule(function: Callable[[Any, Any], Any]) -> Rule:
    """Makes a rule that combines any number of inputs element by element, two at a time."""
    return lambda attributes, args: reduce(lambda a, b: _make_elementwise_rule(function)({}, (a, b)), args)


def _divide(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        return a / b
    # ONNX rounds toward zero; a symbol is a size and thus not negative
    return -(-a // b) if isinstance(a, int) and isinstance(b, int) and (a < 0) != (b < 0) else a // b


def _read_axes(attributes: Mapping[str, Any], args: Sequence[Any]) -> tuple[int, ...] | None:
    if len(args) > 1 and args[1] is not None:
        return tuple(int(a) for a in args[1].reshape(-1))
    axes = attributes.get("axes")
    return None if axes is None else tuple(axes)


def _gather(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray:
    elements: Any = np.take(args[0], args[1].astype(np.int64), axis=attributes.get("axis", 0))
    return convert_to_host(elements)


def _slice(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray | None:
    array = args[0]
    if len(args) < 3:
        starts, ends = attributes["starts"], attributes["ends"]
        axes, steps = attributes.get("axes"), None
    else:
        starts, ends, axes, steps = ([*args[1:], None, None])[:4]
    axes = range(len(starts)) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    slices: list[Any] = [slice(None)] * array.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        part = get_slice(int(start), int(end), int(step), array.shape[int(axis)])
        if part is None:
            return None
        slices[int(axis)] = part
    return np.asarray(array[tuple(slices)])


def _reshape(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray:
    shape = [int(s) for s in args[1].reshape(-1)]
    array: HostArray = args[0]
    return array.reshape([array.shape[i] if s == 0 else s for i, s in enumerate(shape)])


def _make_reduction_rule(function: Callable[[Any, Any], Any], initial: Any) -> Rule:
    """Makes a rule that reduces a list, from `initial` on, or from the first element if `initial` is None.

    The rule returns None for an array of another rank.
    """

    def rule(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray | None:
        axes = _read_axes(attributes, args)
        if args[0].ndim != 1 or (axes is not None and axes not in ((0,), (-1,))):
            return None
        values = list(args[0])
        start = values.pop(0) if initial is None and values else initial
        total = reduce(function, values, start)
        return convert_to_host([total]) if attributes.get("keepdims", 1) else convert_to_host(total)

    return rule


def _range(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray | None:
    values = [a.reshape(-1)[0] for a in args]
    if not all(isinstance(v, (int, np.integer)) for v in values):
        return None  # the length depends on a symbol
    return np.arange(*(int(v) for v in values))


def _constant_of_shape(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray | None:
    value = attributes.get("value")
    sizes = list(args[0].reshape(-1))
    is_small = len(sizes) <= 1 and all(isinstance(s, (int, np.integer)) and s <= _MAX_ELEMENTS for s in sizes)
    if value is None or not is_small or value.dtype not in ("int64", "int32", "bool"):
        return None
    return np.full([int(s) for s in sizes], value.array().reshape(-1)[0], object)


def _where(attributes: Mapping[str, Any], args: Sequence[Any]) -> HostArray | None:
    if any(not isinstance(c, (bool, np.bool_)) for c in args[0].reshape(-1)):
        return None
    return np.where(args[0].astype(bool), _convert_to_objects(args[1]), _convert_to_objects(args[2]))


RULES: Mapping[str, Rule] = {
    "Add": _make_elementwise_rule(lambda a, b: a + b),
    "And": _make_elementwise_rule(lambda a, b: bool(a) and bool(b)),
    "Cast": lambda attributes, args: (
        args[0] if attributes.get("to") in _INTEGER_TYPES and args[0].dtype != bool else None
    ),
    "Concat": lambda attributes, args: np.concatenate(
        [_convert_to_objects(a) for a in args], attributes["axis"]
    ),
    "ConstantOfShape": _constant_of_shape,
    "Div": _make_elementwise_rule(_divide),
    "Equal": _make_elementwise_rule(lambda a, b: a == b),
    "Gather": _gather,
    "Greater": _make_elementwise_rule(lambda a, b: a > b),
    "GreaterOrEqual": _make_elementwise_rule(lambda a, b: a >= b),
    "Identity": lambda attributes, args: args[0],
    "Less": _make_elementwise_rule(lambda a, b: a < b),
    "LessOrEqual": _make_elementwise_rule(lambda a, b: a <= b),
    "Max": _make_pairwise_rule(lambda a, b: a if a >= b else b),
    "Min": _make_pairwise_rule(lambda a, b: a if a <= b else b),
    "Mod": _make_elementwise_rule(lambda a, b: a % b),
    "Mul": _make_elementwise_rule(lambda a, b: a * b),
    "Neg": _make_elementwise_rule(lambda a: -a),
    "Not": _make_elementwise_rule(lambda a: not a),
    "Or": _make_elementwise_rule(lambda a, b: bool(a) or bool(b)),
    "Range": _range,
    "ReduceMax": _make_reduction_rule(max, None),
    "ReduceMin": _make_reduction_rule(min, None),
    "ReduceProd": _make_reduction_rule(lambda a, b: a * b, 1),
    "ReduceSum": _make_reduction_rule(lambda a, b: a + b, 0),
    "Reshape": _reshape,
    "Shape": lambda attributes, args: convert_to_host(list(args[0].shape)),
    "Size": lambda attributes, args: convert_to_host(args[0].size),
    "Slice": _slice,
    "Squeeze": lambda attributes, args: np.asarray(np.squeeze(args[0], _read_axes(attributes, args))),
    "Sub": _make_elementwise_rule(lambda a, b: a - b),
    "Unsqueeze": lambda attributes, args: np.asarray(
        np.expand_dims(args[0], _read_axes(attributes, args) or ())
    ),
    "Where": _where,
}
"""Rules for operators on sizes. If a rule returns None, torch runs the node."""
