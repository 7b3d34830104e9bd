"""Finds the ranges in which an operator of a region behaves differently, such as both sides of a bend.

Relu and Softplus agree to the last bit for large numbers, so runs on large numbers alone cannot tell them
apart. The runs of a region must therefore give the input of each operator with a bend, a jump or a curve
values on both sides of the bend, or on the curve. Ranges that no input of the region can reach are exempt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Model, Node, Tensor, list_bodies
from explorer.engine.graph.random_operators import list_all_nodes
from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.regions.value_bounds import UNKNOWN, Bounds
from explorer.engine.runtime.onnxruntime import Array

_CURVED_MAGNITUDES = 0.1, 3.0
"""Smallest and largest magnitude at which a run shows the curve of a function in `_CURVES`."""

_DOMAINS = ("", "com.microsoft")
"""Domains whose operators of the same name behave alike."""

_SHAPE_READERS = ("Shape", "Size", "ConstantOfShape")
"""Operators whose result contains no element of their inputs: sizes, or a constant of a given shape."""


class Target(Struct, frozen=True):
    """A range of the input of an operator.

    Attributes:
        low, high: Both ends, which belong to the range.
        text: Description of the range for a message, such as 'below 0'.
        required: Whether the verdict needs a run in this range. Otherwise the range is only tried.
        fractional: Whether the range holds only numbers that are not whole.
        both_signs: Whether the range also holds the same numbers with the other sign.
    """

    low: float
    high: float
    text: str
    required: bool = True
    fractional: bool = False
    both_signs: bool = False

    def is_met(self, values: Array) -> bool:
        """Whether one of the values is in the range."""
        values = np.abs(values) if self.both_signs else values
        is_inside = (values >= self.low) & (values <= self.high)
        if self.fractional:
            is_inside &= values != np.rint(values)
        return bool(is_inside.any())

    def is_possible(self, bounds: Bounds) -> bool:
        """Whether values with these bounds can be in the range."""
        if self.fractional and bounds.is_integer:
            return False
        if self.both_signs and not replace(self, both_signs=False).is_possible(bounds):
            return replace(self, both_signs=False, low=-self.high, high=-self.low).is_possible(bounds)
        low, high = max(self.low, bounds.low), min(self.high, bounds.high)
        return low <= high and not (bounds.is_integer and math.isfinite(low) and math.ceil(low) > high)


class OperandWatch(Struct, frozen=True):
    """An operand of a node, or the difference of two operands, with the ranges that runs must meet.

    Attributes:
        op: Operator name.
        names: Name of the operand, or names of both.
        targets: Ranges.
        kinds: Kinds of numpy types for which the ranges apply, such as 'f'. 'V' is that of ml_dtypes' floats.
        stacked: Whether all operands are stacked over the iterations of a loop.
        guard, guard_value: Name and value of the condition under which the node runs; '' without one.
    """

    op: str
    names: tuple[str, ...]
    targets: tuple[Target, ...]
    kinds: str = "fV"
    stacked: bool = False
    guard: str = ""
    guard_value: bool = True

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of all values that `read` needs."""
        return (*self.names, self.guard) if self.guard else self.names

    def read(self, values: Mapping[str, Array]) -> Array | None:
        """Computes the watched quantity in float64, or None if its type has no ranges."""
        arrays = [values[name] for name in self.names]
        if any(array.dtype.kind not in self.kinds for array in arrays):
            return None
        with np.errstate(all="ignore"):
            operands = [array.astype(np.float64) for array in arrays]
            if self.stacked:  # one number for each iteration applies to all elements of the iteration
                rank = max(array.ndim for array in operands)
                operands = [array.reshape(*array.shape, *(1,) * (rank - array.ndim)) for array in operands]
            result = operands[0] if len(operands) == 1 else np.asarray(operands[0] - operands[1])
        if not self.guard:
            return result
        is_active = np.asarray(values[self.guard], bool).reshape(-1) == self.guard_value
        if is_active.size > 1 and result.ndim and len(result) == is_active.size:
            return np.asarray(result[is_active])  # one condition for each iteration of a loop
        return result if is_active.all() else result.reshape(-1)[:0]

    def describe(self, target: Target) -> str:
        """Describes a range that no run met, as in "the input of Relu was never below 0"."""
        if self.op == "Where":
            return f"the condition of {self.op} was never {target.text}"
        subject = "the input" if len(self.names) == 1 else "the difference of the inputs"
        return f"{subject} of {self.op} was never {target.text}"


def watch_nodes(
    model: Model,
    nodes: Sequence[Node],
    bounds: Mapping[str, Bounds],
    tensors: Mapping[str, Tensor],
    dependent: Set[str],
) -> list[OperandWatch]:
    """Lists the operands of nodes to watch, with the ranges that synthetic inputs can reach.

    Args:
        model: Model of the nodes.
        nodes: Nodes of a graph or a body.
        bounds: Bounds of the values by name.
        tensors: Stored tensors by name.
        dependent: Names of the values that depend on inputs with synthetic values.
    """
    watches: dict[tuple[str, tuple[str, ...]], OperandWatch] = {}
    for node in nodes:
        if node.domain not in _DOMAINS or node.key in model.functions or dependent.isdisjoint(node.inputs):
            continue
        attributes = {**get_default_attributes(node.domain, node.op, model.opset), **node.attributes}
        for watch in _watch_node(node, attributes, tensors):
            if dependent.isdisjoint(watch.names):
                continue
            limits = bounds.get(watch.names[0], UNKNOWN)
            if len(watch.names) == 2:
                limits = _subtract(watch.names, limits, bounds.get(watch.names[1], UNKNOWN))
            targets = tuple(target for target in watch.targets if target.is_possible(limits))
            earlier = watches.get((watch.op, watch.names), replace(watch, targets=()))
            if targets:
                joined = tuple(dict.fromkeys((*earlier.targets, *targets)))
                watches[watch.op, watch.names] = replace(watch, targets=joined)
    return list(watches.values())


def find_dependent_values(nodes: Sequence[Node], names: Collection[str]) -> set[str]:
    """Finds the values that depend on the values `names`, except on their shapes alone."""
    dependent = set(names)
    for node in nodes:
        if node.op not in _SHAPE_READERS and not dependent.isdisjoint(list_reads(node)):
            dependent.update(filter(None, node.outputs))
    return dependent


def _subtract(names: Sequence[str], first: Bounds, second: Bounds) -> Bounds:
    if names[0] == names[1]:
        return Bounds(0.0, 0.0, True)
    return Bounds(first.low - second.high, first.high - second.low, first.is_integer and second.is_integer)


def _watch_node(
    node: Node, attributes: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> Iterator[OperandWatch]:
    """Yields the operands of a node to watch."""
    names = [name for name in node.inputs if name]
    if not names:
        return
    op, first = node.op, names[:1]
    if op in _BENDS:
        yield _watch_bends(op, first, _BENDS[op](attributes))
    if op in _CURVES:
        yield OperandWatch(op, tuple(first), (_ON_CURVE, *_FAR_FROM_ZERO))
    if op in _OVERFLOW_RANGES:
        yield OperandWatch(op, tuple(first), _OVERFLOW_RANGES[op])
    if op in _ROUNDINGS:
        yield OperandWatch(op, tuple(first), (*_split(0.0), _FRACTION))
    if op in _SIGN_SENSITIVE or (op == "Mul" and len(set(names)) == 1):
        yield _watch_bends(op, first, (0.0,), kinds="fViu" if op in _SIGN_SENSITIVE_FOR_INTEGERS else "fV")
    if op == "Div":
        at_zero = Target(0.0, 0.0, "0", required=False)
        yield OperandWatch(
            op, tuple(names[1:2]), (at_zero, *(replace(t, required=False) for t in _split(0.0)))
        )
    if op in ("Div", "Mod"):
        for name in names:
            yield _watch_bends(op, [name], (0.0,), kinds="iu" if op == "Div" else "fViu")
    if op in ("Max", "Min"):
        for other in names[1:]:
            yield _watch_bends(op, [names[0], other], (0.0,), kinds="fViu")
    if op == "Clip":
        limits = [name for name in node.inputs[1:3] if name]
        for limit in limits:
            yield _watch_bends(op, [names[0], limit], (0.0,), kinds="fViu")
        numbers = [attributes[key] for key in ("min", "max") if isinstance(attributes.get(key), float)]
        if numbers:
            yield _watch_bends(op, first, numbers)
    if op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual"):
        at_zero = Target(0.0, 0.0, "0", required=False)
        yield OperandWatch(op, tuple(names[:2]), (*_split(0.0), at_zero), "fViu")
    if op == "Equal":
        yield OperandWatch(op, tuple(names[:2]), _ZERO_OR_NOT, "fViu")
    if op == "Cast":
        yield from _watch_cast(first, attributes.get("to"))
    if op == "Where":
        yield OperandWatch(op, tuple(first), (Target(1, 1, "true"), Target(0, 0, "false")), "b")
    if op == "QuantizeLinear":
        yield from _watch_quantizer(node, tensors)


def _watch_bends(op: str, names: Sequence[str], bends: Sequence[float], kinds: str = "fV") -> OperandWatch:
    """Watches an operand, or the difference of two, below, above and close to each bend."""
    targets = [target for bend in bends if math.isfinite(bend) for target in _surround(bend)]
    return OperandWatch(op, tuple(names), tuple(targets), kinds)


def _split(bend: float) -> tuple[Target, Target]:
    """Returns the ranges on both sides of a number."""
    return (
        Target(-math.inf, float(np.nextafter(bend, -math.inf)), f"below {bend:.6g}"),
        Target(float(np.nextafter(bend, math.inf)), math.inf, f"above {bend:.6g}"),
    )


def _surround(bend: float) -> tuple[Target, ...]:
    """Returns the ranges on both sides of a number, and the numbers close to it."""
    radius = max(abs(bend), 1.0) / 4
    return (*_split(bend), Target(bend - radius, bend + radius, f"close to {bend:.6g}", required=False))


def _watch_cast(names: Sequence[str], to: Any) -> Iterator[OperandWatch]:
    """Yields the ranges that decide the result of a Cast to bool, float16 or an integer type."""
    if to == _BOOL:
        yield OperandWatch("Cast", tuple(names), _ZERO_OR_NOT, "fViu")
    elif to == _FLOAT16:
        overflow = Target(65520.0, 1e6, "too large for float16", required=False, both_signs=True)
        yield OperandWatch("Cast", tuple(names), (overflow,))
    elif to in _INTEGER_LIMITS:
        limit = _INTEGER_LIMITS[to]
        overflow = Target(limit, limit * 4, f"at least {limit:.6g}", required=False)
        yield OperandWatch("Cast", tuple(names), (*_split(0.0), _FRACTION, overflow))


def _watch_quantizer(node: Node, tensors: Mapping[str, Tensor]) -> Iterator[OperandWatch]:
    """Yields the ranges around the numbers at which a quantizer with one scale saturates."""
    scale = tensors.get(node.inputs[1])
    zero_point = tensors.get(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    dtype = zero_point.dtype if zero_point is not None else "uint8"
    if scale is None or scale.elements != 1 or dtype not in ("int8", "uint8", "int16", "uint16"):
        return
    step = float(np.asarray(scale.array(), np.float64).reshape(-1)[0])
    shift = (
        float(np.asarray(zero_point.array(), np.float64).reshape(-1)[0]) if zero_point is not None else 0.0
    )
    info = np.iinfo(dtype)
    bends = [(info.min - 1 - shift) * step, (info.max + 1 - shift) * step]
    yield _watch_bends(node.op, node.inputs[:1], bends)


def has_unknown_operator(model: Model) -> bool:
    """Whether a region has an operator that is neither watched nor listed in `_WITHOUT_RANGES`."""
    return any(
        node.key not in model.functions
        and (
            node.domain not in _DOMAINS
            or not (node.op in _WITHOUT_RANGES or any(node.op in t for t in _WATCHED))
        )
        for node in list_all_nodes(model, model.graph.nodes)
    )


def list_control_reads(model: Model) -> set[str]:
    """Lists the values of a region that decide sizes, trip counts, branches or the inputs of functions."""
    names: set[str] = set()
    for node in model.graph.nodes:
        if node.key in model.functions or any(list_bodies(node)):
            names.update(list_reads(node))
        elif node.op in _SIZE_INPUTS:
            names.update(filter(None, node.inputs[_SIZE_INPUTS[node.op] :]))
    return names


_SIZE_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("ConstantOfShape", "Range", "EyeLike"), 0),
    **dict.fromkeys(("Expand", "OneHot", "Pad", "Reshape", "Resize", "Upsample", "Slice", "Tile", "TopK"), 1),
    **dict.fromkeys(("Split", "Squeeze", "Unsqueeze", "Trilu", "CumSum", "SplitToSequence"), 1),
    **dict.fromkeys(("NonMaxSuppression", "CenterCropPad", "DFT", "STFT", "Col2Im", "MaxUnpool"), 1),
    **dict.fromkeys(("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"), 0),
    **dict.fromkeys(("SequenceAt", "SequenceInsert", "SequenceErase", "GroupQueryAttention"), 1),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), 4),
}
"""Operators that turn numbers into sizes or positions, with the index of the first such input."""

_BOOL, _FLOAT16 = 9, 10
_INTEGER_LIMITS: Mapping[int, float] = {
    2: 2.0**8,
    3: 2.0**7,
    4: 2.0**16,
    5: 2.0**15,
    6: 2.0**31,
    7: 2.0**63,
    12: 2.0**32,
    13: 2.0**64,
}
"""Smallest positive number that an integer type lacks, by the number of the type in ONNX."""

_FRACTION = Target(-math.inf, math.inf, "a number that is not whole", fractional=True)
_ZERO_OR_NOT = (
    Target(0.0, 0.0, "0"),
    Target(-math.inf, float(np.nextafter(0.0, -1.0)), "below 0", required=False),
    Target(float(np.nextafter(0.0, 1.0)), math.inf, "above 0", required=False),
)
_ON_CURVE = Target(
    *_CURVED_MAGNITUDES,
    f"between {-_CURVED_MAGNITUDES[1]:.0f} and {_CURVED_MAGNITUDES[1]:.0f}",
    both_signs=True,
)
_FAR_FROM_ZERO = (
    Target(-60.0, -20.0, "far below 0", required=False),
    Target(20.0, 60.0, "far above 0", required=False),
)
_CURVES = frozenset(
    str.split("""
        Atan Asinh BiasGelu Celu Elu Erf FastGelu Gelu Mish QuickGelu Selu Sigmoid Softplus Softsign Swish
        Tanh
    """)
)
"""Functions that are curved near 0, and linear or constant far from it."""

_ROUNDINGS = ("Ceil", "Floor", "Round")

_SIGN_SENSITIVE = frozenset(
    str.split("""
        Abs LeakyRelu PRelu Relu Sign Elu Selu Celu Pow ReduceL1 ReduceL2 MaxPool GlobalMaxPool ReduceMax
        ReduceMin ReduceSumSquare
    """)
)
"""Operators that treat negative and positive numbers differently, or hide the sign."""

_SIGN_SENSITIVE_FOR_INTEGERS = frozenset(("Abs", "Sign", "Pow", "Relu"))

_NEGATIVE = Target(-math.inf, float(np.nextafter(0.0, -1.0)), "below 0", required=False)
_OVERFLOW_RANGES: Mapping[str, tuple[Target, ...]] = {
    "Exp": (
        Target(88.73, 89.4, "close to an overflow", required=False),
        Target(89.5, 200.0, "large enough to overflow", required=False),
        Target(710.0, 2000.0, "large enough to overflow in float64", required=False),
        Target(-200.0, -104.0, "small enough to underflow", required=False),
    ),
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), (_NEGATIVE,)),
    **dict.fromkeys(("Sinh", "Cosh"), (Target(89.0, 200.0, "large", required=False, both_signs=True),)),
    **dict.fromkeys(
        ("Asin", "Acos", "Acosh", "Atanh"), (Target(1.01, 100.0, "large", required=False, both_signs=True),)
    ),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "ReduceLogSumExp"),
        (Target(200.0, 1000.0, "large enough to underflow", required=False, both_signs=True),),
    ),
}
"""Ranges in which a result overflows, underflows or is NaN. They are tried, but not required."""


def _get_thresholds(*keys: str) -> Callable[[Mapping[str, Any]], Sequence[float]]:
    return lambda attributes: [float(attributes[key]) for key in keys if key in attributes]


def _get_hard_sigmoid_bends(attributes: Mapping[str, Any]) -> Sequence[float]:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return (-beta / alpha, (1 - beta) / alpha) if alpha else ()


def _get_shrink_bends(attributes: Mapping[str, Any]) -> Sequence[float]:
    limit = float(attributes.get("lambd", 0.5))
    return (-limit, limit)


_BENDS: Mapping[str, Callable[[Mapping[str, Any]], Sequence[float]]] = {
    "HardSigmoid": _get_hard_sigmoid_bends,
    "HardSwish": lambda attributes: (-3.0, 3.0),
    "Shrink": _get_shrink_bends,
    "ThresholdedRelu": _get_thresholds("alpha"),
}
"""Functions from the attributes of an operator to the numbers at which it bends."""

_WATCHED: tuple[Collection[str], ...] = (
    _BENDS,
    _CURVES,
    _OVERFLOW_RANGES,
    _ROUNDINGS,
    _SIGN_SENSITIVE,
    str.split("Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Where"),
)
"""Operators whose operands are watched whatever their attributes are."""

_WITHOUT_RANGES = frozenset(
    str.split("""
        Add And AveragePool BatchNormalization Cast CastLike Compress Concat Constant ConstantOfShape Conv
        ConvInteger ConvTranspose CumSum DepthToSpace DequantizeLinear Dropout Einsum Expand EyeLike Flatten
        Gather GatherElements GatherND Gemm GlobalAveragePool GRU Identity If IsInf IsNaN Loop LSTM MatMul
        MatMulInteger Mean Mul Neg NonZero Not OneHot Or Pad QuantizeLinear Range ReduceMean ReduceSum
        Reshape Resize RNN Scan ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Sub
        Sum Tile Transpose Trilu Unsqueeze Xor
    """)
)
"""Other known operators: they are linear, move elements, have bodies, have other tests, or are watched only
for some attributes or types."""
