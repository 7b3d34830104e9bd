"""Interval arithmetic over a region: the range of values that each node can have, for any finite inputs.

A Relu after an Exp never gets a negative number, so no run needs to give it one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.errors import BadModel
from explorer.engine.graph.model import DTYPES, Node, Tensor

_LARGEST = {"float16": 65504.0, "float64": float(np.finfo(np.float64).max)}
"""Largest finite number of the float types that differ from float32 in it."""
_LARGEST_FLOAT = float(np.finfo(np.float32).max)

_TINY = 1e-7
"""A positive number below which a float of any type may be stored as 0."""

_MAX_READ = 1 << 16
"""Largest number of elements of a stored tensor whose extremes are computed."""


class Bounds(Struct, frozen=True):
    """Lower and upper bound of the values, and whether all values are known to be integers."""

    low: float = -math.inf
    high: float = math.inf
    is_integer: bool = False


UNKNOWN = Bounds()
_BOOLEAN = Bounds(0.0, 1.0, True)
_NOT_NEGATIVE = Bounds(0.0)

_NORMALIZATIONS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")

Operation = Callable[[Node, Sequence[Bounds]], Bounds]
"""Rule that returns the bounds of a node's first output, given the bounds of its inputs."""


def bound_input(dtype: str) -> Bounds:
    """Returns the bounds of a finite input of this element type."""
    if dtype == "bool":
        return _BOOLEAN
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype) if dtype in np.sctypeDict else None
        return Bounds(float(info.min), float(info.max), True) if info is not None else Bounds(is_integer=True)
    largest = _LARGEST.get(dtype, _LARGEST_FLOAT)
    return Bounds(-largest, largest)


def bound_tensor(tensor: Tensor) -> Bounds:
    """Returns the bounds of a stored tensor, or `UNKNOWN` if it is large or not numeric."""
    if (
        tensor.payload is None
        or tensor.stored_elements is not None
        or not 0 < (tensor.elements or 0) <= _MAX_READ
    ):
        return UNKNOWN
    try:
        values = np.asarray(tensor.array()).astype(np.float64)
    except (BadModel, TypeError, ValueError):
        return UNKNOWN
    if not np.isfinite(values).all():
        return UNKNOWN
    return Bounds(float(values.min()), float(values.max()), bool((values == np.rint(values)).all()))


def bound_normalization(node: Node, tensors: Mapping[str, Tensor]) -> Bounds:
    """Returns the bounds of a normalization with stored scale and bias, or `UNKNOWN` for others.

    Before the scale, no element exceeds sqrt(n), where n is the number of elements in the scale.
    """
    scale = tensors.get(node.inputs[1]) if len(node.inputs) > 1 else None
    bias = tensors.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if scale is None or (bias is None and any(node.inputs[2:3])):
        return UNKNOWN
    factor = bound_tensor(scale)
    largest = math.sqrt(scale.elements) * max(abs(factor.low), abs(factor.high))
    shift = bound_tensor(bias) if bias is not None else Bounds(0.0, 0.0)
    return Bounds(shift.low - largest, shift.high + largest)


def compute_bounds(
    nodes: Sequence[Node],
    inputs: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    outer: Mapping[str, Bounds],
) -> dict[str, Bounds]:
    """Computes the bounds of every value of a region.

    Args:
        nodes: Nodes in execution order.
        inputs: Element type of each input, by name.
        tensors: Stored tensors by name.
        outer: Bounds of the values of enclosing graphs.
    """
    bounds = {**outer}
    bounds.update((name, bound_tensor(tensor)) for name, tensor in tensors.items())
    bounds.update((name, bound_input(dtype)) for name, dtype in inputs.items())
    types = {name: tensor.dtype for name, tensor in tensors.items()} | dict(inputs)
    for node in nodes:
        operation = _OPERATIONS.get(node.op) if not node.domain else None
        result, dtype = UNKNOWN, _find_type(node, types)
        if operation is not None and any(node.inputs):
            result = operation(node, [bounds.get(name, UNKNOWN) for name in node.inputs])
            result = _fit_type(result, dtype, wraps=node.op in _OVERFLOWING)
        elif node.op in _NORMALIZATIONS:
            result = bound_normalization(node, tensors)
        for index, name in enumerate(node.outputs):
            if name and name not in tensors:
                bounds[name] = result if index == 0 else UNKNOWN
                if index == 0 and dtype:
                    types[name] = dtype
    return bounds


def _find_type(node: Node, types: Mapping[str, str]) -> str:
    """Returns the element type of the first output of a node, or '' if it is unknown.

    The result of an operator on floats (`_FLOAT_OPERATORS`) of unknown type counts as float32.
    """
    if node.op == "Cast":
        code = node.attributes.get("to")
        return DTYPES[code].name if isinstance(code, int) and code in DTYPES else ""
    if node.op in _BOOLEAN_RESULTS:
        return "bool"
    if node.op in _INDEX_RESULTS:
        return "int64"
    index = _TYPE_FROM.get(node.op, 0)
    dtype = types.get(node.inputs[index], "") if len(node.inputs) > index else ""
    if node.domain or node.op in _RESULTS_OF_OTHER_TYPES or not (dtype or node.op in _FLOAT_OPERATORS):
        return ""
    return dtype or "float32"


def _fit_type(bounds: Bounds, dtype: str, *, wraps: bool) -> Bounds:
    """Returns the bounds of a result after it was stored in its element type.

    A number that is too large for an integer type wraps around, and for a float type becomes infinite. A tiny
    float may become 0.
    """
    if not dtype.startswith(("float", "bfloat", "double")) and dtype != "bool":
        limits = bound_input(dtype) if dtype else UNKNOWN
        is_inside = limits.low <= bounds.low and bounds.high <= limits.high and dtype
        return bounds if is_inside or not wraps else Bounds(limits.low, limits.high, bool(dtype))
    largest = _LARGEST.get(dtype, _LARGEST_FLOAT)
    low = 0.0 if 0 < bounds.low < _TINY and not bounds.is_integer else bounds.low
    high = 0.0 if -_TINY < bounds.high < 0 and not bounds.is_integer else bounds.high
    return Bounds(
        -math.inf if low < -largest else low, math.inf if high > largest else high, bounds.is_integer
    )


def _multiply(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _combine(values: Sequence[float], *, is_integer: bool) -> Bounds:
    numbers = [value for value in values if not math.isnan(value)]
    return Bounds(min(numbers), max(numbers), is_integer) if len(numbers) == len(values) else UNKNOWN


def _keep(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return bounds[0]


def _average(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    if node.attributes.get("count_include_pad"):
        return Bounds(min(bounds[0].low, 0.0), max(bounds[0].high, 0.0))
    return Bounds(bounds[0].low, bounds[0].high)


def _join(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a value whose elements come from any of several values."""
    return Bounds(min(b.low for b in bounds), max(b.high for b in bounds), all(b.is_integer for b in bounds))


def _add(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return _combine(
        [sum(b.low for b in bounds), sum(b.high for b in bounds)],
        is_integer=all(b.is_integer for b in bounds),
    )


def _subtract(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    first, second = bounds
    if node.inputs[0] == node.inputs[1]:
        return Bounds(0.0, 0.0, True)
    return _combine(
        [first.low - second.high, first.high - second.low], is_integer=first.is_integer and second.is_integer
    )


def _product(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    first, second = bounds
    ends = [_multiply(a, b) for a in (first.low, first.high) for b in (second.low, second.high)]
    if node.inputs[0] == node.inputs[1]:
        ends = [max(end, 0.0) for end in ends]
    return _combine(ends, is_integer=first.is_integer and second.is_integer)


def _divide(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    first, second = bounds
    if second.low <= 0 <= second.high:
        # the sign of a quotient of numbers that are not negative is known, though its size is not
        return _NOT_NEGATIVE if first.low >= 0 and second.low >= 0 else UNKNOWN
    ends = [a / b for a in (first.low, first.high) for b in (second.low, second.high)]
    return _combine(ends, is_integer=False)


def _negate(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return Bounds(-bounds[0].high, -bounds[0].low, bounds[0].is_integer)


def _absolute(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    first = bounds[0]
    low = 0.0 if first.low <= 0 <= first.high else min(abs(first.low), abs(first.high))
    return Bounds(low, max(abs(first.low), abs(first.high)), first.is_integer)


def _make_increasing_rule(function: Callable[[float], float]) -> Operation:
    """Makes the rule of a function that never decreases."""

    def bound(node: Node, bounds: Sequence[Bounds]) -> Bounds:
        return Bounds(function(bounds[0].low), function(bounds[0].high))

    return bound


def _exponential(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


def _make_fixed_rule(low: float, high: float = math.inf, *, is_integer: bool = False) -> Operation:
    return lambda node, bounds: Bounds(low, high, is_integer)


def _make_swish_rule(low: float) -> Operation:
    """Makes the rule of a function like x * Sigmoid(x): at least `low`, or at least 0 for inputs above 0."""
    return lambda node, bounds: _NOT_NEGATIVE if bounds[0].low >= 0 else Bounds(low)


def _relu(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return Bounds(max(bounds[0].low, 0.0), max(bounds[0].high, 0.0), bounds[0].is_integer)


def _make_rounding_rule(function: Callable[[float], float]) -> Operation:
    def bound(node: Node, bounds: Sequence[Bounds]) -> Bounds:
        low, high = (
            value if math.isinf(value) else function(value) for value in (bounds[0].low, bounds[0].high)
        )
        return Bounds(low, high, True)

    return bound


def _pad(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    if node.attributes.get("mode", "constant") != "constant":
        return bounds[0]
    number = bounds[2] if len(node.inputs) > 2 and node.inputs[2] else Bounds(0.0, 0.0, True)
    return _join(node, [bounds[0], number]) if "value" not in node.attributes else UNKNOWN


def _join_zero(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return _join(node, [bounds[0], Bounds(0.0, 0.0, True)])


def _join_updates(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    plain = node.attributes.get("reduction", "none") == "none"
    return _join(node, [bounds[0], bounds[2]]) if plain and len(bounds) > 2 else UNKNOWN


def _leaky_relu(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a Relu whose slope for negative numbers is unknown."""
    return bounds[0] if bounds[0].low >= 0 else UNKNOWN


def _thresholded_relu(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a ThresholdedRelu, which returns 0 or a number above `alpha`."""
    return Bounds(min(float(node.attributes.get("alpha", 1.0)), 0.0))


def _clip(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a Clip, whose limits are attributes or inputs with bounds of their own."""
    first, is_integer = bounds[0], bounds[0].is_integer
    limits = [bounds[index] if len(node.inputs) > index and node.inputs[index] else None for index in (1, 2)]
    low, high = node.attributes.get("min"), node.attributes.get("max")
    lows = (low, low) if isinstance(low, float) else (limits[0].low, limits[0].high) if limits[0] else None
    highs = (
        (high, high) if isinstance(high, float) else (limits[1].low, limits[1].high) if limits[1] else None
    )
    smallest, largest = first.low, first.high
    if lows is not None:
        smallest, largest = max(smallest, lows[0]), max(largest, lows[1])
    if highs is not None:
        smallest, largest = min(smallest, highs[0]), min(largest, highs[1])
    return Bounds(smallest, largest, is_integer and not (lows or highs))


def _maximum(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return Bounds(max(b.low for b in bounds), max(b.high for b in bounds), all(b.is_integer for b in bounds))


def _minimum(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    return Bounds(min(b.low for b in bounds), min(b.high for b in bounds), all(b.is_integer for b in bounds))


def _sum_any_count(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a sum of an unknown number of elements: only the sign is kept."""
    first = bounds[0]
    return Bounds(
        0.0 if first.low >= 0 else -math.inf, 0.0 if first.high <= 0 else math.inf, first.is_integer
    )


def _power(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    base, exponent = bounds
    is_even = exponent.low == exponent.high and exponent.low % 2 == 0
    return _NOT_NEGATIVE if is_even or base.low >= 0 else UNKNOWN


def _cast(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a Cast, which rounds toward zero for integer types.

    They are `UNKNOWN` for float types of 8 bits or fewer, which round coarsely, and for strings.
    """
    to = node.attributes.get("to")
    if to == 9:  # bool
        first = bounds[0]
        return Bounds(1.0, 1.0, True) if first.low > 0 or first.high < 0 else _BOOLEAN
    if to in (1, 10, 11, 16):  # float types
        return bounds[0]
    if not isinstance(to, int) or to not in DTYPES or not DTYPES[to].name.startswith(("int", "uint")):
        return UNKNOWN
    # a conversion to integers drops the fraction
    low, high = (
        end if math.isinf(end) else float(math.trunc(end)) for end in (bounds[0].low, bounds[0].high)
    )
    return Bounds(low, high, True)


def _quantize(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a QuantizeLinear, which may saturate: only the zero point is a known bound."""
    first, scale, *zeros = bounds
    zero = zeros[0] if zeros else Bounds(0.0, 0.0, True)
    if scale.low <= 0:
        return UNKNOWN
    return Bounds(zero.low if first.low >= 0 else -math.inf, zero.high if first.high <= 0 else math.inf, True)


def _dequantize(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    first, scale, *zeros = bounds
    zero = zeros[0] if zeros else Bounds(0.0, 0.0, True)
    ends = [first.low - zero.high, first.high - zero.low]
    return _combine([_multiply(a, b) for a in ends for b in (scale.low, scale.high)], is_integer=False)


def _compare(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    """Returns the bounds of a comparison: a single value if the bounds of the operands decide it."""
    difference = _subtract(node, bounds)
    never, always = _DECIDED[node.op](difference)
    return Bounds(0.0, 0.0, True) if never else Bounds(1.0, 1.0, True) if always else _BOOLEAN


_DECIDED: Mapping[str, Callable[[Bounds], tuple[bool, bool]]] = {
    "Greater": lambda d: (d.high <= 0, d.low > 0),
    "GreaterOrEqual": lambda d: (d.high < 0, d.low >= 0),
    "Less": lambda d: (d.low >= 0, d.high < 0),
    "LessOrEqual": lambda d: (d.low > 0, d.high <= 0),
    "Equal": lambda d: (d.low > 0 or d.high < 0, d.low == d.high == 0),
}
"""For the bounds of the operands' difference: whether the comparison is never true, and always true."""


def _choose(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    condition, *branches = bounds
    if condition.low == condition.high:
        return branches[0 if condition.low else 1]
    return _join(node, branches)


def _invert(node: Node, bounds: Sequence[Bounds]) -> Bounds:
    first = bounds[0]
    return Bounds(1.0 - first.high, 1.0 - first.low, True) if first.low >= 0 and first.high <= 1 else _BOOLEAN


_INDEX_RESULTS = frozenset(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"))
_BOOLEAN_RESULTS = frozenset(("And", "Or", "Xor", "Not", "IsNaN", "IsInf", *_DECIDED))
_RESULTS_OF_OTHER_TYPES = frozenset(
    str.split("""
        DynamicQuantizeLinear MatMulInteger ConvInteger CastLike OneHot EyeLike ConstantOfShape
        RandomNormalLike RandomUniformLike If Loop Scan SequenceAt OptionalGetElement BitCast
    """)
)
"""Operators whose result does not have the element type of the first input."""

_TYPE_FROM = {"Where": 1, "DequantizeLinear": 1, "QuantizeLinear": 2}
"""Index of the input whose element type the result has, for operators for which it is not the first input."""

_FLOAT_OPERATORS = frozenset(
    (
        *_NORMALIZATIONS,
        *str.split("""
            Exp Log Sqrt Sigmoid HardSigmoid Softmax LogSoftmax Tanh Erf Sin Cos Softsign Softplus HardSwish
            Gelu Mish LeakyRelu PRelu ThresholdedRelu Conv ConvTranspose BatchNormalization
            InstanceNormalization AveragePool GlobalAveragePool Floor Ceil Round Reciprocal Elu Selu Celu
        """),
    )
)
"""Operators whose inputs and results are floats."""

_OVERFLOWING = frozenset(
    str.split("""
        Add Sum Sub Mul Div Neg Abs Pow Cast ReduceSum CumSum ReduceL1 ReduceL2 ReduceSumSquare
    """)
)
"""Operators whose result may be too large for their integer type."""

_OPERATIONS: dict[str, Any] = {
    **dict.fromkeys(
        str.split("""
            Identity Reshape Transpose Flatten Squeeze Unsqueeze Expand Gather GatherElements GatherND Slice
            Split Tile MaxPool GlobalMaxPool ReduceMax ReduceMin TopK DepthToSpace SpaceToDepth Compress
            Dropout
        """),
        _keep,
    ),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean"), _average),
    "Concat": _join,
    "Add": _add,
    "Sum": _add,
    "Sub": _subtract,
    "Mul": _product,
    "Div": _divide,
    "Neg": _negate,
    "Abs": _absolute,
    "Exp": _make_increasing_rule(_exponential),
    "Sqrt": _make_increasing_rule(lambda value: math.sqrt(max(value, 0.0))),
    "Relu": _relu,
    "Clip": _clip,
    "Max": _maximum,
    "Min": _minimum,
    "Floor": _make_rounding_rule(math.floor),
    "Ceil": _make_rounding_rule(math.ceil),
    "Round": _make_rounding_rule(round),
    "Sign": _make_fixed_rule(-1.0, 1.0, is_integer=True),
    "Sigmoid": _make_fixed_rule(0.0, 1.0),
    "HardSigmoid": _make_fixed_rule(0.0, 1.0),
    "Softmax": _make_fixed_rule(0.0, 1.0),
    "LogSoftmax": _make_fixed_rule(-math.inf, 0.0),
    "Tanh": _make_fixed_rule(-1.0, 1.0),
    "Erf": _make_fixed_rule(-1.0, 1.0),
    "Sin": _make_fixed_rule(-1.0, 1.0),
    "Cos": _make_fixed_rule(-1.0, 1.0),
    "Softsign": _make_fixed_rule(-1.0, 1.0),
    "Softplus": _make_fixed_rule(0.0),
    "Pad": _pad,
    "Trilu": _join_zero,
    "ScatterND": _join_updates,
    "ScatterElements": _join_updates,
    **dict.fromkeys(("LeakyRelu", "PRelu"), _leaky_relu),
    "ThresholdedRelu": _thresholded_relu,
    "HardSwish": _make_swish_rule(-0.375),
    "Gelu": _make_swish_rule(-0.2),
    "Mish": _make_swish_rule(-0.4),
    "ReduceSum": _sum_any_count,
    "CumSum": _sum_any_count,
    "ReduceL1": _make_fixed_rule(0.0),
    "ReduceL2": _make_fixed_rule(0.0),
    "ReduceSumSquare": _make_fixed_rule(0.0),
    "Pow": _power,
    "Cast": _cast,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Where": _choose,
    "Not": _invert,
    **dict.fromkeys(_DECIDED, _compare),
    **dict.fromkeys(("And", "Or", "Xor"), _make_fixed_rule(0.0, 1.0, is_integer=True)),
    # synthetic values are finite, so tests for NaN and infinity are false
    **dict.fromkeys(("IsNaN", "IsInf"), _make_fixed_rule(0.0, 0.0, is_integer=True)),
    **dict.fromkeys(("Shape", "Size", "ArgMax", "ArgMin", "NonZero"), _make_fixed_rule(0.0, is_integer=True)),
}
