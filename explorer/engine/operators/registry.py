"""Registry of operator records by domain and name, with queries for costs, gradients and parameters.

It has a record for every operator of the ONNX standard in all versions, of onnxruntime, and of the TensorFlow
Lite schema. The cost in a record is a count, a bound, zero, or a reason why it is unknown. An operator
without a record has an unknown cost. Users can add their own cost rules (see `user` and `explorer.rules`).

A query without a domain uses the first record of a name, which is that of the ONNX standard if it exists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import ExplorerError
from explorer.engine.graph.layouts import NHWC, move_channels_first, move_channels_last
from explorer.engine.operators import control, cost_formulas, machine_learning, tflite
from explorer.engine.operators.call import Answer, Call, Key, MissingShape, Rules
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.gradients import Gradient, GradientPurpose
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
from explorer.engine.operators.operator import BackwardNode, Layout, Operator, get_bits
from explorer.facts import Shape, TensorInfo

FAMILIES = (
    convolution, matmul, experts, recurrent, attention, positions, windows, elementwise, normalization,
    reduction, quantization, movement, indexing, signals, control, machine_learning, tflite,
)  # fmt: skip


def _adapt_layout(operator: Operator, layout: Layout) -> Operator:
    """Wraps the rules of a record, which expect the channels as the second axis, for another layout."""
    shape_rule, cost_rule = operator.shape, operator.cost

    def is_channels_last(call: Call) -> bool:
        return layout == "last" or bool(call.attributes.get("channels_last", 0))

    def to_channels_first_info(info: TensorInfo | None) -> TensorInfo | None:
        return info and replace(info, shape=move_channels_first(info.shape))

    def to_channels_first(call: Call) -> Call:
        inputs = (*map(to_channels_first_info, call.inputs[:1]), *call.inputs[1:])
        return replace(call, inputs=inputs, outputs=tuple(map(to_channels_first_info, call.outputs)))

    def shape(call: Call) -> Answer:
        assert shape_rule is not None
        if not is_channels_last(call):
            return shape_rule(call)
        answer = shape_rule(to_channels_first(call))
        return answer and [(dtype, move_channels_last(shape)) for dtype, shape in answer]

    def cost(call: Call) -> Cost:
        return cost_rule(to_channels_first(call) if is_channels_last(call) else call)

    return replace(operator, shape=shape_rule and shape, cost=cost, layout=layout)


def _collect_operators() -> dict[Key, Operator]:
    """Collects the records of all families, with rules adapted to the layout of each domain."""
    operators: dict[Key, Operator] = {}
    for family in FAMILIES:
        for operator in family.OPERATORS:
            domains = (operator.domain,) if isinstance(operator.domain, str) else operator.domain
            for domain in domains:
                layout: Layout = "last" if domain == NHWC and operator.layout != "either" else operator.layout
                variant = _adapt_layout(operator, layout) if layout in ("last", "attribute") else operator
                operators.update(dict.fromkeys([(domain, name) for name in operator.names.split()], variant))
    return operators


OPERATORS: Mapping[Key, Operator] = _collect_operators()
"""Records by (domain, operator)."""

BY_NAME: Mapping[str, Operator] = {
    name: OPERATORS[domain, name] for domain, name in sorted(OPERATORS, reverse=True)
}
"""Records by operator name, for queries without a domain."""

RULES: Rules = {key: operator.cost for key, operator in OPERATORS.items()}
"""Cost rules by (domain, operator). `cost_formulas` documents the counting conventions."""

READERS: Collection[Key] = frozenset(key for key, operator in OPERATORS.items() if operator.cost_reads)
"""Operators whose costs depend on the contents of an input, not only on its shape."""

LEARNED: Mapping[str, tuple[str, ...]] = {op: o.learned for op, o in BY_NAME.items() if o.learned}
"""Attributes that contain learned parameters, such as those of scikit-learn models, by operator name."""

_UNKNOWN = Operator("", free)

_WEIGHTS = ("float", "bfloat", "int8", "uint8", "int4", "uint4", "int2", "uint2", "complex")


def find_operator(op: str) -> Operator:
    """Returns the record of an operator name, or an empty record."""
    return BY_NAME.get(op, _UNKNOWN)


def compute_cost(call: Call, table: Rules = RULES) -> Cost:
    """Computes the cost of a node.

    Without a rule, or without a shape that the rule needs, the cost is unknown and has a reason.

    Args:
        call: Node.
        table: Cost rules, built-in or extended by the user's rules.

    Raises:
        Misuse: A user's rule failed.
    """
    rule = table.get((call.domain, call.op))
    if rule is None:
        domain_text = f" of domain {call.domain}" if call.domain else ""
        return cost_formulas.unknown(f"no rule for operator {call.op}{domain_text}")
    try:
        cost = rule(call)
    except MissingShape as missing:
        return cost_formulas.unknown(str(missing))
    except ExplorerError:
        raise
    except Exception:  # a malformed node in the file must not stop the analysis of other nodes
        return cost_formulas.unknown(f"{call.op} has inputs or attributes that do not fit its definition")
    if (cost.macs or 0) < 0 or (cost.elementwise_ops or 0) < 0:
        return cost_formulas.unknown(f"{call.op} has a size below 0 among its attributes")
    return cost


def compute_gradient(
    call: Call, purposes: Sequence[GradientPurpose], macs: int, trips: int = 1
) -> Gradient | None:
    """Computes the MACs of a node's gradients.

    Args:
        call: Node.
        purposes: Purpose of the gradient of each input; see `GradientPurpose`.
        macs: Forward MACs of all executions of the node.
        trips: Number of executions.

    Returns:
        The gradients, or None if the operator has no rule or a shape is unknown.
    """
    if not any(purposes) or not macs:
        return Gradient()
    operator = OPERATORS.get((call.domain, call.op))
    rule = None if operator is None else operator.gradient
    return None if rule is None else rule(BackwardNode(call, tuple(purposes), macs, trips))


def is_parameter(op: str, index: int, dtype: str | None, shape: Shape | None) -> bool:
    """Whether a stored tensor that `op` reads at input `index` is a parameter of the model.

    Shapes, axes, indices and limits are not parameters. Masks, 64-bit integers and scalars (an epsilon, a
    scale) are parameters only in quantized operators.
    """
    operator = find_operator(op)
    if index in operator.settings:
        return False
    if operator.quantized:
        return True
    return dtype is not None and dtype.startswith(_WEIGHTS) and shape != ()


def find_packed_bits(op: str, index: int, dtype: str, attributes: Mapping[str, Any]) -> int:
    """Returns the bits of one value if the bytes of an input contain several values, else 8."""
    for indices, names, default in find_operator(op).packed if dtype.endswith("int8") else ():
        if index in indices:
            bits = get_bits(attributes, names, default)
            return bits if bits in (2, 4) else 8
    return 8
