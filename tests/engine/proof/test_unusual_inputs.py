"""Models that agree on random inputs, and differ on sorted, equal, repeated or summed ones."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from explorer import verify_files

FLIP = "n = Neg(x)\ny = Where(b, n, x)"
ALL = "c = Cast<to = 6>(e)\nm = ReduceMin<keepdims = 0>(c)\nb = Cast<to = 9>(m)\n" + FLIP
SLOPE = """s = Constant<value = int64[1] {1}>()
z = Constant<value = int64[1] {0}>()
l = Constant<value = int64[1] {-1}>()
t = Constant<value = int64[1] {9}>()
right = Slice(x, s, t, l)
left = Slice(x, z, l, l)
"""

ORDERS = {
    "ascending": SLOPE + "e = Less(left, right)\n" + ALL,
    "descending": SLOPE + "e = Greater(left, right)\n" + ALL,
    "one number": "h = ReduceMax(x)\nl = ReduceMin(x)\nb = Equal(h, l)\n" + FLIP,
    "one number a row": "l = Constant<value = int64[1] {1}>()\nh = ReduceMax(x, l)\ne = Equal(h, x)\n" + ALL,
    "symmetric": "t = Transpose(x)\ne = Equal(t, x)\n" + ALL,
    "as the other input": "e = Equal(x, w)\n" + ALL,
    "a sum of 0": "z = Constant<value = float {0.0}>()\ns = ReduceSum<keepdims = 0>(x)\nb = Equal(s, z)\n"
    + FLIP,
    "one nonzero number": "a = Abs(x)\nk = Constant<value = int64[1] {-1}>()\ns = ReduceSum(a, k)\n"
    "h = ReduceMax(a, k)\ne = Equal(s, h)\n" + ALL,
}


def judge(path: Path, first: str, second: str, inputs: str, output: str) -> str:
    for name, body in (("first", first), ("second", second)):
        text = f'<ir_version: 9, opset_import: ["": 20]> g ({inputs}) => ({output} y) {{ {body} }}'
        onnx.save(parser.parse_model(text), path / f"{name}.onnx")
    return verify_files(path / "first.onnx", path / "second.onnx").verdict_kind


@pytest.mark.parametrize("order", ORDERS)
def test_a_branch_for_one_order_of_numbers_is_not_equal(order: str, tmp_path: Path) -> None:
    inputs = "float[5,5] x, float[5,5] w"
    body = ORDERS[order] if "w" in ORDERS[order] else ORDERS[order] + "\nu = Identity(w)"
    assert judge(tmp_path, body, "y = Identity(x)", inputs, "float[5,5]") in ("unproven", "different")


@pytest.mark.parametrize(
    "body",
    [
        "b = Cast<to = 9>(x)\ny = Compress(x, b)",
        "y = Unique(x)",
        "k = Constant<value = int64[1] {0}>()\nn = NonZero(x)\ni = Squeeze(n, k)\ny = Gather(x, i)",
    ],
)
def test_a_size_that_values_decide_is_not_equal_to_a_fixed_one(body: str, tmp_path: Path) -> None:
    fixed = "k = Constant<value = int64[1] {8}>()\ny, i = TopK<largest = 0>(x, k)"
    second = fixed if "Unique" in body else "y = Identity(x)"
    assert judge(tmp_path, body, second, "float[8] x", "float[N]") == "unproven"


@pytest.mark.parametrize(
    "total",
    [
        "s = ReduceSum<keepdims = 0>(i)",
        "l = Constant<value = int64 {0}>()\ns = CumSum(i, l)",
        "w = Constant<value = int64[4,1] {5, 1, 9, 2}>()\ns = MatMul(i, w)",
    ],
)
def test_a_limit_of_a_sum_of_integers_is_tried(total: str, tmp_path: Path) -> None:
    body = total + "\nk = Constant<value = int64 {4321}>()\nn = Neg(x)\nb = %s(s, k)\ny = Where(b, x, n)"
    inputs = "int64[4] i, float[4] x"
    kind = judge(tmp_path, body % "Less", body % "LessOrEqual", inputs, "float[4]")
    assert kind in ("unproven", "different")


def test_a_limit_of_a_count_of_bools_is_tried(tmp_path: Path) -> None:
    body = """c = Cast<to = 6>(b)
s = ReduceSum<keepdims = 0>(c)
k = Constant<value = int32 {21}>()
m = %s(s, k)
n = Neg(x)
y = Where(m, x, n)"""
    inputs = "bool[30] b, float[4] x"
    assert judge(tmp_path, body % "Less", body % "LessOrEqual", inputs, "float[4]") == "unproven"


def test_a_limit_of_a_count_of_positive_numbers_is_tried(tmp_path: Path) -> None:
    body = """z = Constant<value = float {0.0}>()
g = Greater(x, z)
c = Cast<to = 6>(g)
s = ReduceSum<keepdims = 0>(c)
k = Constant<value = int32 {21}>()
b = %s(s, k)
"""
    body += FLIP
    assert judge(tmp_path, body % "Less", body % "LessOrEqual", "float[30] x", "float[30]") == "unproven"


def test_an_index_that_only_the_original_accepts_is_a_difference(tmp_path: Path) -> None:
    table = "t = Constant<value = float[4] {2, 3, 5, 7}>()\n"
    second = table + "u = Cast<to = 12>(i)\nk = Cast<to = 7>(u)\ny = Gather(t, k)"
    assert judge(tmp_path, table + "y = Gather(t, i)", second, "int64[6] i", "float[6]") == "unproven"


@pytest.mark.parametrize(
    ("earlier", "first", "second"),
    [
        ("Relu", "LeakyRelu<alpha = 0.2>", "LeakyRelu<alpha = 0.3>"),
        ("Exp", "Elu<alpha = 0.2>", "Elu<alpha = 0.3>"),
        ("Sigmoid", "ThresholdedRelu<alpha = -1.0>", "ThresholdedRelu<alpha = -2.0>"),
    ],
)
def test_a_number_that_no_computed_value_reaches_is_not_a_difference(
    earlier: str, first: str, second: str, tmp_path: Path
) -> None:
    body = f"a = {earlier}(x)\ny = %s(a)"
    assert judge(tmp_path, body % first, body % second, "float[4,8] x", "float[4,8]") == "unproven"


def test_a_number_that_computed_values_reach_is_a_difference(tmp_path: Path) -> None:
    body = "a = Tanh(x)\ny = LeakyRelu<alpha = %s>(a)"
    assert judge(tmp_path, body % 0.2, body % 0.3, "float[4,8] x", "float[4,8]") == "different"
