"""Nodes that carry graphs: which branch counts, how often a body runs, what sequences hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.costs.operator_stats import compute_operator_stats
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, build_tensor
from explorer.facts import Analysis
from explorer.settings.columns import COLUMNS, ColumnFigures

Build = Callable[..., Model]
Rows = Callable[[Any], dict[str, Any]]


def value(name: str, shape: Any = None, dtype: str | None = None) -> Value:
    return Value(name, dtype, shape)


def body(nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str], **weights: Any) -> Graph:
    stored = {n: build_tensor(n, a) for n, a in weights.items()}
    return Graph("b", tuple(nodes), tuple(map(value, inputs)), tuple(map(value, outputs)), stored)


# -- If ------------------------------------------------------------------------------------------


def _branches(build: Build, condition: Any = None) -> Model:
    dear = body([Node("MatMul", ["x", "w"], ["a"], name="dear")], [], ["a"])
    cheap = body([Node("Relu", ["x"], ["b"], name="cheap")], [], ["b"])
    branch = Node("If", ["c"], ["y"], name="if", attributes={"then_branch": cheap, "else_branch": dear})
    inputs: dict[str, Any] = {"x": (2, 3)}
    weights: dict[str, Any] = {"w": (3, 3)}
    if condition is None:
        inputs["c"] = ("bool", ())
    else:
        weights["c"] = np.array(condition)
    return build([branch], inputs=inputs, outputs=["y"], weights=weights)


def test_the_costliest_branch_counts_and_says_so(build: Build, rows: Rows) -> None:
    analysis = analyse(_branches(build))
    found = rows(analysis)
    assert analysis.info.totals.macs == found["if"].macs == 18
    assert found["if"].status == "bound"
    assert "then_branch: 0 MACs, 6 elementwise; else_branch: 18 MACs, 0 elementwise" in found["if"].reason


def test_a_branch_that_does_not_count_has_no_share(build: Build, rows: Rows) -> None:
    analysis = analyse(_branches(build, True))
    found = rows(analysis)
    assert [found[path].counted for path in ("if", "if/then_branch", "if/then_branch/cheap")] == [True] * 3
    assert [found[path].counted for path in ("if/else_branch", "if/else_branch/dear")] == [False] * 2
    a = body([Node("MatMul", ["x", "w"], ["a"], name="one")], [], ["a"])
    two = [Node("MatMul", ["x", "w"], ["m"], name="first"), Node("MatMul", ["m", "w"], ["b"], name="second")]
    both = {"then_branch": a, "else_branch": body(two, [], ["b"])}
    branch = Node("If", ["c"], ["y"], name="if", attributes=both)
    inputs: dict[str, Any] = {"x": (2, 3), "c": ("bool", ())}
    found = rows(analysis := analyse(build([branch], inputs=inputs, outputs=["y"], weights={"w": (3, 3)})))
    beside, share = ColumnFigures(analysis.info.totals), COLUMNS["share"]
    assert {path: share.get_value(row, beside) for path, row in found.items()} == {
        "if": 1.0,
        "if/then_branch": 0.0,
        "if/then_branch/one": 0.0,
        "if/else_branch": 1.0,
        "if/else_branch/first": 0.5,
        "if/else_branch/second": 0.5,
    }


@pytest.mark.parametrize(("condition", "macs", "ops"), [(True, 0, 6), (False, 18, 0)])
def test_a_branch_whose_condition_is_a_constant_counts_alone(
    build: Build, rows: Rows, condition: bool, macs: int, ops: int
) -> None:
    analysis = analyse(_branches(build, condition))
    totals = analysis.info.totals
    assert (totals.macs, totals.elementwise_ops) == (macs, ops)
    assert (rows(analysis)["if"].status, rows(analysis)["if"].reason) == ("exact", "")


def test_a_branch_that_does_not_count_is_in_no_operators_count(build: Build) -> None:
    analysis = analyse(_branches(build))
    stats = {stat.op: stat for stat in compute_operator_stats(analysis)}
    assert set(stats) == {"MatMul"}
    assert sum(stat.count for stat in stats.values()) == analysis.info.totals.nodes
    assert sum(stat.macs or 0 for stat in stats.values()) == analysis.info.totals.macs


def test_of_branches_without_products_the_one_with_more_operations_counts(build: Build) -> None:
    one = body([Node("Relu", ["x"], ["a"])], [], ["a"])
    two = body([Node("Softmax", ["x"], ["b"])], [], ["b"])
    node = Node("If", ["c"], ["y"], attributes={"then_branch": one, "else_branch": two})
    model = build([node], inputs={"x": (2, 3), "c": ("bool", ())}, outputs=["y"])
    assert analyse(model).info.totals.elementwise_ops == 30


# -- Loop ----------------------------------------------------------------------------------------


def _loop(build: Build, trips: Any, start: Any, *, ends: bool) -> Model:
    nodes = [Node("MatMul", ["h", "w"], ["h2"], name="mm")]
    if ends:
        nodes.append(Node("Greater", ["h2", "limit"], ["more"]))
        nodes.append(Node("ReduceMax", ["more"], ["go"], attributes={"keepdims": 0}))
    else:
        nodes.append(Node("Identity", ["going"], ["go"]))
    inner = body(nodes, ["i", "going", "h"], ["go", "h2"])
    loop = Node("Loop", ["n", "c", "x"], ["y"], name="loop", attributes={"body": inner})
    weights = {"n": np.array(trips, np.int64), "c": np.array(start), "w": (3, 3), "limit": np.float32(1)}
    return build([loop], inputs={"x": (2, 3)}, outputs=["y"], weights=weights, opset=18)


@pytest.mark.parametrize(
    ("trips", "start", "ends", "macs", "status"),
    [
        (5, True, False, 90, "exact"),
        (5, True, True, 90, "bound"),
        (0, True, False, 0, "exact"),
        (5, False, True, 0, "exact"),
        # the largest integer says "until told to stop": a bound of 10^20 would be none
        (2**63 - 1, True, True, None, "unknown"),
    ],
)
def test_a_loop_counts_as_often_as_it_runs_or_may_run(
    build: Build, rows: Rows, trips: int, start: bool, ends: bool, macs: int | None, status: str
) -> None:
    product = rows(analyse(_loop(build, trips, start, ends=ends)))["loop/mm"]
    assert (product.macs, product.status) == (macs, status)


@pytest.mark.parametrize(("ends", "rows_made", "macs"), [(False, 5, 5 * 2 * 3 * 4), (True, None, None)])
def test_what_a_loop_stacks_has_a_row_for_every_run_if_no_condition_ends_it(
    build: Build, rows: Rows, ends: bool, rows_made: int | None, macs: int | None
) -> None:
    nodes = [
        Node("Relu", ["state"], ["after"]),
        Node("Identity", ["after"], ["row"]),
        Node("ReduceMax", ["after"], ["most"], attributes={"keepdims": 0}),
        Node("Cast", ["most"], ["on"], attributes={"to": 9}),
    ]
    inner = body(nodes, ["i", "c", "state"], ["on" if ends else "c", "after", "row"])
    model = build(
        [
            Node("Loop", ["n", "", "x"], ["last", "all"], name="loop", attributes={"body": inner}),
            Node("MatMul", ["all", "w"], ["y"], name="behind"),
        ],
        inputs={"x": (2, 3)},
        outputs=["last", "y"],
        weights={"n": np.array(5, np.int64), "w": (3, 4)},
        opset=18,
    )
    behind = rows(analyse(model))["behind"]
    assert (behind.inputs[0].shape, behind.macs) == ((rows_made, 2, 3), macs)


# -- Scan before opset 9 ---------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", ["", "l"])
def test_the_first_scan_runs_for_every_step_of_every_sequence(build: Build, rows: Rows, lengths: str) -> None:
    nodes = [
        Node("MatMul", ["item", "w"], ["p"], name="mm"),
        Node("Add", ["p", "state"], ["after"], name="add"),
        Node("Identity", ["after"], ["out"]),
    ]
    inner = body(nodes, ["state", "item"], ["after", "out"])
    scan = Node(
        "Scan", [lengths, "s", "x"], ["e", "y"], name="scan", attributes={"body": inner, "num_scan_inputs": 1}
    )
    inputs: dict[str, Any] = {"s": (2, 4), "x": (2, 5, 3)}
    if lengths:
        inputs["l"] = ("int64", (2,))
    model = build([scan], inputs=inputs, outputs=["e", "y"], weights={"w": (3, 4)}, opset=8)
    found = rows(analyse(model))
    assert found["scan/mm"].macs == 2 * 5 * 12
    assert found["scan/add"].elementwise_ops == 2 * 5 * 4
    assert found["scan/mm"].status == ("bound" if lengths else "exact")
    assert analyse(model).info.totals.coverage == 1.0


# -- SequenceMap -----------------------------------------------------------------------------------

EACH = body([Node("MatMul", ["item", "w"], ["out"], name="mm")], ["item"], ["out"])
MAP = Node("SequenceMap", ["s"], ["t"], name="map", attributes={"body": EACH})
BACK = Node("ConcatFromSequence", ["t"], ["y"], attributes={"axis": 0})


@pytest.mark.parametrize(
    ("nodes", "inputs", "weights", "macs"),
    [
        ([Node("SequenceConstruct", ["a", "b", "a"], ["s"])], {"a": (2, 3), "b": (2, 3)}, {}, 3 * 2 * 12),
        ([Node("SplitToSequence", ["a"], ["s"])], {"a": (6, 3)}, {}, 6 * 12),
        ([Node("SplitToSequence", ["a", "n"], ["s"])], {"a": (6, 3)}, {"n": np.array(2)}, 3 * 2 * 12),
        ([Node("SplitToSequence", ["a", "n"], ["s"])], {"a": (6, 3)}, {"n": np.array([3, 3])}, 2 * 3 * 12),
        (
            [
                Node("SequenceEmpty", [], ["e"]),
                Node("SequenceInsert", ["e", "a"], ["f"]),
                Node("SequenceInsert", ["f", "a"], ["g"]),
                Node("SequenceErase", ["g"], ["h"]),
                Node("Identity", ["h"], ["s"]),
            ],
            {"a": (2, 3)},
            {},
            2 * 12,
        ),
    ],
)
def test_a_sequence_map_counts_its_body_for_each_tensor(
    build: Build, nodes: list[Node], inputs: dict[str, Any], weights: dict[str, Any], macs: int
) -> None:
    model = build(
        [*nodes, MAP, BACK], inputs=inputs, outputs=["y"], weights={"w": (3, 4), **weights}, opset=18
    )
    totals = analyse(model).info.totals
    assert totals.macs == macs
    assert totals.params == 12


def test_maps_in_a_row_know_what_the_one_before_made(build: Build) -> None:
    second = body([Node("MatMul", ["item", "v"], ["out"])], ["item"], ["out"])
    nodes = [
        Node("SequenceConstruct", ["a", "a"], ["s"]),
        MAP,
        Node("SequenceMap", ["t"], ["u"], attributes={"body": second}),
        Node("ConcatFromSequence", ["u"], ["y"], attributes={"axis": 0}),
    ]
    weights = {"w": (3, 4), "v": (4, 5)}
    model = build(nodes, inputs={"a": (2, 3)}, outputs=["y"], weights=weights, opset=18)
    assert analyse(model).info.totals.macs == 2 * (2 * 12 + 2 * 20)


def test_a_sequence_of_unknown_length_leaves_the_count_unknown(build: Build, rows: Rows) -> None:
    nodes = [Node("SplitToSequence", ["a", "n"], ["s"]), MAP, BACK]
    inputs = {"a": (6, 3), "n": ("int64", ("k",))}
    analysis = analyse(build(nodes, inputs=inputs, outputs=["y"], weights={"w": (3, 4)}, opset=18))
    found = rows(analysis)
    assert found["map/mm"].macs is None
    assert found["map"].status == "unknown"
    assert analysis.info.totals.coverage < 1


# -- attention with graphs -------------------------------------------------------------------------


def test_what_is_done_to_the_scores_of_an_attention_is_counted_beside_it(build: Build, rows: Rows) -> None:
    change = body([Node("Mul", ["s", "half"], ["o"], name="scale")], ["s"], ["o"], half=np.float32(0.5))
    node = Node(
        "FlexAttention",
        ["q", "k", "k"],
        ["y"],
        name="flex",
        domain="ai.onnx.preview",
        attributes={"score_mod": change},
    )
    inputs = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8)}
    model = build([node], inputs=inputs, outputs=["y"], opset=24)
    found = rows(analyse(model))
    scores = 2 * 4 * 5 * 7
    assert found["flex/attention"].macs == found["flex"].macs == scores * 16
    assert found["flex/score_mod/scale"].elementwise_ops == scores
    assert found["flex"].elementwise_ops == scores * 6 + scores


# -- functions -------------------------------------------------------------------------------------


def _saved(tmp_path: Path, nodes: Any, functions: Any, opset: int = 17) -> Analysis:
    from onnx import TensorProto, helper, save

    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    save(
        helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10),
        tmp_path / "m.onnx",
    )
    return analyse(validate(read(str(tmp_path / "m.onnx"))))


def test_an_attribute_handed_through_two_functions_reaches_the_operator(tmp_path: Path, rows: Rows) -> None:
    from onnx import AttributeProto, helper

    def referring(
        op: str, inputs: list[str], outputs: list[str], name: str, to: str, domain: str = ""
    ) -> Any:
        node = helper.make_node(op, inputs, outputs, domain=domain)
        node.attribute.append(AttributeProto(name=name, ref_attr_name=to, type=AttributeProto.INT))
        return node

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    inner = helper.make_function(
        "my", "Inner", ["a", "b"], ["c"],
        [referring("Gemm", ["a", "b"], ["t"], "transB", "turn"), helper.make_node("Relu", ["t"], ["c"])],
        opsets, ["turn"],
    )  # fmt: skip
    outer = helper.make_function(
        "my", "Outer", ["a", "b"], ["c"],
        [referring("Inner", ["a", "b"], ["t"], "turn", "flip", "my"), helper.make_node("Neg", ["t"], ["c"])],
        opsets, ["flip"],
    )  # fmt: skip
    weight = helper.make_node("Constant", [], ["w"], value_floats=[0.5] * 15)
    shape = helper.make_node("Constant", [], ["to"], value_ints=[5, 3])
    nodes = [
        weight,
        shape,
        helper.make_node("Reshape", ["w", "to"], ["w2"]),
        helper.make_node("Outer", ["x", "w2"], ["y"], domain="my", flip=1, name="call"),
    ]
    analysis = _saved(tmp_path, nodes, [inner, outer])
    # (2, 3) by (5, 3) turned: without the attribute the operands would not fit
    assert analysis.info.totals.macs == 2 * 3 * 5
    assert analysis.info.totals.coverage == 1.0
    assert analysis.info.model.outputs[0].shape == (2, 5)


def test_functions_of_one_name_are_told_apart_by_their_overload(build: Build) -> None:
    one = Function("my", "F", ("a",), ("b",), (Node("Relu", ["a"], ["b"]),), {"": 17}, overload="one")
    two = Function("my", "F", ("a",), ("b",), (Node("Softmax", ["a"], ["b"]),), {"": 17}, overload="two")
    nodes = [
        Node("F", ["x"], ["t"], name="first", domain="my", overload="one"),
        Node("F", ["t"], ["y"], name="second", domain="my", overload="two"),
    ]
    analysis = analyse(build(nodes, inputs={"x": (2, 3)}, outputs=["y"], functions=[one, two]))
    assert [x.elementwise_ops for x in analysis.layers] == [6, 30]


def test_a_body_sees_the_values_around_it_through_two_levels(build: Build, rows: Rows) -> None:
    inner = body([Node("MatMul", ["x", "w"], ["p"], name="mm")], [], ["p"])
    choice = Node("If", ["c"], ["q"], name="if", attributes={"then_branch": inner, "else_branch": inner})
    outer = body([choice, Node("Identity", ["going"], ["go"])], ["i", "going"], ["go", "q"])
    loop = Node("Loop", ["n", ""], ["y"], name="loop", attributes={"body": outer})
    weights = {"w": (3, 4), "n": np.array(5)}
    model = build([loop], inputs={"x": (2, 3), "c": ("bool", ())}, outputs=["y"], weights=weights)
    analysis = analyse(model)
    assert analysis.info.totals.macs == 5 * 24
    assert analysis.info.totals.params == 12


# -- stored tensors and attributes -----------------------------------------------------------------


def test_sparse_tensors_are_parameters_with_the_bytes_of_values_and_indices(
    tmp_path: Path, rows: Rows
) -> None:
    from onnx import helper, save

    values = helper.make_tensor("w", 1, [4], [1.0, 2.0, 3.0, 4.0])
    places = helper.make_tensor("at", 7, [4], [0, 5, 10, 11])
    inside = helper.make_sparse_tensor(
        helper.make_tensor("v", 1, [2], [1.0, 2.0]), helper.make_tensor("i", 7, [2], [0, 5]), [4, 5]
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["t"], name="first"),
        helper.make_node("Constant", [], ["c"], sparse_value=inside),
        helper.make_node("MatMul", ["t", "c"], ["y"], name="second"),
    ]
    infos = [helper.make_tensor_value_info("x", 1, (2, 3)), helper.make_tensor_value_info("y", 1, (2, 5))]
    sparse = [helper.make_sparse_tensor(values, places, [3, 4])]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], sparse_initializer=sparse)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        tmp_path / "m.onnx",
    )
    analysis = analyse(validate(read(str(tmp_path / "m.onnx"))))
    found = rows(analysis)
    assert (found["first"].macs, found["first"].params, found["first"].weight_bytes) == (24, 4, 4 * 4 + 4 * 8)
    assert (found["second"].macs, found["second"].params, found["second"].weight_bytes) == (40, 2, 2 * 12)
    assert found["second"].bytes_read == 2 * 4 * 4 + 24
    assert (analysis.info.totals.params, analysis.info.totals.weight_bytes) == (6, 72)


@pytest.mark.parametrize(
    ("op", "attribute", "code", "shown"),
    [("Cast", "to", 1, "float32"), ("Cast", "to", 16, "bfloat16"), ("EyeLike", "dtype", 11, "float64"),
     ("Cast", "to", 99, 99)],
)  # fmt: skip
def test_element_types_are_shown_by_their_names(
    build: Build, rows: Rows, op: str, attribute: str, code: int, shown: Any
) -> None:
    node = Node(op, ["x"], ["y"], name="n", attributes={attribute: code})
    assert rows(analyse(build([node], inputs={"x": (2, 3)}, outputs=["y"])))["n"].attributes == {
        attribute: shown
    }


def test_of_embedding_tables_only_the_rows_looked_up_are_read(build: Build, rows: Rows) -> None:
    node = Node(
        "EmbedLayerNormalization",
        ["ids", "", "words", "places", "", "g", "b"],
        ["y", "m"],
        name="embed",
        domain="com.microsoft",
    )
    weights = {"words": (30_000, 8), "places": (512, 8), "g": (8,), "b": (8,)}
    values = [Value("y", "float32", (2, 5, 8)), Value("m", "int32", (2,))]
    inputs = {"ids": ("int32", (2, 5))}
    model = build([node], inputs=inputs, outputs=["y", "m"], weights=weights, values=values)
    found = rows(analyse(model))["embed"]
    assert found.bytes_read == 10 * 4 + 2 * 10 * 8 * 4 + 2 * 8 * 4
    assert found.params == 30_000 * 8 + 512 * 8 + 16


def test_a_count_that_rests_on_the_size_of_what_was_found_is_a_bound(build: Build, rows: Rows) -> None:
    nodes = [
        Node("NonZero", ["x"], ["at"], name="find"),
        Node("Transpose", ["at"], ["t"], name="turn", attributes={"perm": (1, 0)}),
        Node("Cast", ["t"], ["f"], name="cast", attributes={"to": 1}),
        Node("MatMul", ["f", "w"], ["y"], name="mm"),
    ]
    found = rows(analyse(build(nodes, inputs={"x": (4, 5)}, outputs=["y"], weights={"w": (2, 3)})))
    # all 20 elements may be other than 0
    assert (found["mm"].macs, found["mm"].status) == (20 * 2 * 3, "bound")
    assert "depends on the data" in found["mm"].reason


def test_a_loop_over_a_size_that_is_open_is_counted_in_terms_of_it(build: Build, rows: Rows) -> None:
    inner = body(
        [Node("MatMul", ["h", "w"], ["h2"], name="mm"), Node("Identity", ["going"], ["go"])],
        ["i", "going", "h"],
        ["go", "h2"],
    )
    nodes = [
        Node("Shape", ["x"], ["s"]),
        Node("Gather", ["s", "zero"], ["n"]),
        Node("Loop", ["n", "", "h0"], ["y"], name="loop", attributes={"body": inner}),
    ]
    weights = {"w": (3, 3), "zero": np.array(0)}
    model = build(nodes, inputs={"x": ("steps", 3), "h0": (2, 3)}, outputs=["y"], weights=weights)
    product = rows(analyse(model))["loop/mm"]
    assert (product.macs, product.status) == (None, "unknown")
    assert product.formula.startswith("steps iterations x (M 2 x K 3 x N 3 = 18)")
    assert rows(analyse(model, dims={"steps": 7}))["loop/mm"].macs == 7 * 18


def test_a_loop_that_only_moves_values_is_not_complete_if_its_runs_are_unknown(build: Build) -> None:
    """It has no arithmetic, and the bytes that it moves are still unknown: no total may be an upper bound."""
    graph = body(
        [Node("Identity", ["go"], ["still"]), Node("Concat", ["x", "x"], ["row"], attributes={"axis": 0})],
        ["i", "go"],
        ["still", "row"],
    )
    nodes = [
        Node("Loop", ["n", ""], ["rows"], name="loop", attributes={"body": graph}),
        Node("NonZero", ["x"], ["where"], name="where"),
    ]
    inputs: dict[str, Any] = {"x": (4,), "n": ("int64", ())}
    totals = analyse(build(nodes, inputs=inputs, outputs=["rows", "where"])).info.totals
    assert totals.coverage < 1
    assert totals.moved_sign == "~ "
