"""Position operators: rotary embeddings, and biases of attention scores by the distance of positions."""

from __future__ import annotations

import math

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import Answer, Call
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import divide
from explorer.engine.operators.operator import Operator
from explorer.engine.operators.shape_rules import from_sizes, like, like_first_input
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _position_bias(call: Call) -> Answer:
    """Infers the output type of RelativePositionBias: (1, heads, query length, key length).

    The lengths come from inputs.
    """
    table = call.shape_or_none(0)
    lengths = [c[0] if (c := call.elements(index)) else None for index in (1, 2)]
    return ((call.dtype(0), (1, None if table is None else table[1], *map(dims.dim, lengths))),)


ROTATION = 3  # operations per element: two products and their sum


def _rotary_embedding(call: Call) -> Cost:
    """Returns the cost of a rotary embedding: two products and their sum for each rotated element.

    `rotary_embedding_dim` limits the number of rotated elements in a head.
    """
    shape = call.shape(0)
    rotated_width = call.attributes.get("rotary_embedding_dim", 0)
    elements = math.prod(d for d in shape if isinstance(d, int))
    if rotated_width and all(isinstance(d, int) for d in shape):
        heads = call.attributes.get("num_heads", 0)
        width = shape[-1] if len(shape) == 4 else divide(shape[-1], heads)
        if isinstance(width, int) and width:
            shape = (elements // width, rotated_width)
    return cost_formulas.elementwise(f"{call.op} (two products and their sum)", shape, ROTATION)


def _rotary_pair(call: Call) -> Cost:
    cost = cost_formulas.elementwise("sine and cosine", call.shape(0), 2)
    for index in (0, 1):
        cost = cost_formulas.adding(cost, "two products and their sum", call.output(index), ROTATION)
    return cost


def _normal_rotary_shape(call: Call) -> Answer:
    """Infers the output types of RMSNormRotary: a slice of (B, S, heads, stride) to (B, S, heads x width)."""
    source = call.shape_or_none(0)
    if source is None:
        return None
    batch, length, heads, stride = source
    width: Dim = call.integer("input_width", 0) or stride
    rows = (1, dims.multiply(batch, length)) if call.integer("flatten_batch", 0) else (batch, length)
    dtype = "float16" if call.integer("output_fp16", 0) else "bfloat16"
    normalized = "float32", (batch, length, heads, width)
    return ((dtype, (*rows, dims.multiply(heads, width))), normalized)[: call.output_count]


def _normal_rotary(call: Call) -> Cost:
    source, rotated_width = call.shape(0), call.attributes["rotary_embedding_dim"]
    width: Dim = call.attributes.get("input_width", 0) or source[3]
    if rotated_width < 0 or (isinstance(width, int) and rotated_width > width):
        raise ValueError("it rotates more features than the input has")
    cost = cost_formulas.elementwise("RMS normalize", (*source[:3], width), ELEMENTWISE["rms_norm"][0])
    return cost_formulas.adding(cost, "two products and their sum", (*source[:3], rotated_width), ROTATION)


def _gated_position_bias(call: Call) -> Cost:
    """Returns the cost of GatedRelativePositionBias: gates of heads and positions scale a table."""
    heads = call.attributes["num_heads"]
    query, weight = call.shape(0), call.shape(3)
    rows: Shape = (*query[:-1], heads)
    cost = cost_formulas.counted([("rows", rows), ("width", weight[:1]), ("gates", weight[1:])])
    cost = cost_formulas.adding(cost, "bias of the query", query)
    cost = cost_formulas.adding(cost, "bias, sums", (*rows, *weight[1:]), 2)
    cost = cost_formulas.adding(cost, "sigmoids and gates", rows, 6)
    return cost_formulas.adding(cost, "weigh the table", call.output())


def _position_table(call: Call) -> Cost:
    pairs = call.output()[-2:]
    cost = cost_formulas.elementwise("distance, its sign, logarithm, scale, round, limit", pairs, 6)
    return cost_formulas.bounded_work(cost, "near positions take no logarithm")


OPERATORS = (
    Operator("RotaryEmbedding", _rotary_embedding, shape=like_first_input, position="each"),
    Operator("RotaryEmbedding MRotaryEmbedding", _rotary_embedding, MS, like(0)),
    Operator("RMSNormRotary", _normal_rotary, MS, _normal_rotary_shape),
    Operator("GemmaRotaryEmbedding", _rotary_pair, MS, like(1, 3)),
    Operator("RelativePositionBias", _position_table, MS, _position_bias, shape_reads=(1, 2)),
    Operator(
        "GatedRelativePositionBias", _gated_position_bias, MS, from_sizes((2, 0), (2, 1), (2, 2), (2, 3))
    ),
)
