"""Identities: nodes that return their input, and pairs of nodes that equal one node.

Each identity holds for every input, bit for bit, NaN and the sign of zero included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.model import DTYPES
from explorer.engine.proof.structure.normal_node import Ints, NormalNode, Rule


def _single_operand(node: NormalNode) -> None:
    """A sum or a concatenation of one value."""
    if len(node.inputs) == 1:
        node.equal_value = node.inputs[0]


def _dropout(node: NormalNode) -> None:
    """Outside of training nothing is dropped."""
    if node.opset >= 7 and node.outputs == 1:
        training = node.numbers(2)
        if len(node.inputs) < 3 or (training is not None and not training.any()):
            node.equal_value = node.inputs[0]


def _cast(node: NormalNode) -> None:
    """A cast to the value's own type, or back from a type that holds all of its numbers."""
    code = node.attributes.get("to")
    to = DTYPES[code].name if isinstance(code, int) and code in DTYPES else None
    dtype = node.dtype(0)
    if to is None:
        return
    if dtype == to:
        node.equal_value = node.inputs[0]
        return
    if not to.startswith(("float8", "float4")):
        node.attributes.pop("saturate", None)
    source = node.sources.casts.get(node.inputs[0]) if isinstance(node.inputs[0], int) else None
    if source is None or dtype is None:
        return
    x, source_type = source
    if source_type == to and can_represent(dtype, to):
        node.equal_value = x
    elif can_represent(dtype, source_type) and (
        to in _SIGNIFICAND_BITS
        or (source_type not in _SIGNIFICAND_BITS and (to in _INTEGER_RANGES or to == "bool"))
    ):
        # the type in between holds every number; a float outside an integer type's range is undefined there
        node.inputs[0] = x
        node.dtype = lambda at: source_type if at == 0 else None


def can_represent(wide: str, narrow: str) -> bool:
    """Whether every number of a type survives a cast to another type and back."""
    if narrow == "bool":
        return wide in _INTEGER_RANGES or wide in _SIGNIFICAND_BITS
    if narrow == wide:
        return True
    if narrow in _SIGNIFICAND_BITS and wide in _SIGNIFICAND_BITS:
        return _SIGNIFICAND_BITS[wide] > _SIGNIFICAND_BITS[narrow] and {wide, narrow} != {
            "bfloat16",
            "float16",
        }
    if narrow in _INTEGER_RANGES:
        least, largest = _INTEGER_RANGES[narrow]
        if wide in _INTEGER_RANGES:
            return _INTEGER_RANGES[wide][0] <= least and largest <= _INTEGER_RANGES[wide][1]
        return wide in _SIGNIFICAND_BITS and max(-least, largest) <= 1 << _SIGNIFICAND_BITS[wide]
    return False


_SIGNIFICAND_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Bits of the significand."""

_INTEGER_RANGES = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""The least and the largest number of a type."""

INVOLUTIONS = ("Neg", "Not")

IDEMPOTENT = ("Abs", "Ceil", "Floor", "Relu", "Round", "Sign")


def _self_inverse(node: NormalNode) -> None:
    """An operator that undoes itself."""
    if isinstance(node.inputs[0], int):
        node.equal_value = node.sources.involutions.get((node.op, node.inputs[0]))


def permutation(node: NormalNode) -> Ints | None:
    """The order of axes of a Transpose; None where the rank is unknown."""
    perm, rank = node.attributes.get("perm"), node.rank(0)
    if isinstance(perm, tuple) and perm:
        return perm
    return tuple(reversed(range(rank))) if rank is not None else None


def _transpose(node: NormalNode) -> None:
    """Joins two transposes; drops one without effect; reversing all axes is the default."""
    perm = permutation(node)
    if perm is None:
        node.attributes.pop("perm", None)
        return
    source = node.sources.transposes.get(node.inputs[0]) if isinstance(node.inputs[0], int) else None
    if source is not None and len(source[1]) == len(perm):
        node.inputs[0] = source[0]
        perm = tuple(source[1][axis] for axis in perm)
    count = len(perm)
    if perm == tuple(range(count)):
        node.equal_value = node.inputs[0]
    elif perm == tuple(reversed(range(count))):
        node.attributes.pop("perm", None)
    else:
        node.attributes["perm"] = perm


RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")


def _reshape(node: NormalNode) -> None:
    """Of two reshapes in a row, only the last counts."""
    shape = node.ints(1)
    if shape is None or 0 in shape:
        return
    node.attributes.pop("allowzero", None)
    node.inputs[1] = ("shape", shape)
    if isinstance(node.inputs[0], int):
        node.inputs[0] = node.sources.reshaped.get(node.inputs[0], node.inputs[0])


def _neutral_operand(index: int, value: int, dtype_kinds: str = "fiu") -> Rule:
    """A scalar without effect: times 1, minus 0."""

    def rule(node: NormalNode) -> None:
        for side in range(2) if index < 0 else (index,):
            numbers = node.numbers(side)
            scalar = numbers is not None and numbers.ndim == 0 and numbers.dtype.kind in dtype_kinds
            operand = node.inputs[1 - side] if len(node.inputs) == 2 else None
            if scalar and isinstance(operand, int) and numbers == value and not np.signbit(float(numbers)):
                node.equal_value = operand
                return

    return rule


def _pad(node: NormalNode) -> None:
    """A Pad without padding."""
    pads = node.ints(1)
    if pads is not None and not any(pads):
        node.equal_value = node.inputs[0]


def _idempotent(node: NormalNode) -> None:
    """An operator that has no effect when it is applied again."""
    if (node.op, node.inputs[0]) in node.sources.idempotent:
        node.equal_value = node.inputs[0]


def _same_operands(node: NormalNode) -> None:
    """An operator of a value and itself."""
    if len(node.inputs) == 2 and node.inputs[0] == node.inputs[1] and isinstance(node.inputs[0], int):
        node.equal_value = node.inputs[0]


def _where(node: NormalNode) -> None:
    """A Where with a negated condition has its operands swapped."""
    source = (
        node.sources.involutions.get(("Not", node.inputs[0])) if isinstance(node.inputs[0], int) else None
    )
    if source is not None and len(node.inputs) == 3:
        node.inputs = [source, node.inputs[2], node.inputs[1]]


def _expand(node: NormalNode) -> None:
    """An Expand to sizes of 1, which has no effect."""
    shape, rank = node.ints(1), node.rank(0)
    if shape is not None and rank is not None and _ones(shape) and len(shape) <= rank:
        node.equal_value = node.inputs[0]


def _tile(node: NormalNode) -> None:
    """A Tile with one repeat along every axis."""
    repeats = node.ints(1) if node.opset >= 6 else None
    if repeats is not None and _ones(repeats):
        node.equal_value = node.inputs[0]


def _ones(values: Ints) -> bool:
    return all(value == 1 for value in values)


def _flatten_concat(node: NormalNode) -> None:
    """A concatenation of a concatenation along the same axis is one with more parts."""
    axis, rank = node.attributes.get("axis"), node.rank(0)
    if not isinstance(axis, int) or (axis < 0 and rank is None):
        return
    axis += rank if axis < 0 and rank is not None else 0
    parts: list[Any] = []
    for part in node.inputs:
        joined = node.sources.concatenated.get(part) if isinstance(part, int) else None
        parts += joined[1] if joined is not None and joined[0] == axis else [part]
    node.inputs, node.attributes["axis"] = parts, axis


def _scalars(node: NormalNode) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Stored floats among the inputs, few and finite."""
    numbers = [(index, node.numbers(index)) for index in range(len(node.inputs))]
    return [
        (index, v) for index, v in numbers if v is not None and v.dtype.kind == "f" and np.isfinite(v).all()
    ]


def _place_floats(node: NormalNode, index: int, values: np.ndarray[Any, Any]) -> None:
    node.inputs[index] = "floats", (values.dtype.str, values.shape, np.ascontiguousarray(values).tobytes())


def _difference(node: NormalNode) -> None:
    """Minus a stored number is plus its negation."""
    for index, values in _scalars(node):
        if node.op == "Add" or index == 1:
            _place_floats(node, index, values if node.op == "Add" else -values)
            node.op = "Add"


def _quotient(node: NormalNode) -> None:
    """Division by a power of two is multiplication by its inverse, which is exact."""
    for index, values in _scalars(node):
        fractions, _ = np.frexp(values)
        with np.errstate(all="ignore"):
            inverse = np.asarray(1 / values, values.dtype)
        smallest = np.finfo(values.dtype).tiny
        has_normal_inverse = (
            (np.abs(values) >= smallest).all()
            and np.isfinite(inverse).all()
            and (np.abs(inverse) >= smallest).all()
        )
        if not ((np.abs(fractions) == 0.5).all() and has_normal_inverse):
            continue
        if node.op == "Mul" or index == 1:
            _place_floats(node, index, values if node.op == "Mul" else inverse)
            node.op = "Mul"


IDENTITIES: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys(IDEMPOTENT, (_idempotent,)),
    "Add": (_neutral_operand(-1, 0, "iu"), _difference),
    "And": (_same_operands,),
    "BitwiseAnd": (_same_operands,),
    "BitwiseOr": (_same_operands,),
    "Cast": (_cast,),
    "Concat": (_single_operand, _flatten_concat),
    "Div": (_neutral_operand(1, 1), _quotient),
    "Dropout": (_dropout,),
    "Expand": (_expand,),
    "Max": (_single_operand, _same_operands),
    "Mean": (_single_operand,),
    "Min": (_single_operand, _same_operands),
    "Mul": (_neutral_operand(-1, 1), _quotient),
    "Neg": (_self_inverse,),
    "Not": (_self_inverse,),
    "Or": (_same_operands,),
    "Pad": (_pad,),
    "Pow": (_neutral_operand(1, 1),),
    "Reshape": (_reshape,),
    "Sub": (_neutral_operand(1, 0), _difference),
    "Sum": (_single_operand,),
    "Tile": (_tile,),
    "Transpose": (_transpose,),
    "Where": (_where,),
}
"""By operator: the rules in order; stops when the value equals another value."""


def record_source(node: NormalNode, number: int) -> None:
    """Notes how the first output of a normalized node, with this number, is made."""
    if node.domain or not node.inputs or not isinstance(node.inputs[0], int):
        return
    x = node.inputs[0]
    sources = node.sources
    if node.op == "Cast":
        code, dtype = node.attributes.get("to"), node.dtype(0)
        if isinstance(code, int) and code in DTYPES:
            sources.dtypes[number] = DTYPES[code].name
        if dtype is not None:
            sources.casts[number] = x, dtype
    elif node.op == "Transpose" and (perm := permutation(node)) is not None:
        sources.transposes[number] = x, perm
    elif node.op == "Concat" and isinstance(axis := node.attributes.get("axis"), int) and axis >= 0:
        sources.concatenated[number] = axis, tuple(node.inputs)
    elif node.op in RESHAPES:
        sources.reshaped[number] = sources.reshaped.get(x, x)
    elif node.op in INVOLUTIONS:
        sources.involutions[node.op, number] = x
    elif node.op in IDEMPOTENT:
        sources.idempotent.add((node.op, number))
