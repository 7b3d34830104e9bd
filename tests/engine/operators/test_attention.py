"""Attention: every packing counts the same pairs of query and key."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import Shape

Count = Callable[..., Cost]
S: Shape = ()

# 2 sequences, 4 heads of 8, 5 queries, 5 keys: the scores, then what is done to them
SCORES = 2 * 4 * 5 * 5
CORE = SCORES * 16
REST = SCORES * (1 + 5)  # scale, softmax
PROJECTION = 2 * 5 * 32 * 96
CACHED = 2 * 4 * 5 * 9  # 4 positions of the cache before them

EXACT = [
    # operator, domain, inputs, outputs, attributes, MACs, elementwise
    ("Attention", "", [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)], (2, 4, 5, 8), {}, CORE, REST),
    ("Attention", "", [(2, 4, 5, 8)] * 3 + [(5, 5)], (2, 4, 5, 8), {"softcap": 2.0}, CORE, REST + 4 * SCORES),
    ("FlexAttention", "ai.onnx.preview",
     [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8)], (2, 4, 5, 8), {}, CORE, REST),
    ("Attention", MS, [(2, 5, 32), (32, 96), (96,)], (2, 5, 32), {"num_heads": 4},
     PROJECTION + CORE, REST + 2 * 5 * 96),
    ("Attention", MS, [(2, 5, 32), (32, 80)], (2, 5, 16), {"num_heads": 4, "qkv_hidden_sizes": (32, 32, 16)},
     2 * 5 * 32 * 80 + SCORES * 12, REST),
    ("Attention", MS, [(2, 5, 32), (32, 96), None, None, (2, 2, 4, 4, 8)], [(2, 5, 32), (2, 2, 4, 9, 8)],
     {"num_heads": 4}, PROJECTION + CACHED * 16, CACHED * 6),
    ("Attention", MS, [(2, 5, 32), (32, 96), None, (2, 5)], (2, 5, 32), {"num_heads": 4, "do_rotary": 1},
     PROJECTION + CORE, REST + SCORES + 6 * 2 * 5 * 32),
    ("QAttention", MS, [(2, 5, 32), (32, 96), (96,), S, S, (2, 5)], (2, 5, 32), {"num_heads": 4},
     PROJECTION + CORE, REST + SCORES + 2 * 5 * 96),
    ("QOrderedAttention", MS,
     [(2, 5, 32), S, S, S, S, (32, 32), (32, 32), (32, 32), S, S, S, (32,), (32,), (32,), S, S, S],
     (2, 5, 32), {"num_heads": 4}, PROJECTION + CORE, REST + 2 * 5 * 96 + 3 * 2 * 5 * 96),
    ("DecoderMaskedSelfAttention", MS,
     [(2, 1, 32), (32, 96), (96,), None, (2, 2, 4, 4, 8), None, (1,)], [(2, 1, 32), (2, 2, 4, 5, 8)],
     {"num_heads": 4}, 2 * 32 * 96 + 2 * 4 * 5 * 16, 2 * 96 + 2 * 4 * 5 * 6),
    ("MultiHeadAttention", MS, [(2, 5, 32), (2, 5, 32), (2, 5, 32), (96,)], (2, 5, 32), {"num_heads": 4},
     CORE, REST + 2 * 5 * 96),
    ("MultiHeadAttention", MS, [(2, 5, 4, 3, 8)], (2, 5, 32), {"num_heads": 4}, CORE, REST),
    ("MultiHeadAttention", MS, [(2, 5, 32), (2, 7, 4, 2, 8)], (2, 5, 32), {"num_heads": 4},
     2 * 4 * 35 * 16, 2 * 4 * 35 * 6),
    # key and value made earlier: only the query has a bias to add
    ("MultiHeadAttention", MS, [(2, 5, 32), (2, 4, 7, 8), (2, 4, 7, 8), (96,)], (2, 5, 32), {"num_heads": 4},
     2 * 4 * 35 * 16, 2 * 4 * 35 * 6 + 2 * 5 * 32),
    ("MultiHeadAttention", MS,
     [(2, 5, 32), (2, 5, 32), (2, 5, 32), None, None, None, (2, 4, 4, 8), (2, 4, 4, 8)],
     [(2, 5, 32), (2, 4, 9, 8)], {"num_heads": 4}, CACHED * 16, CACHED * 6),
    ("DecoderMaskedMultiHeadAttention", MS,
     [(2, 1, 32), (2, 1, 32), (2, 1, 32), None, None, (2, 4, 4, 8), (2, 4, 4, 8)],
     [(2, 1, 32), (2, 4, 5, 8)], {"num_heads": 4}, 2 * 4 * 5 * 16, 2 * 4 * 5 * 6),
    ("DecoderMaskedMultiHeadAttention", MS,
     [(2, 1, 96), None, None, None, None, (2, 4, 4, 8), (2, 4, 4, 8), None, None, None, (96,)],
     [(2, 1, 32), (2, 4, 5, 8)], {"num_heads": 4}, 2 * 4 * 5 * 16, 2 * 4 * 5 * 6 + 2 * 96),
    ("DecoderMaskedMultiHeadAttention", MS, [(2, 1, 32), (2, 4, 7, 8), (2, 4, 7, 8), (2, 7)], (2, 1, 32),
     {"num_heads": 4}, 2 * 4 * 7 * 16, 2 * 4 * 7 * 7),
    # the first token has no cache
    ("DecoderMaskedMultiHeadAttention", MS, [(2, 1, 32), (2, 1, 32), (2, 1, 32)], (2, 1, 32),
     {"num_heads": 4}, 2 * 4 * 16, 2 * 4 * 6),
    ("GroupQueryAttention", MS, [(2, 5, 32), (2, 5, 16), (2, 5, 16)], (2, 5, 32),
     {"num_heads": 4, "kv_num_heads": 2}, CORE, REST),
    # (4 + 2 x 2) heads of 8 side by side, rotated: 3 operations on each element of Q and K
    ("GroupQueryAttention", MS, [(2, 5, 64)], (2, 5, 32), {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
     CORE, REST + 3 * 2 * 5 * 48),
    ("GroupQueryAttention", MS, [(2, 5, 32), (2, 5, 16), (2, 5, 16), (2, 2, 4, 8), (2, 2, 4, 8)],
     [(2, 5, 32), (2, 2, 9, 8)],
     {"num_heads": 4, "kv_num_heads": 2, "softcap": 1.0}, CACHED * 16, CACHED * 9),
    # the cache is a buffer for 64 positions, of which 9 are in use
    ("GroupQueryAttention", MS,
     [(2, 5, 32), (2, 5, 16), (2, 5, 16), (2, 2, 64, 8), (2, 2, 64, 8), (2,), np.array(9)],
     [(2, 5, 32), (2, 2, 64, 8)], {"num_heads": 4, "kv_num_heads": 2}, CACHED * 16, CACHED * 6),
    ("GatedRelativePositionBias", MS,
     [(2, 5, 32), (32,), (1, 4, 5, 5), (8, 6), (6,), (1, 4, 1, 1)], (2, 4, 5, 5),
     {"num_heads": 4}, 40 * 8 * 6, 320 + 2 * 40 * 6 + 6 * 40 + 200),
    ("RotaryEmbedding", "", [(2, 4, 5, 8), (9, 4), (9, 4)], (2, 4, 5, 8), {}, 0, 3 * 320),
    ("RotaryEmbedding", "",
     [(2, 4, 5, 8), (9, 2), (9, 2)], (2, 4, 5, 8), {"rotary_embedding_dim": 4}, 0, 3 * 160),
    ("RotaryEmbedding", MS, [(2, 5, 32), (2, 5), (9, 2), (9, 2)], (2, 5, 32),
     {"rotary_embedding_dim": 4, "num_heads": 4}, 0, 3 * 160),
    ("MRotaryEmbedding", MS, [(2, 5, 32), (3, 2, 5), (9, 4), (9, 4)], (2, 5, 32), {}, 0, 3 * 320),
    ("GemmaRotaryEmbedding", MS, [(2, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)],
     [(2, 4, 5, 8), (2, 4, 5, 8)], {}, 0, 2 * 80 + 2 * 3 * 320),
]  # fmt: skip


@pytest.mark.parametrize(("op", "domain", "inputs", "output", "attributes", "products", "rest"), EXACT)
def test_attention_is_counted_as_by_hand(
    count: Count, op: str, domain: str, inputs: Any, output: Any, attributes: Any, products: int, rest: int
) -> None:
    cost = count(op, inputs, output, domain, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status, cost.reason) == (products, rest, "exact", "")


HEADS = {"num_heads": 4, "kv_num_heads": 2}
BOUNDS = [
    ("PackedAttention", [(7, 32), (32, 96), (96,), (2, 5), (3,)], (7, 32), {"num_heads": 4},
     7 * 32 * 96 + CORE, "as long as the longest"),
    ("PackedMultiHeadAttention", [(7, 32), (7, 32), (7, 32), None, (2, 5), (3,)], (7, 32), {"num_heads": 4},
     CORE, "as long as the longest"),
    ("PackedMultiHeadAttention", [(7, 4, 3, 8), None, None, None, (2, 5), (3,)], (7, 32), {"num_heads": 4},
     CORE, "as long as the longest"),
    # 7 tokens against 3 pages of 16
    ("PagedAttention",
     [(7, 32), (7, 16), (7, 16), (9, 16, 2, 8), (9, 16, 2, 8), (3,), (2,), (2, 3)], (7, 32), HEADS,
     4 * 7 * 48 * 16, "pages"),
    ("SparseAttention",
     [(2, 5, 64), None, None, (2, 2, 32, 8), (2, 2, 32, 8), (1, 3), (1, 4), (1,)], (2, 5, 32),
     HEADS, 2 * 4 * 5 * 32 * 16, "table"),
    ("DynamicSparseAttention",
     [(2, 5, 32), (2, 5, 16), (2, 5, 16), None, None, None, None, (10, 6), (10,), (2,), (1,)], (2, 5, 32),
     {**HEADS, "attention_mode": "selected_only"}, 4 * 10 * 6 * 16, "selected"),
    ("SparsePagedAttention",
     [(7, 32), (7, 16), (7, 16), (9, 16, 2, 8), (9, 16, 2, 8), (3,), (2,), (2, 3), None, (7, 6), (7,)],
     (7, 32),
     {**HEADS, "attention_mode": "local_plus_selected", "local_window_size": 4}, 4 * 7 * 10 * 16, "selected"),
    ("GroupQueryAttention", [(2, 5, 32), (2, 5, 16), (2, 5, 16), (2, 2, 64, 8), (2, 2, 64, 8), (2,), (1,)],
     [(2, 5, 32), (2, 2, 64, 8)], HEADS, 2 * 4 * 5 * 64 * 16, "buffer"),
    # a cache that does not grow is a buffer, whether the node says so or not
    ("Attention", [(2, 5, 32), (32, 96), None, None, (2, 2, 4, 64, 8)], [(2, 5, 32), (2, 2, 4, 64, 8)],
     {"num_heads": 4}, PROJECTION + 2 * 4 * 5 * 64 * 16, "buffer"),
    ("DecoderMaskedMultiHeadAttention",
     [(2, 1, 32), (2, 1, 32), (2, 1, 32), None, None, (2, 4, 64, 8), (2, 4, 64, 8)],
     [(2, 1, 32), (2, 4, 64, 8)], {"num_heads": 4}, 2 * 4 * 64 * 16, "buffer"),
    ("MultiHeadAttention",
     [(2, 5, 32), (2, 5, 32), (2, 5, 32), None, None, None, (2, 4, 64, 8), (2, 4, 64, 8)],
     [(2, 5, 32), (2, 4, 64, 8)], {"num_heads": 4}, 2 * 4 * 5 * 64 * 16, "buffer"),
    ("Attention", [(2, 5, 32), (32, 96), None, None, (2, 2, 4, 64, 8)], (2, 5, 32),
     {"num_heads": 4, "past_present_share_buffer": 1}, PROJECTION + 2 * 4 * 5 * 64 * 16, "buffer"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "products", "why"), BOUNDS)
def test_what_is_known_in_a_run_only_is_a_bound_that_says_why(
    count: Count, op: str, inputs: Any, output: Any, attributes: Any, products: int, why: str
) -> None:
    cost = count(op, inputs, output, MS, **attributes)
    assert (cost.macs, cost.status) == (products, "bound")
    assert why in cost.reason


@pytest.mark.parametrize(
    "op",
    ["DecoderAttention", "LongformerAttention", "QOrderedLongformerAttention", "SparseAttentionIndexer",
     "PackedSparseAttentionIndexer"],
)  # fmt: skip
def test_what_no_shape_tells_has_a_reason(count: Count, op: str) -> None:
    cost = count(op, [(2, 5, 32)], (2, 5, 32), MS)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (None, None, "unknown")
    assert cost.reason


small = st.integers(1, 3)


@settings(max_examples=40, deadline=None)
@given(small, small, small, small, small, small, st.booleans())
def test_attention_counts_every_product_of_a_loop_over_all_pairs(
    count: Any, batch: int, shared: int, lq: int, lk: int, dqk: int, dv: int, grouped: bool
) -> None:
    heads = shared * (2 if grouped else 1)
    products = 0
    for _ in itertools.product(range(batch), range(heads), range(lq), range(lk)):
        products += dqk  # the score
        products += dv  # its share of the value
    q, k, v = (batch, heads, lq, dqk), (batch, shared, lk, dqk), (batch, shared, lk, dv)
    wide = count("Attention", [q, k, v], (batch, heads, lq, dv))
    assert wide.macs == products
    assert wide.elementwise_ops == 6 * batch * heads * lq * lk
    flat = count(
        "Attention",
        [(batch, lq, heads * dqk), (batch, lk, shared * dqk), (batch, lk, shared * dv)],
        (batch, lq, heads * dv),
        q_num_heads=heads,
        kv_num_heads=shared,
    )
    assert (flat.macs, flat.elementwise_ops) == (wide.macs, wide.elementwise_ops)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(0, 5), st.integers(1, 3))
def test_beside_a_causal_count_stands_what_the_visible_pairs_take(
    count: Any, length: int, past: int, width: int
) -> None:
    pairs = sum(1 for i in range(length) for j in range(length + past) if j <= i + past)
    cache = [None, (1, 1, past, width), (1, 1, past, width)] if past else []
    shape = (1, 1, length, width)
    cost = count("Attention", [shape, shape, shape, *cache], shape, is_causal=1)
    assert cost.macs == length * (length + past) * 2 * width
    assert f"causal pairs only: {pairs * 2 * width:,})" in cost.formula


def test_torchs_own_counter_agrees(count: Count) -> None:
    torch = pytest.importorskip("torch")
    from tests.torch_counter import torch_counter

    q, k = torch.ones(2, 4, 5, 8), torch.ones(2, 4, 7, 8)
    with torch_counter() as counter:
        torch.nn.functional.scaled_dot_product_attention(q, k, k)
    ours = count("Attention", [(2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)], (2, 4, 5, 8))
    assert 2 * (ours.macs or 0) == counter.get_total_flops()


def test_a_cache_of_open_length_keeps_its_name_in_the_formula(count: Count) -> None:
    shapes: list[Any] = [(2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8), None, (2, 4, "past", 8), (2, 4, "past", 8)]
    cost = count("Attention", shapes, (2, 4, 5, 8))
    assert (cost.macs, cost.status) == (None, "unknown")
    assert "Lk past+5" in cost.formula
    assert cost.reason == "the size of 'past+5' is not given"
