"""Elementwise operators: one output element from the elements at its place."""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.graph.model import DTYPES
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, Rule, ShapeRule
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import each, each_with, free, swiglu
from explorer.engine.operators.operator import Operator, blocked
from explorer.engine.operators.shape_rules import broadcast, first, like, sized, together
from explorer.engine.symbolic import dimensions as dims


def _dropout_shape(call: Call) -> Answer:
    kind = call.type(0)
    # before opset 10 the mask was of the input's type
    return (kind, ("bool" if call.opset >= 10 else kind[0], kind[1]))


def _cast(call: Call) -> Answer:
    code = call.attributes["to"]
    return ((DTYPES[code].name, call.known(0)),) if code in DTYPES else None


def _all_together(dtype: str | int = 0, since: int = 7) -> ShapeRule:
    """All inputs broadcast, `since` an opset; `dtype` is a type or the input that gives it."""

    def rule(call: Call) -> Answer:
        if call.opset < since or "axis" in call.attributes or "broadcast" in call.attributes:
            # the second operand was fitted to the first
            return ((call.dtype(dtype), call.known(0)),)
        return ((call.dtype(dtype), broadcast(*(call.known(i) for i in range(len(call.inputs))))),)

    return rule


def _halved(call: Call) -> Answer:
    """One half of the last axis times the activation of the other."""
    source = call.known(0)
    return ((call.dtype(0), None if source is None else (*source[:-1], dims.quotient(source[-1], 2))),)


def _mask(bits: bool) -> ShapeRule:
    """Dropout's output and mask, a bit or a boolean for each element."""

    def rule(call: Call) -> Answer:
        kind = call.type(0)
        count = dims.product(kind[1]) if kind[1] is not None else None
        mask = ("uint32", (dims.ceil_div(count, 32),)) if bits else ("bool", kind[1])
        return (kind, mask)[: call.count]

    return rule


def _variadic(extra: int = 0) -> Rule:
    """N inputs folded into one: n - 1 operations on each output element, `extra` more."""

    def rule(call: Call) -> Cost:
        operands = max(len(call.inputs) - 1 + extra, 0)
        return cost_formulas.elementwise(f"{call.op} of {len(call.inputs)}", call.output(), operands)

    return rule


def _dropout(call: Call) -> Cost:
    training = call.content(2)
    if training is not None and bool(training.any()):
        return cost_formulas.elementwise("Dropout in training (mask, scale)", call.output(0), 2)
    return free(call)


def _every_input(call: Call) -> Cost:
    cost = Cost()
    for index in range(len(call.inputs)):
        cost = cost_formulas.adding(cost, call.op, call.shape(index))
    return cost


def _distances(call: Call) -> Cost:
    """Subtract, square and sum for every pair and coordinate; nothing is a product."""
    return cost_formulas.elementwise(
        "CDist (difference, power, sum)", (*call.output(), *call.shape(0)[-1:]), 3
    )


def _gated_shape(call: Call) -> Answer:
    """SwiGLU: gate and value apart, or behind one another in the last axis."""
    return (call.type(0),) if call.has(1) else _halved(call)


def _gated(call: Call) -> Cost:
    count, detail = swiglu(call)
    return cost_formulas.elementwise(f"SwiGLU ({detail})", call.output(), count)


OPERATORS = (
    Operator(
        """
        Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Celu Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish
        LeakyRelu Log Mish Neg Not PRelu Reciprocal Relu Selu Sigmoid Sin Sinh Softplus Softsign Sqrt Swish
        Tan Tanh ThresholdedRelu
        """,
        each(),
        shape=first,
        position="each",
    ),
    Operator("Ceil Floor Round Sign", each(), shape=first, gradient=blocked, position="each"),
    Operator("Hardmax Shrink", each(), shape=first),
    Operator("Clip", each(), shape=first, position="each", settings=(1, 2)),
    Operator("IsInf IsNaN", each(), shape=like(0, dtype="bool"), position="each"),
    Operator("ParametricSoftplus Scale ScaledTanh", each(), shape=like(0)),
    Operator("Affine ImageScaler", each(2, "scale, shift"), shape=like(0)),
    Operator(
        "Add BitShift BitwiseAnd BitwiseOr BitwiseXor Div Mod Mul Sub",
        each(),
        shape=_all_together(),
        position="each",
    ),
    Operator("Pow", each(), shape=_all_together(), position="each", settings=(1,)),
    Operator("And Equal Or Xor", each(), shape=_all_together("bool"), position="each"),
    Operator("Greater GreaterOrEqual Less LessOrEqual", each(), shape=_all_together("bool"), position="each"),
    Operator("Where", each(), shape=together(0, 1, 2, dtype=1), position="each", settings=(0,)),
    Operator("Sum Max Min", _variadic(), shape=_all_together(since=8), position="each"),
    Operator("Mean", _variadic(1), shape=_all_together(since=8), position="each"),
    Operator("Cast", free, shape=_cast, position="each", alias=True),
    Operator("CastLike", free, shape=like(0, dtype=1), position="each"),
    Operator(
        "Dropout", _dropout, shape=_dropout_shape, reader=True, position="each", settings=(1, 2), view=True
    ),
    Operator("SwiGLU", each(2, "activate, multiply")),
    Operator("SwiGLU", _gated, MS, _gated_shape),
    Operator("Gelu QuickGelu", each(), MS, like(0), position="each"),
    Operator("FastGelu", each_with(1, "activate", bias=1), MS, like(0), position="each"),
    Operator("BiasGelu", each(2, "add the bias, activate"), MS, like(0), position="each"),
    Operator("BiasSplitGelu", each(3, "add the bias, activate, multiply"), MS, _halved),
    Operator("BiasAdd", each(2, "add the bias, add the skipped input"), MS, like(0), position="each"),
    Operator("BiasDropout", each_with(1, "add the bias", residual=2), MS, _mask(False)),
    Operator("BitmaskBiasDropout", each_with(1, "add the bias", residual=2), MS, _mask(True)),
    Operator("BitmaskDropout", free, MS, _mask(True)),
    Operator("GatedAdd", each(2, "multiply, add"), MS, like(0)),
    Operator("ScaledSiLU", each_with(2, "scale, SiLU", scale=1), MS, like(0)),
    Operator(
        "ComplexMul ComplexMulConj", each(3, "half of 4 products, a sum and a difference"), MS, together(0, 1)
    ),
    Operator("CDist", _distances, MS, sized((0, 0), (1, 0))),
    Operator("IsAllFinite", _every_input, MS, lambda _: (("bool", ()),)),
)
