"""Gradients worked by hand: which products an operator holds, and which of their gradients are wanted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from explorer.engine.operators.call import Call
from explorer.engine.operators.gradients import (
    Gradient,
    GradientPurpose,
    attention,
    elementwise,
    product_gradient,
    recurrent,
)
from explorer.engine.operators.registry import compute_gradient
from explorer.facts import TensorInfo

WANTS: tuple[GradientPurpose, ...] = ("", "input", "weight")


@pytest.mark.parametrize(("first", "second"), itertools.product(WANTS, WANTS))
def test_a_product_has_a_gradient_for_each_operand_that_wants_one(
    first: GradientPurpose, second: GradientPurpose
) -> None:
    wants = [first, second]
    assert product_gradient(7, first, second) == Gradient(7 * wants.count("input"), 7 * wants.count("weight"))


@pytest.mark.parametrize(
    ("query", "key", "value", "macs"),
    [
        ("", "", "", 0),
        ("input", "input", "input", 2 * 30 + 2 * 50),
        # nothing before the scores is trained: only V has a gradient, and the softmax has none
        ("", "", "input", 50),
        # V is not trained: the softmax passes its gradient on to Q and K
        ("input", "input", "", 2 * 30 + 50),
        ("input", "", "", 30 + 50),
    ],
)
def test_attention_by_hand(
    query: GradientPurpose, key: GradientPurpose, value: GradientPurpose, macs: int
) -> None:
    assert attention(30, 50, query, key, value) == Gradient(macs, 0)


def test_a_recurrent_layer_by_hand() -> None:
    """One layer, T=3, B=1, I=2, H=4, one gate: 3 x 4 x 2 = 24 with the input, 3 x 4 x 4 = 48 with the state,
    16 of them with the state before the first step.
    """
    whole = {"macs": 72, "input_macs": 24, "state_macs": 16}
    trained = ("weight", "weight")
    assert recurrent(**whole, source="", state="", weights=trained) == Gradient(72 - 24 - 16, 72)
    assert recurrent(**whole, source="input", state="", weights=trained) == Gradient(72 - 16, 72)
    assert recurrent(**whole, source="input", state="input", weights=trained) == Gradient(72, 72)
    assert recurrent(**whole, source="input", state="", weights=("", "")) == Gradient(72 - 16, 0)
    assert recurrent(**whole, source="", state="", weights=("", "")) == Gradient(0, 0)
    assert recurrent(**whole, source="", state="", weights=("weight", "")) is None


def onnx(op: str, shapes: Any, wants: Any, macs: int, domain: str = "", **attributes: Any) -> Any:
    inputs = tuple(TensorInfo(f"i{at}", "float32", shape) for at, shape in enumerate(shapes))
    return compute_gradient(Call(op, domain, attributes, inputs, ()), wants, macs)


def test_onnx_operators_by_hand() -> None:
    assert onnx("Conv", [(1, 3, 8, 8), (4, 3, 3, 3), (4,)], ["", "weight", "weight"], 10) == Gradient(0, 10)
    assert onnx("Gemm", [(2, 3), (3, 4)], ["input", "weight"], 24) == Gradient(24, 24)
    assert onnx("MatMul", [(2, 3), (3, 4)], ["input", "input"], 24) == Gradient(48, 0)
    # offsets are trained by what samples them
    assert onnx("DeformConv", [(1,), (1,), (1,)], ["", "weight", "input"], 10) == Gradient(10, 10)
    assert onnx("Einsum", [(2, 3), (3, 4)], ["input", ""], 24) == Gradient(24, 0)
    assert onnx("Einsum", [(2, 3), (3, 4), (4, 5)], ["input", "weight", "input"], 60) == Gradient(120, 0)
    assert onnx("Einsum", [(2, 3), (3, 4), (4, 5)], ["input", "", "input"], 60) is None
    assert onnx("Somebody'sOwn", [(2, 3)], ["input"], 60) is None
    # whom nobody asks for a gradient needs no rule
    assert onnx("Somebody'sOwn", [(2, 3)], [""], 60) == Gradient(0, 0)


def test_onnx_lstm_by_hand() -> None:
    """T=7, B=3, I=4, H=5: a step of one takes 4 x 5 x 4 = 80 for the input, 4 x 5 x 5 = 100 for the state."""
    shapes = [(7, 3, 4), (1, 20, 4), (1, 20, 5)]
    macs = 7 * 3 * (80 + 100)
    assert onnx("LSTM", shapes, ["", "weight", "weight"], macs) == Gradient(6 * 3 * 100, macs)
    assert onnx("LSTM", shapes, ["input", "weight", "weight"], macs) == Gradient(
        6 * 3 * 100 + 7 * 3 * 80, macs
    )
    flipped = [(3, 7, 4), *shapes[1:]]
    assert onnx("LSTM", flipped, ["", "weight", "weight"], macs, layout=1) == Gradient(6 * 3 * 100, macs)
    assert onnx("LSTM", [None, *shapes[1:]], ["", "weight", "weight"], macs) is None


def test_onnx_attention_by_hand() -> None:
    """B=1, 2 heads, 3 queries, 5 keys, width 4 and values of 6: scores 120, with V 180."""
    shapes = [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 6)]
    assert onnx("Attention", shapes, ["input", "input", "input"], 300) == Gradient(600, 0)
    assert onnx("Attention", shapes, ["", "", "input"], 300) == Gradient(180, 0)
    assert onnx("Attention", shapes, ["input", "", ""], 300) == Gradient(120 + 180, 0)
    flat = [(1, 3, 8), (1, 5, 8), (1, 5, 12)]
    heads = {"q_num_heads": 2, "kv_num_heads": 2}
    assert onnx("Attention", flat, ["", "", "input"], 300, **heads) == Gradient(180, 0)


def test_attention_that_projects_by_itself_by_hand() -> None:
    """onnxruntime's: X (1, 3, 8) by W (8, 24) is 576; the rest of 720, 144, is attention."""
    found = onnx("Attention", [(1, 3, 8), (8, 24)], ["", "weight"], 720, domain="com.microsoft", num_heads=2)
    assert found == Gradient(2 * 144, 576)


def test_elementwise_work_is_done_again_for_each_gradient_that_is_wanted() -> None:
    assert elementwise(10, ["", ""]) == 0
    assert elementwise(10, ["input", "input"]) == 10
    assert elementwise(10, ["input", "weight", "weight"]) == 20
    assert elementwise(None, ["input"]) is None
    assert (Gradient(1, 2, 3) + Gradient(elementwise=None)).elementwise is None
