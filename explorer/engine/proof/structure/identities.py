"""Rules for nodes that return their input, and for nodes that equal another node or a pair of nodes.

Each rule preserves the result bit for bit for every input, including NaN and the sign of zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from explorer.engine.graph.model import DTYPES
from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.structure.dimension_lists import normalize_target
from explorer.engine.proof.structure.equivalent_operators import find_elements
from explorer.engine.proof.structure.normal_node import DimensionList, Ints, NormalNode, Rule


def _remove_single_operand(node: NormalNode) -> None:
    """Removes a sum, minimum, maximum, mean or concatenation of one value."""
    if len(node.inputs) == 1:
        node.equal_value = node.inputs[0]


def _remove_dropout(node: NormalNode) -> None:
    """Removes a Dropout outside of training."""
    if node.opset >= 7 and node.outputs == 1:
        training = node.read_numbers(2)
        if len(node.inputs) < 3 or (training is not None and not training.any()):
            node.equal_value = node.inputs[0]


def _remove_cast(node: NormalNode) -> None:
    """Removes a cast to the value's own type, and a round trip through a type with all of its numbers."""
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
        # skip the intermediate type, which represents every number; a float outside the range of an integer
        # type is undefined in both cases
        node.inputs[0] = x
        node.dtype = lambda at: source_type if at == 0 else None


def _replace_cast_like(node: NormalNode) -> None:
    """Replaces a CastLike by a Cast to the type of its second input."""
    dtype = node.dtype(1)
    code = next((code for code, known in DTYPES.items() if known.name == dtype), None)
    if code is None or len(node.inputs) != 2:
        return
    defaults = get_default_attributes("", "Cast", node.opset)
    kept = {name: value for name, value in node.attributes.items() if name in defaults}
    node.op, node.attributes, node.inputs = "Cast", {**defaults, **kept, "to": code}, node.inputs[:1]
    _remove_cast(node)


def _remove_unlimited_clip(node: NormalNode) -> None:
    """Removes a Clip without limits. Before operator set 11, its default limits are finite."""
    if node.opset >= 11 and len(node.inputs) == 1:
        node.equal_value = node.inputs[0]


def _remove_equal_choices(node: NormalNode) -> None:
    """Removes a Where between a value and itself, if the condition does not broadcast it."""
    ranks = node.rank(0), node.rank(1)
    if len(node.inputs) != 3 or node.inputs[1] != node.inputs[2] or None in ranks:
        return
    condition_rank, rank = ranks
    assert condition_rank is not None
    assert rank is not None
    if condition_rank <= rank and all(
        (size := node.size(0, -axis)) is not None and size in (1, node.size(1, -axis))
        for axis in range(1, condition_rank + 1)
    ):
        node.equal_value = node.inputs[1]


def _swap_negated_branches(node: NormalNode) -> None:
    """Removes the Not before an If, and marks its branches as swapped."""
    source = (
        node.sources.involutions.get(("Not", node.inputs[0])) if isinstance(node.inputs[0], int) else None
    )
    if source is not None:
        node.inputs[0], node.attributes["is_swapped"] = source, 1


def can_represent(wide: str, narrow: str) -> bool:
    """Whether type `wide` represents every number of type `narrow` exactly."""
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
"""Number of bits in the significand of each float type."""

_INTEGER_RANGES = {
    **{f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
"""Smallest and largest number of each integer type."""

INVOLUTIONS = ("Neg", "Not")
"""Operators that are their own inverse: applied twice, they return the input."""

IDEMPOTENT = ("Abs", "Ceil", "Floor", "Relu", "Round", "Sign")
"""Operators that have no further effect if they are applied twice."""


def _remove_self_inverse_pair(node: NormalNode) -> None:
    """Removes two equal consecutive operators that cancel each other, such as Neg of Neg."""
    if isinstance(node.inputs[0], int):
        node.equal_value = node.sources.involutions.get((node.op, node.inputs[0]))


def get_permutation(node: NormalNode) -> Ints | None:
    """Returns the permutation of a Transpose, or None if it is the default and the rank is unknown."""
    perm, rank = node.attributes.get("perm"), node.rank(0)
    if isinstance(perm, tuple) and perm:
        return perm
    return tuple(reversed(range(rank))) if rank is not None else None


def _merge_transposes(node: NormalNode) -> None:
    """Combines two transposes, and removes a transpose without effect and the default permutation."""
    perm = get_permutation(node)
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
"""Operators that only change the shape."""


def _skip_earlier_reshape(node: NormalNode) -> None:
    """Skips a reshape before a Reshape to stored sizes without 0, which would copy a size of its input."""
    shape = node.read_integers(1)
    if shape is None or 0 in shape:
        return
    node.attributes.pop("allowzero", None)
    node.inputs[1] = ("shape", shape)
    if isinstance(node.inputs[0], int):
        node.inputs[0] = node.sources.reshaped.get(node.inputs[0], node.inputs[0])


def _make_neutral_operand_rule(index: int, value: int, dtype_kinds: str = "fiu") -> Rule:
    """Makes a rule that removes an operation with a neutral scalar, such as times 1 or minus 0.

    Args:
        index: Input index of the scalar, or -1 for either input.
        value: Neutral value.
        dtype_kinds: NumPy kinds of the types for which the value is neutral.
    """

    def rule(node: NormalNode) -> None:
        for side in range(2) if index < 0 else (index,):
            numbers = node.read_numbers(side)
            scalar = numbers is not None and numbers.ndim == 0 and numbers.dtype.kind in dtype_kinds
            operand = node.inputs[1 - side] if len(node.inputs) == 2 else None
            if scalar and isinstance(operand, int) and numbers == value and not np.signbit(float(numbers)):
                node.equal_value = operand
                return

    return rule


def _remove_empty_pad(node: NormalNode) -> None:
    """Removes a Pad with pads of 0."""
    pads = node.read_integers(1)
    if pads is not None and not any(pads):
        node.equal_value = node.inputs[0]


def _remove_repeated_operator(node: NormalNode) -> None:
    """Removes an operator that repeats its predecessor without effect, such as Relu of Relu."""
    if (node.op, node.inputs[0]) in node.sources.idempotent:
        node.equal_value = node.inputs[0]


def _remove_same_operands(node: NormalNode) -> None:
    """Removes an operator such as Max of a value and itself."""
    if len(node.inputs) == 2 and node.inputs[0] == node.inputs[1] and isinstance(node.inputs[0], int):
        node.equal_value = node.inputs[0]


def _swap_negated_where(node: NormalNode) -> None:
    """Removes the Not of a Where's condition, and swaps the other operands."""
    source = (
        node.sources.involutions.get(("Not", node.inputs[0])) if isinstance(node.inputs[0], int) else None
    )
    if source is not None and len(node.inputs) == 3:
        node.inputs = [source, node.inputs[2], node.inputs[1]]


def _remove_empty_expand(node: NormalNode) -> None:
    """Removes an Expand to sizes of 1."""
    shape, rank = node.read_integers(1), node.rank(0)
    if shape is not None and rank is not None and _has_only_ones(shape) and len(shape) <= rank:
        node.equal_value = node.inputs[0]


def _remove_single_tile(node: NormalNode) -> None:
    """Removes a Tile with one repeat along every axis."""
    repeats = node.read_integers(1) if node.opset >= 6 else None
    if repeats is not None and _has_only_ones(repeats):
        node.equal_value = node.inputs[0]


def _has_only_ones(values: Ints) -> bool:
    return all(value == 1 for value in values)


def _merge_concats(node: NormalNode) -> None:
    """Replaces an input that is a Concat along the same axis by the inputs of that Concat."""
    axis, rank = node.attributes.get("axis"), node.rank(0)
    if not isinstance(axis, int) or (axis < 0 and rank is None):
        return
    axis += rank if axis < 0 and rank is not None else 0
    parts: list[Any] = []
    for part in node.inputs:
        concat = node.sources.concatenated.get(part) if isinstance(part, int) else None
        parts += concat[1] if concat is not None and concat[0] == axis else [part]
    node.inputs, node.attributes["axis"] = parts, axis


def _read_floats(node: NormalNode) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Returns the small stored float inputs with finite values, by index."""
    numbers = [(index, node.read_numbers(index)) for index in range(len(node.inputs))]
    return [
        (index, v) for index, v in numbers if v is not None and v.dtype.kind == "f" and np.isfinite(v).all()
    ]


def _store_floats(node: NormalNode, index: int, values: np.ndarray[Any, Any]) -> None:
    """Replaces an input by the bits of the numbers `values`."""
    node.inputs[index] = "floats", (values.dtype.str, values.shape, np.ascontiguousarray(values).tobytes())


def _replace_subtraction(node: NormalNode) -> None:
    """Replaces the subtraction of a stored number by the addition of its negation.

    The stored number of an Add gets the same form, so that both are equal.
    """
    for index, values in _read_floats(node):
        if node.op == "Add" or index == 1:
            _store_floats(node, index, values if node.op == "Add" else -values)
            node.op = "Add"


def _replace_division(node: NormalNode) -> None:
    """Replaces a division by a stored power of two by a multiplication with its exact inverse.

    The stored power of two of a Mul gets the same form, so that both are equal.
    """
    for index, values in _read_floats(node):
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
            _store_floats(node, index, values if node.op == "Mul" else inverse)
            node.op = "Mul"


IDENTITIES: Mapping[str, Sequence[Rule]] = {
    **dict.fromkeys(IDEMPOTENT, (_remove_repeated_operator,)),
    "Add": (_make_neutral_operand_rule(-1, 0, "iu"), _replace_subtraction),
    "And": (_remove_same_operands,),
    "BitwiseAnd": (_remove_same_operands,),
    "BitwiseOr": (_remove_same_operands,),
    "Cast": (_remove_cast,),
    "CastLike": (_replace_cast_like,),
    "Clip": (_remove_unlimited_clip,),
    "Concat": (_remove_single_operand, _merge_concats),
    "Div": (_make_neutral_operand_rule(1, 1), _replace_division),
    "Dropout": (_remove_dropout,),
    "Expand": (_remove_empty_expand,),
    "If": (_swap_negated_branches,),
    "Max": (_remove_single_operand, _remove_same_operands),
    "Mean": (_remove_single_operand,),
    "Min": (_remove_single_operand, _remove_same_operands),
    "Mul": (_make_neutral_operand_rule(-1, 1), _replace_division),
    "Neg": (_remove_self_inverse_pair,),
    "Not": (_remove_self_inverse_pair,),
    "Or": (_remove_same_operands,),
    "Pad": (_remove_empty_pad,),
    "Pow": (_make_neutral_operand_rule(1, 1),),
    "Reshape": (normalize_target, _skip_earlier_reshape),
    "Sub": (_make_neutral_operand_rule(1, 0), _replace_subtraction),
    "Sum": (_remove_single_operand,),
    "Tile": (_remove_single_tile,),
    "Transpose": (_merge_transposes,),
    "Where": (_remove_equal_choices, _swap_negated_where),
}
"""Rules in order of application, by operator. Rules after one that sets `equal_value` do not run."""


def record_source(node: NormalNode, number: int) -> None:
    """Records the first output of a normalized node in its `sources`, for the rules of later nodes.

    `number` is the value number of the output.
    """
    sources = node.sources
    if (elements := find_elements(node)) is not None:
        sources.sequences[number] = elements
    if node.domain or not node.inputs:
        return
    x = node.inputs[0]
    if node.op == "DimensionList":
        sources.dtypes[number] = "int64"
        sources.dimensions[number] = DimensionList(x[1][1], x[1][0])
    if not isinstance(x, int):
        return
    if node.op == "Cast":
        code, dtype = node.attributes.get("to"), node.dtype(0)
        if isinstance(code, int) and code in DTYPES:
            sources.dtypes[number] = DTYPES[code].name
        if dtype is not None:
            sources.casts[number] = x, dtype
    elif node.op == "Transpose" and (perm := get_permutation(node)) is not None:
        sources.transposes[number] = x, perm
    elif node.op == "Concat" and isinstance(axis := node.attributes.get("axis"), int) and axis >= 0:
        sources.concatenated[number] = axis, tuple(node.inputs)
    elif node.op in RESHAPES:
        sources.reshaped[number] = sources.reshaped.get(x, x)
    elif node.op in INVOLUTIONS:
        sources.involutions[node.op, number] = x
    elif node.op in IDEMPOTENT:
        sources.idempotent.add((node.op, number))
