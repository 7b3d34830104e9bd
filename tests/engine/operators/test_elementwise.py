"""Operators that compute element by element, and those that compute nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.cost_rules import free
from explorer.engine.operators.registry import FAMILIES, RULES
from explorer.facts import Shape

Count = Callable[..., Cost]
S: Shape = ()
NHWC = "com.ms.internal.nhwc"
X: Shape = (2, 3)

EXACT = [
    # operator, domain, inputs, output, attributes, MACs, elementwise
    ("ReduceLogSumExp", "", [X], (2,), {}, 0, 24),
    ("ReduceLogSum", "", [X], (2,), {}, 0, 12),
    ("CumProd", "", [X, S], X, {}, 0, 6),
    ("SwiGLU", "", [X], X, {}, 0, 12),
    ("SwiGLU", MS, [X, X], X, {}, 0, 12),
    ("SwiGLU", MS, [(2, 6)], X, {"limit": 7.0, "activation_beta": 1.0}, 0, 5 * 6),
    ("PackedSparseAttentionIndexerMerge", MS, [(3, 4), (3,), (5,)], (5, 9), {}, 0, 0),
    ("ConvStateReplay", MS, [(99,), (99,), (99,), (8,)], (99,), {}, 0, 0),
    # 2 of 8 columns turn; 6 are normalised where the node takes a slice
    ("RMSNormRotary", MS, [(2, 3, 4, 8), (8,)], (2, 3, 32), {"rotary_embedding_dim": 2}, 0, 4 * 192 + 3 * 48),
    ("RMSNormRotary", MS, [(2, 3, 4, 8), (6,)], (2, 3, 24), {"rotary_embedding_dim": 2, "input_width": 6}, 0,
     4 * 144 + 3 * 48),
    ("Affine", "", [X], X, {}, 0, 12),
    ("ImageScaler", "", [X], X, {}, 0, 12),
    ("Min", "", [X, X, X], X, {}, 0, 12),
    ("Max", "", [X, X], X, {}, 0, 6),
    ("LogSoftmax", "", [X], X, {}, 0, 36),
    ("DynamicQuantizeLinear", "", [X], X, {}, 0, 30),
    ("GroupNormalization", "", [X, (3,), (3,)], X, {}, 0, 42),
    ("InstanceNormalization", "", [X, (3,), (3,)], X, {}, 0, 42),
    ("InstanceNormalization", NHWC, [X, (3,), (3,)], X, {}, 0, 42),
    ("RMSNormalization", "", [X, (3,)], X, {}, 0, 24),
    ("SimplifiedLayerNormalization", "", [X, (3,)], X, {}, 0, 24),
    ("MurmurHash3", MS, [X], X, {}, 0, 0),
    ("NGramHashMapping", MS, [X], (2, 3, 4), {}, 0, 0),
    ("VarlenNGramHashMapping", MS, [X], (2, 3, 4), {}, 0, 0),
    ("BifurcationDetector", MS, [(5,)], (7,), {}, 0, 0),
    ("BatchNormalization", NHWC, [X, (3,), (3,), (3,), (3,)], X, {}, 0, 12),
    # in training: statistics of 6 elements, then both running ones of 3 channels
    ("BatchNormalization", "", [X, (3,), (3,), (3,), (3,)], X, {"training_mode": 1}, 0, 42 + 18),
    ("Dropout", "", [X, S, np.array(True)], X, {}, 0, 12),
    ("Dropout", "", [X, S, np.array(False)], X, {}, 0, 0),
    ("Dropout", "", [X], X, {}, 0, 0),
    ("MeanVarianceNormalization", "", [X], X, {}, 0, 30),
    ("LpNormalization", "", [X], X, {}, 0, 18),
    # 8 labels: negated, weighed, summed, weights summed; one division
    ("NegativeLogLikelihoodLoss", "", [(2, 5, 4), (2, 4), (5,)], S, {}, 0, 8 * 4 + 1),
    ("NegativeLogLikelihoodLoss", "", [(2, 5, 4), (2, 4)], (2, 4), {"reduction": "none"}, 0, 8),
    ("NegativeLogLikelihoodLoss", "", [(2, 5), (2,)], S, {"reduction": "sum"}, 0, 4),
    # a log softmax of 6 operations on each of 40 scores before that
    ("SoftmaxCrossEntropyLoss", "", [(2, 5, 4), (2, 4)], S, {}, 0, 6 * 40 + 8 * 2 + 1),
    ("BiasSoftmax", MS, [X, X], X, {}, 0, 36),
    ("GroupNorm", MS, [(1, 4, 4, 8), (8,), (8,)], (1, 4, 4, 8), {"activation": 1}, 0, 128 * 8),
    ("SkipGroupNorm", MS, [(1, 4, 4, 8), (8,), (8,), (1, 4, 4, 8), (8,)], (1, 4, 4, 8), {}, 0, 128 * 9),
    ("SkipLayerNormalization", MS, [X, X, (3,), (3,)], X, {}, 0, 48),
    ("SkipLayerNormalization", MS, [X, X, (3,), (3,), (3,)], X, {}, 0, 54),
    ("SkipSimplifiedLayerNormalization", MS, [X, X, (3,)], X, {}, 0, 30),
    ("EmbedLayerNormalization", MS, [(2, 3), None, (9, 4), (9, 4), None, (4,), (4,)], (2, 3, 4), {}, 0, 192),
    ("EmbedLayerNormalization", MS, [(2, 3), (2, 3), (9, 4), (9, 4), (2, 4)], (2, 3, 4), {}, 0, 216),
    ("QEmbedLayerNormalization", MS, [(2, 3), None, (9, 4), (9, 4)], (2, 3, 4), {}, 0, 24 * 12),
    ("QOrderedLayerNormalization", MS, [X], X, {}, 0, 72),
    ("BranchwiseRMSNorm", MS, [X, (3,)], X, {}, 0, 24),
    ("BranchwiseRMSNorm", MS, [X], X, {}, 0, 18),
    ("GatedRMSNorm", MS, [X, (3,), X], X, {}, 0, 36),
    ("QuantizeWithOrder", MS, [X, S], X, {}, 0, 12),
    ("DequantizeWithOrder", MS, [X, S], X, {}, 0, 6),
    ("QuantizeBFP", MS, [X], X, {}, 0, 18),
    ("DequantizeBFP", MS, [X], X, {}, 0, 6),
    ("GatherBlockQuantized", MS, [(9, 4), (3,), (9, 1)], (3, 4), {}, 0, 24),
    ("QLinearAdd", MS, [X, S, S, X], X, {}, 0, 48),
    ("QLinearMul", MS, [X, S, S, X], X, {}, 0, 48),
    ("QLinearSigmoid", MS, [X], X, {}, 0, 36),
    ("QLinearLeakyRelu", MS, [X], X, {}, 0, 36),
    ("QLinearSoftmax", MS, [X], X, {}, 0, 60),
    ("QLinearWhere", MS, [X, X], X, {}, 0, 36),
    ("QLinearConcat", MS, [S, S, X], X, {}, 0, 30),
    ("QLinearReduceMean", MS, [X], (2, 1), {}, 0, 18 + 6),
    ("QOrderedGelu", MS, [X], X, {}, 0, 36),
    ("ReduceSumInteger", MS, [X], (2, 1), {}, 0, 6),
    ("MulInteger", MS, [X, S, X, S], X, {}, 0, 18),
    ("FastGelu", MS, [X], X, {}, 0, 6),
    ("FastGelu", MS, [X, (3,)], X, {}, 0, 12),
    ("QuickGelu", MS, [X], X, {}, 0, 6),
    ("BiasGelu", MS, [X, (3,)], X, {}, 0, 12),
    ("BiasSplitGelu", MS, [(2, 6), (6,)], X, {}, 0, 18),
    ("BiasAdd", MS, [X, (3,), X], X, {}, 0, 12),
    ("BiasDropout", MS, [X, (3,), X], X, {}, 0, 12),
    ("BitmaskBiasDropout", MS, [X, (3,)], X, {}, 0, 6),
    ("GatedAdd", MS, [X, X, X], X, {}, 0, 12),
    ("ScaledSiLU", MS, [X, (3,)], X, {}, 0, 18),
    # (a + ib)(c + id): 4 products, a difference and a sum for 2 elements
    ("ComplexMul", MS, [(3, 2), (3, 2)], (3, 2), {}, 0, 18),
    ("ComplexMulConj", MS, [(3, 2), (3, 2)], (3, 2), {}, 0, 18),
    ("CDist", MS, [(4, 3), (5, 3)], (4, 5), {"metric": "sqeuclidean"}, 0, 3 * 60),
    ("IsAllFinite", MS, [X, (4,)], S, {}, 0, 10),
    # 6 rows of 8: a dot product; both normalised with 4 each, 7 a row, the value scaled
    ("EngramGate", MS, [(1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 8)], (1, 2, 3, 8), {}, 48, 8 * 48 + 7 * 6 + 48),
    ("EngramGate", MS, [(1, 2, 3, 8), (1, 2, 3, 8), (1, 2, 8)], [(1, 2, 3, 8), (1, 2, 3, 8)], {},
     48, 12 * 48 + 7 * 6 + 48),
    ("HyperConnectionPreMix", MS, [(5, 4, 8), (5, 4)], (5, 8), {}, 0, 2 * 160),
    ("HyperConnectionPostMix", MS, [(5, 4, 8), (5, 8), (5, 4)], (5, 4, 8), {}, 0, 2 * 160),
    ("HyperConnectionPostMix", MS, [(5, 4, 8), (5, 8), (5, 4), (5, 4, 4)], (5, 4, 8), {}, 160 * 4, 2 * 160),
    ("LinearAttentionGate", MS, [(2, 5, 4), (4,), (4,), (2, 5, 4)], (2, 5, 4), {}, 0, 3 * 40 + 40),
]  # fmt: skip


@pytest.mark.parametrize(("op", "domain", "inputs", "output", "attributes", "products", "rest"), EXACT)
def test_each_element_is_counted_as_by_hand(
    count: Count, op: str, domain: str, inputs: Any, output: Any, attributes: Any, products: int, rest: int
) -> None:
    cost = count(op, inputs, output, domain, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (products, rest, "exact")


def test_a_table_of_relative_positions_is_a_bound(count: Count) -> None:
    cost = count("RelativePositionBias", [(32, 4), (), ()], (1, 4, 5, 7), MS)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (0, 6 * 35, "bound")


def test_what_moves_data_costs_nothing_even_if_no_shape_is_known(count: Count) -> None:
    moving = [key for key, rule in RULES.items() if rule is free]
    assert len(moving) > 80
    for domain, op in moving:
        cost = count(op, [None], None, domain)
        assert (cost.macs, cost.elementwise_ops, cost.status) == (0, 0, "exact"), op


@pytest.mark.parametrize(
    ("domain", "op", "why"),
    [
        (MS, "BeamSearch", "a complete model"),
        (MS, "EPContext", "compiled"),
        (MS, "Snpe", "compiled"),
        ("", "EfficientNMS_TRT", "not public"),
        ("", "DisentangledAttention_TRT", "not public"),
        ("", "MultilevelCropAndResize_TRT", "not public"),
        ("", "PyramidROIAlign_TRT", "not public"),
    ],
)
def test_what_is_a_program_of_its_own_has_a_reason(count: Count, domain: str, op: str, why: str) -> None:
    cost = count(op, [X], X, domain)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (None, None, "unknown")
    assert why in cost.reason


def test_every_rule_that_computes_has_a_case_worked_by_hand() -> None:
    """Looks into the tables of these tests: a rule that nobody worked out is named.

    A rule that stands under several names (one operation an element) is worked out for one of them.
    """
    import re
    from pathlib import Path

    here = Path(__file__)
    files = (*here.parent.glob("test_*.py"), here.parent / "test_rules.py")
    named = {word for path in files for word in re.findall(r'"([A-Za-z]\w+)"', path.read_text())}
    records = [record for family in FAMILIES for record in family.OPERATORS]
    worked = {record.cost for record in records if not named.isdisjoint(record.names.split())} | {free}
    assert {record.names for record in records if record.cost not in worked} == set()
