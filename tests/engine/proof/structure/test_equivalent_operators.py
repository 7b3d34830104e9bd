"""Operators that can express each other are equal by construction, and their near misses are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import verify_files
from tests.engine.proof import tiled as t

node = helper.make_node
Side = tuple[int, dict[str, Any], list[Any]]
"""An operator set, shapes of float32 inputs, and nodes that compute y."""


def stored(name: str, value: Any) -> Any:
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), ""))


def ints(name: str, *values: int) -> Any:
    return stored(name, np.asarray(values, np.int64))


GROUPS = t.weight(3), t.weight(3, seed=1)


def groups(repeat: int, *, opset: int = 21, **attributes: Any) -> Side:
    """A GroupNormalization of 12 channels in 3 groups, whose scales are repeated."""
    numbers = [stored(name, each.repeat(repeat)) for name, each in zip("sb", GROUPS, strict=True)]
    options = {"num_groups": 3, **attributes}
    return opset, {"x": (2, 12, 5)}, [*numbers, node("GroupNormalization", ["x", "s", "b"], ["y"], **options)]


def expanded_groups(count: int) -> Side:
    """As `groups`, with nodes that repeat the scales, as converters write them."""
    nodes = []
    for name, each in zip("sb", GROUPS, strict=True):
        nodes += [
            stored(f"{name}0", each),
            ints(f"{name}1", 3, 1),
            ints(f"{name}2", 3, count),
            ints(f"{name}3", -1),
        ]
        nodes += [
            node("Reshape", [f"{name}0", f"{name}1"], [f"{name}4"]),
            node("Expand", [f"{name}4", f"{name}2"], [f"{name}5"]),
            node("Reshape", [f"{name}5", f"{name}3"], [name]),
        ]
    nodes.append(node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=3))
    return 21, {"x": (2, 3 * count, 5)}, nodes


def tiled_groups() -> Side:
    numbers = [stored(name, np.tile(each, 4)) for name, each in zip("sb", GROUPS, strict=True)]
    return 21, {"x": (2, 12, 5)}, [*numbers, node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=3)]


def attention(
    mask: Any = None, *, queries: int = 5, keys: int = 5, flat: bool = False, **options: Any
) -> Side:
    """An Attention of four heads with two heads of keys."""
    head = {"q": (2, 4, queries, 8), "k": (2, 2, keys, 8), "v": (2, 2, keys, 8)}
    shapes: dict[str, Any] = {n: (s[0], s[2], s[1] * s[3]) for n, s in head.items()} if flat else head
    counts = {"q_num_heads": 4, "kv_num_heads": 2} if flat else {}
    inputs = ["q", "k", "v", *(["m"] if mask is not None else [])]
    masks = [stored("m", mask)] if mask is not None else []
    return 23, shapes, [*masks, node("Attention", inputs, ["y"], **counts, **options)]


def triangle(rows: int, columns: int, diagonal: int = 0) -> Any:
    return np.tri(rows, columns, diagonal, dtype=bool)


def element(position: int, *more: Any) -> Side:
    """An element of a sequence of three values."""
    nodes = [node("Relu", ["x"], ["r"]), node("Tanh", ["x"], ["t"]), stored("p", np.int64(position))]
    nodes += [node("SequenceConstruct", ["x", "r", "t"], ["s"]), *more]
    return 17, {"x": (3, 8)}, [*nodes, node("SequenceAt", [more[-1].output[0] if more else "s", "p"], ["y"])]


def part(position: int, split: Any, columns: Any = 8) -> Side:
    """A part of a value that was split into a sequence."""
    nodes = [stored("c", split), stored("p", np.int64(position))]
    nodes += [node("SplitToSequence", ["x", "c"], ["s"], axis=1), node("SequenceAt", ["s", "p"], ["y"])]
    return 17, {"x": (3, columns)}, nodes


def joined(op: str, inputs: list[str], *before: Any, **attributes: Any) -> Side:
    nodes = [node("Relu", ["x"], ["r"]), node("Tanh", ["x"], ["t"]), *before]
    return 17, {"x": (3, 8)}, [*nodes, node(op, inputs, ["y"], **attributes)]


def reshaped(*target: Any, shape: Any = ("n", 6, "m"), **attributes: Any) -> Side:
    """A Reshape to a target `to`."""
    return 17, {"x": shape}, [*target, node("Reshape", ["x", "to"], ["y"], **attributes)]


def bits(compare: str, *choice: Any) -> Side:
    compared = [stored("z", np.float32(0.3)), node(compare, ["x", "z"], ["g"])]
    return 17, {"x": (3, 8)}, [*compared, *choice]


SHAPE = node("Shape", ["x"], ["sh"])
LAST = ints("last", -1)
ONE = stored("one", np.float32(1))
SEQUENCE = node("SequenceConstruct", ["x", "r", "t"], ["s"])

EQUAL: dict[str, tuple[Side, Side]] = {
    "scales of groups": (groups(1, opset=18), groups(4)),
    "scales of groups in an inner version": (groups(1, opset=20, epsilon=0.01), groups(4, epsilon=0.01)),
    "scales that nodes repeat": (
        (18, {"x": (2, 120, 5)}, groups(1, opset=18)[2]),
        expanded_groups(40),
    ),
    "a triangle": (attention(is_causal=1), attention(triangle(5, 5))),
    "a triangle in four axes": (attention(is_causal=1), attention(triangle(5, 5)[None, None])),
    "a triangle for each head": (
        attention(is_causal=1),
        attention(np.broadcast_to(triangle(5, 5), (2, 4, 5, 5)).copy()),
    ),
    "a triangle of flat heads": (attention(is_causal=1, flat=True), attention(triangle(5, 5), flat=True)),
    "a wide triangle": (attention(is_causal=1, keys=7), attention(triangle(5, 7), keys=7)),
    "a tall triangle": (attention(is_causal=1, keys=3), attention(triangle(5, 3), keys=3)),
    "a triangle twice": (attention(triangle(5, 5), is_causal=1), attention(is_causal=1)),
    "a mask that hides nothing": (attention(np.ones((5, 5), bool)), attention()),
    "a mask above the triangle": (attention(triangle(5, 5, 2), is_causal=1), attention(triangle(5, 5))),
    "one key": (attention(is_causal=1, keys=1), attention(keys=1)),
    "from behind": (element(-1), element(2)),
    "the first from behind": (element(-3), joined("Identity", ["x"])),
    "an inserted element": (
        element(1, stored("i", np.int64(-2)), node("SequenceInsert", ["s", "t", "i"], ["s2"])),
        joined("Identity", ["t"]),
    ),
    "a last element": (element(-1, node("SequenceInsert", ["s", "r"], ["s2"])), joined("Identity", ["r"])),
    "an erased element": (
        element(1, stored("i", np.int64(-2)), node("SequenceErase", ["s", "i"], ["s2"])),
        joined("Identity", ["t"]),
    ),
    "an erased last element": (element(-1, node("SequenceErase", ["s"], ["s2"])), element(1)),
    "a part from behind": (part(-1, np.int64(3)), part(2, np.int64(3))),
    "a part of named lengths": (part(-2, [3, 1, 4]), part(1, [3, 1, 4])),
    "a joined sequence": (
        joined("ConcatFromSequence", ["s"], SEQUENCE, axis=1),
        joined("Concat", ["x", "r", "t"], axis=1),
    ),
    "a size of a partly open shape": (
        reshaped(SHAPE, ints("i", 1), node("Gather", ["sh", "i"], ["c"]), ints("z", 0), LAST,
                 node("Concat", ["z", "c", "last"], ["to"], axis=0)),
        reshaped(ints("to", 0, 6, -1)),
    ),
    "an open size that is copied": (
        reshaped(SHAPE, stored("i", np.int64(-3)), node("Gather", ["sh", "i"], ["c"]), ints("a", 0),
                 node("Unsqueeze", ["c", "a"], ["u"]), ints("b", 1), ints("e", 2),
                 node("Slice", ["sh", "b", "e"], ["d"]), LAST,
                 node("Concat", ["u", "d", "last"], ["to"], axis=0)),
        reshaped(ints("to", 0, 6, -1)),
    ),
    "open sizes in other ways": (
        reshaped(SHAPE, ints("i", 2, 0, 1), node("Gather", ["sh", "i"], ["to"])),
        reshaped(node("Shape", ["x"], ["p"], end=2), node("Shape", ["x"], ["q"], start=-1),
                 node("Concat", ["q", "p"], ["to"], axis=0)),
    ),
    "a divisor that is a size": (
        (17, {"x": ("n", 6)}, [SHAPE, stored("i", np.int64(1)), node("Gather", ["sh", "i"], ["g"]),
                               node("Cast", ["g"], ["f"], to=1), node("Div", ["x", "f"], ["y"])]),
        (17, {"x": ("n", 6)}, [stored("f", np.float32(6)), node("Div", ["x", "f"], ["y"])]),
    ),
    "ones and zeros": (
        bits("Less", ONE, stored("b", np.float32([0])), node("Where", ["g", "one", "b"], ["y"])),
        bits("Less", node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)),
    ),
    "zeros and ones": (
        bits("Less", ONE, stored("b", np.float32(0)), node("Not", ["g"], ["n"]),
             node("Where", ["n", "b", "one"], ["y"])),
        bits("Less", node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)),
    ),
}  # fmt: skip

NOT_EQUAL: dict[str, tuple[Side, Side]] = {
    "scales of other groups": (groups(1, opset=18), tiled_groups()),
    "other groups": (groups(4, num_groups=3), groups(4, num_groups=6)),
    "another epsilon": (groups(1, opset=18, epsilon=0.01), groups(4)),
    "a triangle one above": (attention(is_causal=1), attention(triangle(5, 5, 1))),
    "a triangle one below": (
        attention(is_causal=1, queries=6),
        attention(triangle(6, 5, -1) | (np.arange(6) == 0)[:, None], queries=6),
    ),
    "a triangle at the right": (attention(is_causal=1, keys=7), attention(triangle(5, 7, 2), keys=7)),
    "a triangle of the other side": (attention(is_causal=1), attention(triangle(5, 5).T)),
    "a mask with one hole": (
        attention(is_causal=1),
        attention(triangle(5, 5) & (np.arange(25) != 21).reshape(5, 5)),
    ),
    "another mask for one head": (
        attention(is_causal=1),
        attention(triangle(5, 5) | (np.arange(4) == 2)[:, None, None]),
    ),
    "a mask that is causal once more": (attention(triangle(5, 5, 1)), attention(is_causal=1)),
    "another element": (element(-1), element(1)),
    "an element before the insertion": (
        element(1, stored("i", np.int64(-1)), node("SequenceInsert", ["s", "t", "i"], ["s2"])),
        joined("Identity", ["t"]),
    ),
    "an element after the erasure": (
        element(0, stored("i", np.int64(-2)), node("SequenceErase", ["s", "i"], ["s2"])),
        joined("Identity", ["t"]),
    ),
    "another part": (part(-1, np.int64(2)), part(2, np.int64(2))),
    "stacked, not joined": (
        joined("ConcatFromSequence", ["s"], SEQUENCE, axis=0, new_axis=1),
        joined("Concat", ["x", "r", "t"], axis=0),
    ),
    "joined in another order": (
        joined("ConcatFromSequence", ["s"], SEQUENCE, axis=0),
        joined("Concat", ["x", "t", "r"], axis=0),
    ),
    "another open size": (
        reshaped(SHAPE, ints("i", 2, 1, 0), node("Gather", ["sh", "i"], ["to"])),
        reshaped(SHAPE, ints("i", 0, 1, 2), node("Gather", ["sh", "i"], ["to"])),
    ),
    "an open size that is not copied": (
        reshaped(SHAPE, ints("i", 2), node("Gather", ["sh", "i"], ["c"]), LAST,
                 node("Concat", ["c", "last"], ["to"], axis=0)),
        reshaped(ints("to", 0, -1)),
    ),
    "minus zeros": (
        bits("Less", ONE, stored("b", np.float32(-0.0)), node("Where", ["g", "one", "b"], ["p"]),
             node("Div", ["one", "p"], ["y"])),
        bits("Less", ONE, node("Cast", ["g"], ["p"], to=TensorProto.FLOAT), node("Div", ["one", "p"], ["y"])),
    ),
    "ones and halves": (
        bits("Less", ONE, stored("b", np.float32(0.5)), node("Where", ["g", "one", "b"], ["y"])),
        bits("Less", node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)),
    ),
    "ones in another shape": (
        bits("Less", stored("a", np.ones((1, 1, 1), np.float32)), stored("b", np.float32(0)),
             node("Where", ["g", "a", "b"], ["y"])),
        bits("Less", node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)),
    ),
}  # fmt: skip


def saved(path: Path, side: Side) -> str:
    opset, shapes, nodes = side
    t.model(path, nodes, shapes, {}, opset=opset, dtypes=dict.fromkeys((*shapes, "y"), 1))
    return str(path)


@pytest.mark.parametrize("case", EQUAL)
def test_operators_that_express_each_other_are_equal_by_construction(tmp_path: Path, case: str) -> None:
    a, b = (saved(tmp_path / f"{i}.onnx", side) for i, side in enumerate(EQUAL[case]))
    for first, second in ((a, b), (b, a)):
        fact = verify_files(first, second)
        assert fact.verdict.startswith("equal bit for bit"), fact.verdict
        assert not fact.regions


@pytest.mark.parametrize("case", NOT_EQUAL)
def test_near_misses_are_not_equal(tmp_path: Path, case: str) -> None:
    a, b = (saved(tmp_path / f"{i}.onnx", side) for i, side in enumerate(NOT_EQUAL[case]))
    for first, second in ((a, b), (b, a)):
        assert verify_files(first, second).verdict_kind in ("different", "unproven")


def self_attention(mask: Any = None, **options: Any) -> list[Any]:
    """Nodes of an Attention of x with itself."""
    masks = [stored("m", mask)] if mask is not None else []
    return [*masks, node("Attention", ["x", "x", "x", *("m" for _ in masks)], ["y"], **options)]


HALVES = [node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16)]


def half_groups(repeat: int) -> list[Any]:
    numbers = [
        stored(n, each.repeat(repeat).astype(np.float16)) for n, each in zip("sb", GROUPS, strict=True)
    ]
    group = node("GroupNormalization", ["h", "s", "b"], ["g"], num_groups=3)
    return [*numbers, *HALVES, group, node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)]


@pytest.mark.parametrize(
    ("first", "second", "dims"),
    [
        (
            (23, {"x": (1, 2, "n", 8)}, self_attention(is_causal=1)),
            (23, {"x": (1, 2, "n", 8)}, self_attention(triangle(5, 5))),
            {"n": 5},
        ),
        (
            (23, {"x": (1, 2, 5, 8)}, self_attention(is_causal=1)),
            (23, {"x": (1, 2, 5, 8)}, self_attention(np.where(triangle(5, 5), np.float32(0), -np.inf))),
            {},
        ),
        ((18, {"x": (2, 12, 5)}, half_groups(1)), (21, {"x": (2, 12, 5)}, half_groups(4)), {}),
        (
            (18, {"x": (2, "n", 5)}, groups(1, opset=18)[2]),
            (21, {"x": (2, "n", 5)}, groups(4)[2]),
            {"n": 12},
        ),
        (part(-1, np.int64(3), "n"), part(2, np.int64(3), "n"), {"n": 8}),
    ],
    ids=["open tokens", "a mask of floats", "float16", "open channels", "open parts"],
)
def test_without_types_and_sizes_no_rule_applies(
    tmp_path: Path, first: Side, second: Side, dims: dict[str, int]
) -> None:
    a, b = saved(tmp_path / "a.onnx", first), saved(tmp_path / "b.onnx", second)
    assert verify_files(a, b, dims=dims).verdict_kind != "equal"


def test_a_model_that_onnxruntime_refuses_to_run_on_nan_is_named(tmp_path: Path) -> None:
    """By definition a Binarizer is a Greater and a Cast, but the kernel raises an error for NaN."""
    binarizer = node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.3)
    a = saved(tmp_path / "a.onnx", (17, {"x": (3, 8)}, [binarizer]))
    b = saved(tmp_path / "b.onnx", bits("Greater", node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)))
    c = saved(tmp_path / "c.onnx", bits("GreaterOrEqual", node("Cast", ["g"], ["y"], to=TensorProto.FLOAT)))
    for first, second, refusing in ((a, b, "first"), (b, a, "second")):
        fact = verify_files(first, second)
        assert fact.verdict_kind == "evidence"
        assert f"where an input is NaN, onnxruntime cannot run the {refusing} model" in fact.verdict
    assert verify_files(a, c).verdict_kind in ("different", "unproven")
    # for NaN it gives 1
    negated = [node("LessOrEqual", ["x", "z"], ["l"]), node("Not", ["l"], ["n"])]
    choice = [stored("z", np.float32(0.3)), *negated, node("Cast", ["n"], ["y"], to=TensorProto.FLOAT)]
    fact = verify_files(a, saved(tmp_path / "d.onnx", (17, {"x": (3, 8)}, choice)))
    assert fact.verdict_kind in ("different", "unproven")


FIRST = t.weight(8, 5)

REWRITTEN: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a stored weight is transposed": (
        (3, 8),
        [stored("w", FIRST), node("Gemm", ["x", "w"], ["y"])],
        [stored("w", np.ascontiguousarray(FIRST.T)), node("Gemm", ["x", "w"], ["y"], transB=1)],
    ),
    "a power of two moves into the weight": (
        (3, 8),
        [stored("w", FIRST), node("Gemm", ["x", "w"], ["y"], alpha=0.5)],
        [stored("w", FIRST * np.float32(0.5)), node("Gemm", ["x", "w"], ["y"])],
    ),
    "parts that are joined again": (
        (4, 6),
        [node("Split", ["x"], ["a", "b"], axis=1), node("Concat", ["a", "b"], ["y"], axis=1)],
        [node("Identity", ["x"], ["y"])],
    ),
    "a mean of all places": (
        (2, 3, 4, 4),
        [node("ReduceMean", ["x"], ["y"], axes=[2, 3])],
        [node("GlobalAveragePool", ["x"], ["y"])],
    ),
    "an axis of one moves": (
        (2, 1, 8),
        [node("Transpose", ["x"], ["y"], perm=[1, 0, 2])],
        [ints("s", 1, 2, 8), node("Reshape", ["x", "s"], ["y"])],
    ),
    "a column": (
        (3, 8),
        [stored("i", np.int64(2)), node("Gather", ["x", "i"], ["y"], axis=1)],
        [
            *(ints("b", 2), ints("e", 3), ints("a", 1), node("Slice", ["x", "b", "e", "a"], ["s"])),
            node("Squeeze", ["s", "a"], ["y"]),
        ],
    ),
    "a repeated column": (
        (3, 1),
        [ints("s", 3, 4), node("Expand", ["x", "s"], ["y"])],
        [ints("s", 1, 4), node("Tile", ["x", "s"], ["y"])],
    ),
    "a gate of its parts": (
        (3, 8),
        [node("HardSwish", ["x"], ["y"])],
        [node("HardSigmoid", ["x"], ["h"], alpha=1 / 6, beta=0.5), node("Mul", ["x", "h"], ["y"])],
    ),
    "a softmax of its logarithm": (
        (3, 8),
        [node("Softmax", ["x"], ["y"])],
        [node("LogSoftmax", ["x"], ["l"]), node("Exp", ["l"], ["y"])],
    ),
    "a convolution of single places": (
        (2, 8, 4),
        [stored("w", np.ascontiguousarray(FIRST.T)[..., None]), node("Conv", ["x", "w"], ["y"])],
        [
            *(stored("w", FIRST), node("Transpose", ["x"], ["t"], perm=[0, 2, 1])),
            *(node("MatMul", ["t", "w"], ["m"]), node("Transpose", ["m"], ["y"], perm=[0, 2, 1])),
        ],
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_other_rewritings_are_equal_on_evidence(tmp_path: Path, case: str) -> None:
    shape, *sides = REWRITTEN[case]
    a, b = (saved(tmp_path / f"{i}.onnx", (17, {"x": shape}, nodes)) for i, nodes in enumerate(sides))
    for first, second in ((a, b), (b, a)):
        fact = verify_files(first, second)
        assert fact.verdict_kind in ("equal", "evidence"), fact.verdict


@pytest.mark.parametrize(("swapped", "ordinal"), [(False, "second"), (True, "first")])
def test_the_model_that_overflows_is_named(tmp_path: Path, swapped: bool, ordinal: str) -> None:
    """A Softplus is finite at 100, but the exponential function is not, and neither is its logarithm."""
    nodes = [node("Exp", ["r"], ["e"]), node("Add", ["e", "one"], ["a"]), node("Log", ["a"], ["y"])]
    relu = node("Relu", ["x"], ["r"])
    sides = [[relu, node("Softplus", ["r"], ["y"])], [relu, ONE, *nodes]]
    files = [saved(tmp_path / f"{i}.onnx", (17, {"x": (3, 8)}, side)) for i, side in enumerate(sides)]
    fact = verify_files(*(reversed(files) if swapped else files))
    assert fact.verdict_kind in ("different", "unproven")
    said = [region.reason for region in fact.regions if "NaN or infinite" in region.reason]
    assert all(f"infinite in the {ordinal} model alone" in reason for reason in said)
    assert said or not swapped
