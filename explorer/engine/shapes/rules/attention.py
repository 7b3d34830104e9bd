"""Shapes of onnxruntime's attention operators, whose query, key and value may be packed in several ways."""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.shapes.rules.registry import UNKNOWN, Answer, Rule, ShapeCall, Type
from explorer.engine.symbolic import dimensions as dims
from explorer.facts import Dim, Shape

__all__ = ["RULES"]


def _sum(a: Dim, b: Dim) -> Dim:
    return None if a is None or b is None else dims.add(a, b)


def _packed_attention(bias: int, past: int, dtype: int = 0) -> Rule:
    """Input (B, S, hidden) or (tokens, hidden), weights (hidden, query, key and value side by side)."""

    def rule(call: ShapeCall) -> Answer:
        source, added, weights = call.shape(0), call.shape(bias), call.shape(1)
        if source is None:
            return None
        sizes = call.ints("qkv_hidden_sizes")
        packed = added[-1] if added else weights[-1] if weights else None
        width: Dim = sizes[2] if sizes else dims.quotient(packed, 3)
        kind, before, heads = call.dtype(dtype), call.shape(past), call.whole("num_heads", 1)
        present: Shape | None = None
        if call.whole("past_present_share_buffer", 0):
            present = before
        elif len(source) == 3 and (before is not None or not call.has(past)):
            length = _sum(source[1], before[3]) if before else source[1]
            present = (2, source[0], heads, length, dims.quotient(width, heads))
        return ((kind, (*source[:-1], width)), (kind, present))[: call.count]

    return Rule(rule)


def _multi_head_attention(call: ShapeCall) -> Answer:
    """Query (B, S, hidden), key and value beside it or of (B, heads, S, head); or all three packed in one.

    The cache grows by what comes in; where buffers are shared it stays as it is.
    """
    query, key, value = call.shape(0), call.shape(1), call.shape(2)
    heads = call.whole("num_heads", 1)
    if query is None:
        return None
    width: Dim
    if len(query) == 5:
        width = dims.multiply(query[2], query[4])
    elif value is None:
        # behind a packed query nothing says how wide the value is
        width = query[2] if call.has(1) and key is not None and len(key) == 5 else None
    else:
        width = value[2] if len(value) == 3 else dims.multiply(value[3], heads)
    present: Shape | None = None
    if value is not None and len(value) == 3 and not call.has(6):
        present = (query[0], heads, value[1], dims.quotient(width, heads))
    dtype = call.dtype(0)
    return ((dtype, (query[0], query[1], width)), (dtype, present), (dtype, present), UNKNOWN)[: call.count]


def _grouped_query_attention(*, grows: bool) -> Rule:
    """Query of (B, S, hidden) or (tokens, hidden), packed with key and value if there is no key.

    Args:
        grows: Present keys may be longer than the past ones: which of the two is meant is decided at run
            time.
    """

    def rule(call: ShapeCall) -> Answer:
        query = call.shape(0)
        if query is None:
            return None
        width = query[-1]
        if not call.has(1):
            heads, own = call.whole("num_heads", 0), call.whole("kv_num_heads", 0)
            if not heads:
                return None
            width = dims.multiply(dims.quotient(width, heads + 2 * own), heads)
        width = call.whole("v_head_size", 0) * call.whole("num_heads", 0) or width
        made: list[Type] = [(call.dtype(0), (*query[:-1], width))]
        for at in (3, 4):
            dtype, past = (call.types[at] if at < len(call.types) else None) or UNKNOWN
            if grows and past is not None and len(past) == 4:
                past = (past[0], past[1], None, past[3])
            made.append((dtype if call.has(at) else call.dtype(0), past))
        return [*made, UNKNOWN][: call.count]

    return Rule(rule)


def _linear_attention(call: ShapeCall) -> Answer:
    """Query, key (B, T, heads x width of a key), value (B, T, heads x width of a value)."""
    query, key, value = call.shape(0), call.shape(1), call.shape(2)
    heads, own = call.whole("q_num_heads", 0), call.whole("kv_num_heads", 0)
    if query is None or value is None or not heads or not own:
        return None
    each = dims.quotient(value[2], own)
    state: Shape | None = call.shape(3)
    if not call.has(3) and key is not None and not call.whole("state_window", 0):
        state = (query[0], own, dims.quotient(key[2], own), each)
    out = (query[0], query[1], dims.multiply(each, max(heads, own)))
    return ((call.dtype(0), out), (call.dtype(3) or call.dtype(0), state))[: call.count]


def _embed_layer_norm(table: int, dtype: int) -> Rule:
    def rule(call: ShapeCall) -> Answer:
        ids, words = call.shape(0), call.shape(table)
        whole = None if ids is None or words is None else (*ids, words[-1])
        mask = None if ids is None else ids[:1]
        return ((call.dtype(dtype), whole), ("int32", mask), (call.dtype(dtype), whole))[: call.count]

    return Rule(rule)


def _packed_heads(call: ShapeCall) -> Answer:
    """Query (tokens, hidden), or all three in one of (tokens, heads, 3, head)."""
    query = call.shape(0)
    if query is None:
        return None
    if len(query) == 4:
        return ((call.dtype(0), (query[0], dims.multiply(query[1], query[3]))),)
    value = call.shape(2)
    return ((call.dtype(0), (query[0], value[-1] if value else None)),)


RULES: dict[tuple[str, str], Rule] = {
    **{
        (MS, op): _packed_attention(2, 4)
        for op in ("Attention", "DecoderMaskedSelfAttention", "PackedAttention")
    },
    (MS, "QAttention"): _packed_attention(2, 8, 3),
    (MS, "PackedMultiHeadAttention"): Rule(_packed_heads),
    **{
        (MS, op): Rule(_multi_head_attention)
        for op in ("MultiHeadAttention", "DecoderMaskedMultiHeadAttention")
    },
    (MS, "GroupQueryAttention"): _grouped_query_attention(grows=True),
    **{
        (MS, op): _grouped_query_attention(grows=False)
        for op in ("SparseAttention", "PagedAttention", "SparsePagedAttention")
    },
    (MS, "LinearAttention"): Rule(_linear_attention),
    (MS, "EmbedLayerNormalization"): _embed_layer_norm(2, 2),
    (MS, "QEmbedLayerNormalization"): _embed_layer_norm(2, 8),
}
"""Rule by (domain, operator)."""
