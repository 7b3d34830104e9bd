"""Compares weights that another tool folded with the expected weights, within rounding errors."""

from __future__ import annotations

import numpy as np

from explorer.base.units import shape_text
from explorer.engine.fold.tensors import FLOATS, Array, iterate_slabs
from explorer.engine.graph.model import Tensor

_UNITS = 8
"""Allowed difference in half units in the last place of the weight's type. A tool that folds a
BatchNormalization rounds in a square root, a division, two products and a sum. The remaining units allow for
a different order of these operations."""


def describe_folded_change(
    name: str, expected: Tensor, actual_tensor: Tensor, magnitude: Array | None
) -> str:
    """Describes how a weight differs from the expected weight beyond rounding; '' if it does not.

    Args:
        name: Name of the weight.
        expected: Weight that this program folded.
        actual_tensor: Weight in the other graph.
        magnitude: Sum of the absolute terms of each element, which scales its tolerance, or None to use the
            absolute value of the element.
    """
    shapes = [tuple(n for n in tensor.shape if n != 1) for tensor in (expected, actual_tensor)]
    if expected.dtype != actual_tensor.dtype or shapes[0] != shapes[1]:
        descriptions = [f"{shape_text(tensor.shape)} {tensor.dtype}" for tensor in (actual_tensor, expected)]
        return f"weight {name} is {descriptions[0]}, and folded it would be {descriptions[1]}"
    if expected.dtype not in FLOATS or not expected.shape:
        is_equal = np.array_equal(expected.array(), actual_tensor.array().reshape(expected.shape))
        return "" if is_equal else f"weight {name} differs"
    numbers = np.finfo(expected.dtype)
    unit, smallest = float(numbers.eps) / 2, float(numbers.smallest_subnormal)
    actual = actual_tensor.array().reshape(expected.shape)
    for part, values in iterate_slabs(expected):
        scale = np.abs(values) if magnitude is None else np.broadcast_to(magnitude, expected.shape)[part]
        actual_values = actual[part].astype(np.float64)
        with np.errstate(all="ignore"):
            differs = ~(np.abs(actual_values - values) <= _UNITS * unit * scale + smallest) & (
                actual_values != values
            )
        if differs.any():
            offset = tuple(int(i) for i in np.argwhere(differs)[0])
            index_text = ", ".join(map(str, (part.start + offset[0], *offset[1:])))
            actual, folded = actual_values[offset], values[offset]
            return f"weight {name} is {actual:.6g} at [{index_text}], and folded it would be {folded:.6g}"
    return ""
