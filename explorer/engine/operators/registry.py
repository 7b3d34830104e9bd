"""Registry of operators: every record by domain and name, and queries for shapes, costs and training.

Every operator of ONNX's standard, in all of its versions, of onnxruntime's own set and of TensorFlow Lite's
schema has a record; its cost is a count, a bound, "moves data", or a reason why none can be given. An
operator without a record is unknown, and says so. Users add costs of their own (`user`, `explorer.rules`).

A question that knows no domain (which inputs are parameters, what mixes positions) goes to the first record
of a name: that of ONNX itself, if it has one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError
from explorer.engine.graph.layouts import NHWC, channels_first, channels_last
from explorer.engine.operators import control, cost_formulas, machine_learning, tflite
from explorer.engine.operators.call import Answer, Call, Key, MissingShape, Rules
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.gradients import Gradient, Want
from explorer.engine.operators.onnx import (
    attention,
    convolution,
    elementwise,
    experts,
    indexing,
    matmul,
    movement,
    normalization,
    positions,
    quantization,
    recurrent,
    reduction,
    signals,
    windows,
)
from explorer.engine.operators.operator import BackwardNode, Layout, Operator, bits_of
from explorer.facts import Shape, TensorInfo

FAMILIES = (
    convolution, matmul, experts, recurrent, attention, positions, windows, elementwise, normalization,
    reduction, quantization, movement, indexing, signals, control, machine_learning, tflite,
)  # fmt: skip


def _turned(operator: Operator, layout: Layout) -> Operator:
    """A record for channels that stand last, from one whose rules are for channels that stand second."""
    shape_rule, cost_rule = operator.shape, operator.cost

    def last(call: Call) -> bool:
        return layout == "last" or bool(call.attributes.get("channels_last", 0))

    def first(info: TensorInfo | None) -> TensorInfo | None:
        return info and replace(info, shape=channels_first(info.shape))

    def turned(call: Call) -> Call:
        inputs = (*map(first, call.inputs[:1]), *call.inputs[1:])
        return replace(call, inputs=inputs, outputs=tuple(map(first, call.outputs)))

    def shape(call: Call) -> Answer:
        assert shape_rule is not None
        if not last(call):
            return shape_rule(call)
        answer = shape_rule(turned(call))
        return answer and [(dtype, channels_last(shape)) for dtype, shape in answer]

    def cost(call: Call) -> Cost:
        return cost_rule(turned(call) if last(call) else call)

    return replace(operator, shape=shape_rule and shape, cost=cost, layout=layout)


def _collected() -> dict[Key, Operator]:
    operators: dict[Key, Operator] = {}
    for family in FAMILIES:
        for operator in family.OPERATORS:
            domains = (operator.domain,) if isinstance(operator.domain, str) else operator.domain
            for domain in domains:
                layout: Layout = "last" if domain == NHWC and operator.layout != "either" else operator.layout
                variant = _turned(operator, layout) if layout in ("last", "attribute") else operator
                operators.update(dict.fromkeys([(domain, name) for name in operator.names.split()], variant))
    return operators


OPERATORS: Mapping[Key, Operator] = _collected()
"""Record by (domain, operator)."""

BY_NAME: Mapping[str, Operator] = {
    name: OPERATORS[domain, name] for domain, name in sorted(OPERATORS, reverse=True)
}
"""The record that stands for a name whatever its domain."""

RULES: Rules = {key: operator.cost for key, operator in OPERATORS.items()}
"""What operators cost. Counting conventions are those of `cost_formulas`."""

READERS: Collection[Key] = frozenset(key for key, operator in OPERATORS.items() if operator.reader)
"""Operators whose costs look at what an input holds, not only at its shape."""

LEARNED: Mapping[str, tuple[str, ...]] = {op: o.learned for op, o in BY_NAME.items() if o.learned}
"""Attributes that are parameters: the numbers that scikit-learn and its like have learned."""

_UNKNOWN = Operator("", free)

_WEIGHTS = ("float", "bfloat", "int8", "uint8", "int4", "uint4", "int2", "uint2", "complex")


def named(op: str) -> Operator:
    """The record of a name, or an empty one."""
    return BY_NAME.get(op, _UNKNOWN)


def cost_of(call: Call, table: Rules = RULES) -> Cost:
    """The cost of a node; unknown, with the reason in words, if there is no rule or a shape is missing.

    Args:
        call: The node.
        table: The rules: ours, or ours with a user's.

    Raises:
        Misuse: A user's rule failed.
    """
    rule = table.get((call.domain, call.op))
    if rule is None:
        where = f" of domain {call.domain}" if call.domain else ""
        return cost_formulas.unknown(f"no rule for operator {call.op}{where}")
    try:
        cost = rule(call)
    except MissingShape as missing:
        return cost_formulas.unknown(str(missing))
    except ExplorerError:
        raise
    except Exception:  # attributes and ranks come from the file: a malformed node must not stop the rest
        return cost_formulas.unknown(f"{call.op} has inputs or attributes that do not fit its definition")
    if (cost.macs or 0) < 0 or (cost.elementwise_ops or 0) < 0:
        return cost_formulas.unknown(f"{call.op} has a size below 0 among its attributes")
    return cost


def gradient_of(call: Call, wants: Sequence[Want], macs: int, trips: int = 1) -> Gradient | None:
    """The MACs of a node's gradients.

    Args:
        call: The node.
        wants: Who wants the gradient of each input.
        macs: Of all its runs.
        trips: How often it runs.

    Returns:
        None if there is no rule for it, or too little is known.
    """
    if not any(wants) or not macs:
        return Gradient()
    operator = OPERATORS.get((call.domain, call.op))
    rule = None if operator is None else operator.gradient
    return None if rule is None else rule(BackwardNode(call, tuple(wants), macs, trips))


def is_parameter(op: str, index: int, dtype: str | None, shape: Shape | None) -> bool:
    """Whether a stored tensor that `op` takes at `index` is a parameter of the model.

    Shapes, axes, indices and limits are not, nor are masks and 64-bit integers, nor a single number
    without dimensions (an epsilon, a scale), except in quantized operators.
    """
    operator = named(op)
    if index in operator.settings:
        return False
    if operator.quantized:
        return True
    return dtype is not None and dtype.startswith(_WEIGHTS) and shape != ()


def packed_bits(op: str, index: int, dtype: str, attributes: Mapping[str, Any]) -> int:
    """Bits of one value where bytes hold several, 8 where they do not."""
    for places, names, default in named(op).packed if dtype.endswith("int8") else ():
        if index in places:
            bits = bits_of(attributes, names, default)
            return bits if bits in (2, 4) else 8
    return 8
