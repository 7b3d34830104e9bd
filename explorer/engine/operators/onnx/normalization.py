"""Normalizations, softmax and losses, and the operators that mix residual streams."""

from __future__ import annotations

from explorer.engine.graph.layouts import MS, NHWC
from explorer.engine.graph.model import DTYPES
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import UNKNOWN, Answer, Call, Rule, ShapeRule
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import from_table, per_output, per_output_with
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import like, like_first_input, normalize_axis
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Shape


def _layer_shape(call: Call) -> Answer:
    input_type = call.type(0)
    shape = input_type[1]
    statistics: Shape | None = None
    if shape is not None:
        axis = normalize_axis(call.integer("axis", -1), len(shape))
        statistics = shape[:axis] + (1,) * (len(shape) - axis)
    code = call.attributes.get("stash_type", 1)
    dtype = DTYPES[code].name if code in DTYPES else None
    return (input_type, *((dtype, statistics),) * (call.output_count - 1))


def _skip_shape(call: Call) -> Answer:
    """Infers the output types of SkipLayerNormalization: outputs 0 and 3 (the sum) have the input's type."""
    input_type = call.type(0)
    return (input_type, UNKNOWN, UNKNOWN, input_type)[: call.output_count]


def _batch_shape(call: Call) -> Answer:
    return (call.type(0), *(call.type(3),) * (call.output_count - 1))


def _embed_shape(dtype: int) -> ShapeRule:
    def rule(call: Call) -> Answer:
        ids, words = call.shape_or_none(0), call.shape_or_none(2)
        embedding = None if ids is None or words is None else (*ids, words[-1])
        mask = None if ids is None else ids[:1]
        return ((call.dtype(dtype), embedding), ("int32", mask), (call.dtype(dtype), embedding))[
            : call.output_count
        ]

    return rule


def _pre_mix_shape(call: Call) -> Answer:
    """Infers the type of C streams merged into one: (..., C, H) or, with an attribute for C, (..., C x H)."""
    source, branches = call.shape_or_none(0), call.integer("num_branches", 0)
    if source is None:
        return ((call.dtype(0), None),)
    shape = (*source[:-1], dims.quotient(source[-1], branches)) if branches else (*source[:-2], source[-1])
    return ((call.dtype(0), shape),)


def _low_rank_shape(call: Call) -> Answer:
    """Infers the types of three outputs: the merged stream, one gate per stream, and the streams."""
    source, branches = call.shape_or_none(0), call.integer("num_branches", 0)
    gates = None if source is None else (*source[:-1], branches)
    return (*(_pre_mix_shape(call) or ()), (call.dtype(0), gates), call.type(0))[: call.output_count]


_LAYER, _RMS = ELEMENTWISE["layer_norm"], ELEMENTWISE["rms_norm"]


def _batch_norm(call: Call) -> Cost:
    if not call.attributes.get("training_mode", 0):
        return from_table("batch_norm")(call)
    cost = cost_formulas.elementwise(
        f"BatchNormalization in training ({_LAYER[1]})", call.output(), _LAYER[0]
    )
    return cost_formulas.adding(cost, "running mean and variance", (*call.shape(1), 2), 3)


def _describe_label_operations(reduction: str, is_weighted: bool) -> tuple[int, str]:
    """Returns the number of operations per label of a loss, and their names."""
    parts = ["negate", *(["weight"] if is_weighted else [])]
    if reduction != "none":
        parts += ["sum"]
    if reduction == "mean" and is_weighted:
        parts += ["sum of weights"]
    return len(parts), ", ".join(parts)


def _loss(cost: Cost, call: Call) -> Cost:
    labels = call.shape(1)
    reduction = call.attributes.get("reduction", "mean")
    count, detail = _describe_label_operations(reduction, call.has(2))
    cost = cost_formulas.adding(cost, detail, labels, count)
    return cost_formulas.adding(cost, "mean", (1,)) if reduction == "mean" else cost


def _cross_entropy(call: Call) -> Cost:
    count, detail = ELEMENTWISE["log_softmax"]
    return _loss(cost_formulas.elementwise(detail, call.shape(0), count), call)


def _group_norm(*added_inputs: int) -> Rule:
    """Makes the cost rule of com.microsoft's GroupNorm.

    `added_inputs` are the indices of inputs that are added before the normalization.
    """

    def rule(call: Call) -> Cost:
        added_count = sum(call.has(i) for i in added_inputs)
        has_activation = bool(call.attributes.get("activation", 0))
        parts = [*(["add"] * added_count), _LAYER[1], *(["SiLU"] if has_activation else [])]
        return cost_formulas.elementwise(
            f"{call.op} ({', '.join(parts)})", call.output(), _LAYER[0] + added_count + has_activation
        )

    return rule


def _branch_norm(call: Call) -> Cost:
    has_scale = call.has(1)
    return cost_formulas.elementwise(
        "BranchwiseRMSNorm (square, mean, normalize)", call.output(), _RMS[0] - 1 + has_scale
    )


def _engram(call: Call) -> Cost:
    """Returns the cost of EngramGate: per row, a dot product of two normalized vectors gates the value."""
    key = call.shape(0)
    cost = cost_formulas.counted([("rows", key[:-1]), ("dot product", key[-1:])])
    cost = cost_formulas.adding(cost, "normalize key and query", key, 2 * _RMS[0])
    cost = cost_formulas.adding(cost, "scale, sign, absolute, limit, root, sign, sigmoid", key[:-1], 7)
    cost = cost_formulas.adding(cost, "gate", call.output())
    return cost_formulas.adding(cost, "normalize", call.output(1), _RMS[0]) if len(call.outputs) > 1 else cost


def _pre_mix(call: Call) -> Cost:
    return cost_formulas.elementwise("weigh and sum the streams", call.shape(0), 2)


def _post_mix(call: Call) -> Cost:
    output = call.output()
    cost = cost_formulas.elementwise("weigh the branch, add", output, 2)
    if not call.has(3):
        return cost
    # every output stream is a sum over all streams
    mixed = cost_formulas.counted([("out", output), ("streams", call.shape(3)[-1:])])
    return cost_formulas.total([mixed, cost])


def _low_rank_mix(call: Call) -> Cost:
    """Returns the cost of HyperConnectionLowRankMix.

    The streams (..., C x H) are normalized, gated through a low-rank product and summed. A further product
    computes the gates for the next layer.
    """
    streams, rank, branches = call.shape(0), call.shape(2)[-1], call.shape(4)[-1]
    rows = streams[:-1]
    down = cost_formulas.linear(streams, rank)
    up = cost_formulas.linear((*rows, rank), streams[-1])
    cost = cost_formulas.total([down, up, cost_formulas.linear(streams, branches)])
    if call.has(5):
        cost = cost_formulas.adding(cost, "weigh the branch, add", streams, 2)
    cost = cost_formulas.adding(cost, "RMS normalize", streams, _RMS[0])
    cost = cost_formulas.adding(cost, "scale, SiLU", (*rows, rank), 2)
    cost = cost_formulas.adding(cost, "sigmoid, weigh and sum the streams", streams, 3)
    cost = cost_formulas.adding(cost, "scale", call.output())
    return cost_formulas.adding(cost, "divide, sigmoid, multiply", (*rows, branches), 3)


def _gates(call: Call) -> Cost:
    cost = cost_formulas.elementwise("add, softplus, scale", call.shape(0), 3)
    return cost_formulas.adding(cost, "sigmoid", call.shape(3)) if call.has(3) else cost


OPERATORS = (
    Operator("Softmax", from_table("softmax"), shape=like_first_input),
    Operator("LogSoftmax", from_table("log_softmax"), shape=like_first_input),
    Operator("BiasSoftmax", from_table("softmax", "add the bias"), MS, like(0)),
    Operator("BatchNormalization", _batch_norm, ("", NHWC), _batch_shape, statistics=(3, 4)),
    Operator("InstanceNormalization", from_table("layer_norm"), ("", NHWC), like_first_input),
    Operator("GroupNormalization", from_table("layer_norm"), shape=like_first_input),
    Operator("LayerNormalization", from_table("layer_norm"), shape=_layer_shape),
    Operator("RMSNormalization SimplifiedLayerNormalization", from_table("rms_norm"), shape=like_first_input),
    Operator("LpNormalization", from_table("lp_norm"), shape=like_first_input),
    Operator(
        "MeanVarianceNormalization",
        per_output(5, "mean, subtract, square, mean, normalize"),
        shape=like_first_input,
    ),
    Operator("NegativeLogLikelihoodLoss", lambda call: _loss(Cost(), call)),
    Operator("SoftmaxCrossEntropyLoss", _cross_entropy),
    Operator("GroupNorm", _group_norm(), MS, like(0)),
    Operator("SkipGroupNorm", _group_norm(3, 4), MS, like(0)),
    Operator(
        "SkipLayerNormalization", per_output_with(1 + _LAYER[0], f"add, {_LAYER[1]}", bias=4), MS, _skip_shape
    ),
    Operator(
        "SkipSimplifiedLayerNormalization",
        per_output_with(1 + _RMS[0], f"add, {_RMS[1]}", bias=3),
        MS,
        _skip_shape,
    ),
    Operator(
        "EmbedLayerNormalization",
        per_output_with(1 + _LAYER[0], f"add the position, {_LAYER[1]}", segment=4),
        MS,
        _embed_shape(2),
        rows=(2, 3, 4),
    ),
    Operator(
        "QEmbedLayerNormalization",
        per_output_with(1 + 4 + _LAYER[0], f"dequantize both, add the position, {_LAYER[1]}", segment=4),
        MS,
        _embed_shape(8),
        quantized=True,
        rows=(2, 3, 4),
    ),
    Operator(
        "QOrderedLayerNormalization",
        per_output(5 + _LAYER[0], f"dequantize, {_LAYER[1]}, quantize"),
        MS,
        like(0),
        quantized=True,
    ),
    Operator("BranchwiseRMSNorm", _branch_norm, MS, like(0)),
    Operator("GatedRMSNorm", from_table("rms_norm", "activate the gate", "multiply"), MS, like(0)),
    Operator("EngramGate", _engram, MS, like(0, 0)),
    Operator("LinearAttentionGate", _gates, MS, like(0, 3)),
    Operator("HyperConnectionPreMix", _pre_mix, MS, _pre_mix_shape),
    Operator("HyperConnectionPostMix", _post_mix, MS, like(0)),
    Operator("HyperConnectionLowRankMix", _low_rank_mix, MS, _low_rank_shape),
)
