"""Operators that agree on random values, and differ beyond a bend that these values do not reach."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model
from explorer.engine.proof.proof import verify
from explorer.facts import Verification

FLOATS, INTEGERS = "float[3,5]", "int64[3,5]"

LOOP = """n = Constant<value = int64 {2}>()
go = Constant<value = bool {1}>()
y = Loop (n, go, x) <body = b (int64 i, bool on, float[3,5] s) => (bool more, float[3,5] o) {
  more = Identity(on)
  %s
}>"""
BRANCH = """s = ReduceSum<keepdims = 0>(x)
zero = Constant<value = float {0.0}>()
more = Greater(s, zero)
y = If (more) <
  then_branch = t () => (float[3,5] p) { %s },
  else_branch = e () => (float[3,5] q) { q = Neg(x) }
>"""


def number(name: str, value: float) -> str:
    return f"{name} = Constant<value = float {{{value}}}>()\n"


def integer(name: str, value: int) -> str:
    return f"{name} = Constant<value = int64 {{{value}}}>()\n"


def read(path: Path, body: str, inputs: str, output: str) -> Model:
    text = (
        f'<ir_version: 9, opset_import: ["": 20, "ai.onnx.ml": 3]> g ({inputs}) => ({output} y) {{ {body} }}'
    )
    onnx.save(parser.parse_model(text), path)
    return reader.read(str(path))


def verdict(
    path: Path, first: str, second: str, inputs: str = f"{FLOATS} x", output: str = FLOATS
) -> Verification:
    return verify(read(path / "a.onnx", first, inputs, output), read(path / "b.onnx", second, inputs, output))


SHIFT = number("k", 45.0) + "a = Sub(x, k)\n"
UP = number("k", 333.0) + "a = Add(x, k)\n"

BEYOND_A_BEND = {
    "a curve": (UP + "y = Mish(a)", UP + "y = Elu(a)"),
    "a curve without bends": (SHIFT + "y = Erf(a)", SHIFT + "y = Tanh(a)"),
    "one side of a bend": (UP + "y = Abs(a)", UP + "y = Identity(a)"),
    "a bend of both sides": (
        UP + "r = Relu(a)\ny = Add(r, k)",
        UP + number("j", 334.0) + number("o", 332.0) + "b = Add(x, j)\nr = Relu(b)\ny = Add(r, o)",
    ),
    "a threshold": (UP + "y = ThresholdedRelu<alpha = 100.0>(a)", UP + "y = Identity(a)"),
    "a maximum of two values": ("y = Max(x, x)", UP + "b = Neg(a)\ny = Max(x, b)"),
    "a condition": (
        UP + number("z", 0.0) + "m = Less(a, z)\nn = Not(m)\nf = Cast<to = 1>(n)\ny = Mul(a, f)",
        UP + "y = Identity(a)",
    ),
    "a rounding": (
        UP + "b = Cast<to = 6>(a)\ny = Cast<to = 1>(b)",
        UP + "y = Floor(a)",
    ),
    "a square": (UP + "b = Mul(a, a)\ny = Sqrt(b)", UP + "y = Identity(a)"),
    "a quantizer": (
        number("s", 0.5)
        + "z = Constant<value = int8 {0}>()\nq = QuantizeLinear(x, s, z)\ny = DequantizeLinear(q, s, z)",
        number("s", 0.5) + "b = Div(x, s)\nr = Round(b)\ny = Mul(r, s)",
    ),
    "small numbers": (
        number("e", 1e-10) + "b = Mul(x, x)\nc = Add(b, e)\ny = Sqrt(c)",
        "y = Abs(x)",
    ),
    "an overflow": (
        "e = Exp(x)\nn = Neg(x)\nf = Exp(n)\nb = Sub(e, f)\nc = Add(e, f)\ny = Div(b, c)",
        "y = Tanh(x)",
    ),
    "float16": ("r = Round(x)\nb = Cast<to = 10>(r)\ny = Cast<to = 1>(b)", "y = Round(x)"),
    "a loop": (
        LOOP % f"{number('k', 70.0)}  a = Add(s, k)\n  r = Relu(a)\n  o = Sub(r, k)",
        LOOP % f"{number('k', 70.0)}  a = Add(s, k)\n  o = Sub(a, k)",
    ),
    "a branch": (
        number("k", 70.0) + BRANCH % "a = Add(x, k)\n p = Gelu(a)",
        number("k", 70.0) + BRANCH % "p = Add(x, k)",
    ),
}


@pytest.mark.parametrize("case", BEYOND_A_BEND)
def test_operators_that_differ_beyond_a_bend_are_not_equal(case: str, tmp_path: Path) -> None:
    first, second = BEYOND_A_BEND[case]
    found = verdict(tmp_path, first, second)
    assert all(output.passed for output in found.outputs), "or the test shows nothing"
    assert found.verdict_kind in ("different", "unproven")


WEIGHTS = (
    f"w = Constant<value = float[5,5] {{{', '.join(str((i * 7 % 11 - 5) / 10) for i in range(25))}}}>()\n"
)


def test_a_bend_behind_a_product_is_reached(tmp_path: Path) -> None:
    before = WEIGHTS + "h = MatMul(x, w)\n" + number("k", 250.0) + "a = Add(h, k)\n"
    found = verdict(tmp_path, before + "r = Relu(a)\ny = MatMul(r, w)", before + "y = MatMul(a, w)")
    assert not found.passed


EQUAL = {
    "nothing below 0": ("e = Exp(x)\ny = Abs(e)", "y = Exp(x)"),
    "a bend far above": (
        number("k", 2.0) + "t = Tanh(x)\na = Add(t, k)\ny = Relu(a)",
        number("k", 2.0) + "t = Tanh(x)\ny = Add(t, k)",
    ),
    "a condition that is never true": (
        number("k", 0.0) + "s = Sigmoid(x)\nm = Less(s, k)\ny = Where(m, k, s)",
        "y = Sigmoid(x)",
    ),
    "a far bend": (
        UP + number("z", 0.0) + "y = Max(a, z)",
        UP + "y = Relu(a)",
    ),
    "two bends": ("n = Neg(x)\np = Relu(x)\nq = Relu(n)\ny = Add(p, q)", "y = Abs(x)"),
    "a curve": (
        "s = Sigmoid(x)\ny = Mul(x, s)",
        "n = Neg(x)\ne = Exp(n)\n" + number("o", 1.0) + "d = Add(e, o)\ny = Div(x, d)",
    ),
    "a normalization": (
        "c = Constant<value = float[5] {1, 2, 1, 2, 1}>()\nb = Constant<value = float[5] {9, 9, 9, 9, 9}>()\n"
        "n = LayerNormalization(x, c, b)\ny = Relu(n)",
        "c = Constant<value = float[5] {1, 2, 1, 2, 1}>()\nb = Constant<value = float[5] {9, 9, 9, 9, 9}>()\n"
        "y = LayerNormalization(x, c, b)",
    ),
    "a padding": (
        "p = Constant<value = int64[4] {0, 1, 0, 1}>()\na = Abs(x)\nb = Pad(a, p)\ny = Relu(b)",
        "p = Constant<value = int64[4] {0, 1, 0, 1}>()\na = Abs(x)\ny = Pad(a, p)",
    ),
    "a loop": (LOOP % "e = Exp(s)\n  r = Relu(e)\n  o = Log(r)", LOOP % "e = Exp(s)\n  o = Log(e)"),
}


@pytest.mark.parametrize("case", EQUAL)
def test_operators_that_cannot_get_beyond_a_bend_stay_equal(case: str, tmp_path: Path) -> None:
    first, second = EQUAL[case]
    output = "float[3,7]" if case == "a padding" else FLOATS
    assert verdict(tmp_path, first, second, output=output).verdict_kind == "evidence"


def test_a_range_that_no_input_reaches_is_named(tmp_path: Path) -> None:
    """A vector of length 1 has no element below -1, but nothing here knows that."""
    axes = "axes = Constant<value = int64[1] {1}>()\n"
    shifted = axes + "r = ReduceL2(x, axes)\nn = Div(x, r)\n" + number("k", 2.0) + "a = Add(n, k)\n"
    found = verdict(tmp_path, shifted + "y = Relu(a)", shifted + "y = Identity(a)")
    assert found.verdict_kind == "unproven"
    assert "the input of Relu was never below 0" in found.verdict


ROWS = "w = Constant<value = float[2] {3.0, 8.0}>()\n"
NOT_A_NUMBER = {
    "a maximum": ("y = Relu(x)", number("z", 0.0) + "m = LessOrEqual(x, z)\ny = Where(m, z, x)", True),
    "a minimum": (
        number("z", 0.5) + "y = Min(x, z)",
        number("z", 0.5) + "m = Less(x, z)\ny = Where(m, x, z)",
        False,
    ),
    "a question": (number("z", 0.0) + "m = IsNaN(x)\ny = Where(m, z, x)", "y = Identity(x)", False),
    "an infinity": (number("z", 0.0) + "m = IsInf(x)\ny = Where(m, z, x)", "y = Identity(x)", False),
    "a choice of two numbers": (
        number("a", 2.0) + number("b", 5.0) + "m = Less(x, a)\ny = Where(m, a, b)",
        number("a", 2.0) + number("b", 5.0) + "m = GreaterOrEqual(x, a)\ny = Where(m, b, a)",
        False,
    ),
    "a row of a table": (
        number("z", 0.5) + ROWS + "m = Greater(x, z)\ni = Cast<to = 7>(m)\ny = Gather(w, i)",
        number("z", 0.5) + ROWS + "m = LessOrEqual(x, z)\nn = Not(m)\ni = Cast<to = 7>(n)\ny = Gather(w, i)",
        False,
    ),
    "what only NaN changes": (
        "m = IsNaN(x)\ny = Cast<to = 1>(m)",
        "e = Equal(x, x)\nm = Not(e)\ny = Cast<to = 1>(m)",
        True,
    ),
}


@pytest.mark.parametrize("case", NOT_A_NUMBER)
def test_a_difference_for_nan_or_infinity_is_no_equality(case: str, tmp_path: Path) -> None:
    first, second, is_equal = NOT_A_NUMBER[case]
    found = verdict(tmp_path, first, second)
    assert found.verdict_kind == ("evidence" if is_equal else "unproven")
    assert is_equal or "where an input is" in found.verdict


def test_nan_in_one_of_two_inputs_is_tried(tmp_path: Path) -> None:
    inputs = f"{FLOATS} x, float t"
    found = verdict(tmp_path, "m = Greater(x, t)\ny = Where(m, x, t)", "y = Max(x, t)", inputs)
    assert found.verdict_kind == "unproven"
    assert "where an input is NaN" in found.verdict


def test_an_operator_that_is_not_onnx_own_is_tried_far_from_zero(tmp_path: Path) -> None:
    tree = "\n".join(
        (
            "nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0],",
            'nodes_values = [%s, 0.0, 0.0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],',
            "nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0, 0],",
            "target_nodeids = [1, 2], target_ids = [0, 0], target_weights = [1.0, 2.0], n_targets = 1",
        )
    )
    trees = [f"y = ai.onnx.ml.TreeEnsembleRegressor<{tree % limit}>(x)" for limit in ("-700.0", "-900.0")]
    found = verdict(tmp_path, *trees, output="float[3,1]")
    assert all(output.passed for output in found.outputs), "or the test shows nothing"
    assert not found.passed


def test_a_kernel_that_treats_infinity_otherwise_than_onnx_is_mentioned(tmp_path: Path) -> None:
    found = verdict(tmp_path, number("z", 0.0) + "y = Clip(x, z)", "y = Relu(x)")
    assert found.verdict_kind == "evidence"
    assert "where an input is infinity" in found.verdict
    assert found.verdict.endswith("differ between the models in the kernels of onnxruntime")


EYE = """s = Constant<value_ints = [5, 5]>()
f = ConstantOfShape(s)
e = EyeLike(f)
z = Constant<value = int64[1] {0}>()
"""


def test_a_kernel_that_loses_tiny_numbers_is_mentioned(tmp_path: Path) -> None:
    recurrent = EYE + "w = Unsqueeze(e, z)\ny = RNN<hidden_size = 5>(x, w, w)"
    unrolled = EYE + "m = MatMul(x, e)\nt = Tanh(m)\ny = Unsqueeze(t, z)"
    shapes = "float[1,3,5] x", "float[1,1,3,5]"
    for pair in ((recurrent, unrolled), (unrolled, recurrent)):  # RNN has few exact digits for 1e-8, too
        found = verdict(tmp_path, *pair, *shapes)
        assert found.verdict_kind == "evidence", found.verdict
        assert "where an input is of the size of 1e-25" in found.verdict
        assert found.verdict.endswith("differ between the models in the kernels of onnxruntime")
    added = number("b", 1e-9) + unrolled.replace("y = Unsqueeze(t", "u = Add(t, b)\ny = Unsqueeze(u")
    assert "on small or far values" in verdict(tmp_path, added, recurrent, *shapes).verdict


SQUARED = "q = Pow(x, two)\nv = ReduceMean(q)\np = Add(v, e)\nr = Sqrt(p)\ny = Div(x, r)"

OUT_OF_RANGE = {
    "an overflow": (number("e", 0.25) + "p = Mul(x, x)\ny = Pow(p, e)", "a = Abs(x)\ny = Sqrt(a)", "1e+22"),
    "an underflow": ("y = Relu(x)", number("z", 3e-15) + "y = Max(x, z)", "1e-25"),
    "a denominator": (number("e", 1e-18) + "a = Abs(x)\np = Add(a, e)\ny = Div(x, p)", "y = Sign(x)", ""),
    "the sign of zero": (number("z", 0.0) + "p = Add(x, z)\ny = Reciprocal(p)", "y = Reciprocal(x)", "-0"),
    "an overflow in both": (
        number("e", 1e-5) + number("two", 2.0) + SQUARED,
        number("e", 1e-5) + SQUARED.replace("Pow(x, two)", "Mul(x, x)"),
        None,
    ),
    "a factor": ("y = Neg(x)", number("f", -1.0) + "y = Mul(x, f)", None),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
def test_a_difference_for_numbers_at_the_ends_of_the_range_is_no_equality(case: str, tmp_path: Path) -> None:
    first, second, words = OUT_OF_RANGE[case]
    found, reversed_found = verdict(tmp_path, first, second), verdict(tmp_path, second, first)
    assert found.passed is reversed_found.passed is (words is None)
    assert words is None or (found.verdict_kind == "unproven" and words in found.verdict)


def test_a_kernel_with_fewer_exact_digits_is_no_other_model(tmp_path: Path) -> None:
    one = number("o", 1.0)
    divided = f"{one}n = Neg(x)\ne = Exp(n)\nd = Add(e, o)\ny = Div(x, d)"
    multiplied = "s = Sigmoid(x)\ny = Mul(x, s)"
    shapes = "float[3,16] x", "float[3,16]"
    for pair in ((divided, multiplied), (multiplied, divided)):
        assert verdict(tmp_path, *pair, *shapes).passed
    changed = divided.replace("1.0", "1.00001")
    assert not verdict(tmp_path, changed, multiplied, *shapes).passed
    assert not verdict(tmp_path, multiplied, changed, *shapes).passed


def test_a_kernel_that_loses_digits_far_from_zero_is_no_other_model(tmp_path: Path) -> None:
    scale = "w = Constant<value = float[3] {1.5, -0.5, 2.0}>()\n"
    scale += "b = Constant<value = float[3] {0.3, -0.7, 1.1}>()\n"
    kernel = scale + "y = InstanceNormalization<epsilon = 0.001>(x, w, b)"
    numbers = number("e", 1e-3) + "a = Constant<value = int64[2] {2, 3}>()\n"
    centered = "m = ReduceMean(x, a)\nd = Sub(x, m)\nq = Mul(d, d)\nv = ReduceMean(q, a)\np = Add(v, e)\n"
    weights = "c = Constant<value = int64[3] {3, 1, 1}>()\nu = Reshape(w, c)\no = Reshape(b, c)\n"
    steps = scale + numbers + centered + weights + "r = Sqrt(p)\nn = Div(d, r)\nt = Mul(n, u)\ny = Add(t, o)"
    shapes = "float[2,3,8,10] x", "float[2,3,8,10]"
    for pair in ((kernel, steps), (steps, kernel)):
        found = verdict(tmp_path, *pair, *shapes)
        assert found.passed, found.verdict
    assert not verdict(tmp_path, steps.replace("0.001", "0.00101"), kernel, *shapes).passed
    assert not verdict(tmp_path, steps, kernel.replace("-0.7", "-0.7001"), *shapes).passed


def test_numbers_that_are_nan_in_one_model_alone_count_beside_a_kernel_with_fewer_exact_digits(
    tmp_path: Path,
) -> None:
    """The second factor is 1, and NaN where the exponential overflows. Exact operators agree elsewhere."""
    clipped = number("low", -95.0) + number("high", 85.0) + "c = Clip(x, low, high)\n"
    divided = number("o", 1.0) + "n = Neg(c)\ne = Exp(n)\nd = Add(e, o)\nq = Div(c, d)\n"
    first = f"{clipped}{divided}f = Div(e, e)\ny = Mul(q, f)"
    second = f"{clipped}s = Sigmoid(c)\ny = Mul(c, s)"
    shapes = "float[16,64] x", "float[16,64]"
    for pair in ((first, second), (second, first)):
        found = verdict(tmp_path, *pair, *shapes)
        assert not found.passed
        assert "on small or far values" in found.verdict
    assert verdict(tmp_path, f"{clipped}{divided}y = Identity(q)", second, *shapes).passed


ROW = "k = Constant<value = float[5] {0.5, -2.0, 3.25, 4.0, -7.0}>()\n"
COLUMN = "k = Constant<value = float[3,1] {0.5, -2.0, 3.25}>()\n"
EXPANDED = "s = Constant<value = int64[2] {3, 5}>()\ne = Expand(k, s)\n"
REPEATED = {
    "a number": (number("k", 2.5), number("k", 2.25), "Mul"),
    "a row": (ROW, ROW.replace("3.25", "3.0"), "Sub"),
    "a column": (COLUMN, COLUMN.replace("-2.0", "-2.5"), "Max"),
}


@pytest.mark.parametrize("case", REPEATED)
def test_a_number_that_one_model_stores_repeated_is_the_same_number(case: str, tmp_path: Path) -> None:
    stored, changed, op = REPEATED[case]
    expanded = f"{stored}{EXPANDED}y = {op}(x, e)"
    for pair in ((expanded, f"{stored}y = {op}(x, k)"), (f"{stored}y = {op}(x, k)", expanded)):
        assert verdict(tmp_path, *pair).passed
    assert not verdict(tmp_path, expanded, f"{changed}y = {op}(x, k)").passed


WHOLE = {
    "the sign": ("y = Abs(x)", "y = Identity(x)"),
    "a square": ("y = Mul(x, x)", "y = Identity(x)"),
    "a remainder": (integer("k", 4) + "y = Mod<fmod = 1>(x, k)", integer("k", 4) + "y = Mod(x, k)"),
    "a bool": ("b = Cast<to = 9>(x)\ny = Cast<to = 7>(b)", "y = Identity(x)"),
    "beside a limit": (
        integer("k", 6) + "m = Less(x, k)\ny = Cast<to = 7>(m)",
        integer("k", 6) + "m = LessOrEqual(x, k)\ny = Cast<to = 7>(m)",
    ),
    "a float": ("f = Cast<to = 1>(x)\ny = Cast<to = 7>(f)", "y = Identity(x)"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_integers_beyond_the_drawn_ones_are_tried(case: str, tmp_path: Path) -> None:
    first, second = WHOLE[case]
    found = verdict(tmp_path, first, second, f"{INTEGERS} x", INTEGERS)
    assert all(output.passed for output in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "unproven"


ALONE = {
    "a remainder": (
        integer("k", 3) + "y = Div(x, k)",
        integer("k", 3) + "m = Mod(x, k)\ns = Sub(x, m)\ny = Div(s, k)",
    ),
    "a position": (
        "d = Constant<value = int64 {4}>()\nv = Constant<value = int64[2] {0, 1}>()\nh = OneHot(x, d, v)\n"
        "y = ArgMax<axis = 1, keepdims = 0>(h)",
        integer("z", 0) + "y = Max(x, z)",
    ),
    "a key": (
        "y = ai.onnx.ml.LabelEncoder<keys_int64s = [3, 70000], values_int64s = [1, 6], default_int64 = 0>(x)",
        integer("k", 3) + "m = Equal(x, k)\ny = Cast<to = 7>(m)",
    ),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_single_integer_is_tried_as_often_as_many(case: str, tmp_path: Path) -> None:
    first, second = ALONE[case]
    found = verdict(tmp_path, first, second, "int64[1] x", "int64[1]")
    assert all(output.passed for output in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "unproven"


SIZED = {
    "a beginning": (integer("z", 0), "Slice(x, k, e)", "Slice(x, j, e)", "j = Max(k, z)\n"),
    "a count": (integer("z", 2), "Tile(x, k)", "Tile(x, j)", "j = Min(k, z)\n"),
}


@pytest.mark.parametrize("case", SIZED)
def test_small_sizes_that_a_caller_gives_are_tried(case: str, tmp_path: Path) -> None:
    start, first, second, changed = SIZED[case]
    start += "e = Constant<value = int64[1] {50}>()\n"
    inputs = "float[8] x, int64[1] k"
    found = verdict(tmp_path, f"{start}y = {first}", f"{start}{changed}y = {second}", inputs, "float[N]")
    assert all(output.passed for output in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "unproven"
    same = f"{start}i = Neg(k)\nm = Max(i, i)\nj = Neg(m)\ny = {second}"
    assert verdict(tmp_path, f"{start}y = {first}", same, inputs, "float[N]").passed


def test_every_combination_of_a_few_bools_is_tried(tmp_path: Path) -> None:
    names = [f"b{index}" for index in range(7)]
    every = "\n".join(f"a{i + 1} = And({'b0' if not i else f'a{i}'}, b{i + 1})" for i in range(6))
    inputs = ", ".join(f"bool {name}" for name in names)
    found = verdict(tmp_path, f"{every}\ny = Or(a6, c)", "y = Identity(c)", f"{inputs}, bool c", "bool")
    assert found.verdict_kind == "unproven"
    assert "other boolean values" in found.verdict
    swapped = every.replace("And(b0, b1)", "And(b1, b0)")
    found = verdict(
        tmp_path, f"{every}\ny = Or(a6, c)", f"{swapped}\ny = Or(c, a6)", f"{inputs}, bool c", "bool"
    )
    assert found.passed


def test_integers_that_decide_a_size_are_not_made_up(tmp_path: Path) -> None:
    """A Range up to a made-up integer would take all memory."""
    body = integer("z", 0) + integer("o", 1) + "r = Range(z, x, o)\n"
    found = verdict(tmp_path, body + "y = Abs(r)", body + "y = Identity(r)", "int64 x", "int64[N]")
    assert found.verdict_kind in ("evidence", "unproven")


def test_equal_limits_of_integers_are_shown_by_integers_beside_them(tmp_path: Path) -> None:
    first = integer("k", 100) + "m = Less(x, k)\ny = Cast<to = 7>(m)"
    second = integer("k", 99) + "m = LessOrEqual(x, k)\ny = Cast<to = 7>(m)"
    assert verdict(tmp_path, first, second, f"{INTEGERS} x", INTEGERS).verdict_kind == "evidence"


ROUND = "h = Constant<value = float {9.0}>()\nm = Mul(x, h)\nr = Round(m)\n"
NARROW = {
    "a number that wraps around in 8 bits": (
        integer("low", 0) + integer("high", 190) + "w = Cast<to = 7>(m)\nc = Clip(w, low, high)\n"
        "n = Cast<to = 3>(c)\nf = Cast<to = 1>(n)\n"
    ),
    "a sum that wraps around": (
        ROUND + "w = Cast<to = 7>(r)\nu = Abs(w)\n" + integer("k", 1 << 62) + "a = Add(u, k)\nb = Add(a, u)\n"
        "f = Cast<to = 1>(b)\n"
    ),
    "a small exponential": (
        number("low", -150.0) + number("high", 1.0) + "c = Clip(x, low, high)\ne = Exp(c)\n"
        "z = Constant<value = float {0.0}>()\nm = Greater(e, z)\nf = Cast<to = 1>(m)\nt = Sub(f, z)\n"
    ),
    "a negative threshold": "f = ThresholdedRelu<alpha = -0.5>(x)\n",
}


@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("a number that wraps around in 8 bits", "y = Relu(f)", "y = Identity(f)"),
        ("a sum that wraps around", "y = Relu(f)", "y = Identity(f)"),
        ("a small exponential", "y = Identity(f)", "s = Sub(f, f)\nc1 = Cos(s)\ny = Mul(c1, c1)"),
        ("a negative threshold", "y = Relu(f)", "y = Identity(f)"),
    ],
)
def test_a_number_format_may_give_a_sign_that_arithmetic_does_not(
    case: str, first: str, second: str, tmp_path: Path
) -> None:
    body = (ROUND if "8 bits" in case else "") + NARROW[case]
    assert verdict(tmp_path, body + first, body + second).verdict_kind in ("unproven", "different")


def test_a_quantized_value_stays_on_its_side_of_the_zero_point(tmp_path: Path) -> None:
    """The second Relu does nothing behind the first, and something behind a Neg."""
    quantized = (
        "s = Constant<value = float {0.1}>()\nz = Constant<value = int8 {-3}>()\n"
        "q = QuantizeLinear(p, s, z)\nd = DequantizeLinear(q, s, z)\n"
    )
    same, other = "y = Relu(d)", "y = Identity(d)"
    start = "p = Relu(x)\n" + quantized
    assert verdict(tmp_path, start + same, start + other).verdict_kind == "evidence"
    start = "r = Relu(x)\np = Neg(r)\n" + quantized
    assert verdict(tmp_path, start + same, start + other).verdict_kind == "different"


ROW_SUM = "ax = Constant<value = int64[1] {1}>()\nq = Mul(x, x)\nt = ReduceSum(q, ax)\n" + number("e", 1e-12)

FEW_RESULTS = {
    "a denominator below a sum": (ROW_SUM + "y = Add(t, e)", ROW_SUM + "y = Max(t, e)"),
    "a norm that is never zero": (ROW_SUM + "y = Sqrt(t)", ROW_SUM + "p = Add(t, e)\ny = Sqrt(p)"),
}


@pytest.mark.parametrize("case", FEW_RESULTS)
def test_tiny_results_of_a_reduction_are_judged_beside_usual_ones(case: str, tmp_path: Path) -> None:
    """Three results are few, so the driven values are repeated until there are enough of them to judge."""
    first, second = FEW_RESULTS[case]
    for pair in ((first, second), (second, first)):
        assert not verdict(tmp_path, *pair, output="float[3,1]").passed


def test_sequences_are_compared_element_by_element(tmp_path: Path) -> None:
    def split(length: int) -> str:
        return integer("n", length) + "y = SplitToSequence<axis = 0>(x, n)"

    shapes = "float[rows,5] x", "seq(float[part,5])"
    assert not verdict(tmp_path, split(50), split(60), *shapes).passed
    found = verdict(
        tmp_path, "r = Relu(x)\n" + split(2), number("z", 0.0) + "r = Max(x, z)\n" + split(2), *shapes
    )
    assert "internal" not in found.verdict


@pytest.mark.parametrize("before", ["Add(x, k)", "Sub(x, k)", "Div(x, k)"])
def test_a_limit_behind_integer_arithmetic_is_met(before: str, tmp_path: Path) -> None:
    body = integer("k", 7) + integer("c", 1234) + f"a = {before}\ny = "
    found = verdict(tmp_path, body + "Greater(a, c)", body + "GreaterOrEqual(a, c)", "int64[6] x", "bool[6]")
    assert found.verdict_kind in ("different", "unproven"), found.verdict


@pytest.mark.parametrize("shaping", ["Unsqueeze(n, at)", "Reshape(n, at1)", "Cast<to = 7>(n1)"])
def test_a_size_in_another_shape_or_type_is_tried(shaping: str, tmp_path: Path) -> None:
    """The number of rows is below 0 in no random input."""
    inputs = "float[6,5] x, int64 n, int32[1] n1"
    body = (
        f"at = Constant<value = int64[1] {{0}}>()\nat1 = Constant<value = int64[1] {{1}}>()\ne = {shaping}\n"
    )
    first, second = body + "y = Slice(x, at, e, at)", body + "m = Max(e, at)\ny = Slice(x, at, m, at)"
    found = verdict(tmp_path, first, second, inputs, "float[rows,5]")
    assert not found.passed, found.verdict
