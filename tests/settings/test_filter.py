"""The filter: what a user types behind `/`, and which layers that finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explorer.base.errors import Misuse
from explorer.facts import Layer, TensorInfo
from explorer.settings.columns import COLUMNS
from explorer.settings.filter import build_matcher, is_query, number, search
from explorer.settings.filter_completion import complete_filter


def layer(
    at: int, path: str, kind: str, parent: int | None = None, *, group: bool = False, **more: object
) -> Layer:
    name = path.rpartition(".")[2]
    return Layer(at, parent, path, name, kind, 0, group, **more)  # type: ignore[arg-type]


LAYERS = (
    layer(0, "features", "Sequential", group=True, macs=2_000_001, params=2_100),
    layer(
        1, "features.0", "Conv2d", 0, macs=2_000_000, params=1_000, bytes_read=600_000, bytes_written=600_000
    ),
    layer(2, "features.1", "Relu", 0, macs=0, bytes_read=100, bytes_written=100),
    layer(3, "node_linear", "Gemm", 0, macs=1, params=1_100, bytes_read=None),
    layer(4, "head[0]", "Secret", macs=None, bytes_read=None, status="unknown"),
    layer(
        5, "embed", "Gather", shared_with=("head",), weights=(TensorInfo("tok.weight", "float16", (2, 2)),)
    ),
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", (0, 1, 2, 3, 4, 5)),
        ("relu", (2,)),
        ("FEATURES", (0, 1, 2, 3)),
        # the place in the tree is searched too, where the path does not tell it
        ("features.node_linear", (3,)),
        ("features.?", (1, 2)),
        ("f*", (0, 1, 2, 3)),
        ("head[0]", (4,)),
        ("head[*", (4,)),
        ("op:conv", (1,)),
        ("op:Conv2d", (1,)),
        ("op:co*", (1,)),
        ("op:con", ()),
        ("kind:gemm", (3,)),
        ("name:linear", (3,)),
        ("status:unknown", (4,)),
        ("weight:tok", (5,)),
        ("dtype:float16", (5,)),
        ("is:group", (0,)),
        ("is:shared", (5,)),
        ("macs>1e6", (1,)),
        ("macs>=1", (1, 3)),
        ("macs=0", (2, 5)),
        ("macs!=0", (1, 3)),
        ("flops>3M", (1,)),
        ("params>=1k", (1, 3)),
        ("params>1k", (3,)),
        ("bytes<1KiB", (2, 5)),
        ("bytes>1MiB", (1,)),
        ("bytes>1MB", (1,)),
        ("-relu features", (0, 1, 3)),
        ("-macs>0 -is:group", (2, 4, 5)),
        # blanks around a sign, before a unit and behind a colon
        ("macs > 1e6", (1,)),
        ("macs >1e6", (1,)),
        ("macs> 1e6", (1,)),
        ("bytes > 1 MiB", (1,)),
        ("features params >= 1 k", (1, 3)),
        ("-macs > 0 -is:group", (2, 4, 5)),
        ("op: conv", (1,)),
        ("macs>1 k", (1,)),
        ("op:conv k", ()),
        ("--relu", (2,)),
        ('"-relu"', ()),
        ('"op:conv"', ()),
        ("features params>1 op:gemm", (3,)),
    ],
)
def test_a_filter_finds(text: str, found: tuple[int, ...]) -> None:
    assert search(LAYERS, text) == found


@pytest.mark.parametrize("text", ["-" * 3_000, "macs>" + "1" * 3_000 + "!", "a " * 1_500, "*a" * 1_500])
def test_what_was_pasted_by_mistake_is_refused_in_few_words(text: str) -> None:
    with pytest.raises(Misuse, match="at most 1,000 characters") as refused:
        search(LAYERS, text)
    assert len(str(refused.value)) < 80


def test_a_long_filter_is_read_or_refused_in_few_words() -> None:
    assert search(LAYERS, "-" * 999) == ()
    assert search(LAYERS, "-" * 900 + "relu") == (2,)
    assert search(LAYERS, "*u" * 450) == ()
    for text in ("macs>" + "1" * 900 + "!", "a" * 900 + ">1", "a" * 900 + ":1", "macs:" + "1" * 900):
        with pytest.raises(Misuse) as refused:
            search(LAYERS, text)
        assert len(str(refused.value)) < 180


SHAPED = (
    layer(0, "a", "Conv", attributes={"kernel_shape": (3, 3), "strides": (2, 1), "pads": (1, 2, 1, 2)},
          inputs=(TensorInfo("image", "float32", (1, 3, 8, 8)),),
          outputs=(TensorInfo("a_out", "float32", (1, 64, 8, 8)),), bytes_read=2_000_000),
    layer(1, "b", "Conv2d", attributes={"kernel_size": 3, "stride": 1, "mode": b"zeros", "alpha": 0.5},
          outputs=(TensorInfo("b_out", "float32", ("batch", 64, None, 8)),), bytes_read=10),
    layer(2, "c", "MatMul", attributes={"ceil_mode": False, "M": 64},
          outputs=(TensorInfo("c_out", "float32", None), TensorInfo("d_out", "float32", (7,))),
          weights=(TensorInfo("w", "float32", (64, 3, 7, 7)),)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("out:[*,64,*,*]", (0, 1)),
        ("out: [*, 64, *, *]", (0, 1)),
        ("-out:[*,64,*,*]", (2,)),
        ("out:[1,64,...]", (0,)),
        ("out:[...,8]", (0, 1)),
        ("out:[...,64,...,8]", (0, 1)),
        ("out:[batch,...]", (1,)),
        ("out:[*,*,?,*]", (1,)),
        ("out:[*,>=65,*,*]", ()),
        ("out:[*]", (2,)),
        ("out:[]", ()),
        ("out:[...]", (0, 1, 2)),
        ("in:[1,3,...]", (0,)),
        ("weight:[>60,*,7,7]", (2,)),
        ("in:image", (0,)),
        ("out:?_out", (0, 1, 2)),
        ("kernel=3x3", (0, 1)),
        ("kernel=3", (0, 1)),
        ("kernel=[3, 3]", (0, 1)),
        ("kernel!=3x3", ()),
        ("kernel_size=3", (0, 1)),
        ("stride>1", (0,)),
        ("stride<=1", (1,)),
        ("stride=2x1", (0,)),
        ("padding=1x2", (0,)),
        ("attr:alpha>=0.5", (1,)),
        ("attr:mode=zero*", (1,)),
        ("attr:mode!=linear", (1,)),
        ("attr:ceil_mode", (2,)),
        ("attr:ceil_mode=false", (2,)),
        ("M>=64", (2,)),
        ("op:Conv read>1M", (0,)),
        ("op:MatMul OR kernel=3x3 stride>1", (0, 2)),
        ("(op:MatMul OR kernel=3x3) stride=1", (1,)),
        ("op:MatMul or op:Conv and stride>1", (0, 2)),
        ("NOT (op:MatMul OR stride>1)", (1,)),
        ("-(op:MatMul OR stride>1)", (1,)),
        ("NOT NOT op:MatMul", (2,)),
        ("((op:MatMul))", (2,)),
        ('name:"a b" OR "OR"', ()),
    ],
)
def test_a_filter_asks_for_shapes_attributes_and_either_of_two(text: str, found: tuple[int, ...]) -> None:
    assert search(SHAPED, text) == found


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("op:Conv mac>1", 9, "did you mean 'macs'"),
        ("op:Conv (macs>1", 9, "a parenthesis is not closed"),
        ("op:Conv)", 8, "closes nothing"),
        ("op:Conv OR", 9, "no term beside it"),
        ("OR op:Conv", 1, "no term beside it"),
        ("a ()", 3, "the parentheses are empty"),
        ("a out:[1,2", 7, "a bracket is not closed"),
        ("a out:[1,x>2]", 10, "is not a size"),
        ("a time>1ms", 3, "needs a machine"),
        ("a stride>wide", 10, "'wide' is not a number"),
        ("a kernel=3y3", 10, "'3y3' is not a size; write kernel=3x3"),
        ("a kernel:3x3", 3, "write kernel=3x3"),
        ("a NOT", 3, "no term beside it"),
        ("macs>>1e6", 6, "'>1e6' is not a number"),
        ("a macs  >  lots", 12, "'lots' is not a number"),
        ("a -macs > 1 -bytes>=ten", 21, "'ten' is not a number"),
        ("a --mac>1", 5, "did you mean 'macs'"),
        ("a out: [1,2", 8, "a bracket is not closed"),
        ("(" * 60 + "a" + ")" * 60, 41, "nested deeper than 40"),
    ],
)
def test_what_is_wrong_with_a_filter_is_said_with_its_place(text: str, place: int, words: str) -> None:
    with pytest.raises(Misuse, match=words) as refused:
        search(SHAPED, text)
    assert refused.value.where == f"filter, character {place}"


def test_shares_and_times_have_units_of_their_own() -> None:
    assert number("5%", unit="share") == pytest.approx(0.05)
    assert number("20 us", unit="seconds") == pytest.approx(2e-5)
    with pytest.raises(Misuse, match="write 1ms"):
        number("3k", unit="seconds")


def test_a_name_is_no_query_and_a_question_is() -> None:
    for name in ("fc1", "*conv*", "layer.0", "/conv1/Conv", "onnx::Conv_1", "features[0]", "f(x)"):
        assert not is_query(name)
    for query in ("op:Conv", "macs>1e6", "a b", "NOT fc1", "(fc1)", "-op:Conv"):
        assert is_query(query)


def test_unknown_figures_are_neither_large_nor_small() -> None:
    assert 4 not in search(LAYERS, "macs>0")
    assert 4 not in search(LAYERS, "macs<=0")
    assert 3 not in search(LAYERS, "bytes>0")


def test_names_with_colons_can_be_looked_for() -> None:
    odd = (layer(0, "onnx::Conv_12", "Conv"), layer(1, "op:thing", "Conv"))
    assert search(odd, "onnx::conv") == (0,)
    assert search(odd, '"op:thing"') == (1,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sttus:unknown", "did you mean 'status'"),
        ("mac>1", "did you mean 'macs'"),
        ("macs:1000", "write macs>1000"),
        ("macs>many", "'many' is not a number"),
        ("macs>", "is not a number"),
        ("macs>1 zillion macs>1Q", "is not a number"),
        ('"open', "quote is not closed"),
    ],
)
def test_a_filter_that_cannot_be_understood_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        search(LAYERS, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1e6", 1e6), ("1,000", 1000), ("1_000", 1000), ("1k", 1000), ("1.5M", 1.5e6), ("2Ki", 2048),
     ("2KiB", 2048), ("2kb", 2000), ("3GiB", 3 * 1024**3), ("7B", 7), ("1e-3", 0.001)],
)  # fmt: skip
def test_numbers_take_units(text: str, value: float) -> None:
    assert number(text) == pytest.approx(value)


def test_a_layer_that_is_tiled_has_the_figures_of_a_layer_and_its_tiles_theirs() -> None:
    tiled = (
        layer(0, "body", "Sequential", group=True, macs=3_000),
        layer(1, "body.0", "Conv", 0, group=True, macs=2_000, tiled=True),
        layer(2, "body.0.t0", "MatMul", 1, macs=1_000),
        layer(3, "body.0.t1", "MatMul", 1, macs=1_000),
        layer(4, "body.1", "Conv", 0, macs=1_000),
    )
    assert search(tiled, "macs>1500") == (1,)
    assert search(tiled, "macs>=1000") == (1, 2, 3, 4)


@given(st.text(max_size=40))
def test_no_text_breaks_the_filter(text: str) -> None:
    try:
        found = search(LAYERS, text)
    except Misuse:
        return
    assert set(found) <= set(range(len(LAYERS)))


def test_a_word_is_completed_to_a_key_with_its_sign_the_most_used_first() -> None:
    assert complete_filter("conv k", COLUMNS)[0] == "conv kernel="
    assert complete_filter("conv kernel=3 s", COLUMNS)[0] == "conv kernel=3 stride="
    assert complete_filter("conv -st", COLUMNS) == ["conv -stride=", "conv -status:"]
    assert complete_filter("(MA", COLUMNS) == ["(macs>"]
    assert complete_filter("op:co", COLUMNS, ("Conv", "Gemm", "Concat")) == ["op:Conv", "op:Concat"]
    for text in ("", "conv ", "kernel=3", "macs>", "xyz"):
        assert complete_filter(text, COLUMNS) == []


def test_every_completion_is_a_filter_once_a_value_follows() -> None:
    values = {":": "x", "=": "1", ">": "1"}
    for first in "abcdefghijklmnopqrstuvwxyz":
        for text in complete_filter(first, COLUMNS):
            column = COLUMNS.get(text[:-1])
            if column is None or not column.needs:
                build_matcher(text + values[text[-1]])
