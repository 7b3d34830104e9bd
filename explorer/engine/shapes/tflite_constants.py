"""Contents of small values in TensorFlow Lite models: the operators that converters use to compute shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LARGEST = 1 << 10
"""Maximum number of elements of a value whose contents are computed."""


def _np() -> Any:
    import numpy as np

    return np


def _strided_slice(
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


def _segment_product(_: Mapping[str, Any], source: Array, segment_ids: Array, count: Array) -> Array:
    np = _np()
    products: Array = np.ones(int(count.reshape(-1)[0]), source.dtype)
    np.multiply.at(products, segment_ids, source)
    return products


def _fill(_: Mapping[str, Any], shape: Array, value: Array) -> Array:
    if math.prod(int(d) for d in shape.reshape(-1)) > LARGEST:
        raise ValueError
    array: Array = _np().full(tuple(shape.reshape(-1)), value.reshape(-1)[0])
    return array


def _range(_: Mapping[str, Any], start: Array, stop: Array, step: Array) -> Array:
    first, last, increment = (a.reshape(-1)[0] for a in (start, stop, step))
    if abs((float(last) - float(first)) / float(increment)) > LARGEST:
        raise ValueError
    array: Array = _np().arange(first, last, increment)
    return array


def _reduction(name: str) -> Callable[..., Any]:
    def fold(at: Mapping[str, Any], source: Array, axes: Array) -> Any:
        axis = tuple(int(n) for n in axes.reshape(-1))
        return getattr(_np(), name)(source, axis=axis, keepdims=bool(at.get("keep_dims")))

    return fold


def _numpy_function(name: str) -> Callable[..., Any]:
    return lambda _, *arrays: getattr(_np(), name)(*arrays)


CONTENTS: Mapping[str, Callable[..., Any]] = {
    "SHAPE": lambda _, source: source.shape,
    "ADD": _numpy_function("add"),
    "SUB": _numpy_function("subtract"),
    "MUL": _numpy_function("multiply"),
    "FLOOR_DIV": _numpy_function("floor_divide"),
    "FLOOR_MOD": _numpy_function("mod"),
    "MAXIMUM": _numpy_function("maximum"),
    "MINIMUM": _numpy_function("minimum"),
    "EQUAL": _numpy_function("equal"),
    "NOT_EQUAL": _numpy_function("not_equal"),
    "LESS": _numpy_function("less"),
    "GREATER": _numpy_function("greater"),
    "SELECT": _numpy_function("where"),
    "SELECT_V2": _numpy_function("where"),
    "NEG": _numpy_function("negative"),
    "CAST": lambda at, source: source.astype(at.get("out_data_type", source.dtype)),
    "PACK": lambda at, *arrays: _np().stack(arrays, at["axis"]),
    "CONCATENATION": lambda at, *arrays: _np().concatenate(arrays, at["axis"]),
    "GATHER": lambda options, source, indices: _np().take(source, indices, options.get("axis", 0)),
    "STRIDED_SLICE": _strided_slice,
    "SLICE": lambda _, source, begin, size: source[
        tuple([slice(int(b), None if n == -1 else int(b + n)) for b, n in zip(begin, size, strict=True)])
    ],
    "RESHAPE": lambda at, source, *shape: source.reshape(
        tuple(shape[0].reshape(-1)) if shape else at["new_shape"]
    ),
    "SQUEEZE": lambda at, source: source.squeeze(tuple(at.get("squeeze_dims", ())) or None),
    "EXPAND_DIMS": lambda _, source, axis: _np().expand_dims(source, int(axis.reshape(-1)[0])),
    "TRANSPOSE": lambda _, source, order: source.transpose(tuple(order)),
    "REDUCE_PROD": _reduction("prod"),
    "SUM": _reduction("sum"),
    "REDUCE_MAX": _reduction("max"),
    "REDUCE_MIN": _reduction("min"),
    "UNSORTED_SEGMENT_PROD": _segment_product,
    "FILL": _fill,
    "RANGE": _range,
    "BROADCAST_ARGS": lambda _, a, b: _np().broadcast_shapes(tuple(a), tuple(b)),
}
"""Functions that compute the output of an operator from its options and the contents of its inputs."""
