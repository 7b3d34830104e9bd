"""Computes the outputs of nodes that depend only on stored tensors and fixed sizes.

One model may compute the target of a Reshape or the initial state of a recurrent layer where another model
stores it. With its computed value, the node equals the stored tensor. Only operators with one correct result,
bit for bit, are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.graph.model import Tensor, build_tensor
from explorer.engine.proof.structure.dimension_lists import find_dimensions
from explorer.engine.proof.structure.normal_node import DimensionList, NormalNode
from explorer.engine.shapes.constant_folding import FOLDABLE, MAX_ELEMENTS

Array = np.ndarray[Any, Any]

_MAX_FILLED = 1 << 18
"""Maximum number of elements of a tensor that repeats one number."""

_MOVES = frozenset(
    ("Concat", "Expand", "Gather", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze", "Where")
)
"""Operators that copy numbers of any type."""

_INTEGER_OPERATORS = frozenset(
    ("Mod", "Min", "Max", "Not", "And", "Or", "Range", "ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")
)
"""Operators that are computed for integers and truth values only."""

_ARITHMETIC = frozenset(
    str.split("Abs Add Div Equal Greater GreaterOrEqual Less LessOrEqual Mul Neg Sqrt Sub")
)
"""Operators whose result IEEE 754 defines for floats as well."""

_MAX_EXACT = 1 << 52
"""Bound of the integers that a float64 division keeps exact."""


def compute_result(node: NormalNode) -> Tensor | None:
    """Returns the output of a node with one output, or None if it cannot be computed exactly before a run.

    Args:
        node: Node of a standard operator before normalization.
    """
    if node.domain or node.outputs != 1:
        return None
    compute = _BY_OPERATOR.get(node.op)
    try:
        with np.errstate(all="ignore"):
            result = compute(node) if compute is not None else None
        if result is None and (dimensions := find_dimensions(node)) is not None:
            result = _convert_dimensions(dimensions)
    except (BadModel, ArithmeticError, LookupError, TypeError, ValueError):
        return None  # the runtime reports a malformed node
    return None if result is None else build_tensor("", np.ascontiguousarray(result).reshape(result.shape))


def _convert_dimensions(dimensions: DimensionList) -> Array | None:
    """Converts a list of sizes to an array if none of them is open."""
    if not all(isinstance(size, int) for size in dimensions.elements):
        return None
    sizes = np.asarray(dimensions.elements, np.int64)
    return sizes.reshape(()) if dimensions.is_scalar else sizes


def _compute_sizes(node: NormalNode) -> Array | None:
    """Computes a Shape or Size of a value with fixed sizes."""
    rank = node.rank(0)
    sizes = [node.size(0, axis) for axis in range(rank or 0)]
    if rank is None or None in sizes:
        return None
    return FOLDABLE[node.op](node.attributes, np.asarray(sizes, np.int64))


def _count_elements(node: NormalNode) -> Array | None:
    """Computes the SequenceLength of a sequence of known length."""
    elements = node.sources.sequences.get(node.inputs[0])
    return None if elements is None else np.asarray(len(elements), np.int64)


def _compute_constant_fill(node: NormalNode) -> Array | None:
    """Computes a ConstantOfShape."""
    sizes, value = node.read_integers(0), node.attributes.get("value")
    if sizes is None or min(sizes, default=0) < 0 or prod(sizes) > _MAX_FILLED:
        return None
    number = value.array().reshape(()) if isinstance(value, Tensor) else np.float32(0)
    return np.full(sizes, number)


def _compute_cast(node: NormalNode) -> Array | None:
    """Computes a Cast of integers or truth values to bool, or to a type that represents them exactly."""
    number = node.read_numbers(0)
    if number is None or number.dtype.kind not in "iub":
        return None
    result = FOLDABLE["Cast"](node.attributes, number)
    is_exact = result is not None and (
        result.dtype.kind == "b" or np.array_equal(result.astype(number.dtype), number)
    )
    return result if is_exact else None


def _compute_by_folding(node: NormalNode) -> Array | None:
    """Computes an operator by constant folding, if its result is exact or defined by IEEE 754."""
    sizes = {"largest": MAX_ELEMENTS} if node.op in _MOVES else {}
    arguments = [node.read_numbers(index, **sizes) for index in range(len(node.inputs))]
    numbers = [a for a in arguments if a is not None]
    if not numbers or any(a is None and node.inputs[index] != 0 for index, a in enumerate(arguments)):
        return None
    if node.op == "Reshape" and node.attributes.get("allowzero"):
        return None
    is_exact = all(a.dtype.kind in "iub" for a in numbers)
    if node.op in _INTEGER_OPERATORS and not is_exact:
        return None
    if node.op == "Div" and is_exact and not all((np.abs(a) < _MAX_EXACT).all() for a in numbers):
        return None
    if node.op in ("Div", "Mod") and not numbers[-1].all():
        return None
    result = FOLDABLE[node.op](node.attributes, *arguments)
    if result is None or (node.op in _ARITHMETIC and not is_exact and not np.isfinite(result).all()):
        return None
    return result


_BY_OPERATOR: Mapping[str, Callable[[NormalNode], Array | None]] = {
    **dict.fromkeys((*_MOVES, *_INTEGER_OPERATORS, *_ARITHMETIC), _compute_by_folding),
    "Cast": _compute_cast,
    "ConstantOfShape": _compute_constant_fill,
    "SequenceLength": _count_elements,
    "Shape": _compute_sizes,
    "Size": _compute_sizes,
}
