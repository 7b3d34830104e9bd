"""Folded weights from another tool, compared with the expected ones, within the tool's roundings."""

from __future__ import annotations

import numpy as np

from explorer.base.units import shape_text
from explorer.engine.fold.tensors import FLOATS, Array, slabs
from explorer.engine.graph.model import Tensor

_UNITS = 8
"""Roundings, each of half a unit in the last place, that a tool may make in the weight's own type: square
root, division, two products and a sum, and some more for another order."""


def folded_change(name: str, expected: Tensor, there: Tensor, size: Array | None) -> str:
    """The difference of a weight from the expected one, beyond rounding; '' without one.

    Args:
        name: Name of the weight.
        expected: The expected weight.
        there: The weight of the other side.
        size: The size of the terms that each element adds up; None for the element itself.
    """
    shapes = [tuple(n for n in tensor.shape if n != 1) for tensor in (expected, there)]
    if expected.dtype != there.dtype or shapes[0] != shapes[1]:
        kinds = [f"{shape_text(tensor.shape)} {tensor.dtype}" for tensor in (there, expected)]
        return f"weight {name} is {kinds[0]}, and folded it would be {kinds[1]}"
    if expected.dtype not in FLOATS or not expected.shape:
        same = np.array_equal(expected.array(), there.array().reshape(expected.shape))
        return "" if same else f"weight {name} differs"
    numbers = np.finfo(expected.dtype)
    unit, least = float(numbers.eps) / 2, float(numbers.smallest_subnormal)
    actual = there.array().reshape(expected.shape)
    for part, values in slabs(expected):
        large = np.abs(values) if size is None else np.broadcast_to(size, expected.shape)[part]
        beside = actual[part].astype(np.float64)
        with np.errstate(all="ignore"):
            far = ~(np.abs(beside - values) <= _UNITS * unit * large + least) & (beside != values)
        if far.any():
            at = tuple(int(i) for i in np.argwhere(far)[0])
            place = ", ".join(map(str, (part.start + at[0], *at[1:])))
            return f"weight {name} is {beside[at]:.6g} at [{place}], and folded it would be {values[at]:.6g}"
    return ""
