"""Attention in all its packings: softmax(Q K^T) V for every pair of a query and a key.

Which tensors come packed together, where the cache stands and which axis holds the heads is what tells these
operators apart; the count is always that of `cost_formulas.attention`.
"""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.call import UNKNOWN, Answer, Call, Rule, ShapeRule, Type
from explorer.engine.operators.cost_formulas import ELEMENTWISE, Cost
from explorer.engine.operators.cost_rules import grown, per_head, without
from explorer.engine.operators.gradients import Gradient, Want, attention, pair
from explorer.engine.operators.onnx.positions import ROTATION
from explorer.engine.operators.operator import BackwardNode, Operator
from explorer.engine.operators.shape_rules import like, sized
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape


def _packed_shape(past: int, dtype: int = 0) -> ShapeRule:
    """Input (B, S, hidden) or (tokens, hidden), weights (hidden, query, key and value side by side)."""

    def rule(call: Call) -> Answer:
        source, added, weights = call.known(0), call.known(2), call.known(1)
        if source is None:
            return None
        sizes = call.ints("qkv_hidden_sizes")
        packed = added[-1] if added else weights[-1] if weights else None
        width: Dim = sizes[2] if sizes else dims.quotient(packed, 3)
        kind, before, heads = call.dtype(dtype), call.known(past), call.whole("num_heads", 1)
        present: Shape | None = None
        if call.whole("past_present_share_buffer", 0):
            present = before
        elif len(source) == 3 and (before is not None or not call.has(past)):
            length = dims.add(source[1], before[3]) if before else source[1]
            present = (2, source[0], heads, length, dims.quotient(width, heads))
        return ((kind, (*source[:-1], width)), (kind, present))[: call.count]

    return rule


def _multi_head_shape(call: Call) -> Answer:
    """Query (B, S, hidden), key and value beside it or of (B, heads, S, head); or all three packed in one.

    The cache grows by the new positions; where buffers are shared, it keeps its size.
    """
    query, key, value = call.known(0), call.known(1), call.known(2)
    heads = call.whole("num_heads", 1)
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
    return ((dtype, (query[0], query[1], width)), (dtype, present), (dtype, present), UNKNOWN)[: call.count]


def _grouped_shape(*, grows: bool) -> ShapeRule:
    """Query of (B, S, hidden) or (tokens, hidden), packed with key and value if there is no key.

    Args:
        grows: Present keys may be longer than the past ones: which of the two is meant is decided at run
            time.
    """

    def rule(call: Call) -> Answer:
        query = call.known(0)
        if query is None:
            return None
        width = query[-1]
        if not call.has(1):
            heads, kv_heads = call.whole("num_heads", 0), call.whole("kv_num_heads", 0)
            if not heads:
                return None
            width = dims.multiply(dims.quotient(width, heads + 2 * kv_heads), heads)
        width = call.whole("v_head_size", 0) * call.whole("num_heads", 0) or width
        output_types: list[Type] = [(call.dtype(0), (*query[:-1], width))]
        for at in (3, 4):
            dtype, past = call.type(at)
            if grows and past is not None and len(past) == 4:
                past = (past[0], past[1], None, past[3])
            output_types.append((dtype if call.has(at) else call.dtype(0), past))
        return [*output_types, UNKNOWN][: call.count]

    return rule


def _packed_heads(call: Call) -> Answer:
    """Query (tokens, hidden), or all three in one of (tokens, heads, 3, head)."""
    query = call.known(0)
    if query is None:
        return None
    if len(query) == 4:
        return ((call.dtype(0), (query[0], dims.multiply(query[1], query[3]))),)
    value = call.known(2)
    return ((call.dtype(0), (query[0], value[-1] if value else None)),)


_BUFFER = "the cache is a buffer for the longest text; only what is filled takes part"


_PADDING = "padding was taken out of the sequences, which may be shorter than the longest"


_CAP = 3  # divide, tanh, multiply


class _Heads(Struct, frozen=True):
    """The sizes of one attention, whatever they were packed in.

    Attributes:
        batch: Leading dimensions.
        heads: Of the query.
        shared: Of key and value.
        lq: Positions of the query.
        lk: Positions of the key, without the cache.
        dqk: Width of a head of query and key.
        dv: Width of a head of the value.
    """

    batch: Shape
    heads: Dim
    shared: Dim
    lq: Dim
    lk: Dim
    dqk: Dim
    dv: Dim


def _core(
    h: _Heads,
    *,
    past: Dim = 0,
    total: Dim = None,
    causal: bool = False,
    mask: bool = False,
    softcap: bool = False,
) -> Cost:
    """softmax(Q K^T) V behind `past` positions of a cache, or over `total` positions."""
    before = past if isinstance(past, int) else 0
    lk = grown(h.lk, past) if total is None else total
    cost = cost_formulas.attention(
        h.batch, h.heads, h.lq, lk, h.dqk, h.dv, causal=causal, mask=mask, past=before
    )
    return cost_formulas.adding(cost, "softcap", (*h.batch, h.heads, h.lq, lk), _CAP) if softcap else cost


def _attention(call: Call) -> Cost:
    """ONNX Attention (opset 23): Q, K, V of rank 4 (B, H, L, D) or rank 3 with the heads in the width."""
    at = call.attributes
    q, k, v = call.shape(0), call.shape(1), call.shape(2)
    if len(q) == 4:
        h = _Heads(q[:1], q[1], k[1], q[2], k[2], q[3], v[3])
    else:
        heads, shared = at["q_num_heads"], at["kv_num_heads"]
        h = _Heads(q[:1], heads, shared, q[1], k[1], per_head(q[2], heads), per_head(v[2], shared))
    return _core(
        h,
        past=call.shape(4)[2] if call.has(4) else 0,
        causal=bool(at.get("is_causal", 0)),
        mask=call.has(3) or call.has(6),
        softcap=bool(at.get("softcap", 0)),
    )


def _flex(call: Call) -> Cost:
    """FlexAttention; its graphs are counted separately."""
    if call.attributes.get("score_mod") is not None or call.attributes.get("prob_mod") is not None:
        return without("what its own graphs do to the scores is not followed")(call)
    q, k, v = call.shape(0), call.shape(1), call.shape(2)
    return _core(_Heads(q[:1], q[1], k[1], q[2], k[2], q[3], v[3]))


def _multi_head(call: Call) -> Cost:
    """Operator MultiHeadAttention of com.microsoft: projections are done outside, biases inside."""
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    if len(q) == 5:
        h = _Heads(q[:1], heads, heads, q[1], q[1], q[4], q[4])
    else:
        k = call.shape(1)
        dqk = per_head(q[2], heads)
        if len(k) == 5:
            h = _Heads(q[:1], heads, heads, q[1], k[1], dqk, k[4])
        elif len(k) == 4:
            # key and value of the other side, made in an earlier pass
            h = _Heads(q[:1], heads, heads, q[1], k[2], dqk, call.shape(2)[3])
        else:
            h = _Heads(q[:1], heads, heads, q[1], k[1], dqk, per_head(call.shape(2)[2], heads))
    past, total, buffered = _cache(call, 6, 1)
    cost = _core(
        h,
        past=past,
        total=total,
        causal=bool(call.attributes.get("unidirectional", 0)),
        mask=call.has(4) or call.has(5),
    )
    if call.has(3):
        fresh = not (call.has(1) and len(call.shape(1)) == 4)
        cost = cost_formulas.adding(cost, "bias of Q", (*h.batch, h.lq, h.heads, h.dqk))
        cost = cost_formulas.adding(cost, "bias of K", (*h.batch, h.lk, h.heads, h.dqk)) if fresh else cost
        cost = cost_formulas.adding(cost, "bias of V", (*h.batch, h.lk, h.heads, h.dv)) if fresh else cost
    return cost_formulas.bounded(cost, _BUFFER) if buffered else cost


def _cache(call: Call, place: int, present: int, axis: int = 2) -> tuple[Dim, Dim, bool]:
    """Cached positions, cached and new ones together if known, and whether the cache is a buffer.

    Args:
        call: The node.
        place: Of the cache among the inputs.
        present: Of the new cache among the outputs.
        axis: The cache's axis of positions.
    """
    if not call.has(place):
        return 0, None, False
    cache_length = call.shape(place)[axis]
    info = call.outputs[present] if present < len(call.outputs) else None
    after = info.shape[axis] if info is not None and info.shape is not None else None
    if (cache_length and after == cache_length) or call.attributes.get("past_present_share_buffer"):
        return 0, cache_length, True
    return cache_length, None, False


def _with_projection(*, mask: int, past: int, extra: int = -1) -> Rule:
    """Attention of com.microsoft whose one weight makes query, key and value of the input.

    Args:
        mask: Place of the mask.
        past: Place of the cache, (2, B, heads, positions, width).
        extra: Place of the bias of the scores; -1 for none.
    """

    def rule(call: Call) -> Cost:
        heads = call.attributes["num_heads"]
        source, weight = call.shape(0), call.shape(1)
        sizes = call.attributes.get("qkv_hidden_sizes") or (per_head(weight[1], 3),) * 3
        length = source[1]
        before, total, buffered = _cache(call, past, 1, 3)
        core = _core(
            _Heads(
                source[:1], heads, heads, length, length, per_head(sizes[0], heads), per_head(sizes[2], heads)
            ),
            past=before,
            total=total,
            causal=bool(call.attributes.get("unidirectional", 0)),
            mask=call.has(mask) or (extra >= 0 and call.has(extra)),
        )
        if call.attributes.get("do_rotary"):
            core = cost_formulas.adding(core, "rotate Q and K", (*source[:-1], sizes[0]), 2 * ROTATION)
        core = cost_formulas.bounded(core, _BUFFER) if buffered else core
        return cost_formulas.total([cost_formulas.linear(source, weight[1], bias=call.has(2)), core])

    return rule


def _packed_attention(call: Call) -> Cost:
    """As Attention, on the tokens of all sequences in one row; how they part is known in a run only."""
    heads = call.attributes["num_heads"]
    source, weight, offsets = call.shape(0), call.shape(1), call.shape(3)
    sizes = call.attributes.get("qkv_hidden_sizes") or (per_head(weight[1], 3),) * 3
    projection = cost_formulas.linear(source, weight[1], bias=call.has(2))
    return cost_formulas.total(
        [
            projection,
            _unpacked(offsets, heads, per_head(sizes[0], heads), per_head(sizes[2], heads), call.has(5)),
        ]
    )


def _packed_multi_head(call: Call) -> Cost:
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    dqk = q[3] if len(q) == 4 else per_head(q[1], heads)
    dv = dqk if len(q) == 4 else per_head(call.shape(2)[1], heads)
    cost = _unpacked(call.shape(4), heads, dqk, dv, call.has(6))
    return cost_formulas.adding(cost, "bias", (*q[:1], *call.shape(3))) if call.has(3) else cost


def _unpacked(offsets: Shape, heads: int, dqk: Dim, dv: Dim, mask: bool) -> Cost:
    """Every sequence as long as the longest."""
    batch, length = offsets
    return cost_formulas.bounded(
        _core(_Heads((batch,), heads, heads, length, length, dqk, dv), mask=mask), _PADDING
    )


def _grouped(call: Call) -> _Heads:
    """Heads of the query that share those of key and value; without a key it holds all three side by side."""
    heads, shared, q = call.attributes["num_heads"], call.attributes["kv_num_heads"], call.shape(0)
    if not call.has(1):
        width = per_head(q[-1], heads + 2 * shared)
        return _Heads(q[:-2], heads, shared, q[-2], q[-2], width, width)
    k, width = call.shape(1), per_head(q[-1], heads)
    dv = per_head(call.shape(2)[-1], shared) if call.has(2) else width
    return _Heads(q[:-2], heads, shared, q[-2], k[-2], width, dv)


def _grouped_query(call: Call) -> Cost:
    at, h = call.attributes, _grouped(call)
    before, total, buffered = _cache(call, 3, 1)
    total_length = call.number(6)
    if buffered and total_length is not None:
        before, total, buffered = (
            max(total_length - h.lq, 0) if isinstance(h.lq, int) else 0,
            total_length,
            False,
        )
    cost = _core(
        h,
        past=before,
        total=total,
        causal=bool(at.get("causal", 1)),
        mask=call.has(10),
        softcap=bool(at.get("softcap", 0)),
    )
    cost = _prepared(cost, h, call, 14)
    return cost_formulas.bounded(cost, _BUFFER) if buffered else cost


def _prepared(cost: Cost, h: _Heads, call: Call, norm: int = -1) -> Cost:
    """`cost`, with query and key normalised by a weight at `norm` and rotated before they meet."""
    normalised, rotary = norm >= 0 and call.has(norm), bool(call.attributes.get("do_rotary", 0))
    each = ELEMENTWISE["rms_norm"][0] * normalised + ROTATION * rotary
    if not each:
        return cost
    label = " and ".join(w for w, applies in (("normalise", normalised), ("rotate", rotary)) if applies)
    cost = cost_formulas.adding(cost, f"{label} Q", (*h.batch, h.lq, h.heads, h.dqk), each)
    return cost_formulas.adding(cost, f"{label} K", (*h.batch, h.lk, h.shared, h.dqk), each)


def _sparse(call: Call) -> Cost:
    """Blocks of pairs that a table names: dense as a bound."""
    h, total_length = _grouped(call), call.number(7)
    cost = _prepared(_core(h, total=total_length if total_length is not None else call.shape(3)[2]), h, call)
    return cost_formulas.bounded(cost, "which blocks of pairs take part is told by a table; counted are all")


def _paged(call: Call) -> Cost:
    """Every token against all positions that its sequence's pages can hold."""
    at, h = call.attributes, _grouped(call)
    h = replace(h, lk=h.lq, dv=at.get("v_head_size") or h.dv)
    pages, size = call.shape(7)[1], call.shape(3)[1]
    total = pages * size if isinstance(pages, int) and isinstance(size, int) else None
    cost = _prepared(_core(h, total=total, softcap=bool(at.get("softcap", 0))), h, call, 12)
    return cost_formulas.bounded(cost, "how much of the pages is filled is known in a run only")


def _selected(places: int, norm: int, *, paged: bool) -> Rule:
    """Every token against those that were selected for it, and the last ones where the mode says so.

    Args:
        places: Where the indices of the selected tokens stand.
        norm: Where the weight stands with which queries are normalised.
        paged: Tokens of all sequences stand in one row.
    """

    def rule(call: Call) -> Cost:
        at, h = call.attributes, _grouped(call)
        near = max(at.get("local_window_size", 0), 0)
        total = grown(call.shape(places)[1], near if at.get("attention_mode") == "local_plus_selected" else 0)
        tokens: Dim = h.lq if paged else cost_formulas.count((*h.batch, h.lq))
        h = replace(h, batch=(), lq=tokens, lk=tokens)
        cost = _prepared(_core(h, total=total), h, call, norm)
        return cost_formulas.bounded(cost, "how many tokens are selected is known in a run only")

    return rule


def _decoder_multi_head(call: Call) -> Cost:
    """One new token against the cache (self) or against the other side (cross)."""
    heads = call.attributes["num_heads"]
    q = call.shape(0)
    width: Dim = q[2] if call.has(1) else per_head(q[2], 3)
    d = per_head(width, heads)
    masked = call.has(3) or call.has(4)
    if call.has(1) and len(call.shape(1)) == 4:
        k, v = call.shape(1), call.shape(2)
        cost = _core(_Heads(q[:1], heads, heads, q[1], k[2], d, v[3]), mask=masked)
        return cost_formulas.adding(cost, "bias", (*q[:2], width)) if call.has(10) else cost
    dv = per_head(call.shape(2)[2], heads) if call.has(2) else d
    before, total, buffered = _cache(call, 5, 1)
    cost = _core(_Heads(q[:1], heads, heads, q[1], q[1], d, dv), past=before, total=total, mask=masked)
    cost = cost_formulas.adding(cost, "bias", (*q[:2], *call.shape(10))) if call.has(10) else cost
    return cost_formulas.bounded(cost, _BUFFER) if buffered else cost


def _ordered(call: Call) -> Cost:
    """QOrderedAttention: three projections in 8 bits, then attention."""
    heads = call.attributes["num_heads"]
    source = call.shape(0)
    widths = [call.shape(i)[1] for i in (5, 6, 7)]
    costs = [
        cost_formulas.linear(source, w, bias=call.has(i)) for w, i in zip(widths, (11, 12, 13), strict=True)
    ]
    h = _Heads(
        source[:1], heads, heads, source[1], source[1], per_head(widths[0], heads), per_head(widths[2], heads)
    )
    costs.append(_core(h, causal=bool(call.attributes.get("unidirectional", 0)), mask=call.has(17)))
    cost = cost_formulas.total(costs)
    return cost_formulas.adding(
        cost, "requantize", (*source[:-1], sum(w for w in widths if isinstance(w, int))), 3
    )


def _gradient(node: BackwardNode) -> Gradient | None:
    wants = node.wants[:3]
    if not any(wants):
        return Gradient()
    query, value = node.shape(0), node.shape(2)
    # keys and values may come packed with the queries
    if all(wants) or value is None:
        return Gradient(2 * node.macs)
    if query is None or len(wants) < 3:
        return None
    heads = 1, 1
    if len(query) == 3:
        count = node.call.attributes.get("q_num_heads") or node.call.attributes.get("num_heads") or 1
        heads = int(count), int(node.call.attributes.get("kv_num_heads") or count)
    wide, deep = query[-1] // heads[0], value[-1] // heads[1]
    scores = node.macs * wide // (wide + deep)
    return attention(scores, node.macs - scores, *wants)


def _projected_gradient(node: BackwardNode) -> Gradient | None:
    """The Attention of onnxruntime, which projects by a weight of its own before it attends."""
    source, weight = node.shape(0), node.shape(1)
    if source is None or weight is None:
        return None
    projection = math.prod(source) * weight[-1] * node.trips
    rest = node.macs - projection
    if rest < 0:
        return None
    inner: Want = "input" if node.want(0) or node.want(1) else ""
    return pair(projection, node.want(0), node.want(1)) + pair(rest, inner, inner)


_GLOBAL = without("how many tokens attend to all others depends on the data")

OPERATORS = (
    Operator("Attention", _attention, gradient=_gradient),
    Operator("FlexAttention", _flex, "ai.onnx.preview"),
    Operator(
        "Attention",
        _with_projection(mask=3, extra=5, past=4),
        MS,
        _packed_shape(4),
        gradient=_projected_gradient,
    ),
    Operator("QAttention", _with_projection(mask=5, past=8), MS, _packed_shape(8, 3), quantized=True),
    Operator("DecoderMaskedSelfAttention", _with_projection(mask=3, extra=5, past=4), MS, _packed_shape(4)),
    Operator("PackedAttention", _packed_attention, MS, _packed_shape(4)),
    Operator("QOrderedAttention", _ordered, MS, sized((0, 0), (0, 1), (7, -1)), quantized=True),
    Operator("MultiHeadAttention", _multi_head, MS, _multi_head_shape, gradient=_gradient),
    Operator("DecoderMaskedMultiHeadAttention", _decoder_multi_head, MS, _multi_head_shape),
    Operator("PackedMultiHeadAttention", _packed_multi_head, MS, _packed_heads),
    Operator(
        "GroupQueryAttention", _grouped_query, MS, _grouped_shape(grows=True), reader=True, gradient=_gradient
    ),
    Operator("SparseAttention", _sparse, MS, _grouped_shape(grows=False), reader=True),
    Operator("PagedAttention", _paged, MS, _grouped_shape(grows=False)),
    Operator("SparsePagedAttention", _selected(9, 17, paged=True), MS, _grouped_shape(grows=False)),
    Operator("DynamicSparseAttention", _selected(7, 14, paged=False), MS),
    Operator("LongformerAttention QOrderedLongformerAttention", _GLOBAL, MS, like(0)),
    Operator(
        "DecoderAttention", without("which of its projections run is told by flags at run time"), MS, like(0)
    ),
    Operator(
        "SparseAttentionIndexer PackedSparseAttentionIndexer",
        without("its policy of selecting tokens is not followed"),
        MS,
    ),
)
