"""Attention operators: softmax(Q K^T) V for every pair of a query and a key.

These operators differ in which tensors are packed together, which input is the cache, and which axis has the
heads. All of them get their cost from `cost_formulas.attention`.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import UNKNOWN, Answer, Call, Rule, ShapeRule, Type
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import divide, unknown_cost, with_past
from explorer.engine.operators.gradients import Gradient, GradientPurpose, attention, product_gradient
from explorer.engine.operators.onnx.positions import ROTATION
from explorer.engine.operators.operator import BackwardNode, Operator
from explorer.engine.operators.shape_rules import from_sizes, like
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _packed_shape(past: int, dtype: int = 0) -> ShapeRule:
    """Makes the shape rule of attention with a projection.

    The input is (B, S, hidden) or (tokens, hidden). The weight (hidden, widths) has the columns of query, key
    and value next to each other.

    Args:
        past: Input index of the cache.
        dtype: Input index that has the element type of the output.
    """

    def rule(call: Call) -> Answer:
        source, bias, weights = call.shape_or_none(0), call.shape_or_none(2), call.shape_or_none(1)
        if source is None:
            return None
        sizes = call.ints("qkv_hidden_sizes")
        packed = bias[-1] if bias else weights[-1] if weights else None
        width: Dim = sizes[2] if sizes else dims.quotient(packed, 3)
        element_type, past_shape = call.dtype(dtype), call.shape_or_none(past)
        heads = call.integer("num_heads", 1)
        present: Shape | None = None
        if call.integer("past_present_share_buffer", 0):
            present = past_shape
        elif len(source) == 3 and (past_shape is not None or not call.has(past)):
            length = dims.add(source[1], past_shape[3]) if past_shape else source[1]
            present = (2, source[0], heads, length, dims.quotient(width, heads))
        return ((element_type, (*source[:-1], width)), (element_type, present))[: call.output_count]

    return rule


def _multi_head_shape(call: Call) -> Answer:
    """Infers the output types of MultiHeadAttention.

    The query is (B, S, hidden). Key and value have the same layout or (B, heads, S, head width), or are
    packed with the query into one tensor.
    """
    query, key, value = call.shape_or_none(0), call.shape_or_none(1), call.shape_or_none(2)
    heads = call.integer("num_heads", 1)
    if query is None:
        return None
    width: Dim
    if len(query) == 5:
        width = dims.multiply(query[2], query[4])
    elif value is None:
        # with a packed query, the width of the value is unknown
        width = query[2] if call.has(1) and key is not None and len(key) == 5 else None
    else:
        width = value[2] if len(value) == 3 else dims.multiply(value[3], heads)
    present: Shape | None = None
    if value is not None and len(value) == 3 and not call.has(6):
        present = (query[0], heads, value[1], dims.quotient(width, heads))
    dtype = call.dtype(0)
    return ((dtype, (query[0], query[1], width)), (dtype, present), (dtype, present), UNKNOWN)[
        : call.output_count
    ]


def _grouped_shape(*, has_growing_cache: bool) -> ShapeRule:
    """Makes the shape rule of grouped-query attention.

    The query is (B, S, hidden) or (tokens, hidden). Without a key input it is packed with key and value.

    Args:
        has_growing_cache: Whether the present keys may be longer than the past keys, which is decided at run
            time. Their length is then unknown.
    """

    def rule(call: Call) -> Answer:
        query = call.shape_or_none(0)
        if query is None:
            return None
        width = query[-1]
        if not call.has(1):
            heads, kv_heads = call.integer("num_heads", 0), call.integer("kv_num_heads", 0)
            if not heads:
                return None
            width = dims.multiply(dims.quotient(width, heads + 2 * kv_heads), heads)
        width = call.integer("v_head_size", 0) * call.integer("num_heads", 0) or width
        output_types: list[Type] = [(call.dtype(0), (*query[:-1], width))]
        for index in (3, 4):
            dtype, past = call.type(index)
            if has_growing_cache and past is not None and len(past) == 4:
                past = (past[0], past[1], None, past[3])
            output_types.append((dtype if call.has(index) else call.dtype(0), past))
        return [*output_types, UNKNOWN][: call.output_count]

    return rule


def _packed_multi_head_shape(call: Call) -> Answer:
    """Infers the output types of PackedMultiHeadAttention.

    The query is (tokens, hidden), or one tensor (tokens, heads, 3, head width) has query, key and value.
    """
    query = call.shape_or_none(0)
    if query is None:
        return None
    if len(query) == 4:
        return ((call.dtype(0), (query[0], dims.multiply(query[1], query[3]))),)
    value = call.shape_or_none(2)
    return ((call.dtype(0), (query[0], value[-1] if value else None)),)


_BUFFER = "the cache is a buffer for the longest text, of which an attention reads only the filled part"


_PADDING = "every sequence is counted as long as the longest, because their lengths depend on the data"


_SOFTCAP = 3  # divide, tanh, multiply


class _Heads(Struct, frozen=True):
    """Sizes of an attention, independent of the packing.

    Attributes:
        batch: Leading dimensions.
        heads: Number of query heads.
        kv_heads: Number of key and value heads.
        lq: Number of query positions.
        lk: Number of key positions, without the cache.
        dqk: Width of a query or key head.
        dv: Width of a value head.
    """

    batch: Shape
    heads: Dim
    kv_heads: Dim
    lq: Dim
    lk: Dim
    dqk: Dim
    dv: Dim


def _attention_cost(
    h: _Heads,
    *,
    past: Dim = 0,
    total: Dim = None,
    causal: bool = False,
    mask: bool = False,
    softcap: bool = False,
) -> Cost:
    """Returns the cost of softmax(Q K^T) V.

    Args:
        h: Sizes of the attention.
        past: Number of cached positions, which precede the new keys.
        total: Number of all key positions, or None for `past` plus the new keys.
        causal: Whether a query sees no later keys.
        mask: Whether a mask is added to the scores.
        softcap: Whether the scores are limited by a tanh.
    """
    past_length = past if isinstance(past, int) else 0
    lk = with_past(h.lk, past) if total is None else total
    cost = cost_formulas.attention(
        h.batch, h.heads, h.lq, lk, h.dqk, h.dv, causal=causal, mask=mask, past=past_length
    )
    return cost_formulas.adding(cost, "softcap", (*h.batch, h.heads, h.lq, lk), _SOFTCAP) if softcap else cost


def _attention(call: Call) -> Cost:
    """Returns the cost of ONNX Attention (opset 23). Q, K and V have shape (B, H, L, D) or (B, L, H x D)."""
    attributes = call.attributes
    q, k, v = call.shape(0), call.shape(1), call.shape(2)
    if len(q) == 4:
        h = _Heads(q[:1], q[1], k[1], q[2], k[2], q[3], v[3])
    else:
        heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        h = _Heads(q[:1], heads, kv_heads, q[1], k[1], divide(q[2], heads), divide(v[2], kv_heads))
    return _attention_cost(
        h,
        past=call.shape(4)[2] if call.has(4) else 0,
        causal=bool(attributes.get("is_causal", 0)),
        mask=call.has(3) or call.has(6),
        softcap=bool(attributes.get("softcap", 0)),
    )


def _flex(call: Call) -> Cost:
    """Returns the cost of FlexAttention, or unknown if it has subgraphs that change the scores."""
    if call.attributes.get("score_mod") is not None or call.attributes.get("prob_mod") is not None:
        return unknown_cost("the graphs that modify its scores are not analyzed")(call)
    q, k, v = call.shape(0), call.shape(1), call.shape(2)
    return _attention_cost(_Heads(q[:1], q[1], k[1], q[2], k[2], q[3], v[3]))


def _multi_head(call: Call) -> Cost:
    """Returns the cost of com.microsoft's MultiHeadAttention, which adds biases but has no projection."""
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    if len(q) == 5:
        h = _Heads(q[:1], heads, heads, q[1], q[1], q[4], q[4])
    else:
        k = call.shape(1)
        dqk = divide(q[2], heads)
        if len(k) == 5:
            h = _Heads(q[:1], heads, heads, q[1], k[1], dqk, k[4])
        elif len(k) == 4:
            # cross-attention with key and value from an earlier pass
            h = _Heads(q[:1], heads, heads, q[1], k[2], dqk, call.shape(2)[3])
        else:
            h = _Heads(q[:1], heads, heads, q[1], k[1], dqk, divide(call.shape(2)[2], heads))
    past, total, is_buffer = _read_cache(call, 6, 1)
    cost = _attention_cost(
        h,
        past=past,
        total=total,
        causal=bool(call.attributes.get("unidirectional", 0)),
        mask=call.has(4) or call.has(5),
    )
    if call.has(3):
        has_key_bias = not (call.has(1) and len(call.shape(1)) == 4)
        cost = cost_formulas.adding(cost, "bias of Q", (*h.batch, h.lq, h.heads, h.dqk))
        cost = (
            cost_formulas.adding(cost, "bias of K", (*h.batch, h.lk, h.heads, h.dqk))
            if has_key_bias
            else cost
        )
        cost = (
            cost_formulas.adding(cost, "bias of V", (*h.batch, h.lk, h.heads, h.dv)) if has_key_bias else cost
        )
    return cost_formulas.bounded(cost, _BUFFER) if is_buffer else cost


def _read_cache(call: Call, cache_index: int, present_index: int, axis: int = 2) -> tuple[Dim, Dim, bool]:
    """Returns the number of cached positions, the total or None, and whether the cache is a buffer.

    A buffer has space for the longest sequence and keeps its size. The total is then this size, and the first
    number is 0, because the filled part is unknown.

    Args:
        call: Node.
        cache_index: Input index of the cache.
        present_index: Output index of the updated cache.
        axis: Axis of the cache for positions.
    """
    if not call.has(cache_index):
        return 0, None, False
    cache_length = call.shape(cache_index)[axis]
    info = call.outputs[present_index] if present_index < len(call.outputs) else None
    present_length = info.shape[axis] if info is not None and info.shape is not None else None
    if (cache_length and present_length == cache_length) or call.attributes.get("past_present_share_buffer"):
        return 0, cache_length, True
    return cache_length, None, False


def _with_projection(*, mask: int, past: int, extra: int = -1) -> Rule:
    """Makes the cost rule of com.microsoft's Attention, whose weight projects the input to Q, K and V.

    Args:
        mask: Input index of the mask.
        past: Input index of the cache, (2, B, heads, positions, width).
        extra: Input index of the bias of the scores, or -1 without one.
    """

    def rule(call: Call) -> Cost:
        heads = call.attributes["num_heads"]
        source, weight = call.shape(0), call.shape(1)
        sizes = call.attributes.get("qkv_hidden_sizes") or (divide(weight[1], 3),) * 3
        length = source[1]
        past_length, total, is_buffer = _read_cache(call, past, 1, 3)
        core = _attention_cost(
            _Heads(
                source[:1], heads, heads, length, length, divide(sizes[0], heads), divide(sizes[2], heads)
            ),
            past=past_length,
            total=total,
            causal=bool(call.attributes.get("unidirectional", 0)),
            mask=call.has(mask) or (extra >= 0 and call.has(extra)),
        )
        if call.attributes.get("do_rotary"):
            core = cost_formulas.adding(core, "rotate Q and K", (*source[:-1], sizes[0]), 2 * ROTATION)
        core = cost_formulas.bounded(core, _BUFFER) if is_buffer else core
        return cost_formulas.total([cost_formulas.linear(source, weight[1], bias=call.has(2)), core])

    return rule


def _packed_attention(call: Call) -> Cost:
    """Returns the cost of Attention on the concatenated tokens of all sequences.

    The lengths of the sequences are known at run time only.
    """
    heads = call.attributes["num_heads"]
    source, weight, offsets = call.shape(0), call.shape(1), call.shape(3)
    sizes = call.attributes.get("qkv_hidden_sizes") or (divide(weight[1], 3),) * 3
    projection = cost_formulas.linear(source, weight[1], bias=call.has(2))
    return cost_formulas.total(
        [
            projection,
            _padded_cost(offsets, heads, divide(sizes[0], heads), divide(sizes[2], heads), call.has(5)),
        ]
    )


def _packed_multi_head(call: Call) -> Cost:
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    dqk = q[3] if len(q) == 4 else divide(q[1], heads)
    dv = dqk if len(q) == 4 else divide(call.shape(2)[1], heads)
    cost = _padded_cost(call.shape(4), heads, dqk, dv, call.has(6))
    return cost_formulas.adding(cost, "bias", (*q[:1], *call.shape(3))) if call.has(3) else cost


def _padded_cost(offsets: Shape, heads: int, dqk: Dim, dv: Dim, mask: bool) -> Cost:
    """Returns the cost of attention with every sequence padded to the longest, as an upper bound."""
    batch, length = offsets
    return cost_formulas.bounded(
        _attention_cost(_Heads((batch,), heads, heads, length, length, dqk, dv), mask=mask), _PADDING
    )


def _read_grouped_heads(call: Call) -> _Heads:
    """Returns the sizes of grouped-query attention; without a key input, the query has Q, K and V."""
    heads, kv_heads, q = call.attributes["num_heads"], call.attributes["kv_num_heads"], call.shape(0)
    if not call.has(1):
        width = divide(q[-1], heads + 2 * kv_heads)
        return _Heads(q[:-2], heads, kv_heads, q[-2], q[-2], width, width)
    k, width = call.shape(1), divide(q[-1], heads)
    dv = divide(call.shape(2)[-1], kv_heads) if call.has(2) else width
    return _Heads(q[:-2], heads, kv_heads, q[-2], k[-2], width, dv)


def _grouped_query_attention(call: Call) -> Cost:
    attributes, h = call.attributes, _read_grouped_heads(call)
    past_length, total, is_buffer = _read_cache(call, 3, 1)
    total_length = call.number(6)
    if is_buffer and total_length is not None:
        past_length = max(total_length - h.lq, 0) if isinstance(h.lq, int) else 0
        total = total_length
        is_buffer = False
    cost = _attention_cost(
        h,
        past=past_length,
        total=total,
        causal=bool(attributes.get("causal", 1)),
        mask=call.has(10),
        softcap=bool(attributes.get("softcap", 0)),
    )
    cost = _add_preparation(cost, h, call, 14)
    return cost_formulas.bounded(cost, _BUFFER) if is_buffer else cost


def _add_preparation(cost: Cost, h: _Heads, call: Call, norm: int = -1) -> Cost:
    """Adds the cost of normalizing and rotating query and key.

    Args:
        cost: Cost so far.
        h: Sizes of the attention.
        call: Node.
        norm: Input index of the weight of the normalization, or -1 without one.
    """
    has_norm, has_rotary = norm >= 0 and call.has(norm), bool(call.attributes.get("do_rotary", 0))
    per_element = ELEMENTWISE["rms_norm"][0] * has_norm + ROTATION * has_rotary
    if not per_element:
        return cost
    label = " and ".join(w for w, applies in (("normalize", has_norm), ("rotate", has_rotary)) if applies)
    cost = cost_formulas.adding(cost, f"{label} Q", (*h.batch, h.lq, h.heads, h.dqk), per_element)
    return cost_formulas.adding(cost, f"{label} K", (*h.batch, h.lk, h.kv_heads, h.dqk), per_element)


def _sparse_attention(call: Call) -> Cost:
    """Returns the cost of dense attention as the bound of SparseAttention; a table lists its blocks."""
    h, total_length = _read_grouped_heads(call), call.number(7)
    cost = _add_preparation(
        _attention_cost(h, total=total_length if total_length is not None else call.shape(3)[2]), h, call
    )
    return cost_formulas.bounded(cost, "a table selects the blocks of pairs; all blocks are counted")


def _paged_attention(call: Call) -> Cost:
    """Returns the cost of PagedAttention: a token attends to all positions in the pages of its sequence."""
    attributes, h = call.attributes, _read_grouped_heads(call)
    h = replace(h, lk=h.lq, dv=attributes.get("v_head_size") or h.dv)
    pages, size = call.shape(7)[1], call.shape(3)[1]
    total = pages * size if isinstance(pages, int) and isinstance(size, int) else None
    cost = _add_preparation(
        _attention_cost(h, total=total, softcap=bool(attributes.get("softcap", 0))), h, call, 12
    )
    return cost_formulas.bounded(cost, "the filled part of the pages is known only during a run")


def _attention_to_selected(indices_input: int, norm_input: int, *, is_paged: bool) -> Rule:
    """Makes the cost rule of attention to selected tokens and, in one mode, to a local window.

    Args:
        indices_input: Input index of the indices of the selected tokens.
        norm_input: Input index of the weight that normalizes queries and keys.
        is_paged: Whether the tokens of all sequences are concatenated.
    """

    def rule(call: Call) -> Cost:
        attributes, h = call.attributes, _read_grouped_heads(call)
        local_window = max(attributes.get("local_window_size", 0), 0)
        total = with_past(
            call.shape(indices_input)[1],
            local_window if attributes.get("attention_mode") == "local_plus_selected" else 0,
        )
        tokens: Dim = h.lq if is_paged else cost_formulas.count((*h.batch, h.lq))
        h = replace(h, batch=(), lq=tokens, lk=tokens)
        cost = _add_preparation(_attention_cost(h, total=total), h, call, norm_input)
        return cost_formulas.bounded(cost, "the number of selected tokens is known only during a run")

    return rule


def _decoder_attention(call: Call) -> Cost:
    """Returns the cost of decoding one token with self-attention to the cache or with cross-attention."""
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    width: Dim = q[2] if call.has(1) else divide(q[2], 3)
    d = divide(width, heads)
    has_mask = call.has(3) or call.has(4)
    if call.has(1) and len(call.shape(1)) == 4:
        k, v = call.shape(1), call.shape(2)
        cost = _attention_cost(_Heads(q[:1], heads, heads, q[1], k[2], d, v[3]), mask=has_mask)
        return cost_formulas.adding(cost, "bias", (*q[:2], width)) if call.has(10) else cost
    dv = divide(call.shape(2)[2], heads) if call.has(2) else d
    past_length, total, is_buffer = _read_cache(call, 5, 1)
    cost = _attention_cost(
        _Heads(q[:1], heads, heads, q[1], q[1], d, dv), past=past_length, total=total, mask=has_mask
    )
    cost = cost_formulas.adding(cost, "bias", (*q[:2], *call.shape(10))) if call.has(10) else cost
    return cost_formulas.bounded(cost, _BUFFER) if is_buffer else cost


def _ordered_attention(call: Call) -> Cost:
    """Returns the cost of QOrderedAttention: three projections in 8 bits, then attention."""
    heads = call.attributes["num_heads"]
    source = call.shape(0)
    widths = [call.shape(i)[1] for i in (5, 6, 7)]
    costs = [
        cost_formulas.linear(source, w, bias=call.has(i)) for w, i in zip(widths, (11, 12, 13), strict=True)
    ]
    h = _Heads(
        source[:1], heads, heads, source[1], source[1], divide(widths[0], heads), divide(widths[2], heads)
    )
    costs.append(_attention_cost(h, causal=bool(call.attributes.get("unidirectional", 0)), mask=call.has(17)))
    cost = cost_formulas.total(costs)
    return cost_formulas.adding(
        cost, "requantize", (*source[:-1], sum(w for w in widths if isinstance(w, int))), 3
    )


def _gradient(node: BackwardNode) -> Gradient | None:
    purposes = node.gradient_purposes[:3]
    if not any(purposes):
        return Gradient()
    query, value = node.shape(0), node.shape(2)
    # keys and values may be packed with the queries
    if all(purposes) or value is None:
        return Gradient(2 * node.macs)
    if query is None or len(purposes) < 3:
        return None
    heads = 1, 1
    if len(query) == 3:
        count = node.call.attributes.get("q_num_heads") or node.call.attributes.get("num_heads") or 1
        heads = int(count), int(node.call.attributes.get("kv_num_heads") or count)
    key_width, value_width = query[-1] // heads[0], value[-1] // heads[1]
    scores = node.macs * key_width // (key_width + value_width)
    return attention(scores, node.macs - scores, *purposes)


def _projection_gradient(node: BackwardNode) -> Gradient | None:
    """Returns the gradient of onnxruntime's Attention, which includes the projection by its own weight.

    The result is None if a shape is unknown or does not fit the MACs.
    """
    source, weight = node.shape(0), node.shape(1)
    if source is None or weight is None:
        return None
    projection = math.prod(source) * weight[-1] * node.trips
    attention_macs = node.macs - projection
    if attention_macs < 0:
        return None
    inner: GradientPurpose = "input" if node.gradient_purpose(0) or node.gradient_purpose(1) else ""
    return product_gradient(
        projection, node.gradient_purpose(0), node.gradient_purpose(1)
    ) + product_gradient(attention_macs, inner, inner)


_GLOBAL = unknown_cost("how many tokens attend to all others depends on the data")

OPERATORS = (
    Operator("Attention", _attention, gradient=_gradient),
    Operator("FlexAttention", _flex, "ai.onnx.preview"),
    Operator(
        "Attention",
        _with_projection(mask=3, extra=5, past=4),
        MS,
        _packed_shape(4),
        gradient=_projection_gradient,
    ),
    Operator("QAttention", _with_projection(mask=5, past=8), MS, _packed_shape(8, 3), quantized=True),
    Operator("DecoderMaskedSelfAttention", _with_projection(mask=3, extra=5, past=4), MS, _packed_shape(4)),
    Operator("PackedAttention", _packed_attention, MS, _packed_shape(4)),
    Operator(
        "QOrderedAttention", _ordered_attention, MS, from_sizes((0, 0), (0, 1), (7, -1)), quantized=True
    ),
    Operator("MultiHeadAttention", _multi_head, MS, _multi_head_shape, gradient=_gradient),
    Operator("DecoderMaskedMultiHeadAttention", _decoder_attention, MS, _multi_head_shape),
    Operator("PackedMultiHeadAttention", _packed_multi_head, MS, _packed_multi_head_shape),
    Operator(
        "GroupQueryAttention",
        _grouped_query_attention,
        MS,
        _grouped_shape(has_growing_cache=True),
        cost_reads=True,
        gradient=_gradient,
    ),
    Operator(
        "SparseAttention", _sparse_attention, MS, _grouped_shape(has_growing_cache=False), cost_reads=True
    ),
    Operator("PagedAttention", _paged_attention, MS, _grouped_shape(has_growing_cache=False)),
    Operator(
        "SparsePagedAttention",
        _attention_to_selected(9, 17, is_paged=True),
        MS,
        _grouped_shape(has_growing_cache=False),
    ),
    Operator("DynamicSparseAttention", _attention_to_selected(7, 14, is_paged=False), MS),
    Operator("LongformerAttention QOrderedLongformerAttention", _GLOBAL, MS, like(0)),
    Operator(
        "DecoderAttention", unknown_cost("flags at run time select which of its projections run"), MS, like(0)
    ),
    Operator(
        "SparseAttentionIndexer PackedSparseAttentionIndexer",
        unknown_cost("its rule for selecting tokens is not analyzed"),
        MS,
    ),
)
