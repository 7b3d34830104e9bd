"""Computes small values in TensorFlow Lite models with the operators that converters use for shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

MAX_ELEMENTS = 1 << 10
"""Maximum number of elements of a value whose contents are computed."""


def _import_numpy() -> Any:
    import numpy as np

    return np


def _compute_strided_slice(
    options: Mapping[str, Any], source: Array, begins: Array, ends: Array, strides: Array
) -> Array:
    if options.get("ellipsis_mask") or options.get("new_axis_mask") or options.get("offset"):
        raise ValueError
    index: list[Any] = []
    for axis, (first, last, step) in enumerate(zip(begins, ends, strides, strict=True)):
        mask = 1 << axis
        if options.get("shrink_axis_mask", 0) & mask:
            index.append(int(first))
            continue
        index.append(
            slice(
                None if options.get("begin_mask", 0) & mask else int(first),
                None if options.get("end_mask", 0) & mask else int(last),
                int(step),
            )
        )
    part: Array = source[tuple(index)]
    return part


def _compute_segment_product(_: Mapping[str, Any], source: Array, segment_ids: Array, count: Array) -> Array:
    np = _import_numpy()
    products: Array = np.ones(int(count.reshape(-1)[0]), source.dtype)
    np.multiply.at(products, segment_ids, source)
    return products


def _compute_fill(_: Mapping[str, Any], shape: Array, value: Array) -> Array:
    if math.prod(int(d) for d in shape.reshape(-1)) > MAX_ELEMENTS:
        raise ValueError
    array: Array = _import_numpy().full(tuple(shape.reshape(-1)), value.reshape(-1)[0])
    return array


def _compute_range(_: Mapping[str, Any], start: Array, stop: Array, step: Array) -> Array:
    first, last, increment = (a.reshape(-1)[0] for a in (start, stop, step))
    if abs((float(last) - float(first)) / float(increment)) > MAX_ELEMENTS:
        raise ValueError
    array: Array = _import_numpy().arange(first, last, increment)
    return array


def _make_reduction(name: str) -> Callable[..., Any]:
    """Returns the function of an operator that reduces axes with the numpy function `name`."""

    def reduce(options: Mapping[str, Any], source: Array, axes: Array) -> Any:
        axis = tuple(int(n) for n in axes.reshape(-1))
        return getattr(_import_numpy(), name)(source, axis=axis, keepdims=bool(options.get("keep_dims")))

    return reduce


def _make_elementwise(name: str) -> Callable[..., Any]:
    """Returns the function of an operator that applies the numpy function `name` to its inputs."""
    return lambda _, *arrays: getattr(_import_numpy(), name)(*arrays)


CONTENTS: Mapping[str, Callable[..., Any]] = {
    "SHAPE": lambda _, source: source.shape,
    "ADD": _make_elementwise("add"),
    "SUB": _make_elementwise("subtract"),
    "MUL": _make_elementwise("multiply"),
    "FLOOR_DIV": _make_elementwise("floor_divide"),
    "FLOOR_MOD": _make_elementwise("mod"),
    "MAXIMUM": _make_elementwise("maximum"),
    "MINIMUM": _make_elementwise("minimum"),
    "EQUAL": _make_elementwise("equal"),
    "NOT_EQUAL": _make_elementwise("not_equal"),
    "LESS": _make_elementwise("less"),
    "GREATER": _make_elementwise("greater"),
    "SELECT": _make_elementwise("where"),
    "SELECT_V2": _make_elementwise("where"),
    "NEG": _make_elementwise("negative"),
    "CAST": lambda at, source: source.astype(at.get("out_data_type", source.dtype)),
    "PACK": lambda at, *arrays: _import_numpy().stack(arrays, at["axis"]),
    "CONCATENATION": lambda at, *arrays: _import_numpy().concatenate(arrays, at["axis"]),
    "GATHER": lambda options, source, indices: _import_numpy().take(source, indices, options.get("axis", 0)),
    "STRIDED_SLICE": _compute_strided_slice,
    "SLICE": lambda _, source, begin, size: source[
        tuple([slice(int(b), None if n == -1 else int(b + n)) for b, n in zip(begin, size, strict=True)])
    ],
    "RESHAPE": lambda at, source, *shape: source.reshape(
        tuple(shape[0].reshape(-1)) if shape else at["new_shape"]
    ),
    "SQUEEZE": lambda at, source: source.squeeze(tuple(at.get("squeeze_dims", ())) or None),
    "EXPAND_DIMS": lambda _, source, axis: _import_numpy().expand_dims(source, int(axis.reshape(-1)[0])),
    "TRANSPOSE": lambda _, source, order: source.transpose(tuple(order)),
    "REDUCE_PROD": _make_reduction("prod"),
    "SUM": _make_reduction("sum"),
    "REDUCE_MAX": _make_reduction("max"),
    "REDUCE_MIN": _make_reduction("min"),
    "UNSORTED_SEGMENT_PROD": _compute_segment_product,
    "FILL": _compute_fill,
    "RANGE": _compute_range,
    "BROADCAST_ARGS": lambda _, a, b: _import_numpy().broadcast_shapes(tuple(a), tuple(b)),
}
"""Functions that compute the output of an operator from its options and the contents of its inputs.

They raise errors for malformed operands, unsupported options, and results known to be too large.
"""
