"""Constants of TensorFlow Lite: operators on small values, with which converters compute shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

LARGEST = 1 << 10
"""Elements of a value up to which its contents are followed."""


def _np() -> Any:
    import numpy as np

    return np


def _cut(at: Mapping[str, Any], source: Array, begins: Array, ends: Array, strides: Array) -> Array:
    if at.get("ellipsis_mask") or at.get("new_axis_mask") or at.get("offset"):
        raise ValueError
    index: list[Any] = []
    for axis, (first, last, step) in enumerate(zip(begins, ends, strides, strict=True)):
        bit = 1 << axis
        if at.get("shrink_axis_mask", 0) & bit:
            index.append(int(first))
            continue
        index.append(
            slice(
                None if at.get("begin_mask", 0) & bit else int(first),
                None if at.get("end_mask", 0) & bit else int(last),
                int(step),
            )
        )
    part: Array = source[tuple(index)]
    return part


def _segment_product(_: Mapping[str, Any], source: Array, places: Array, count: Array) -> Array:
    np = _np()
    products: Array = np.ones(int(count.reshape(-1)[0]), source.dtype)
    np.multiply.at(products, places, source)
    return products


def _filled(_: Mapping[str, Any], shape: Array, value: Array) -> Array:
    if math.prod(int(d) for d in shape.reshape(-1)) > LARGEST:
        raise ValueError
    array: Array = _np().full(tuple(shape.reshape(-1)), value.reshape(-1)[0])
    return array


def _counted(_: Mapping[str, Any], start: Array, stop: Array, step: Array) -> Array:
    first, last, by = (a.reshape(-1)[0] for a in (start, stop, step))
    if abs((float(last) - float(first)) / float(by)) > LARGEST:
        raise ValueError
    array: Array = _np().arange(first, last, by)
    return array


def _reduced(name: str) -> Callable[..., Any]:
    def fold(at: Mapping[str, Any], source: Array, axes: Array) -> Any:
        axis = tuple(int(n) for n in axes.reshape(-1))
        return getattr(_np(), name)(source, axis=axis, keepdims=bool(at.get("keep_dims")))

    return fold


def _of(name: str) -> Callable[..., Any]:
    return lambda _, *arrays: getattr(_np(), name)(*arrays)


CONTENTS: Mapping[str, Callable[..., Any]] = {
    "SHAPE": lambda _, source: source.shape,
    "ADD": _of("add"),
    "SUB": _of("subtract"),
    "MUL": _of("multiply"),
    "FLOOR_DIV": _of("floor_divide"),
    "FLOOR_MOD": _of("mod"),
    "MAXIMUM": _of("maximum"),
    "MINIMUM": _of("minimum"),
    "EQUAL": _of("equal"),
    "NOT_EQUAL": _of("not_equal"),
    "LESS": _of("less"),
    "GREATER": _of("greater"),
    "SELECT": _of("where"),
    "SELECT_V2": _of("where"),
    "NEG": _of("negative"),
    "CAST": lambda at, source: source.astype(at.get("out_data_type", source.dtype)),
    "PACK": lambda at, *arrays: _np().stack(arrays, at["axis"]),
    "CONCATENATION": lambda at, *arrays: _np().concatenate(arrays, at["axis"]),
    "GATHER": lambda at, source, places: _np().take(source, places, at.get("axis", 0)),
    "STRIDED_SLICE": _cut,
    "SLICE": lambda _, source, begin, size: source[
        tuple([slice(int(b), None if n == -1 else int(b + n)) for b, n in zip(begin, size, strict=True)])
    ],
    "RESHAPE": lambda at, source, *shape: source.reshape(
        tuple(shape[0].reshape(-1)) if shape else at["new_shape"]
    ),
    "SQUEEZE": lambda at, source: source.squeeze(tuple(at.get("squeeze_dims", ())) or None),
    "EXPAND_DIMS": lambda _, source, axis: _np().expand_dims(source, int(axis.reshape(-1)[0])),
    "TRANSPOSE": lambda _, source, order: source.transpose(tuple(order)),
    "REDUCE_PROD": _reduced("prod"),
    "SUM": _reduced("sum"),
    "REDUCE_MAX": _reduced("max"),
    "REDUCE_MIN": _reduced("min"),
    "UNSORTED_SEGMENT_PROD": _segment_product,
    "FILL": _filled,
    "RANGE": _counted,
    "BROADCAST_ARGS": lambda _, a, b: _np().broadcast_shapes(tuple(a), tuple(b)),
}
"""What an operator makes of small values: its options, then what its inputs hold."""
