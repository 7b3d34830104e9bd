"""A limit that one model alone holds is shown to count, on both sides of it, or nothing is proved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

from explorer import Session, TileSpec, verify_files
from tests.engine.proof import tiled as t

node = helper.make_node
SIZE = [node("Shape", ["x"], ["sh"]), node("Gather", ["sh", "first"], ["n"])]
NUMBERS = {"first": np.int64(0), "one": np.float32(1), "two": np.float32(2), "at": np.asarray([0])}


def traps(limit: int) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Graphs that compute y = m as long as there are few rows, by what counts them."""
    wide = {"limit": np.int64(limit), "float": np.float32(limit)}
    chosen = [node("Where", ["g", "two", "one"], ["f"]), node("Mul", ["m", "f"], ["y"])]
    scaled = node("Mul", ["m", "f"], ["y"])
    left = [node("Cast", ["n"], ["c"], to=1), node("Sub", ["c", "float"], ["d"]), node("Relu", ["d"], ["r"])]
    return {
        "compared": ([*SIZE, node("GreaterOrEqual", ["n", "limit"], ["g"]), *chosen], wide),
        "what is left of it": ([*SIZE, *left, node("Add", ["r", "one"], ["f"]), scaled], wide),
        "whole times": (
            [
                *(*SIZE, node("Div", ["n", "limit"], ["d"]), node("Cast", ["d"], ["c"], to=1)),
                *(node("Add", ["c", "one"], ["f"]), node("Mul", ["m", "f"], ["y"])),
            ],
            wide,
        ),
        "clipped": (
            [
                *(*SIZE, node("Min", ["n", "limit"], ["k"]), node("Div", ["n", "k"], ["q"])),
                *(node("Cast", ["q"], ["c"], to=1), node("Mul", ["m", "c"], ["y"])),
            ],
            {"limit": np.int64(limit)},
        ),
        "in a band": (
            [node("Trilu", ["m", "limit"], ["u"], upper=0), node("Identity", ["u"], ["y"])],
            {"limit": np.int64(limit)},
        ),
    }  # fmt: skip


def written(path: Path, nodes: list[Any], numbers: dict[str, Any], shape: Any) -> str:
    every = [node("MatMul", ["x", "w"], ["m"]), *nodes]
    inner = [each for outer in every for attribute in outer.attribute for each in attribute.g.node]
    used = {name for each in (*every, *inner) for name in each.input}
    weights = {"w": t.weight(6, 6), **NUMBERS, **numbers}
    kept = {name: np.asarray(value) for name, value in weights.items() if name in used}
    t.model(path, every, {"x": shape}, kept, dtypes={"x": 1, "y": 1})
    return str(path)


@pytest.mark.parametrize("case", traps(0))
@pytest.mark.parametrize("limit", [24, 60])
def test_what_changes_above_a_size_is_different(tmp_path: Path, case: str, limit: int) -> None:
    nodes, numbers = traps(limit)[case]
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, ("rows", 6))
    trap = written(tmp_path / "b.onnx", nodes, numbers, ("rows", 6))
    for pair in ((plain, trap), (trap, plain)):
        fact = verify_files(*pair)
        # a band beyond six columns, and a quotient that changes at twice the limit, are not reached
        far = case in ("in a band", "clipped")
        assert fact.verdict_kind == ("unproven" if far else "different"), fact.verdict


@pytest.mark.parametrize("case", traps(0))
def test_sizes_that_do_not_reach_the_limit_prove_nothing(tmp_path: Path, case: str) -> None:
    nodes, numbers = traps(24)[case]
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, ("rows", 6))
    trap = written(tmp_path / "b.onnx", nodes, numbers, ("rows", 6))
    fact = verify_files(plain, trap, dims={"rows": 3})
    assert fact.verdict_kind == "unproven", fact.verdict
    assert "24" in fact.verdict


def computed_limits(limit: int) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Nodes that compute a limit from constants alone, and these constants."""
    table = np.ones((limit, 128), np.float32)
    body = helper.make_graph(
        [node("Size", ["table"], ["elements"]), node("Div", ["elements", "width"], ["in_body"])],
        "body",
        [],
        [helper.make_tensor_value_info("in_body", 7, [])],
    )
    return {
        "rows of a table": (
            [node("Shape", ["table"], ["sizes"]), node("Gather", ["sizes", "first"], ["limit"])],
            {"table": table},
        ),
        "sum of ones": (
            [
                node("ConstantOfShape", ["length"], ["zeros"]),
                *(node("Cos", ["zeros"], ["ones"]), node("ReduceSum", ["ones"], ["sum"], keepdims=0)),
                node("Cast", ["sum"], ["limit"], to=7),
            ],
            {"length": np.asarray([limit])},
        ),
        "a text": ([node("Cast", ["text"], ["limit"], to=7)], {"text": np.asarray(str(limit), object)}),
        "in a branch": (
            [node("If", ["is_true"], ["limit"], then_branch=body, else_branch=body)],
            {"is_true": np.bool_(True), "table": table, "width": np.int64(128)},
        ),
    }


@pytest.mark.parametrize("case", computed_limits(1))
def test_a_limit_that_constants_compute_is_shown_to_count(tmp_path: Path, case: str) -> None:
    nodes, numbers = computed_limits(26)[case]
    doubled = [
        node("Greater", ["n", "limit"], ["g"]),
        *(
            node("Cast", ["g"], ["c"], to=1),
            node("Mul", ["m", "c"], ["more"]),
            node("Add", ["m", "more"], ["y"]),
        ),
    ]
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, ("rows", 6))
    trap = written(tmp_path / "b.onnx", [*SIZE, *nodes, *doubled], numbers, ("rows", 6))
    for pair in ((plain, trap), (trap, plain)):
        assert verify_files(*pair).verdict_kind in ("different", "unproven")
        assert verify_files(*pair, dims={"rows": 5}).verdict_kind == "unproven"


def test_a_limit_of_values_that_none_reaches_proves_nothing(tmp_path: Path) -> None:
    nodes = [node("Min", ["m", "limit"], ["y"])]
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, (4, 6))
    for limit in (1e6, 1e12):
        trap = written(tmp_path / "b.onnx", nodes, {"limit": np.float32(limit)}, (4, 6))
        assert not verify_files(plain, trap).passed


def test_limits_that_are_written_otherwise_are_equal_on_evidence(tmp_path: Path) -> None:
    numbers = {"low": np.float32(-0.5), "high": np.float32(1.5)}
    clip = written(tmp_path / "a.onnx", [node("Clip", ["m", "low", "high"], ["y"])], numbers, ("rows", 6))
    apart = [node("Max", ["m", "low"], ["h"]), node("Min", ["h", "high"], ["y"])]
    other = written(tmp_path / "b.onnx", apart, numbers, ("rows", 6))
    assert verify_files(clip, other).verdict_kind == "evidence"
    # a scale in another place is no limit that is out of reach
    third = {"third": np.float32(1 / 3), "three": np.float32(3)}
    scaled = [node("Mul", ["m", "third"], ["h"]), node("Tanh", ["h"], ["y"])]
    parted = [node("Div", ["m", "three"], ["h"]), node("Tanh", ["h"], ["y"])]
    paths = [
        written(tmp_path / f"{at}.onnx", nodes, third, ("rows", 6))
        for at, nodes in enumerate((scaled, parted))
    ]
    assert verify_files(*paths).verdict_kind == "evidence"


def factors(part: float) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Graphs that compute y = m up to a size, by what scales that size, or the values."""
    size = [*SIZE, node("Cast", ["n"], ["c"], to=1)]
    whole = [node("Floor", ["q"], ["k"]), node("Add", ["k", "one"], ["f"]), node("Mul", ["m", "f"], ["y"])]
    flat = [node("Reshape", ["c", "square"], ["r"])]
    number = {"part": np.float32(part), "square": np.asarray([1, 1]), "many": np.float32(1 / part)}
    number |= {"matrix": np.asarray([[part]], np.float32), "nothing": np.float32(0)}
    slope = [node("Sub", ["nothing", "c"], ["d"]), node("LeakyRelu", ["d"], ["e"], alpha=part)]
    return {
        "times": ([*size, node("Mul", ["c", "part"], ["q"]), *whole], number),
        "divided": ([*size, node("Div", ["c", "many"], ["q"]), *whole], number),
        "alpha": ([*size, *flat, node("Gemm", ["r", "r"], ["p"], alpha=part),
                   node("Sqrt", ["p"], ["q"]), *whole], number),
        "a product": ([*size, *flat, node("MatMul", ["r", "matrix"], ["q"]), *whole], number),
        "a slope": ([*size, *slope, node("Abs", ["e"], ["q"]), *whole], number),
        "at least one": (
            [
                *(*size, node("Mul", ["c", "part"], ["q"]), node("Max", ["q", "one"], ["f"])),
                node("Mul", ["m", "f"], ["y"]),
            ],
            number,
        ),
        "of values": (
            [node("ReduceMax", ["m"], ["c"], keepdims=0), node("Mul", ["c", "part"], ["p"]),
             node("Relu", ["p"], ["q"]), *whole],
            number,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", factors(0.05))
def test_a_factor_that_one_model_alone_holds_is_shown_to_count(tmp_path: Path, case: str) -> None:
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, ("rows", 6))
    for part, kind in ((1 / 30, "different"), (1 / 3000, "unproven")):
        trap = written(tmp_path / "b.onnx", *factors(part)[case], ("rows", 6))
        for pair in ((plain, trap), (trap, plain)):
            fact = verify_files(*pair, dims={"rows": 7} if kind == "unproven" else None)
            expected = ("unproven", "different") if case in ("of values", "alpha") else (kind,)
            assert fact.verdict_kind in expected, fact.verdict


def test_a_factor_that_makes_no_difference_at_any_size_is_no_limit(tmp_path: Path) -> None:
    numbers = {"third": np.float32(0.3)}
    scaled = [node("Mul", ["m", "third"], ["h"]), node("Sign", ["h"], ["y"])]
    trap = written(tmp_path / "a.onnx", scaled, numbers, (4, 6))
    plain = written(tmp_path / "b.onnx", [node("Sign", ["m"], ["y"])], {}, (4, 6))
    assert verify_files(trap, plain).passed


def tables(rows: int, read: str) -> tuple[list[Any], dict[str, Any]]:
    """Rows of a table added to m: as many as there are rows, or the one that the number of rows names."""
    table = np.zeros((rows, 6), np.float32)
    table[19:] = 3
    reading = {
        "slice": [node("Reshape", ["n", "line"], ["e"]), node("Slice", ["table", "at", "e", "at"], ["p"])],
        "gather": [node("Gather", ["table", "n"], ["p"])],
    }
    numbers = {"line": np.asarray([1]), "table": table}
    return [*SIZE, *reading[read], node("Add", ["m", "p"], ["y"])], numbers


@pytest.mark.parametrize("read", ["slice", "gather"])
def test_rows_of_a_table_that_no_run_reads_prove_nothing(tmp_path: Path, read: str) -> None:
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, ("rows", 6))
    trap = written(tmp_path / "b.onnx", *tables(40, read), ("rows", 6))
    longer = written(tmp_path / "c.onnx", *tables(60, read), ("rows", 6))
    for pair in ((plain, trap), (trap, plain)):
        assert verify_files(*pair).verdict_kind == "different"
        assert verify_files(*pair, dims={"rows": 5}).verdict_kind == "unproven"
    for pair in ((trap, longer), (longer, trap)):
        assert not verify_files(*pair).passed
    assert verify_files(trap, trap).verdict_kind == "equal"


def test_a_table_of_which_a_fixed_size_reads_a_part_is_equal(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.onnx", *tables(40, "slice"), (4, 6))
    part = written(tmp_path / "b.onnx", *tables(20, "slice"), (4, 6))
    assert verify_files(whole, part).passed


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand"])
def test_a_row_that_data_chooses_through_a_size_is_tried(tmp_path: Path, op: str) -> None:
    """The number of the row is a sum of positions of largest elements, as the length of a value."""
    table = np.zeros((40, 6), np.float32)
    table[20:] = 3
    length = [
        node("ArgMax", ["m"], ["places"], axis=1, keepdims=0),
        node("ReduceSum", ["places"], ["sum"], keepdims=0),
        node("Reshape", ["sum", "line"], ["k"]),
    ]
    sized = node(op, ["k"] if op == "ConstantOfShape" else ["one", "k"], ["z"])
    read = [
        node("Shape", ["z"], ["n"]),
        node("Gather", ["table", "n"], ["p"]),
        node("Add", ["m", "p"], ["y"]),
    ]
    numbers = {"line": np.asarray([1]), "table": table}
    trap = written(tmp_path / "a.onnx", [*length, sized, *read], numbers, (4, 6))
    plain = written(tmp_path / "b.onnx", [node("Identity", ["m"], ["y"])], {}, (4, 6))
    for pair in ((plain, trap), (trap, plain)):
        assert verify_files(*pair).verdict_kind == "unproven"


def test_an_epsilon_is_held_by_the_normalization_that_adds_it(tmp_path: Path) -> None:
    numbers = {"gain": np.linspace(0.5, 2, 6).astype(np.float32), "shift": np.zeros(6, np.float32)}
    numbers |= {"square": np.float32(2), "tiny": np.float32(1e-12)}
    whole = [node("LayerNormalization", ["m", "gain", "shift"], ["y"], epsilon=1e-12)]
    mean = {"axes": [-1], "keepdims": 1}
    parts = [
        *(node("ReduceMean", ["m"], ["u"], **mean), node("Sub", ["m", "u"], ["d"])),
        *(node("Pow", ["d", "square"], ["s"]), node("ReduceMean", ["s"], ["v"], **mean)),
        *(node("Add", ["v", "tiny"], ["e"]), node("Sqrt", ["e"], ["r"]), node("Div", ["d", "r"], ["n"])),
        *(node("Mul", ["n", "gain"], ["g"]), node("Add", ["g", "shift"], ["y"])),
    ]
    one = written(tmp_path / "a.onnx", whole, numbers, ("rows", 6))
    other = written(tmp_path / "b.onnx", parts, numbers, ("rows", 6))
    for pair in ((one, other), (other, one)):
        assert verify_files(*pair).verdict_kind == "evidence"


def parts(axis: int, begin: int, end: int) -> tuple[list[Any], dict[str, Any]]:
    """The sum of a part of m added to it."""
    read = [node("Slice", ["m", "begin", "end", "along"], ["s"])]
    numbers = {"begin": np.asarray([begin]), "end": np.asarray([end]), "along": np.asarray([axis])}
    return [*read, node("ReduceSum", ["s"], ["p"], keepdims=0), node("Add", ["m", "p"], ["y"])], numbers


@pytest.mark.parametrize("axis", [1, -1])
def test_the_end_of_what_is_always_as_long_is_no_limit(tmp_path: Path, axis: int) -> None:
    whole = [node("ReduceSum", ["m"], ["p"], keepdims=0), node("Add", ["m", "p"], ["y"])]
    plain = written(tmp_path / "a.onnx", whole, {}, ("rows", 6))
    cropped = written(tmp_path / "b.onnx", *parts(axis, 0, 6), ("rows", 6))
    for pair in ((plain, cropped), (cropped, plain)):
        assert verify_files(*pair).verdict_kind == "equal"


@pytest.mark.parametrize("axis", [0, -2])
def test_where_a_part_of_an_open_size_begins_is_a_limit(tmp_path: Path, axis: int) -> None:
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, ("rows", 6))
    trap = written(tmp_path / "b.onnx", *parts(axis, 23, 1 << 40), ("rows", 6))
    for pair in ((plain, trap), (trap, plain)):
        assert verify_files(*pair).verdict_kind == "different"
        assert verify_files(*pair, dims={"rows": 3}).verdict_kind == "unproven"


def test_a_limit_is_not_shown_by_the_same_number_along_a_fixed_axis(tmp_path: Path) -> None:
    """Columns end at 5 in both, rows from 5 on are added in one."""
    some = {"columns": np.arange(5), "start": np.asarray([0]), "five": np.asarray([5])}
    some |= {"far": np.asarray([1 << 40]), "last": np.asarray([1])}
    gathered = [node("Gather", ["m", "columns"], ["y"], axis=1)]
    rows = [node("Slice", ["c", "five", "far", "start"], ["s"])]
    rows += [node("ReduceSum", ["s"], ["p"], keepdims=0), node("Add", ["c", "p"], ["y"])]
    sliced = [node("Slice", ["m", "start", "five", "last"], ["c"]), *rows]
    plain = written(tmp_path / "a.onnx", gathered, some, ("rows", 6))
    trap = written(tmp_path / "b.onnx", sliced, some, ("rows", 6))
    for pair in ((plain, trap), (trap, plain)):
        assert verify_files(*pair).verdict_kind == "different"
        assert verify_files(*pair, dims={"rows": 3}).verdict_kind == "unproven"


def test_where_a_part_of_what_data_sizes_begins_is_a_limit(tmp_path: Path) -> None:
    """At the most there are 24 values that are not 0: no run has 23 of them above it."""
    plain = written(tmp_path / "a.onnx", [node("Identity", ["m"], ["y"])], {}, (4, 6))
    (read, *added), numbers = parts(1, 22, 1 << 40)
    read.input[0] = "places"
    added[0].input[0] = "f"
    kept = [node("Relu", ["m"], ["r"]), node("NonZero", ["r"], ["places"])]
    nodes = [*kept, read, node("Cast", ["s"], ["f"], to=1), *added]
    trap = written(tmp_path / "b.onnx", nodes, numbers, (4, 6))
    for pair in ((plain, trap), (trap, plain)):
        assert not verify_files(*pair).passed


@pytest.mark.parametrize("form", ["lab", "scan", "batched"])
def test_an_lstm_whose_products_are_tiled_with_a_margin_is_proved(tmp_path: Path, form: Any) -> None:
    """Rows and columns of its margin are cut off, in the main graph and in the body of its steps."""
    rnn = node("LSTM", ["r", "w", "h"], ["y"], hidden_size=3)
    weights = {"w": t.weight(1, 12, 6), "h": t.weight(1, 12, 3)}
    source = t.model(tmp_path / "m.onnx", [node("Relu", ["x"], ["r"]), rnn], {"x": (2, 5, 6)}, weights)
    tiled = str(tmp_path / "tiled.onnx")
    with Session(source.path) as session:
        session.tile(TileSpec((3, 5, 4), form=form, edges="padded"), output=tiled, verify=False)
    assert verify_files(source.path, tiled).passed


def test_sizes_that_are_computed_from_fixed_sizes_are_no_limits(tmp_path: Path) -> None:
    """As exporters write a chunk of an axis: by Constant nodes, from the Shape of a value."""
    stored = {"columns": [1], "once": [1], "twice": [2]}
    constants = [
        node("Constant", [], [name], value=helper.make_tensor("", 7, [1], numbers))
        for name, numbers in stored.items()
    ]
    computed = [
        *constants,
        *(node("Shape", ["m"], ["sh"]), node("Gather", ["sh", "columns"], ["n"])),
        *(node("Add", ["n", "once"], ["more"]), node("Div", ["more", "twice"], ["half"])),
        *(node("Mul", ["half", "once"], ["to"]), node("Mul", ["half", "twice"], ["end"])),
        *(node("Slice", ["m", "to", "end", "columns"], ["s"]), node("Neg", ["s"], ["y"])),
    ]
    split = [node("Split", ["m", "parts"], ["f", "s"], axis=1), node("Neg", ["s"], ["y"])]
    shifted = [node("Slice", ["m", "from", "to", "axis"], ["s"]), node("Neg", ["s"], ["y"])]
    places = {"from": np.asarray([2]), "to": np.asarray([5]), "axis": np.asarray([1])}
    cases = (split, {"parts": np.asarray([3, 3])}, "evidence"), (shifted, places, "different")
    for plain, numbers, verdict in cases:
        a = written(tmp_path / "a.onnx", computed, {}, (4, 6))
        b = written(tmp_path / "b.onnx", plain, numbers, (4, 6))
        for pair in ((a, b), (b, a)):
            assert verify_files(*pair).verdict_kind == verdict, verify_files(*pair).verdict


LARGER = helper.make_graph(
    [node("Max", ["before", "column"], ["after"])],
    "body",
    [helper.make_tensor_value_info(name, 1, [4]) for name in ("before", "column")],
    [helper.make_tensor_value_info("after", 1, [4])],
)


def fills(number: float) -> dict[str, tuple[list[Any], dict[str, Any]]]:
    """Graphs that compute the maximum of every row of m and of a stored number, by what adds the number."""
    largest, column = node("ReduceMax", ["all"], ["y"], axes=[1]), np.full((4, 1), number, np.float32)
    return {
        "padded": ([node("Pad", ["m", "pads", "fill"], ["all"]), largest],
                   {"pads": np.asarray([0, 0, 0, 1]), "fill": np.float32(number)}),
        "joined": ([node("Concat", ["m", "fill"], ["all"], axis=1), largest], {"fill": column}),
        "joined to many": ([node("Concat", ["fill", "m"], ["all"], axis=1), largest],
                           {"fill": column.repeat(40, 1)}),
        "expanded": (
            [
                node("Expand", ["fill", "size"], ["more"]),
                *(node("Concat", ["m", "more"], ["all"], axis=1), largest),
            ],
            {"fill": np.float32(number), "size": np.asarray([4, 1])},
        ),
        "of a shape": (
            [
                node("ConstantOfShape", ["size"], ["more"], value=numpy_helper.from_array(column[0])),
                *(node("Concat", ["m", "more"], ["all"], axis=1), largest),
            ],
            {"size": np.asarray([4, 1])},
        ),
        "scanned": (
            [
                node("Transpose", ["m"], ["columns"]),
                node("Scan", ["fill", "columns"], ["most"], body=LARGER, num_scan_inputs=1),
                node("Reshape", ["most", "size"], ["y"]),
            ],
            {"fill": column[:, 0], "size": np.asarray([4, 1])},
        ),
        "scattered": (
            [node("ScatterElements", ["m", "where", "fill"], ["all"], axis=1, reduction="max"), largest],
            {"where": np.zeros((4, 1), np.int64), "fill": column},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("case", fills(0))
def test_a_number_beside_which_all_others_are_larger_is_no_equality(tmp_path: Path, case: str) -> None:
    plain_nodes = [node("ReduceMax", ["m"], ["y"], axes=[1])]
    plain = written(tmp_path / "a.onnx", plain_nodes, {}, (4, 6))
    trap = written(tmp_path / "b.onnx", *fills(-1e4)[case], (4, 6))
    for pair in ((plain, trap), (trap, plain)):
        fact = verify_files(*pair)
        assert not fact.passed, fact.verdict


def test_a_number_that_is_placed_in_two_ways_is_no_limit(tmp_path: Path) -> None:
    paths = [written(tmp_path / f"{c}.onnx", *fills(-0.3)[c], (4, 6)) for c in ("padded", "joined")]
    fact = verify_files(*paths)
    assert fact.verdict_kind == "evidence", fact.verdict
