"""Reductions over axes (sums, means, extremes) and cumulative sums and products."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, Rule, ShapeRule
from explorer.engine.operators.cost_formulas import FREE, Cost
from explorer.engine.operators.cost_rules import per_input
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import int_attributes, like_first_input, normalize_axis
from explorer.facts import Shape


def _reduce_shape(call: Call) -> Answer:
    shape, dtype = call.shape_or_none(0), call.dtype(0)
    keeps_axes = call.integer("keepdims", 1)
    try:
        axes = int_attributes(call, "axes", 1)
    except LookupError:
        axes = []
    if shape is None:
        return ((dtype, None),)
    if axes is None:
        # the axes are unknown; without keepdims, the rank is unknown as well
        return ((dtype, (None,) * len(shape) if keeps_axes else None),)
    if not axes:
        if call.integer("noop_with_empty_axes", 0):
            return ((dtype, shape),)
        axes = list(range(len(shape)))
    reduced_axes = {normalize_axis(a, len(shape)) for a in axes}
    if keeps_axes:
        return ((dtype, tuple(1 if i in reduced_axes else d for i, d in enumerate(shape))),)
    return ((dtype, tuple(d for i, d in enumerate(shape) if i not in reduced_axes)),)


def _arg_shape(call: Call) -> Answer:
    shape = call.shape_or_none(0)
    if shape is None:
        return (("int64", None),)
    axis = normalize_axis(call.integer("axis", 0), len(shape))
    middle: Shape = (1,) if call.integer("keepdims", 1) else ()
    return (("int64", shape[:axis] + middle + shape[axis + 1 :]),)


def _without_axes(dtype: str | None = None) -> ShapeRule:
    """Makes the shape rule of a reduction whose axes are an attribute.

    Args:
        dtype: Element type of the result, or None for the input's type.
    """

    def rule(call: Call) -> Answer:
        answer = _reduce_shape(replace(call, inputs=call.inputs[:1]))
        return answer and ((dtype or answer[0][0], answer[0][1]),)

    return rule


def _reduces(call: Call) -> bool:
    """Whether a reduction has axes. Without axes, an attribute decides between all axes and none."""
    try:
        axes = int_attributes(call, "axes", 1)
    except LookupError:
        axes = []
    return axes is None or bool(axes) or not call.integer("noop_with_empty_axes", 0)


def _reducing(rule: Rule, mapped: int = 0) -> Rule:
    """Makes the cost rule of a reduction, which may have no axes.

    Args:
        rule: Cost rule with axes.
        mapped: Operations per element without axes.
    """

    def count(call: Call) -> Cost:
        if _reduces(call):
            return rule(call)
        return cost_formulas.elementwise(f"{call.op} without axes", call.shape(0)) if mapped else FREE

    return count


def _quantized_mean(call: Call) -> Cost:
    cost = cost_formulas.elementwise("dequantize, sum", call.shape(0), 3)
    return cost_formulas.adding(cost, "requantize", call.output(), 3)


OPERATORS = (
    *(
        Operator(names, cost, shape=_reduce_shape, shape_reads=(1,), settings=(1,))
        for names, cost in (
            ("ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum", _reducing(per_input())),
            (
                "ReduceL1 ReduceL2 ReduceLogSum ReduceSumSquare",
                _reducing(per_input(2, "map and sum, each input element"), 1),
            ),
            ("ReduceLogSumExp", per_input(4, "max, subtract, exp, sum, each input element")),
        )
    ),
    Operator("ArgMax ArgMin", per_input(), shape=_arg_shape),
    Operator("CumProd CumSum", per_input(), shape=like_first_input, settings=(1,)),
    Operator("Col2Im", per_input(), settings=(1, 2)),
    Operator("QLinearReduceMean", _quantized_mean, MS, _without_axes()),
    Operator("ReduceSumInteger", per_input(), MS, _without_axes("int32")),
)
