"""Convolutions and matrix products: worked by hand, against loops over every index, against torch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from explorer.engine.graph.layouts import MS
from explorer.engine.operators import cost_formulas
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.operators.registry import find_packed_bits
from explorer.facts import Shape

Count = Callable[..., Cost]
S: Shape = ()
NCHWC, NHWC = "com.microsoft.nchwc", "com.ms.internal.nhwc"
PIXELS = 4 * 36  # 4 channels of 6 x 6
CONV = PIXELS * 27  # 3 channels, kernel 3 x 3

HAND = [
    # operator, domain, inputs, output, attributes, MACs, elementwise
    ("Conv", NHWC, [(1, 8, 8, 3), (4, 3, 3, 3), (4,)], (1, 6, 6, 4), {"activation": "Relu"},
     CONV, 2 * PIXELS),
    ("Conv", NCHWC, [(1, 8, 8, 8), (8, 3, 3, 3), (8,), (1, 8, 6, 6)], (1, 8, 6, 6), {"activation": "Relu"},
     8 * 36 * 27, 3 * 8 * 36),
    ("NhwcConv", MS, [(1, 8, 8, 3), (4, 3, 3, 3), (4,)], (1, 6, 6, 4), {}, CONV, PIXELS),
    ("NhwcFusedConv", MS, [(1, 8, 8, 3), (4, 3, 3, 3), (4,), (1, 6, 6, 4)], (1, 6, 6, 4),
     {"activation": "Relu"}, CONV, 3 * PIXELS),
    ("QLinearConv", MS, [(1, 8, 8, 3), S, S, (4, 3, 3, 3), S, S, S, S], (1, 6, 6, 4), {"channels_last": 1},
     CONV, 3 * PIXELS),
    ("QLinearConv", MS, [(1, 3, 8, 8), S, S, (4, 3, 3, 3), S, S, S, S, (4,)], (1, 4, 6, 6), {},
     CONV, 4 * PIXELS),
    ("QLinearConv", NHWC, [(1, 8, 8, 3), S, S, (4, 3, 3, 3), S, S, S, S], (1, 6, 6, 4), {}, CONV, 3 * PIXELS),
    ("ConvTranspose", NHWC, [(1, 2, 2, 3), (3, 1, 2, 2), (1,)], (1, 4, 4, 1), {}, 48, 16),
    ("QLinearConvTranspose", NHWC, [(1, 2, 2, 3), S, S, (3, 1, 2, 2), S, S, S, S], (1, 4, 4, 1), {}, 48, 48),
    ("ConvTransposeWithDynamicPads", MS, [(1, 3, 2, 2), (3, 1, 2, 2), (4,), (1,)], (1, 1, 4, 4), {}, 48, 16),
    # each of 2 x 6 x 6 places of 3 x 3 taps of 3 channels is interpolated with 7 operations and masked
    ("DeformConv", "", [(2, 3, 8, 8), (4, 3, 3, 3), (2, 18, 6, 6), (4,), (2, 9, 6, 6)], (2, 4, 6, 6), {},
     2 * CONV, 2 * PIXELS + 8 * 2 * 3 * 36 * 9),
    ("CausalConvWithState", "", [(2, 5, 7), (5, 1, 4), (5,), (2, 5, 3)], (2, 5, 7), {"activation": "silu"},
     70 * 4, 140),
    ("CausalConvWithState", MS, [(2, 5, 7), (5, 1, 4)], (2, 5, 7), {"activation": "none"}, 70 * 4, 0),
    ("VarlenCausalConvWithState", MS, [(9, 5), (5, 1, 4), (3,), (5,), (2, 5, 3)], (9, 5), {}, 45 * 4, 45),
    # 2 sentences of 3 words of 6 letters, windows of 2 letters of 4 numbers, 5 filters: 5 places a word
    ("WordConvEmbedding", MS, [(2, 3, 6), (5, 1, 2, 4), (5,), (30, 4)], (2, 3, 5), {},
     6 * 5 * 5 * 8, 3 * 6 * 5 * 5),
    ("AffineGrid", "", [(2, 2, 3), (4,)], (2, 4, 5, 2), {}, 2 * 20 * 3 * 2, 0),
    ("AffineGrid", "", [(2, 3, 4), (5,)], (2, 2, 4, 5, 3), {}, 2 * 40 * 4 * 3, 0),
    ("FusedGemm", MS, [(2, 3), (3, 4), (4,)], (2, 4), {"activation": "Relu"}, 24, 16),
    ("FusedMatMul", MS, [(3, 2, 4), (2, 4, 6)], (2, 3, 6), {"transBatchA": 1, "alpha": 0.5}, 2 * 72, 36),
    ("FusedMatMul", MS, [(2, 3, 4), (4, 2, 6)], (2, 3, 6), {"transBatchB": 1}, 2 * 72, 0),
    ("FusedMatMulActivation", MS, [(3, 4), (4, 6)], (3, 6), {"activation": "Gelu"}, 72, 18),
    ("TransposeMatMul", MS, [(4, 3), (4, 6)], (3, 6), {"transA": 1}, 72, 0),
    ("GemmFastGelu", MS, [(3, 4), (4, 6), (6,)], (3, 6), {}, 72, 36),
    ("GemmFloat8", MS, [(3, 4), (4, 6), None, S, S], (3, 6), {}, 72, 36),
    ("MatMulInteger16", MS, [(3, 4), (4, 6)], (3, 6), {}, 72, 0),
    ("MatMulIntegerToFloat", MS, [(3, 4), (4, 6), S, S, None, None, (6,)], (3, 6), {}, 72, 36),
    # 12 inputs quantized with 5 operations, 18 results rescaled
    ("DynamicQuantizeMatMul", MS, [(3, 4), (4, 6), (6,)], (3, 6), {}, 72, 60 + 18),
    ("QGemm", MS, [(3, 4), S, S, (4, 6), S, S, (6,), S, S], (3, 6), {}, 72, 18 + 54),
    ("QGemm", MS, [(3, 4), S, S, (4, 6), S, S], (3, 6), {}, 72, 18),
    ("QOrderedMatMul", MS, [(3, 4), S, (4, 6), S, S, (6,)], (3, 6), {}, 72, 18 + 54),
    ("MatMulBnb4", MS, [(3, 32), (96,), (6,)], (3, 6), {"K": 32, "N": 6}, 3 * 32 * 6, 192),
    ("MatMulFpQ4", MS, [(3, 32), (500,), (2,)], (3, 6), {}, 3 * 32 * 6, 2 * 192),
    ("MatMulBlockQuantizedFp4Weight", MS, [(3, 32), (6, 16), (6, 2), S, None, (6,)], (3, 6), {},
     3 * 32 * 6, 2 * 192 + 18),
    ("MatMulBlockQuantizedFp8Weight", MS, [(3, 32), (6, 32), (6, 1), None, (6,)], (3, 6), {},
     3 * 32 * 6, 192 + 18),
    # two products, dequantized; add the skipped, normalise; activate, multiply
    ("MatMulNBitsMlp", MS, [(3, 32), (3, 32), (32,), (6, 1, 16), (6,), (6,), (6, 1, 16), (6,)], (3, 6),
     {"K": 32, "N": 6}, 2 * 3 * 32 * 6, 2 * 2 * 192 + 18 + 96 + 4 * 96 + 2 * 18),
    ("MatMulNBitsQkv", MS, [(3, 32), None, (32,)], [(3, 6), (3, 2), (3, 2)], {"K": 32, "Nq": 6, "Nkv": 2},
     3 * 32 * 10, 2 * 320 + 4 * 96),
    # 2 of 4 experts for each of 6 tokens, 8 -> 10 -> 8: biases, activation, router's softmax, weighted sum
    ("MoE", MS, [(2, 3, 8), (6, 4), (4, 10, 8), (4, 10), (4, 8, 10), (4, 8)], (2, 3, 8), {"k": 2},
     6 * 2 * 160, 12 * 10 + 12 * 8 + 12 * 10 + 24 * 5 + 2 * 12 * 8),
    ("MoE", MS, [(6, 8), (6, 4), (4, 10, 8), None, (4, 8, 10), None, (4, 10, 8)], (6, 8), {},
     6 * 240, 2 * 60 + 120 + 2 * 48),
    ("MoE", MS, [(6, 8), (6, 4), (4, 20, 8), None, (4, 8, 10)], (6, 8), {"swiglu_fusion": 1},
     6 * (160 + 80), 2 * 60 + 120 + 2 * 48),
    # 4 router columns, then gate and value of 10 each; limits of both, activate, shift, multiply
    ("RouterGateUpProj", MS, [(6, 8), (8, 24)], [(6, 4), (6, 10)], {"router_size": 4}, 6 * 8 * 24, 120),
    ("RouterGateUpProj", MS, [(6, 8), (8, 24)], [(6, 4), (6, 10)],
     {"router_size": 4, "limit": 7.0, "activation_beta": 1.0}, 6 * 8 * 24, 5 * 60),
    # 8 experts in 4 groups, of each the best 2 summed, 3 experts selected
    ("MoEGroupRouter", MS, [(2, 3, 8), (8,)], (6, 8), {"top_k": 3, "n_group": 4}, 0, 96 + 48 + 36),
    ("MoEGroupRouter", MS, [(2, 3, 8), (8,)], (6, 8), {"top_k": 3, "n_group": 8}, 0, 96 + 48 + 36),
    # the scores of all are the result
    ("MoEGroupRouter", MS, [(6, 256), (8,), (8, 256)], [(6, 8), (6, 8)], {"top_k": 3}, 6 * 256 * 8, 96),
    # an adapter of rank 2 beside 32 -> 6, all three products dequantized
    ("MatMulNBitsQLoRA", MS, [(3, 32), (6, 1, 16), (6,), (2, 1, 32), (2, 1), (6, 1, 32), (6, 1)], (3, 6),
     {"K": 32, "N": 6}, 3 * (192 + 64 + 12), 2 * (192 + 64 + 12) + 18),
    ("MatMulNBitsQLoRA", MS, [(3, 32), (6, 1, 16), (6,), (0, 1, 32), (2, 1), (6, 1, 32), (6, 1)], (3, 6),
     {"K": 32, "N": 6}, 3 * (192 + 12), 2 * (192 + 12) + 18),
    ("MatMulNBitsQLoRA", MS, [(3, 32), (6, 1, 16), (6,), (2, 1, 32), (2, 1), (6, 0, 32), (6, 1)], (3, 6),
     {"K": 32, "N": 6}, 3 * 192, 2 * 192),
    # 2 streams of 4 through rank 3: normalise, gate and sum; scale and SiLU; scale the sum; gates of the next
    ("HyperConnectionLowRankMix", MS, [(5, 8), (8,), (8, 3), (3, 8), (8, 2)], [(5, 4), (5, 2)],
     {"num_branches": 2}, 5 * (24 + 24 + 16), 40 * 7 + 15 * 2 + 20 + 10 * 3),
]  # fmt: skip


@pytest.mark.parametrize(("op", "domain", "inputs", "output", "attributes", "products", "rest"), HAND)
def test_a_product_is_counted_as_by_hand(
    count: Count, op: str, domain: str, inputs: Any, output: Any, attributes: Any, products: int, rest: int
) -> None:
    cost = count(op, inputs, output, domain, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (products, rest, "exact")


@pytest.mark.parametrize(("columns", "bits"), [(4, None), (8, 8)])
def test_packed_experts_multiply_as_many_values_as_their_bytes_hold(
    count: Count, columns: int, bits: int | None
) -> None:
    """One of 4 experts for each of 6 tokens, 8 -> 10 -> 8; those of all experts are dequantized at most."""
    given = [(6, 8), (6, 4), (4, 10, columns), (4, 10), None, (4, 8, columns * 10 // 8), (4, 8)]
    cost = count("QMoE", given, (6, 8), MS, k=1, **({} if bits is None else {"expert_weight_bits": bits}))
    assert (cost.macs, cost.status) == (6 * 160, "bound")
    assert cost.elementwise_ops == 2 * 4 * 160 + 60 + 120 + 2 * 48
    assert "experts" in cost.reason


@pytest.mark.parametrize(("op", "inputs", "attributes", "products"), [
    ("MatMulPacked", [(3, 256), (6, 66)], {"K": 256, "N": 6, "packed_type": 16}, 3 * 256 * 6),
    ("GatherPacked", [(9, 66), (3,)], {"K": 256, "packed_type": 16}, 0),
    # 2 experts for each of 6 tokens, 8 -> 10 -> 8, with and without a second product before the activation
    ("MoEPacked", [(6, 8), (6, 4), (4, 10, 3), (4, 10, 5), (4, 8, 3)], {"k": 2}, 6 * 2 * 240),
    ("MoEPacked", [(6, 8), (6, 4), (4, 10, 3), None, (4, 8, 3)], {"k": 2}, 6 * 2 * 160),
])  # fmt: skip
def test_weights_of_a_format_of_their_own_leave_open_what_unpacking_takes(
    count: Count, op: str, inputs: Any, attributes: Any, products: int
) -> None:
    cost = count(op, inputs, (3, 6), MS, **attributes)
    assert (cost.macs, cost.elementwise_ops, cost.status) == (products, None, "unknown")
    assert "format" in cost.reason


def test_each_weight_of_the_experts_may_have_a_width_of_its_own(count: Count) -> None:
    """8 -> 10 in 4 bits, 10 -> 8 in 8 bits; one of 4 experts for each of 6 tokens."""
    given = [(6, 8), (6, 4), (4, 10, 4), (4, 10), None, (4, 8, 10), (4, 8)]
    assert count("QMoE", given, (6, 8), MS, fc2_expert_weight_bits=8).macs == 6 * 160
    assert count("QMoE", given, (6, 8), MS, expert_weight_bits=8, fc1_expert_weight_bits=4).macs == 6 * 160


@pytest.mark.parametrize(
    ("op", "attributes", "widths"),
    [
        ("MatMulNBitsQLoRA", {}, {1: 4, 3: 8, 5: 8}),
        ("MatMulNBitsQLoRA", {"bits": 2, "lora_bits": 4}, {1: 2, 3: 4, 5: 4}),
        ("QMoE", {"expert_weight_bits": 8, "fc1_expert_weight_bits": 4}, {2: 4, 5: 8, 8: 8}),
        ("MatMulBnb4", {}, {1: 4}),
        ("MatMulNBits", {"bits": 8}, {1: 8, 2: 8}),
    ],
)
def test_how_many_parameters_a_byte_holds_is_said_for_each_weight(
    op: str, attributes: dict[str, int], widths: dict[int, int]
) -> None:
    assert {place: find_packed_bits(op, place, "uint8", attributes) for place in widths} == widths


def test_a_sparse_operand_makes_a_bound(count: Count) -> None:
    cost = count("SparseToDenseMatMul", [(3, 4), (4, 6)], (3, 6), MS)
    assert (cost.macs, cost.status) == (72, "bound")


# -- loops over every index ----------------------------------------------------------------------

#: a drawn case may have an output of no size, which onnx refuses
FILTERING = [HealthCheck.filter_too_much]

sizes = st.integers(1, 3)


@st.composite
def convolutions(draw: Any, ranks: tuple[int, int] = (1, 3)) -> dict[str, Any]:
    """A convolution of one to three dimensions that fits its input, mostly."""
    rank = draw(st.integers(*ranks))
    groups, inner, outer = draw(sizes), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    sides = [
        draw(st.integers(max(1, d * (k - 1) + 1 - pads[i] - pads[i + rank]), 7))
        if d * (k - 1) + 1 - pads[i] - pads[i + rank] <= 7
        else 7
        for i, (k, d) in enumerate(zip(kernel, dilations, strict=True))
    ]
    auto = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    return {
        "x": (draw(sizes), groups * inner, *sides),
        "w": (groups * outer, inner, *kernel),
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": groups,
        "auto_pad": auto,
    }


def _inferred(op: str, inputs: list[Shape], attributes: dict[str, Any]) -> Shape | None:
    """The shape that onnx's own inference finds; None if it refuses."""
    from onnx import helper, shape_inference

    names = [f"i{k}" for k in range(len(inputs))]
    node = helper.make_node(op, names, ["y"], **attributes)
    infos = [helper.make_tensor_value_info(n, 1, s) for n, s in zip(names, inputs, strict=True)]
    graph = helper.make_graph([node], "g", infos, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    try:
        found = shape_inference.infer_shapes(model, strict_mode=True).graph.output[0]
    except Exception:
        return None
    dims = [d.dim_value for d in found.type.tensor_type.shape.dim]
    return tuple(dims) if dims and all(d > 0 for d in dims) else None


def _arguments(case: dict[str, Any]) -> dict[str, Any]:
    kept = {k: case[k] for k in ("strides", "dilations", "group", "auto_pad")}
    return kept | ({"pads": case["pads"]} if case["auto_pad"] == "NOTSET" else {})


@settings(max_examples=60, deadline=None, suppress_health_check=FILTERING)
@given(convolutions())
def test_a_convolution_counts_every_tap_of_every_output_element(count: Any, case: dict[str, Any]) -> None:
    output = _inferred("Conv", [case["x"], case["w"]], _arguments(case))
    assume(output is not None)
    assert output is not None
    taken = 0
    per_group = case["w"][0] // case["group"]
    for _, channel in itertools.product(range(output[0]), range(output[1])):
        first = channel // per_group * case["w"][1]
        for _ in itertools.product(*map(range, output[2:])):
            for _tap in itertools.product(range(first, first + case["w"][1]), *map(range, case["w"][2:])):
                taken += 1
    assert count("Conv", [case["x"], case["w"]], output, **_arguments(case)).macs == taken


@settings(max_examples=60, deadline=None, suppress_health_check=FILTERING)
@given(convolutions())
def test_a_transposed_convolution_scatters_every_input_through_the_whole_kernel(
    count: Any, case: dict[str, Any]
) -> None:
    groups, channels = case["group"], case["x"][1]
    weight = (channels, case["w"][0] // groups, *case["w"][2:])
    output = _inferred("ConvTranspose", [case["x"], weight], _arguments(case))
    assume(output is not None)
    assert output is not None
    taken = 0
    for _ in itertools.product(*map(range, case["x"])):
        for _tap in itertools.product(*map(range, weight[1:])):
            taken += 1
    assert count("ConvTranspose", [case["x"], weight], output, **_arguments(case)).macs == taken


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, st.booleans(), st.booleans(), st.booleans())
def test_gemm_counts_the_sum_behind_every_element(
    count: Any, m: int, k: int, n: int, turn_a: bool, turn_b: bool, bias: bool
) -> None:
    a, b = (k, m) if turn_a else (m, k), (n, k) if turn_b else (k, n)
    left = np.ones(a).T if turn_a else np.ones(a)
    right = np.ones(b).T if turn_b else np.ones(b)
    cost = count("Gemm", [a, b, (n,) if bias else None], (m, n), transA=int(turn_a), transB=int(turn_b))
    # every product of ones is 1, so the sum over the result counts them
    assert cost.macs == int((left @ right).sum())
    assert cost.elementwise_ops == (m * n if bias else 0)


EQUATIONS = [
    "ij,jk->ik",
    "bij,bjk->bik",
    "...ij,...jk->...ik",
    "i,i->",
    "ij,ij->ij",
    "bhqd,bhkd->bhqk",
    "ij->ji",
]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(EQUATIONS), st.data())
def test_einsum_of_two_operands_counts_every_product(count: Any, equation: str, data: Any) -> None:
    letters = sorted({c for c in equation if c.isalpha()})
    size = {c: data.draw(sizes) for c in letters}
    left, right = equation.split("->")
    more = (2,) if "..." in equation else ()
    shapes = [more + tuple(size[c] for c in part if c.isalpha()) for part in left.split(",")]
    result = np.einsum(equation, *[np.ones(s) for s in shapes])
    cost = count("Einsum", shapes, result.shape, equation=equation)
    summed = any(c not in right for c in letters)
    assert cost.macs == (int(result.sum()) if summed else 0)


@settings(max_examples=30, deadline=None, suppress_health_check=FILTERING)
@given(convolutions(ranks=(2, 2)))
def test_a_deformed_convolution_costs_the_products_of_a_plain_one(count: Any, case: dict[str, Any]) -> None:
    plain = _inferred("Conv", [case["x"], case["w"]], {**_arguments(case), "auto_pad": "NOTSET"})
    assume(plain is not None)
    assert plain is not None
    taps = math.prod(case["w"][2:])
    offsets = (case["x"][0], 2 * taps, *plain[2:])
    deformed = count("DeformConv", [case["x"], case["w"], offsets], plain)
    assert deformed.macs == cost_formulas.conv(plain, case["w"]).macs
    assert deformed.elementwise_ops == 7 * case["x"][0] * case["x"][1] * math.prod(plain[2:]) * taps


@settings(max_examples=25, deadline=None)
@given(convolutions(), st.booleans())
def test_torchs_own_counter_agrees_on_convolutions(count: Any, case: dict[str, Any], turned: bool) -> None:
    torch = pytest.importorskip("torch")
    from tests.torch_counter import torch_counter

    rank = len(case["x"]) - 2
    pads = case["pads"][:rank]
    functional = torch.nn.functional
    op = getattr(functional, f"conv{'_transpose' if turned else ''}{rank}d")
    w = case["w"]
    weight = (case["x"][1], w[0] // case["group"], *w[2:]) if turned else w
    given_ = {
        "stride": case["strides"],
        "dilation": case["dilations"],
        "padding": pads,
        "groups": case["group"],
    }
    with torch.no_grad(), torch_counter() as counter:
        try:
            y = op(torch.ones(case["x"], device="meta"), torch.ones(weight, device="meta"), **given_)
        except RuntimeError:
            return
    if not y.numel():
        return
    kind = "ConvTranspose" if turned else "Conv"
    ours = count(kind, [case["x"], weight], tuple(y.shape), group=case["group"])
    assert ours.macs is not None
    assert 2 * ours.macs == counter.get_total_flops()
