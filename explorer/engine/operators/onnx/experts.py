"""Mixture-of-experts operators: the routing of tokens and the matrix products of the experts."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call, Rule, Type
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import count_swiglu_operations, divide, mark_unpacking_unknown
from explorer.engine.operators.operator import Operator, Packed, get_bits, multiply_first_two
from explorer.engine.operators.shape_rules import like
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

_DEQUANTIZE = ELEMENTWISE["dequantize"][0]


def _mixture(weights: Sequence[int], biases: Sequence[int], packed: Sequence[Packed] = ()) -> Rule:
    """Makes the cost rule of a mixture of experts, in which each token passes through `k` experts.

    Args:
        weights: Input indices of the experts' weights, of shape (experts, rows, columns).
        biases: Input indices of the experts' biases.
        packed: Bit widths of the packed weights; empty if the weights are floats.
    """

    def rule(call: Call) -> Cost:
        attributes, source = call.attributes, call.shape(0)
        tokens: Shape = source[:-1]
        top_k = attributes.get("k", 1)
        weight_shapes = [call.shape(index) for index in weights if call.has(index)]
        if packed:
            # a byte contains several values, along either axis
            weight_shapes = [
                (
                    call.shape(index)[0],
                    _count_packed_values(call.shape(index)[1:], get_bits(attributes, names, default)),
                )
                for (index,), names, default in packed
                if call.has(index)
            ]
        cost = cost_formulas.total(
            [
                cost_formulas.counted([("tokens", tokens), ("experts each", (top_k,)), ("expert", shape[1:])])
                for shape in weight_shapes
            ]
        )
        for shape in weight_shapes if packed else ():
            cost = cost_formulas.adding(cost, "dequantize", shape, _DEQUANTIZE)
        for index in biases:
            if call.has(index):
                cost = cost_formulas.adding(cost, "bias", (*tokens, top_k, *call.shape(index)[1:]))
        is_fused = bool(attributes.get("swiglu_fusion", 0))
        rows = call.shape(weights[0])[1]
        inner = divide(rows, 2) if is_fused else rows
        is_gated = is_fused or call.has(weights[2])
        cost = cost_formulas.adding(
            cost, "activate, multiply" if is_gated else "activate", (*tokens, top_k, inner), 1 + is_gated
        )
        cost = cost_formulas.adding(cost, "route", call.shape(1), ELEMENTWISE["softmax"][0])
        cost = cost_formulas.adding(cost, "weigh and sum the experts", (*source, top_k), 2)
        # the number of products is exact, because every token has k experts
        reason = "which experts are needed depends on the data; the dequantization of all experts is counted"
        return cost_formulas.bounded(cost, reason) if packed else cost

    return rule


def _count_packed_values(shape: Shape, bits: int) -> Dim:
    """Counts the values of `bits` bits in a byte tensor of `shape`."""
    size = cost_formulas.count(shape)
    return None if size is None else size * 8 // bits


def _packed_mixture(call: Call) -> Cost:
    """Returns the cost of MoEPacked.

    Its weights are bytes: (experts, inner, bytes), then (experts, width, bytes).
    """
    source, inner = call.shape(0), call.shape(2)[1]
    return mark_unpacking_unknown(
        cost_formulas.counted(
            [
                ("tokens", source[:-1]),
                ("experts each", (call.attributes.get("k", 1),)),
                ("products", (2 + call.has(3),)),
                ("expert", (inner, source[-1])),
            ]
        )
    )


def _router_shape(call: Call) -> Answer:
    """Infers the types of up to three outputs of (tokens, experts)."""
    source, bias = call.shape_or_none(0), call.shape_or_none(1)
    tokens = None if source is None else dims.product(source[:-1])
    shape: Shape = (tokens, None if bias is None else bias[0])
    output_types: list[Type] = [(call.dtype(0), shape), ("float32", shape), ("float32", shape)]
    return output_types[: call.output_count]


def _router(call: Call) -> Cost:
    """Returns the cost of sigmoid scores of expert groups. With several outputs, no experts are selected."""
    attributes, source, experts = call.attributes, call.shape(0), call.shape(1)[0]
    tokens = source[:-1]
    cost = cost_formulas.linear(source, experts) if call.has(2) else Cost()
    cost = cost_formulas.adding(cost, "sigmoid, add the bias", (*tokens, experts), 2)
    if len(call.outputs) > 1:
        return cost
    groups = attributes.get("n_group", 1)
    top_k = attributes["top_k"]
    best_count = attributes.get("group_topk", 2)
    if min(groups, top_k, best_count) < 1:
        raise ValueError("a number below 1")
    group_size = divide(experts, groups)
    best_count = None if group_size is None else min(best_count, group_size)
    cost = cost_formulas.adding(cost, "sum the best of each group", (*tokens, groups, best_count))
    return cost_formulas.adding(cost, "limit, logarithm", (*tokens, top_k), 2)


def _router_projection_shape(call: Call) -> Answer:
    """Infers the types of the router scores and of the shared expert's activation (half the columns)."""
    source, weight, router = call.shape_or_none(0), call.shape_or_none(1), call.integer("router_size", -1)
    if source is None or weight is None:
        return None
    inner = dims.quotient(dims.subtract(weight[1], router), 2)
    return ((call.dtype(0), (*source[:-1], router)), (call.dtype(0), (*source[:-1], inner)))[
        : call.output_count
    ]


def _router_projection(call: Call) -> Cost:
    count, detail = count_swiglu_operations(call)
    cost = cost_formulas.matmul(call.shape(0), call.shape(1))
    return cost_formulas.adding(cost, detail, call.output(1), count)


_EXPERTS: tuple[Packed, ...] = tuple(
    ((input_index,), (f"fc{number}_expert_weight_bits", "expert_weight_bits"), 4)
    for input_index, number in ((2, 1), (5, 2), (8, 3))
)

OPERATORS = (
    Operator("MoE", _mixture((2, 4, 6), (3, 5, 7)), MS, like(0)),
    Operator("QMoE", _mixture((2, 5, 8), (4, 7, 10), _EXPERTS), MS, like(0), quantized=True, packed=_EXPERTS),
    Operator("MoEPacked", _packed_mixture, MS, like(0), quantized=True),
    Operator("MoEGroupRouter", _router, MS, _router_shape),
    Operator(
        "RouterGateUpProj", _router_projection, MS, _router_projection_shape, gradient=multiply_first_two
    ),
)
