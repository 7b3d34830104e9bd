"""Elementwise operators: an output element depends on the input elements at its position.

Gates, CDist and IsAllFinite are here because they have elementwise operations only.
"""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.graph.model import DTYPES
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, Rule, ShapeRule
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import count_swiglu_operations, free, per_output, per_output_with
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import (
    broadcast,
    broadcast_inputs,
    from_sizes,
    like,
    like_first_input,
)
from explorer.engine.symbolic import dimensions as dims


def _dropout_shape(call: Call) -> Answer:
    input_type = call.type(0)
    # before opset 10, the mask had the input's type
    return (input_type, ("bool" if call.opset >= 10 else input_type[0], input_type[1]))


def _cast(call: Call) -> Answer:
    code = call.attributes["to"]
    return ((DTYPES[code].name, call.shape_or_none(0)),) if code in DTYPES else None


def _broadcast_all_inputs(dtype: str | int = 0, since: int = 7) -> ShapeRule:
    """Makes the shape rule of operators that broadcast all inputs.

    Args:
        dtype: Element type, or the index of the input that has it.
        since: First opset with broadcasting.
    """

    def rule(call: Call) -> Answer:
        if call.opset < since or "axis" in call.attributes or "broadcast" in call.attributes:
            # in older opsets, the output has the shape of the first operand
            return ((call.dtype(dtype), call.shape_or_none(0)),)
        return ((call.dtype(dtype), broadcast(*(call.shape_or_none(i) for i in range(len(call.inputs))))),)

    return rule


def _half_shape(call: Call) -> Answer:
    """Infers the output type of a gate.

    A gate multiplies one half of the last axis with the activation of the other half.
    """
    source = call.shape_or_none(0)
    return ((call.dtype(0), None if source is None else (*source[:-1], dims.quotient(source[-1], 2))),)


def _mask(is_bitmask: bool) -> ShapeRule:
    """Makes the shape rule of Dropout's output and mask, with one bit or one boolean per element."""

    def rule(call: Call) -> Answer:
        input_type = call.type(0)
        count = dims.product(input_type[1]) if input_type[1] is not None else None
        mask = ("uint32", (dims.ceil_div(count, 32),)) if is_bitmask else ("bool", input_type[1])
        return (input_type, mask)[: call.output_count]

    return rule


def _variadic(extra: int = 0) -> Rule:
    """Makes the cost rule for combining n inputs: n - 1 + `extra` operations per output element."""

    def rule(call: Call) -> Cost:
        operands = max(len(call.inputs) - 1 + extra, 0)
        return cost_formulas.elementwise(f"{call.op} of {len(call.inputs)}", call.output(), operands)

    return rule


def _dropout(call: Call) -> Cost:
    training = call.content(2)
    if training is not None and bool(training.any()):
        return cost_formulas.elementwise("Dropout in training (mask, scale)", call.output(0), 2)
    return free(call)


def _all_inputs(call: Call) -> Cost:
    cost = Cost()
    for index in range(len(call.inputs)):
        cost = cost_formulas.adding(cost, call.op, call.shape(index))
    return cost


def _distances(call: Call) -> Cost:
    """Returns the cost of CDist: subtract, square and sum for every pair and coordinate, without MACs."""
    return cost_formulas.elementwise(
        "CDist (difference, power, sum)", (*call.output(), *call.shape(0)[-1:]), 3
    )


def _swiglu_shape(call: Call) -> Answer:
    """Infers the output type of SwiGLU. Gate and value are two inputs, or share the last axis of one."""
    return (call.type(0),) if call.has(1) else _half_shape(call)


def _swiglu(call: Call) -> Cost:
    count, detail = count_swiglu_operations(call)
    return cost_formulas.elementwise(f"SwiGLU ({detail})", call.output(), count)


OPERATORS = (
    Operator(
        """
        Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish
        LeakyRelu Log Mish Neg Not PRelu Reciprocal Relu Selu Sigmoid Sin Sinh Softplus Softsign Sqrt Swish
        Tan Tanh ThresholdedRelu
        """,
        per_output(),
        shape=like_first_input,
        position="each",
    ),
    Operator(
        "Ceil Floor Round Sign", per_output(), shape=like_first_input, gradient=blocked, position="each"
    ),
    Operator("Hardmax Shrink", per_output(), shape=like_first_input),
    Operator("Clip", per_output(), shape=like_first_input, position="each", settings=(1, 2)),
    Operator("IsInf IsNaN", per_output(), shape=like(0, dtype="bool"), position="each"),
    Operator("ParametricSoftplus Scale ScaledTanh", per_output(), shape=like(0)),
    Operator("Affine ImageScaler", per_output(2, "scale, shift"), shape=like(0)),
    Operator(
        "Add BitShift BitwiseAnd BitwiseOr BitwiseXor Div Mod Mul Sub",
        per_output(),
        shape=_broadcast_all_inputs(),
        position="each",
    ),
    Operator("Pow", per_output(), shape=_broadcast_all_inputs(), position="each", settings=(1,)),
    Operator("And Equal Or Xor", per_output(), shape=_broadcast_all_inputs("bool"), position="each"),
    Operator(
        "Greater GreaterOrEqual Less LessOrEqual",
        per_output(),
        shape=_broadcast_all_inputs("bool"),
        position="each",
    ),
    Operator("Where", per_output(), shape=broadcast_inputs(0, 1, 2, dtype=1), position="each", settings=(0,)),
    Operator("Sum Max Min", _variadic(), shape=_broadcast_all_inputs(since=8), position="each"),
    Operator("Mean", _variadic(1), shape=_broadcast_all_inputs(since=8), position="each"),
    Operator("Cast", free, shape=_cast, position="each", same_parameter=True),
    Operator("CastLike", free, shape=like(0, dtype=1), position="each"),
    Operator(
        "Dropout",
        _dropout,
        shape=_dropout_shape,
        cost_reads=True,
        position="each",
        settings=(1, 2),
        view=True,
    ),
    Operator("SwiGLU", per_output(2, "activate, multiply")),
    Operator("SwiGLU", _swiglu, MS, _swiglu_shape),
    Operator("Gelu QuickGelu", per_output(), MS, like(0), position="each"),
    Operator("FastGelu", per_output_with(1, "activate", bias=1), MS, like(0), position="each"),
    Operator("BiasGelu", per_output(2, "add the bias, activate"), MS, like(0), position="each"),
    Operator("BiasSplitGelu", per_output(3, "add the bias, activate, multiply"), MS, _half_shape),
    Operator("BiasAdd", per_output(2, "add the bias, add the skipped input"), MS, like(0), position="each"),
    Operator("BiasDropout", per_output_with(1, "add the bias", residual=2), MS, _mask(False)),
    Operator("BitmaskBiasDropout", per_output_with(1, "add the bias", residual=2), MS, _mask(True)),
    Operator("BitmaskDropout", free, MS, _mask(True)),
    Operator("GatedAdd", per_output(2, "multiply, add"), MS, like(0)),
    Operator("ScaledSiLU", per_output_with(2, "scale, SiLU", scale=1), MS, like(0)),
    Operator(
        "ComplexMul ComplexMulConj",
        per_output(3, "half of 4 products, a sum and a difference"),
        MS,
        broadcast_inputs(0, 1),
    ),
    Operator("CDist", _distances, MS, from_sizes((0, 0), (1, 0))),
    Operator("IsAllFinite", _all_inputs, MS, lambda _: (("bool", ()),)),
)
