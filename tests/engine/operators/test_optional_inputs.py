"""What an optional input adds, each found by its name in the schema of onnx or onnxruntime.

Rules know inputs by their place; here the place is looked up, so that a rule which looks at the wrong one
is found out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import pytest

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import Shape

Count = Callable[..., Cost]
S: Shape = ()
Q: Shape = (2, 5, 32)  # 2 sequences, 5 positions, 4 heads of 8
SCORES = 2 * 4 * 5 * 5
KV = {"num_heads": 4, "kv_num_heads": 2}
HEADS = {"num_heads": 4}


@cache
def _places() -> Mapping[tuple[str, str], Mapping[str, int]]:
    from onnx import defs
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[tuple[str, str], tuple[int, dict[str, int]]] = {}
    for schema in (*state.get_all_operator_schema(), *defs.get_all_schemas_with_history()):
        key = schema.domain, schema.name
        if key not in found or schema.since_version >= found[key][0]:
            found[key] = schema.since_version, {p.name: i for i, p in enumerate(schema.inputs)}
    return {key: places for key, (_, places) in found.items()}


def _by_name(op: str, domain: str, given: Mapping[str, Shape]) -> list[Shape | None]:
    places = _places()[domain, op]
    row: list[Shape | None] = [None] * (1 + max(places[name] for name in given))
    for name, shape in given.items():
        row[places[name]] = shape
    return row


ATTENTION = {"input": Q, "weights": (32, 96)}
DECODER = {"input": (2, 1, 32), "weights": (32, 96), "past": (2, 2, 4, 4, 8)}
PACKED = {"input": (7, 32), "weights": (32, 96), "token_offset": (2, 5), "cumulative_sequence_length": (3,)}
TOKENS = {"query": (7, 32), "key": (7, 32), "value": (7, 24), "token_offset": (2, 5)}
MULTI = {"query": Q, "key": (2, 7, 32), "value": (2, 7, 24)}
ONE = {"query": (2, 1, 32), "key": (2, 1, 32), "value": (2, 1, 24), "past_key": (2, 4, 4, 8)}
CROSS = {"query": (2, 1, 32), "key": (2, 4, 7, 8), "value": (2, 4, 7, 6)}
GROUPED = {"query": Q, "key": (2, 6, 16), "value": (2, 6, 12)}
PAGED = {
    "query": (7, 32),
    "key": (7, 16),
    "value": (7, 16),
    "key_cache": (9, 16, 2, 8),
    "block_table": (2, 3),
}
DYNAMIC = {"query": Q, "key": (2, 5, 16), "value": (2, 5, 16), "selected_indices": (10, 6)}
SPARSE = {"query": (7, 32), "key": (7, 16), "value": (7, 16), "selected_indices": (7, 6)}
ORDERED = {"input": Q, "Q_weight": (32, 32), "K_weight": (32, 32), "V_weight": (32, 24)}
IMAGE = {"X": (1, 3, 8, 8), "W": (4, 3, 3, 3)}
LAST = {"X": (1, 8, 8, 3), "W": (4, 3, 3, 3)}
PIXELS = 4 * 36
MLP = {"A": (3, 32), "gate_B": (6, 1, 16), "up_B": (6, 1, 16)}
QKV = {"A": (3, 32), "q_B": (6, 1, 16), "k_B": (2, 1, 16), "v_B": (2, 1, 16)}
MOE = {
    "input": (6, 8),
    "router_probs": (6, 4),
    "fc1_experts_weights": (4, 10, 8),
    "fc2_experts_weights": (4, 8, 10),
}
QMOE = {**MOE, "fc1_experts_weights": (4, 10, 4), "fc2_experts_weights": (4, 8, 5)}
AB = {"A": (3, 4), "B": (4, 6)}

ADDED: list[Any] = [
    # operator, domain, inputs, output, attributes, what is added, its shape, more MACs, more operations
    ("Attention", MS, ATTENTION, Q, HEADS, "bias", (96,), 0, 2 * 5 * 96),
    ("Attention", MS, ATTENTION, Q, HEADS, "mask_index", (2, 5), 0, SCORES),
    ("Attention", MS, ATTENTION, Q, HEADS, "attention_bias", (2, 4, 5, 5), 0, SCORES),
    ("Attention", MS, ATTENTION, Q, HEADS, "past", (2, 2, 4, 3, 8), 2 * 4 * 5 * 3 * 16, 2 * 4 * 5 * 3 * 6),
    ("QAttention", MS, {"input": Q, "weight": (32, 96)}, Q, HEADS, "mask_index", (2, 5), 0, SCORES),
    ("QAttention", MS, {"input": Q, "weight": (32, 96)}, Q, HEADS, "past", (2, 2, 4, 3, 8),
     2 * 4 * 5 * 3 * 16, 2 * 4 * 5 * 3 * 6),
    ("DecoderMaskedSelfAttention", MS, DECODER, (2, 1, 32), HEADS, "bias", (96,), 0, 2 * 96),
    ("DecoderMaskedSelfAttention", MS, DECODER, (2, 1, 32), HEADS, "mask_index", (2, 5), 0, 2 * 4 * 5),
    ("DecoderMaskedSelfAttention", MS, DECODER, (2, 1, 32), HEADS, "attention_bias", (2, 4, 1, 5), 0, 40),
    ("PackedAttention", MS, PACKED, (7, 32), HEADS, "bias", (96,), 0, 7 * 96),
    ("PackedAttention", MS, PACKED, (7, 32), HEADS, "attention_bias", (2, 4, 5, 5), 0, SCORES),
    ("PackedMultiHeadAttention", MS, TOKENS, (7, 24), HEADS, "bias", (88,), 0, 7 * 88),
    ("PackedMultiHeadAttention", MS, TOKENS, (7, 24), HEADS, "attention_bias", (2, 4, 5, 5), 0, SCORES),
    ("MultiHeadAttention", MS, MULTI, (2, 5, 24), HEADS, "bias", (88,), 0, 2 * 5 * 32 + 2 * 7 * 56),
    ("MultiHeadAttention", MS, MULTI, (2, 5, 24), HEADS, "key_padding_mask", (2, 7), 0, 2 * 4 * 35),
    ("MultiHeadAttention", MS, MULTI, (2, 5, 24), HEADS, "attention_bias", (2, 4, 5, 7), 0, 2 * 4 * 35),
    ("MultiHeadAttention", MS, MULTI, (2, 5, 24), HEADS, "past_key", (2, 4, 3, 8),
     2 * 4 * 15 * 14, 2 * 4 * 15 * 6),
    ("DecoderMaskedMultiHeadAttention", MS, ONE, (2, 1, 24), HEADS, "mask_index", (2, 5), 0, 40),
    ("DecoderMaskedMultiHeadAttention", MS, ONE, (2, 1, 24), HEADS, "attention_bias", (2, 4, 1, 5), 0, 40),
    ("DecoderMaskedMultiHeadAttention", MS, ONE, (2, 1, 24), HEADS, "bias", (88,), 0, 2 * 88),
    ("DecoderMaskedMultiHeadAttention", MS, CROSS, (2, 1, 24), HEADS, "bias", (88,), 0, 2 * 32),
    ("DecoderMaskedMultiHeadAttention", MS, CROSS, (2, 1, 24), HEADS, "mask_index", (2, 7), 0, 56),
    ("GroupQueryAttention", MS, GROUPED, (2, 5, 24), KV, "attention_bias", (2, 4, 5, 6), 0, 2 * 4 * 30),
    ("GroupQueryAttention", MS, GROUPED, (2, 5, 24), KV, "past_key", (2, 2, 3, 8),
     2 * 4 * 15 * 14, 2 * 4 * 15 * 6),
    ("GroupQueryAttention", MS, GROUPED, (2, 5, 24), KV, "q_norm_weight", (8,), 0,
     4 * (2 * 5 * 32 + 2 * 6 * 16)),
    ("PagedAttention", MS, PAGED, (7, 32), KV, "q_norm_weight", (8,), 0, 4 * 7 * 48),
    ("DynamicSparseAttention", MS, DYNAMIC, Q, KV, "q_norm_weight", (8,), 0, 4 * 10 * 48),
    ("SparsePagedAttention", MS, SPARSE, (7, 32), KV, "q_norm_weight", (8,), 0, 4 * 7 * 48),
    ("QOrderedAttention", MS, ORDERED, (2, 5, 24), HEADS, "Q_bias", (32,), 0, 320),
    ("QOrderedAttention", MS, ORDERED, (2, 5, 24), HEADS, "K_bias", (32,), 0, 320),
    ("QOrderedAttention", MS, ORDERED, (2, 5, 24), HEADS, "V_bias", (24,), 0, 240),
    ("QOrderedAttention", MS, ORDERED, (2, 5, 24), HEADS, "mask_index", (2, 5), 0, SCORES),
    ("Attention", "", {"Q": (2, 4, 5, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 6)}, None, {}, "attn_mask", (5,
     5),
     0, SCORES),
    ("Attention", "", {"Q": (2, 4, 5, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 6)}, None, {}, "past_key",
     (2, 2, 3, 8), 2 * 4 * 15 * 14, 2 * 4 * 15 * 6),
    ("Conv", "", IMAGE, (1, 4, 6, 6), {}, "B", (4,), 0, PIXELS),
    ("FusedConv", MS, IMAGE, (1, 4, 6, 6), {}, "B", (4,), 0, PIXELS),
    ("FusedConv", MS, IMAGE, (1, 4, 6, 6), {}, "Z", (1, 4, 6, 6), 0, PIXELS),
    ("NhwcConv", MS, LAST, (1, 6, 6, 4), {}, "B", (4,), 0, PIXELS),
    ("NhwcFusedConv", MS, LAST, (1, 6, 6, 4), {}, "B", (4,), 0, PIXELS),
    ("NhwcFusedConv", MS, LAST, (1, 6, 6, 4), {}, "Z", (1, 6, 6, 4), 0, PIXELS),
    ("Conv", "com.microsoft.nchwc", IMAGE, (1, 4, 6, 6), {}, "B", (4,), 0, PIXELS),
    ("Conv", "com.microsoft.nchwc", IMAGE, (1, 4, 6, 6), {}, "Sum", (1, 4, 6, 6), 0, PIXELS),
    ("Conv", "com.ms.internal.nhwc", LAST, (1, 6, 6, 4), {}, "B", (4,), 0, PIXELS),
    ("QLinearConv", "", {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}, (1, 4, 6, 6), {}, "B", (4,), 0, PIXELS),
    ("QLinearConv", MS, {"x": (1, 3, 8, 8), "w": (4, 3, 3, 3)}, (1, 4, 6, 6), {}, "B", (4,), 0, PIXELS),
    ("QLinearConvTranspose", "com.ms.internal.nhwc", {"x": (1, 2, 2, 3), "w": (3, 1, 2, 2)}, (1, 4, 4, 1), {},
     "B", (1,), 0, 16),
    ("ConvTranspose", "", {"X": (1, 3, 2, 2), "W": (3, 1, 2, 2)}, (1, 1, 4, 4), {}, "B", (1,), 0, 16),
    ("ConvTransposeWithDynamicPads", MS, {"X": (1, 3, 2, 2), "W": (3, 1, 2, 2)}, (1, 1, 4, 4), {}, "B", (1,),
     0, 16),
    ("DeformConv", "", {**IMAGE, "offset": (1, 18, 6, 6)}, (1, 4, 6, 6), {}, "B", (4,), 0, PIXELS),
    ("DeformConv", "", {**IMAGE, "offset": (1, 18, 6, 6)}, (1, 4, 6, 6), {}, "mask", (1, 9, 6, 6), 0,
     3 * 36 * 9),
    ("CausalConvWithState", "", {"input": (2, 5, 7), "weight": (5, 1, 4)}, (2, 5, 7), {}, "bias", (5,), 0,
     70),
    ("CausalConvWithState", MS, {"input": (2, 5, 7), "weight": (5, 1, 4)}, (2, 5, 7), {}, "bias", (5,), 0,
     70),
    ("VarlenCausalConvWithState", MS, {"input": (9, 5), "weight": (5, 1, 4)}, (9, 5), {}, "bias", (5,), 0,
     45),
    ("Gemm", "", AB, (3, 6), {}, "C", (6,), 0, 18),
    ("FusedGemm", MS, AB, (3, 6), {}, "C", (6,), 0, 18),
    ("GemmFloat8", MS, AB, (3, 6), {}, "C", (6,), 0, 18),
    ("GemmFloat8", MS, AB, (3, 6), {}, "scaleY", S, 0, 18),
    ("GemmFastGelu", MS, {"X": (3, 4), "W": (4, 6)}, (3, 6), {}, "bias", (6,), 0, 18),
    ("QGemm", MS, AB, (3, 6), {}, "C", (6,), 0, 18),
    ("QGemm", MS, AB, (3, 6), {}, "y_scale", S, 0, 0),
    ("QGemm", MS, AB, (3, 6), {}, "y_zero_point", S, 0, 2 * 18),
    ("MatMulIntegerToFloat", MS, AB, (3, 6), {}, "bias", (6,), 0, 18),
    ("DynamicQuantizeMatMul", MS, AB, (3, 6), {}, "bias", (6,), 0, 18),
    ("QOrderedMatMul", MS, AB, (3, 6), {}, "bias", (6,), 0, 18),
    ("QOrderedMatMul", MS, AB, (3, 6), {}, "C", (3, 6), 0, 18),
    ("MatMulNBits", MS, {"A": (3, 32), "B": (6, 1, 16)}, (3, 6), {"K": 32, "N": 6}, "bias", (6,), 0, 18),
    ("MatMulBlockQuantizedFp4Weight", MS, {"A": (3, 32), "B": (6, 16)}, (3, 6), {}, "bias", (6,), 0, 18),
    ("MatMulBlockQuantizedFp8Weight", MS, {"A": (3, 32), "B": (6, 32)}, (3, 6), {}, "bias", (6,), 0, 18),
    *(("MatMulNBitsMlp", MS, MLP, (3, 6), {"K": 32, "N": 6}, name, shape, 0, more) for name, shape, more in (
        ("skip", (3, 32), 96), ("norm_scale", (32,), 4 * 96), ("gate_bias", (6,), 18), ("up_bias", (6,),
     18))),
    *(("MatMulNBitsQkv", MS, QKV, [(3, 6), (3, 2), (3, 2)], {"K": 32, "Nq": 6, "Nkv": 2}, name, shape, 0,
     more)
      for name, shape, more in (
        ("skip", (3, 32), 96), ("norm_scale", (32,), 4 * 96), ("q_bias", (6,), 18), ("k_bias", (2,), 6),
        ("v_bias", (2,), 6))),
    *((op, MS, given, (6, 8), {}, name, shape, products, more) for op, given in (("MoE", MOE), ("QMoE", QMOE))
      for name, shape, products, more in (
        ("fc1_experts_bias", (4, 10), 0, 60), ("fc2_experts_bias", (4, 8), 0, 48),
        ("fc3_experts_bias", (4, 10), 0, 60))),
    ("MoE", MS, MOE, (6, 8), {}, "fc3_experts_weights", (4, 10, 8), 6 * 80, 60),
    ("QMoE", MS, QMOE, (6, 8), {}, "fc3_experts_weights", (4, 10, 4), 6 * 80, 60 + 2 * 320),
    ("LSTM", "", {"X": (5, 2, 3), "W": (1, 16, 3), "R": (1, 16, 4)}, None, {}, "B", (1, 32), 0, 40 * 4 * 2),
    ("LSTM", "", {"X": (5, 2, 3), "W": (1, 16, 3), "R": (1, 16, 4)}, None, {}, "P", (1, 12), 0, 40 * 6),
    ("DynamicQuantizeLSTM", MS, {"X": (5, 2, 3), "W": (1, 3, 16), "R": (1, 4, 16)}, None, {}, "B", (1, 32),
     0, 320),
    ("GatedDeltaNet", MS, {"query": (7, 2, 4), "key": (7, 2, 4), "value": (7, 2, 3), "decay": (7, 2)}, None,
     {},
     "beta", (7, 2), 0, 0),
    ("NegativeLogLikelihoodLoss", "", {"input": (2, 5), "target": (2,)}, S, {}, "weight", (5,), 0, 4),
    ("SoftmaxCrossEntropyLoss", "", {"scores": (2, 5), "labels": (2,)}, S, {}, "weights", (5,), 0, 4),
    ("SkipLayerNormalization", MS, {"input": (2, 3), "skip": (2, 3)}, (2, 3), {}, "bias", (3,), 0, 6),
    ("SkipSimplifiedLayerNormalization", MS, {"input": (2, 3), "skip": (2, 3)}, (2, 3), {}, "bias", (3,), 0,
     6),
    ("SkipGroupNorm", MS, {"X": (1, 4, 8)}, (1, 4, 8), {}, "skip", (1, 4, 8), 0, 32),
    ("SkipGroupNorm", MS, {"X": (1, 4, 8)}, (1, 4, 8), {}, "bias", (8,), 0, 32),
    ("EmbedLayerNormalization", MS, {"input_ids": (2, 3)}, (2, 3, 4), {}, "segment_embedding", (2, 4), 0, 24),
    ("QEmbedLayerNormalization", MS, {"input_ids": (2, 3)}, (2, 3, 4), {}, "segment_embedding", (2, 4), 0,
     24),
    ("FastGelu", MS, {"X": (2, 3)}, (2, 3), {}, "bias", (3,), 0, 6),
    ("BiasDropout", MS, {"data": (2, 3), "bias": (3,)}, (2, 3), {}, "residual", (2, 3), 0, 6),
    ("BitmaskBiasDropout", MS, {"data": (2, 3), "bias": (3,)}, (2, 3), {}, "residual", (2, 3), 0, 6),
    ("ScaledSiLU", MS, {"X": (2, 3)}, (2, 3), {}, "scale", (3,), 0, 6),
    ("BranchwiseRMSNorm", MS, {"X": (2, 3)}, (2, 3), {}, "scale", (3,), 0, 6),
    ("HyperConnectionPostMix", MS, {"streams": (5, 4, 8)}, (5, 4, 8), {}, "stream_mix", (5, 4, 4), 640, 0),
    ("HyperConnectionLowRankMix", MS, {"streams": (5, 8), "down_weight": (8, 3), "inject_weight": (8, 2)},
     (5, 4), {"num_branches": 2}, "prev_block_output", (5, 4), 0, 80),
    ("LinearAttentionGate", MS, {"a": (2, 5, 4)}, (2, 5, 4), {}, "b", (2, 5, 4), 0, 40),
]  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize(
    ("op", "domain", "given", "output", "attributes", "name", "shape", "products", "more"),
    ADDED,
    ids=[f"{domain or 'onnx'}-{op}-{name}" for op, domain, _, _, _, name, *_ in ADDED],
)
def test_an_optional_input_adds_what_it_adds(
    count: Count,
    op: str,
    domain: str,
    given: Mapping[str, Shape],
    output: Any,
    attributes: Any,
    name: str,
    shape: Shape,
    products: int,
    more: int,
) -> None:
    if name not in _places().get((domain, op), ()):
        pytest.skip("the installed release does not know this input")
    plain = count(op, _by_name(op, domain, given), output, domain, **attributes)
    whole = count(op, _by_name(op, domain, {**given, name: shape}), output, domain, **attributes)
    assert plain.macs is not None
    assert whole.macs is not None
    assert whole.macs - plain.macs == products
    assert (whole.elementwise_ops or 0) - (plain.elementwise_ops or 0) == more
