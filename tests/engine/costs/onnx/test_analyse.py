"""An ONNX model to facts: figures of whole models, and of graphs small enough to count by hand."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.base.errors import Cancelled
from explorer.engine import shapes
from explorer.engine.costs.onnx import visitor
from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.model import Function, Graph, Inline, Model, Node, Tensor, Value
from explorer.engine.tiling.find_sites import find_sites
from explorer.engine.tiling.plan import make_plan
from explorer.engine.tiling.tile import bind_dims, tile
from explorer.facts import Progress, TileSpec

Build = Callable[..., Model]
Rows = Callable[[Any], dict[str, Any]]


def value(name: str) -> Value:
    return Value(name, None, None)


# -- sample models -------------------------------------------------------------------------------


def test_lenet_by_hand(sample: Callable[[str], Path]) -> None:
    totals = analyse(read(str(sample("lenet")))).info.totals
    conv = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 6 * 25
    assert totals.macs == conv + 400 * 120 + 120 * 84 + 84 * 10
    assert totals.params == 61_706
    assert totals.weight_bytes == 4 * 61_706
    assert totals.flops == 2 * (totals.macs or 0)
    assert totals.coverage == 1.0


def test_a_bert_like_encoder_by_hand(sample: Callable[[str], Path]) -> None:
    analysis = analyse(read(str(sample("bert_tiny"))), dims={"batch": 2, "sequence": 16})
    rows = 2 * 16
    projections = 4 * rows * 64 * 64
    attention = 2 * 4 * 16 * 16 * (16 + 16)
    feed_forward = 2 * rows * 64 * 256
    assert analysis.info.totals.macs == 3 * (projections + attention + feed_forward) + 2 * 64 * 64
    assert analysis.info.totals.coverage == 1.0
    assert analysis.info.assumptions["dims"] == {"batch": 2, "sequence": 16}
    blocks = [x for x in analysis.layers if x.path.startswith("encoder.layer.") and x.path.count(".") == 2]
    assert [x.repeat for x in blocks] == [3, 0, 0]
    assert len({x.macs for x in blocks}) == 1


def test_symbolic_sizes_leave_costs_unknown_and_shapes_named(sample: Callable[[str], Path]) -> None:
    analysis = analyse(read(str(sample("bert_tiny"))))
    totals = analysis.info.totals
    assert totals.macs is None
    assert 0 < totals.coverage < 1
    assert totals.params == 174_848
    assert analysis.info.model.outputs[0].shape == ("batch", "sequence", 64)
    product = next(x for x in analysis.layers if x.kind == "MatMul")
    assert product.status == "unknown"
    assert "batch" in product.formula


# -- bytes, parameters, peak ---------------------------------------------------------------------


def test_every_input_is_read_once_and_every_output_written_once(build: Build, rows: Rows) -> None:
    nodes = [
        Node("Mul", ["x", "x"], ["a"], name="square"),
        Node("MatMul", ["a", "w"], ["b"], name="product"),
        Node("Clip", ["b", "low", "high"], ["y"], name="clip"),
    ]
    model = build(
        nodes,
        inputs={"x": (2, 3)},
        outputs=["y"],
        weights={"w": (3, 4), "low": np.float32(0).reshape(()), "high": np.float32(6).reshape(())},
    )
    analysis = analyse(model)
    found = rows(analysis)
    assert (found["square"].bytes_read, found["square"].bytes_written) == (24, 24)
    assert (found["product"].bytes_read, found["product"].bytes_written) == (24 + 48, 32)
    # the limits of a Clip are part of the instruction
    assert (found["clip"].bytes_read, found["clip"].params) == (32, 0)
    totals = analysis.info.totals
    assert (totals.bytes_read, totals.bytes_written) == (24 + 72 + 32, 24 + 32 + 32)
    assert (totals.params, totals.weight_bytes) == (12, 48)
    assert totals.activation_bytes_sum == 88
    # a and b are alive while the product is formed; x was freed after the square
    assert (totals.activation_bytes_peak, totals.peak_at) == (64, "clip")


def test_an_embedding_reads_the_rows_looked_up_not_the_table(build: Build, rows: Rows) -> None:
    model = build(
        [Node("Gather", ["table", "ids"], ["y"], name="embed")],
        inputs={"ids": ("int64", (2, 5))},
        outputs=["y"],
        weights={"table": (1000, 8)},
    )
    found = rows(analyse(model))["embed"]
    assert found.macs == 0
    assert found.bytes_read == 2 * 5 * 8 + 2 * 5 * 8 * 4
    assert (found.params, found.weight_bytes) == (8000, 32_000)


def test_a_tied_weight_counts_once_and_says_with_whom(build: Build, rows: Rows) -> None:
    nodes = [
        Node("Gather", ["table", "ids"], ["e"], name="embed"),
        Node("Transpose", ["table"], ["turned"], name="turn", attributes={"perm": (1, 0)}),
        Node("MatMul", ["e", "turned"], ["y"], name="head"),
    ]
    model = build(nodes, inputs={"ids": ("int64", (5,))}, outputs=["y"], weights={"table": (100, 8)})
    analysis = analyse(model)
    found = rows(analysis)
    assert analysis.info.totals.params == 800
    assert found["head"].params == 800
    assert found["head"].shared_with == ("embed",)
    assert found["turn"].params == 0
    assert [w.name for w in found["head"].weights] == ["table"]


def test_shapes_axes_and_epsilons_are_not_parameters(build: Build) -> None:
    nodes = [
        Node("Constant", [], ["eps"], attributes={"value_float": 1e-5}),
        Node("Add", ["x", "eps"], ["a"]),
        Node("Reshape", ["a", "to"], ["b"]),
        Node("MatMul", ["b", "w"], ["y"]),
    ]
    model = build(nodes, inputs={"x": (2, 6)}, outputs=["y"], weights={"to": np.array([4, 3]), "w": (3, 2)})
    totals = analyse(model).info.totals
    assert (totals.params, totals.weight_bytes) == (6, 24)


def test_a_weight_held_by_a_constant_node_is_a_parameter(build: Build, rows: Rows) -> None:
    from explorer.engine.graph.model import build_tensor

    tensor = build_tensor("", np.ones((3, 4), np.float32))
    nodes = [
        Node("Constant", [], ["k"], name="k", attributes={"value": tensor}),
        Node("Identity", ["k"], ["w"], name="same"),
        Node("MatMul", ["x", "w"], ["y"], name="fc"),
    ]
    analysis = analyse(build(nodes, inputs={"x": (2, 3)}, outputs=["y"]))
    found = rows(analysis)
    assert (found["fc"].params, found["k"].params, found["same"].params) == (12, 0, 0)
    assert analysis.info.totals.params == 12


def test_quantized_weights_count_their_packed_bytes_scales_and_zero_points(build: Build, rows: Rows) -> None:
    nodes = [
        Node("DequantizeLinear", ["q", "scale", "zero"], ["w"], name="dq"),
        Node("MatMul", ["x", "w"], ["y"], name="fc"),
    ]
    weights = {"q": ("int8", (6, 4)), "scale": ("float32", ()), "zero": ("int8", ())}
    analysis = analyse(build(nodes, inputs={"x": (2, 6)}, outputs=["y"], weights=weights))
    found = rows(analysis)
    assert (found["fc"].macs, found["fc"].params, found["fc"].weight_bytes) == (48, 26, 24 + 4 + 1)
    assert analysis.info.totals.weight_bytes == 29


def test_a_scale_that_is_read_again_stays_a_parameter(build: Build) -> None:
    nodes = [
        Node("DequantizeLinear", ["q", "scale"], ["w"]),
        Node("Mul", ["w", "scale"], ["scaled"]),
        Node("MatMul", ["x", "scaled"], ["y"]),
    ]
    weights = {"q": ("int8", (6, 4)), "scale": ("float32", ())}
    totals = analyse(build(nodes, inputs={"x": (2, 6)}, outputs=["y"], weights=weights)).info.totals
    assert (totals.params, totals.weight_bytes, totals.activation_bytes_peak) == (25, 24 + 4, 48 + 32)


def test_four_bit_weights_count_two_to_a_byte(build: Build) -> None:
    node = Node(
        "MatMulNBits", ["x", "q", "s"], ["y"], name="fc", domain="com.microsoft",
        attributes={"K": 32, "N": 4, "bits": 4, "block_size": 32},
    )  # fmt: skip
    model = build(
        [node], inputs={"x": (2, 32)}, outputs=["y"], weights={"q": ("uint8", (4, 1, 16)), "s": (4,)}
    )
    totals = analyse(model).info.totals
    assert (totals.params, totals.weight_bytes, totals.macs) == (32 * 4 + 4, 64 + 16, 2 * 32 * 4)


def test_an_unused_tensor_is_not_counted_but_mentioned(build: Build) -> None:
    model = build(
        [Node("Relu", ["x"], ["y"])], inputs={"x": (2, 3)}, outputs=["y"], weights={"dead": (10, 10)}
    )
    info = analyse(model).info
    assert info.totals.params == 0
    assert any("400 bytes" in note for note in info.model.notes)


@pytest.mark.parametrize(
    ("op", "given", "taken", "made"),
    [
        ("SequenceMap", ["s"], ["item"], ["out"]),
        ("Loop", ["", "go", "x"], ["i", "on", "item"], ["on", "out"]),
    ],
)
def test_a_tensor_that_only_a_body_uses_is_used(
    build: Build, op: str, given: list[str], taken: list[str], made: list[str]
) -> None:
    product = Node("MatMul", ["item", "w"], ["out"])
    inside = Graph("body", (product,), tuple(map(value, taken)), tuple(map(value, made)), {})
    nodes = [Node("SequenceConstruct", ["x"], ["s"]), Node(op, given, ["y"], attributes={"body": inside})]
    inputs = {"x": (2, 3), "go": ("bool", ())}
    info = analyse(build(nodes, inputs=inputs, outputs=["y"], weights={"w": (3, 3), "dead": (10, 10)})).info
    assert info.totals.params == 9
    assert [note for note in info.model.notes if "used by no operator" in note] == [
        "1 stored tensors (400 bytes) are used by no operator and not counted"
    ]


# -- unknown operators ---------------------------------------------------------------------------


def test_an_unknown_operator_lowers_coverage_and_stops_nothing(build: Build, rows: Rows) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="first"),
        Node("Secret", ["a"], ["b"], name="secret", domain="my.ops"),
        Node("Relu", ["b"], ["c"], name="lost"),
        Node("MatMul", ["x", "w"], ["y"], name="second"),
    ]
    model = build(nodes, inputs={"x": (2, 3)}, outputs=["c", "y"], weights={"w": (3, 4)})
    analysis = analyse(model)
    found = rows(analysis)
    assert found["secret"].macs is None
    assert "no rule for operator Secret" in found["secret"].reason
    assert (found["lost"].macs, found["lost"].elementwise_ops) == (0, None)
    assert analysis.info.totals.macs == 48
    assert analysis.info.totals.coverage == 0.5


# -- functions, branches, loops ------------------------------------------------------------------


def linear(name: str = "Linear") -> Function:
    nodes = (Node("MatMul", ["a", "w"], ["t"], name="mm"), Node("Add", ["t", "b"], ["y"], name="add"))
    return Function("f", name, ("a", "w", "b"), ("y",), nodes, {"": 17})


def test_a_function_opens_into_its_body_and_counts_for_every_call(build: Build, rows: Rows) -> None:
    nodes = [
        Node("Linear", ["x", "w", "b"], ["h"], name="fc1", domain="f"),
        Node("Linear", ["h", "v", "c"], ["y"], name="fc2", domain="f"),
    ]
    model = build(
        nodes,
        inputs={"x": (2, 3)},
        outputs=["y"],
        weights={"w": (3, 4), "b": (4,), "v": (4, 5), "c": (5,)},
        functions=[linear()],
    )
    analysis = analyse(model)
    found = rows(analysis)
    assert (found["fc1"].group, found["fc1"].kind, found["fc1"].macs) == (True, "Linear", 24)
    assert (found["fc1/mm"].macs, found["fc1/mm"].params) == (24, 12)
    assert (found["fc2/mm"].macs, found["fc2/add"].elementwise_ops) == (40, 10)
    assert (found["fc2"].params, found["fc2"].weight_bytes) == (25, 100)
    assert found["fc2"].inputs[0].shape == (2, 4)
    assert found["fc2"].outputs[0].shape == (2, 5)
    assert analysis.info.totals.nodes == 4
    # x and t, t and h, then h and t, t and y: 2x4 and 2x5 floats at most
    assert analysis.info.totals.activation_bytes_peak == 4 * (8 + 10) + 4 * 2


def test_a_function_of_one_operator_is_that_operator_under_the_functions_name(
    build: Build, rows: Rows
) -> None:
    function = Function(
        "tile_hw", "2DMM_4x4x4", ("a", "b"), ("c",), (Node("MatMul", ["a", "b"], ["c"]),), {"": 17}
    )
    model = build(
        [Node("2DMM_4x4x4", ["x", "w"], ["y"], name="p", domain="tile_hw")],
        inputs={"x": (2, 3)},
        outputs=["y"],
        weights={"w": (3, 4)},
        functions=[function],
    )
    analysis = analyse(model)
    assert len(analysis.layers) == 1
    found = rows(analysis)["p"]
    assert (found.kind, found.macs, found.params, found.group) == ("2DMM_4x4x4", 24, 12, False)
    assert "K 3" in found.formula


def test_functions_within_functions_are_followed(build: Build, rows: Rows) -> None:
    outer = Function(
        "f", "Block", ("a", "w", "b"), ("z",),
        (
            Node("Linear", ["a", "w", "b"], ["t"], name="inner", domain="f"),
            Node("Linear", ["t", "w", "b"], ["z"], name="again", domain="f"),
        ),
        {"": 17, "f": 1},
    )  # fmt: skip
    model = build(
        [Node("Block", ["x", "w", "b"], ["y"], name="block", domain="f")],
        inputs={"x": (2, 4)},
        outputs=["y"],
        weights={"w": (4, 4), "b": (4,)},
        functions=[linear(), outer],
    )
    analysis = analyse(model)
    found = rows(analysis)
    assert found["block/again/mm"].depth == 2
    assert (found["block"].macs, found["block"].params) == (64, 20)
    assert found["block/again/mm"].shared_with == ("block/inner/mm",)


def test_what_would_open_into_too_many_rows_stays_closed_with_the_same_figures(
    build: Build, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [linear("F0")]
    for i in range(1, 4):
        calls = [Node(f"F{i - 1}", ["a", "w", "b"], [f"t{j}"], domain="f") for j in range(9)]
        calls.append(Node(f"F{i - 1}", ["t8", "w", "b"], ["y"], domain="f"))
        functions.append(Function("f", f"F{i}", ("a", "w", "b"), ("y",), tuple(calls), {"": 17, "f": 1}))
    model = build(
        [Node("F3", ["x", "w", "b"], ["y"], name="top", domain="f")],
        inputs={"x": (2, 4)},
        outputs=["y"],
        weights={"w": (4, 4), "b": (4,)},
        functions=functions,
    )
    opened = analyse(model).info.totals
    assert opened.nodes == 2000
    assert opened.macs == 1000 * 32
    monkeypatch.setattr(visitor, "MAX_LEAVES", 50)
    analysis = analyse(model)
    closed = analysis.info.totals
    assert len(analysis.layers) == 1
    assert "too many to list" in rows(analysis)["top"].formula
    for figure in ("nodes", "macs", "elementwise_ops", "params", "bytes_read", "bytes_written", "coverage"):
        assert getattr(closed, figure) == getattr(opened, figure), figure


def test_a_file_that_describes_billions_of_calls_is_answered(build: Build) -> None:
    functions = [
        Function(
            "f", "F0", ("a",), ("b",), (Node("Relu", ["a"], ["t"]), Node("Relu", ["t"], ["b"])), {"": 17}
        )
    ]
    for i in range(1, 12):
        calls = [Node(f"F{i - 1}", ["a"], [f"t{j}"], domain="f") for j in range(9)]
        calls.append(Node(f"F{i - 1}", ["a"], ["b"], domain="f"))
        functions.append(Function("f", f"F{i}", ("a",), ("b",), tuple(calls), {"": 17, "f": 1}))
    model = build(
        [Node("F11", ["x"], ["y"], name="top", domain="f")],
        inputs={"x": (2, 3)},
        outputs=["y"],
        functions=functions,
    )
    totals = analyse(model).info.totals
    assert totals.nodes == 2 * 10**11


def branches(build: Build) -> Model:
    cheap = Graph("e", (Node("Relu", ["x"], ["e"], name="relu"),), (), (value("e"),), {})
    dear = Graph(
        "t",
        (Node("MatMul", ["x", "w"], ["m"], name="mm"), Node("Relu", ["m"], ["t"], name="act")),
        (),
        (value("t"),),
        {},
    )
    node = Node("If", ["c"], ["y"], name="choose", attributes={"then_branch": dear, "else_branch": cheap})
    return build([node], inputs={"x": (2, 3), "c": ("bool", ())}, outputs=["y"], weights={"w": (3, 3)})


def test_of_an_if_each_branch_is_shown_and_the_costliest_counts(build: Build, rows: Rows) -> None:
    analysis = analyse(branches(build))
    found = rows(analysis)
    assert found["choose/then_branch"].macs == 18
    assert found["choose/else_branch"].macs == 0
    assert found["choose/else_branch/relu"].elementwise_ops == 6
    assert (found["choose"].macs, found["choose"].elementwise_ops) == (18, 6)
    assert found["choose"].status == "bound"
    assert "then_branch: 18 MACs" in found["choose"].reason
    assert analysis.info.totals.macs == 18
    assert analysis.info.totals.elementwise_ops == 6


def loop(build: Build, *, stops: bool, known: bool = True) -> Model:
    """Four times h = relu(h w); with `stops` the condition is computed."""
    condition = (
        [Node("Less", ["i", "limit"], ["go"], name="less")]
        if stops
        else [Node("Identity", ["cond"], ["go"], name="go")]
    )
    body = Graph(
        "body",
        (Node("MatMul", ["h", "w"], ["m"], name="mm"), Node("Relu", ["m"], ["h2"], name="act"), *condition),
        (Value("i", "int64", ()), Value("cond", "bool", ()), value("h")),
        (value("go"), value("h2")),
        {},
    )
    node = Node("Loop", ["trips", "", "x"], ["y"], name="again", attributes={"body": body})
    weights: dict[str, Any] = {"w": (3, 3), "limit": np.array(3)}
    inputs: dict[str, Any] = {"x": (2, 3)}
    if known:
        weights["trips"] = np.array(4)
    else:
        inputs["trips"] = ("int64", ())
    return build([node], inputs=inputs, outputs=["y"], weights=weights)


def test_a_loop_counts_its_body_as_often_as_it_runs(build: Build, rows: Rows) -> None:
    analysis = analyse(loop(build, stops=False))
    found = rows(analysis)
    assert (found["again/mm"].macs, found["again/mm"].calls, found["again/mm"].params) == (4 * 18, 4, 9)
    assert found["again/mm"].formula.startswith("4 iterations x ")
    assert found["again/mm"].bytes_read == 4 * (24 + 36)
    assert (found["again"].macs, found["again"].status) == (72, "exact")
    assert found["again"].attributes["iterations"] == "4"
    assert analysis.info.totals.macs == 72


def test_a_loop_that_may_end_earlier_is_a_bound(build: Build, rows: Rows) -> None:
    found = rows(analyse(loop(build, stops=True)))
    assert (found["again"].macs, found["again"].status) == (72, "bound")
    assert (found["again/mm"].status, found["again/mm"].reason) == ("bound", "the loop may end earlier")


def test_a_loop_without_a_known_trip_count_is_unknown(build: Build, rows: Rows) -> None:
    analysis = analyse(loop(build, stops=False, known=False))
    found = rows(analysis)
    assert found["again"].macs is None
    assert "depends on the data" in found["again"].reason
    assert found["again/mm"].status == "unknown"
    assert analysis.info.totals.macs is None
    assert analysis.info.totals.params == 9


def test_a_carried_value_that_grows_has_no_shape_of_the_first_round(build: Build, rows: Rows) -> None:
    body = Graph(
        "body",
        (
            Node("Concat", ["h", "x"], ["h2"], name="grow", attributes={"axis": 0}),
            Node("MatMul", ["h", "w"], ["m"], name="mm"),
            Node("Identity", ["cond"], ["go"], name="go"),
        ),
        (Value("i", "int64", ()), Value("cond", "bool", ()), value("h")),
        (value("go"), value("h2")),
        {},
    )
    node = Node("Loop", ["trips", "", "x"], ["y"], name="again", attributes={"body": body})
    model = build([node], inputs={"x": (2, 3)}, outputs=["y"], weights={"w": (3, 3), "trips": np.array(4)})
    assert rows(analyse(model))["again/mm"].macs is None


def scan(build: Build, length: int | str) -> Model:
    body = Graph(
        "body",
        (Node("MatMul", ["h", "part"], ["h2"], name="mm"), Node("Relu", ["h2"], ["out"], name="act")),
        (value("h"), value("part")),
        (value("h2"), value("out")),
        {},
    )
    node = Node(
        "Scan", ["x", "stack"], ["last", "all"], name="scan", attributes={"body": body, "num_scan_inputs": 1}
    )
    return build([node], inputs={"x": (2, 3), "stack": (length, 3, 3)}, outputs=["last", "all"])


def test_a_scan_counts_its_body_along_the_axis(build: Build, rows: Rows) -> None:
    analysis = analyse(scan(build, 5))
    found = rows(analysis)
    assert (found["scan/mm"].macs, found["scan"].macs, found["scan"].status) == (5 * 18, 90, "exact")
    assert found["scan/act"].elementwise_ops == 30
    assert analysis.info.totals.nodes == 10


def test_a_scan_over_a_symbolic_axis_is_symbolic(build: Build, rows: Rows) -> None:
    model = scan(build, "steps")
    found = rows(analyse(model))
    assert found["scan"].macs is None
    assert found["scan/mm"].formula.startswith("steps iterations x ")
    assert analyse(model, dims={"steps": 7}).info.totals.macs == 7 * 18


@pytest.mark.parametrize(("axis", "shape"), [(0, (5, 2, 3)), (1, (2, 5, 3)), (-1, (2, 3, 5))])
def test_what_a_scan_stacks_up_has_the_sizes_that_its_body_really_makes(
    build: Build, axis: int, shape: Any
) -> None:
    """A body may declare an open size and get a known one."""
    body = Graph(
        "body",
        (Node("Add", ["h", "part"], ["h2"], name="add"), Node("Relu", ["h2"], ["out"], name="act")),
        (Value("h", "float32", (None, 3)), Value("part", "float32", (None, 3))),
        (Value("h2", "float32", (None, 3)), Value("out", "float32", (None, 3))),
        {},
    )
    options = {"body": body, "num_scan_inputs": 1, "scan_input_axes": (1,), "scan_output_axes": (axis,)}
    node = Node("Scan", ["x", "stack"], ["last", "all"], name="scan", attributes=options)
    model = build([node], inputs={"x": (2, 3), "stack": (2, 5, 3)}, outputs=["last", "all"])
    found = {v.name: v.shape for v in analyse(model).info.model.outputs}
    assert found == {"last": (2, 3), "all": shape}


def test_loops_within_loops_multiply(build: Build) -> None:
    inner = loop(build, stops=False).graph.nodes[0]
    body = Graph(
        "outer",
        (Node("Loop", ["trips", "", "h"], ["h2"], name="inner", attributes=inner.attributes),
         Node("Identity", ["cond"], ["go"], name="go")),
        (Value("i", "int64", ()), Value("cond", "bool", ()), value("h")),
        (value("go"), value("h2")),
        {},
    )  # fmt: skip
    node = Node("Loop", ["outer", "", "x"], ["y"], name="out", attributes={"body": body})
    model = build(
        [node],
        inputs={"x": (2, 3)},
        outputs=["y"],
        weights={"w": (3, 3), "limit": np.array(3), "trips": np.array(4), "outer": np.array(10)},
    )
    assert analyse(model).info.totals.macs == 10 * 4 * 18


# -- tiled models --------------------------------------------------------------------------------


def tiled(model: Model, form: str, edges: str = "ragged", size: tuple[int, int, int] = (64, 64, 64)) -> Model:
    known = shapes.infer(model).values
    bound = bind_dims(model, known)
    sites, skipped = find_sites(bound, known)
    spec = TileSpec(size, (), edges, form)  # type: ignore[arg-type]
    plan, chosen = make_plan(sites, skipped, spec, opset=bound.opset, macs_total=None, dims={})
    return tile(bound, plan, chosen)


@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
@pytest.mark.parametrize("name", ["mlp_128", "linear_32x64x128", "lenet"])
def test_tiling_with_ragged_edges_changes_neither_macs_nor_parameters(
    sample: Callable[[str], Path], name: str, form: str
) -> None:
    before = analyse(read(str(sample(name)))).info.totals
    after = analyse(tiled(read(str(sample(name))), form)).info.totals
    if form != "batched":  # whole tiles only
        assert after.macs == before.macs
        assert (after.params, after.weight_bytes) == (before.params, before.weight_bytes)
    assert after.coverage == 1.0


def test_the_textbook_case_opens_to_eight_products(sample: Callable[[str], Path]) -> None:
    analysis = analyse(tiled(read(str(sample("mlp_128"))), "lab"))
    products = [x for x in analysis.layers if x.kind == "2DMM_64x64x64"]
    assert len(products) == 8
    assert {x.macs for x in products} == {64**3}
    assert [x.kind for x in analysis.layers if x.depth == 1 and x.group].count("Concat2D_2x2") == 1
    assert sum(x.kind == "Sum" for x in analysis.layers) == 4
    assert analysis.layers[0].macs == 128**3


def test_a_split_into_hundreds_of_tiles_has_shapes(build: Build) -> None:
    # the sizes of such a Split are more than the kilobyte that a skeleton keeps of other tensors
    model = build(
        [Node("MatMul", ["x", "w"], ["y"], name="fc")],
        inputs={"x": (1, 800)},
        outputs=["y"],
        weights={"w": np.ones((800, 8), np.float32)},
    )
    totals = analyse(tiled(model, "lab", size=(4, 4, 4))).info.totals
    assert (totals.macs, totals.coverage) == (6400, 1.0)


# -- the run of it -------------------------------------------------------------------------------


def test_progress_is_told_and_cancelling_stops(build: Build) -> None:
    nodes = [Node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(2000)]
    model = build(nodes, inputs={"v0": (2, 3)}, outputs=["v2000"])
    told: list[Progress] = []
    analyse(model, on_progress=told.append)
    assert told[0].phase == "inferring shapes"
    assert told[-1].total == 2000
    with pytest.raises(Cancelled):
        analyse(model, cancel=lambda: True)


def test_the_garbage_collector_is_left_as_it_was(build: Build) -> None:
    model = build([Node("Relu", ["x"], ["y"])], inputs={"x": (2, 3)}, outputs=["y"])
    analyse(model)
    assert gc.isenabled()
    gc.disable()
    try:
        analyse(model)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_facts_pickle_and_print(build: Build) -> None:
    import json
    import pickle

    from explorer.facts import to_json

    analysis = analyse(branches(build))
    assert pickle.loads(pickle.dumps(analysis)) == analysis
    assert json.loads(json.dumps(to_json(analysis)))["info"]["totals"]["macs"] == 18


# -- figures of published models -----------------------------------------------------------------


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """torchvision models as the TorchScript exporter writes them, batch norms randomized and folded."""
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    folder = tmp_path_factory.mktemp("exported")

    def export(name: str) -> Model:
        path = folder / f"{name}.onnx"
        if not path.exists():
            options = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
            torch.manual_seed(0)
            module = getattr(torchvision.models, name)(weights=None, **options).eval()
            for part in module.modules():
                if isinstance(part, torch.nn.BatchNorm2d):
                    # an untouched batch norm is the identity, which the exporter folds away too well
                    part.running_var.uniform_(0.5, 1.5)
                    part.running_mean.normal_()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that this exporter is the old one
                torch.onnx.export(
                    module, (torch.zeros(1, 3, 224, 224),), str(path), dynamo=False, opset_version=17
                )
        return read(str(path))

    return export


@pytest.mark.slow
def test_alexnet(exported: Callable[[str], Model], rows: Rows) -> None:
    model = exported("alexnet")
    analysis = analyse(model)
    totals = analysis.info.totals
    assert (totals.params, totals.weight_bytes, totals.macs) == (61_100_840, 244_403_360, 714_188_480)
    assert [x.macs for x in analysis.layers if x.macs and not x.group] == [
        70_276_800, 223_948_800, 112_140_288, 149_520_384, 99_680_256, 37_748_736, 16_777_216, 4_096_000,
    ]  # fmt: skip
    found = rows(analysis)
    assert found["features"].macs == 655_566_528
    assert found["classifier"].macs == 58_621_952
    assert [x.path for x in analysis.layers if x.depth == 0] == [
        "features", "/avgpool/AveragePool", "/Flatten", "classifier",
    ]  # fmt: skip
    assert [x.name for x in analysis.layers if x.parent == 0] == [str(i) for i in range(13)]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lab", "scan"])
def test_alexnet_tiled(exported: Callable[[str], Model], form: str) -> None:
    totals = analyse(tiled(exported("alexnet"), form)).info.totals
    assert (totals.macs, totals.params, totals.weight_bytes) == (714_188_480, 61_100_840, 244_403_360)
    assert totals.coverage == 1.0


@pytest.mark.slow
def test_mobilenet_v2_reads_and_writes(exported: Callable[[str], Model]) -> None:
    analysis = analyse(exported("mobilenet_v2"))
    totals = analysis.info.totals
    assert totals.macs == 300_774_272
    assert totals.bytes_written == 52_015_392
    assert totals.weight_bytes == 13_951_264
    assert totals.bytes_read == 53_479_040 + 13_951_264
    assert totals.weight_bytes_read == 13_951_264
    assert (totals.bytes_read or 0) + (totals.bytes_written or 0) == 119_445_696
    leaves = [x for x in analysis.layers if not x.group]
    by_reads = max(leaves, key=lambda x: x.bytes_read or 0)
    assert (by_reads.kind, by_reads.bytes_read, by_reads.bytes_written) == ("Gemm", 5_129_120, 4_000)
    by_total = max(leaves, key=lambda x: (x.bytes_read or 0) + (x.bytes_written or 0))
    assert by_total.kind == "Clip"
    assert by_total.path.startswith("/features/features.2/conv/conv.0/")
    assert (by_total.bytes_read or 0) + (by_total.bytes_written or 0) == 9_633_792


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "macs"),
    [("googlenet", 1_498_376_192), ("resnet18", 1_814_073_344)],
)
def test_macs_of_exported_models(exported: Callable[[str], Model], name: str, macs: int) -> None:
    totals = analyse(exported(name)).info.totals
    assert (totals.macs, totals.coverage) == (macs, 1.0)


def skeleton_of_vgg(build: Build, *, lrn: bool = False) -> Model:
    """VGG16 at 224x224 from its published plan (Simonyan and Zisserman, configuration D), no weights."""
    nodes: list[Node] = []
    weights: dict[str, Any] = {}
    at, channels = "x", 3
    for index, width in enumerate(
        [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]
    ):
        out = f"v{index}"
        if not width:
            nodes.append(Node("MaxPool", [at], [out], attributes={"kernel_shape": (2, 2), "strides": (2, 2)}))
        else:
            weights[f"w{index}"], weights[f"b{index}"] = (width, channels, 3, 3), (width,)
            conv = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
            nodes.append(Node("Conv", [at, f"w{index}", f"b{index}"], [f"c{index}"], attributes=conv))
            nodes.append(Node("Relu", [f"c{index}"], [out]))
            channels = width
        at = out
    nodes.append(Node("Flatten", [at], ["flat"]))
    at, width = "flat", 25_088
    for index, features in enumerate((4096, 4096, 1000)):
        weights[f"fw{index}"], weights[f"fb{index}"] = (features, width), (features,)
        nodes.append(Node("Gemm", [at, f"fw{index}", f"fb{index}"], [f"f{index}"], attributes={"transB": 1}))
        at, width = f"f{index}", features
    return build(nodes, inputs={"x": (1, 3, 224, 224)}, outputs=[at], weights=weights)


def test_vgg16(build: Build) -> None:
    totals = analyse(skeleton_of_vgg(build)).info.totals
    assert (totals.params, totals.macs) == (138_357_544, 15_470_264_320)


# -- hostile files -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "node",
    [
        Node("Loop", ["x"], ["y"], name="n"),
        Node("Loop", ["x"], ["y"], name="n", attributes={"body": 7}),
        Node("Scan", ["x"], ["y"], name="n", attributes={"body": "graph"}),
        Node(
            "Scan",
            ["x"],
            ["y"],
            name="n",
            attributes={"body": Graph("b", (), (), (), {}), "num_scan_inputs": 9},
        ),
        Node("If", ["x"], ["y"], name="n"),
        Node("Loop", [], ["y"], name="n", attributes={"body": Graph("b", (), (), (), {})}),
        Node("Constant", [], ["y"], name="n", attributes={"value_ints": ("a", "b")}),
        Node("Constant", [], ["y"], name="n", attributes={"value_floats": 3.0}),
        Node("Einsum", ["x"] * 40, ["y"], name="n", attributes={"equation": ",".join(["ab"] * 40)}),
        Node("MatMulNBits", ["x", "x"], ["y"], name="n", domain="com.microsoft", attributes={"bits": 0}),
        Node("Conv", [], ["y"], name="n"),
    ],
    ids=lambda node: node.op,
)
def test_a_node_that_makes_no_sense_is_unknown_or_free_and_stops_nothing(build: Build, node: Node) -> None:
    after = Node("Relu", ["x"], ["z"], name="after")
    analysis = analyse(build([node, after], inputs={"x": (2, 3)}, outputs=["z"]))
    assert analysis.layers[-1].path == "after"
    assert analysis.layers[-1].elementwise_ops == 6


@pytest.mark.slow
def test_thousands_of_branches_in_a_large_graph_are_walked_in_one_go(build: Build) -> None:
    branch = Graph("b", (Node("Relu", ["x"], ["t"]),), (), (value("t"),), {})
    nodes = []
    for i in range(2000):
        nodes.append(Node("Relu", ["x"], [f"r{i}"], name=f"r{i}"))
        nodes.append(
            Node(
                "If",
                ["c"],
                [f"y{i}"],
                name=f"if{i}",
                attributes={"then_branch": branch, "else_branch": branch},
            )
        )
    model = build(nodes, inputs={"x": (2, 3), "c": ("bool", ())}, outputs=["y0"])
    assert analyse(model).info.totals.elementwise_ops == 2000 * 12


# -- one model after another ---------------------------------------------------------------------


def test_figures_are_the_same_whichever_model_was_analysed_before(sample: Callable[[str], Path]) -> None:
    """What is kept of the kinds of nodes in one model holds in the next."""
    names = ("lenet", "three_inputs", "jsc_tiny")
    alone = {}
    for name in names:
        visitor.clear_figures()
        shapes.inference.forget_answers()
        alone[name] = analyse(read(str(sample(name))))
    for name in (*names, *reversed(names)):
        assert analyse(read(str(sample(name)))) == alone[name]


def test_nodes_of_two_models_that_differ_in_one_size_only_are_told_apart(build: Build) -> None:
    for inner in (3, 5, 3):
        nodes = [Node("MatMul", ["x", "w"], ["y"])]
        model = build(nodes, inputs={"x": (2, inner), "w": (inner, 4)}, outputs=["y"])
        assert analyse(model).info.totals.macs == 2 * inner * 4


def test_a_bound_of_one_model_is_none_of_the_next(build: Build) -> None:
    """Sizes that depend on data have the same names in every model, and other limits."""
    for rows, columns in ((2, 3), (4, 5), (2, 3)):
        nodes = [Node("NonZero", ["x"], ["places"]), Node("Abs", ["places"], ["y"], name="abs")]
        layers = analyse(build(nodes, inputs={"x": (rows, columns)}, outputs=["y"])).layers
        found = next(x for x in layers if x.path == "abs")
        assert (found.elementwise_ops, found.status) == (2 * rows * columns, "bound")


def test_bytes_of_open_results_are_bounds_although_the_macs_are_exact(build: Build) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["product"]), Node("NonZero", ["product"], ["places"])]
    totals = analyse(build(nodes, inputs={"x": (2, 3), "w": (3, 4)}, outputs=["places"])).info.totals
    assert (totals.macs, totals.sign, totals.status) == (24, "", "exact")
    assert (totals.activation_bytes_sum, totals.moved_sign, totals.moved_status) == (32 + 128, "<= ", "bound")


def test_a_node_without_a_name_for_its_output_says_nothing_of_those_with_one(build: Build) -> None:
    for outputs, written in ((("",), 0), (("y",), 24), (("",), 0)):
        nodes = [Node("Relu", ["x"], outputs, name="relu"), Node("Abs", ["x"], ["z"], name="abs")]
        layers = analyse(build(nodes, inputs={"x": (2, 3)}, outputs=["z"])).layers
        assert [x.bytes_written for x in layers if x.path == "relu"] == [written]


def test_weights_of_another_type_are_told_apart_from_model_to_model(build: Build) -> None:
    for kind, size in (("float32", 4), ("float16", 2), ("float32", 4)):
        weight = Tensor("w", kind, (8, 4), Inline(b"\0" * 32 * size))
        graph = Graph(
            "g",
            (Node("Identity", ["w"], ["v"]), Node("MatMul", ["x", "v"], ["y"], name="product")),
            (Value("x", kind, (2, 8)),),
            (Value("y", kind, None),),
            {"w": weight},
        )
        found = analyse(Model(graph, {"": 21}, 10)).layers[-1]
        assert (found.weight_bytes, found.weight_bytes_read, found.macs) == (32 * size, 32 * size, 64)


def test_nothing_of_a_model_waits_for_the_garbage_collector(sample: Callable[[str], Path]) -> None:
    """A file that was analyzed can be replaced: it is not kept open by objects that know each other."""
    path = str(sample("mobilenet_small"))
    analyse(read(path))
    gc.disable()
    gc.collect(0)
    try:
        analyse(read(path))
        assert gc.collect(0) == 0, "all that was made meanwhile is young"
    finally:
        gc.enable()


# -- weights under another type or shape; sizes that nobody knows ---------------------------------


@pytest.mark.parametrize(
    ("aliases", "weight"),
    [
        ([Node("Identity", ("w",), ("v",))], (64, 32)),
        ([Node("Transpose", ("w",), ("v",), attributes={"perm": (1, 0)})], (32, 64)),
        ([Node("Cast", ("w",), ("v",), attributes={"to": 1})], ("float16", (64, 32))),
        (
            [
                Node("DequantizeLinear", ("w", "scale"), ("floats",)),
                Node("Transpose", ("floats",), ("v",), attributes={"perm": (1, 0)}),
            ],
            ("int8", (32, 64)),
        ),
        (
            [
                Node("QuantizeLinear", ("w", "scale"), ("codes",)),
                Node("DequantizeLinear", ("codes", "scale"), ("v",)),
            ],
            (64, 32),
        ),
    ],
)
def test_a_weight_under_another_type_or_shape_is_in_no_activation_figure(
    build: Build, aliases: list[Node], weight: Any
) -> None:
    weights = {"w": weight, "scale": np.float32(0.5)}
    model = build(
        [*aliases, Node("MatMul", ("x", "v"), ("y",))], inputs={"x": (2, 64)}, outputs=["y"], weights=weights
    )
    totals = analyse(model).info.totals
    assert totals.activation_bytes_sum == 2 * 32 * 4
    assert totals.activation_bytes_peak == 2 * 64 * 4 + 2 * 32 * 4
    assert totals.coverage == 1.0


@pytest.mark.parametrize(
    ("nodes", "weights", "params"),
    [
        (
            [
                Node("Cast", ("w",), ("floats",), attributes={"to": 1}),
                Node("Sub", ("floats", "zero"), ("centered",)),
                Node("Mul", ("centered", "scale"), ("v",)),
            ],
            {"w": ("int8", (64, 32)), "zero": (1, 32), "scale": (1, 32)},
            64 * 32 + 2 * 32,
        ),
        ([Node("Mul", ("w", "half"), ("v",))], {"w": (64, 32), "half": np.float32(0.5)}, 64 * 32),
        ([Node("Add", ("w", "w"), ("v",))], {"w": (64, 32)}, 64 * 32),
        (
            [Node("MatMul", ("a", "b"), ("ab",)), Node("Add", ("w", "ab"), ("v",))],
            {"w": (64, 32), "a": (64, 4), "b": (4, 32)},
            64 * 32 + 64 * 4 + 4 * 32,
        ),
        (
            [Node("Concat", ("a", "b"), ("v",), attributes={"axis": 1})],
            {"a": (64, 20), "b": (64, 12)},
            64 * 32,
        ),
        (
            [
                Node("Split", ("w",), ("a", "b"), attributes={"axis": 1}),
                Node("Sub", ("a", "b"), ("v",)),
            ],
            {"w": (64, 64)},
            64 * 64,
        ),
        (
            [
                Node("Concat", ("rows", "columns"), ("shape",), attributes={"axis": 0}),
                Node("Reshape", ("w", "shape"), ("v",)),
            ],
            {"w": (32, 64), "rows": np.array([64]), "columns": np.array([32])},
            64 * 32,
        ),
        (
            [
                Node("BitwiseAnd", ("w", "mask"), ("low",)),
                Node("BitShift", ("w", "four"), ("high",), attributes={"direction": b"RIGHT"}),
                Node("Concat", ("low", "high"), ("codes",), attributes={"axis": 1}),
                Node("Cast", ("codes",), ("floats",), attributes={"to": 1}),
                Node("Div", ("floats", "scale"), ("v",)),
            ],
            {
                "w": ("uint8", (64, 16)),
                "mask": np.array(15, np.uint8),
                "four": np.array(4, np.uint8),
                "scale": (1, 32),
            },
            64 * 16 + 32,
        ),
        (
            [Node("Scaled", ("w", "scale"), ("v",), domain="own")],
            {"w": (64, 32), "scale": (1, 32)},
            64 * 32 + 32,
        ),
    ],
)
def test_a_weight_that_constants_compute_is_a_parameter_and_no_activation(
    build: Build, nodes: list[Node], weights: Any, params: int
) -> None:
    function = Function(
        "own",
        "Scaled",
        ("a", "b"),
        ("c",),
        (Node("Exp", ("b",), ("e",)), Node("Mul", ("a", "e"), ("c",))),
        {"": 18},
    )
    model = build(
        [*nodes, Node("MatMul", ("x", "v"), ("y",), name="product")],
        inputs={"x": (2, 64)},
        outputs=["y"],
        weights=weights,
        functions=[function],
        opset=18,
    )
    analysis = analyse(model)
    totals, product = analysis.info.totals, analysis.layers[-1]
    assert (totals.params, product.params) == (params, params)
    # a computed shape is no weight
    shape_bytes = sum(row.activation_bytes or 0 for row in analysis.layers if row.path == "shape")
    assert totals.activation_bytes_sum == 2 * 32 * 4 + shape_bytes
    assert totals.activation_bytes_peak == 2 * 64 * 4 + 2 * 32 * 4
    assert (totals.coverage, totals.status) == (1.0, "exact")
    assert product.weight_bytes_read == 64 * 32 * 4


def test_what_constants_compute_is_counted_once_and_random_numbers_are_activations(build: Build) -> None:
    model = build(
        [
            Node("Mul", ("w", "w"), ("v",)),
            Node("MatMul", ("x", "v"), ("y",)),
            Node("Sub", ("u", "w"), ("kept",)),
            Node("Bernoulli", ("w",), ("mask",)),
            Node("Mul", ("y", "mask"), ("z",)),
        ],
        inputs={"x": (8, 8)},
        outputs=["z", "kept"],
        weights={"w": (8, 8), "u": (8, 8)},
        opset=17,
    )
    totals = analyse(model).info.totals
    assert totals.params == 2 * 64
    # the product, the mask and its product; the second output is a weight
    assert totals.activation_bytes_sum == 3 * 64 * 4


def test_a_long_sum_of_constants_takes_no_quadratic_time(build: Build) -> None:
    count = 300
    nodes = [Node("Add", (f"s{i}" if i else "w0", f"w{i + 1}"), (f"s{i + 1}",)) for i in range(count)]
    weights = {f"w{i}": (1, 4) for i in range(count + 1)}
    model = build(
        [*nodes, Node("Mul", ("x", f"s{count}"), ("y",))],
        inputs={"x": (2, 4)},
        outputs=["y"],
        weights=weights,
    )
    assert analyse(model).info.totals.params == 4 * (count + 1)


def test_a_moved_tensor_whose_size_depends_on_data_is_a_bound(build: Build) -> None:
    nodes = [Node("TopK", ("x", "k"), ("y", "places")), Node("Transpose", ("y",), ("z",))]
    inputs = {"x": (2, 64), "k": ("int64", (1,))}
    analysis = analyse(build(nodes, inputs=inputs, outputs=["z"]))
    assert [layer.status for layer in analysis.layers] == ["bound", "bound"]
    assert all("depends on the data" in layer.reason for layer in analysis.layers)


def test_a_node_whose_output_has_no_known_shape_makes_every_sum_a_lower_bound(build: Build) -> None:
    nodes = [Node("MatMul", ("x", "w"), ("m",)), Node("Reshape", ("m", "target"), ("y",))]
    inputs = {"x": (2, 64), "target": ("int64", (2,))}
    analysis = analyse(build(nodes, inputs=inputs, outputs=["y"], weights={"w": (64, 32)}))
    totals = analysis.info.totals
    assert totals.macs == 2 * 64 * 32
    assert totals.coverage == 0.5
    assert (totals.status, totals.sign) == ("unknown", ">= ")
    reshape = next(layer for layer in analysis.layers if layer.kind == "Reshape")
    assert reshape.status == "unknown"
    assert "size of a tensor" in reshape.reason


@pytest.mark.parametrize(
    ("body", "elementwise", "moved"),
    [
        ("(float[2, 5, 5] x) => (float[2] y) { y = Det (x) }", "<= ", ""),
        ("(float[4] x) => (int64[1, n] y) { y = NonZero (x) }", "<= ", "<= "),
        ("(float[2, 5, 5] x) => (float[2] y) { d = Det (x)  y = Abs (d) }", "<= ", ""),
    ],
)  # fmt: skip
def test_a_bound_of_the_work_alone_leaves_sizes_and_bytes_exact(
    tmp_path: Path, body: str, elementwise: str, moved: str
) -> None:
    """A determinant has known shapes; a size that depends on the data makes the bytes bounds, too."""
    from onnx import parser

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {body}')
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    totals = analyse(read(str(tmp_path / "a.onnx"))).info.totals
    assert (totals.sign_of("elementwise_ops"), totals.moved_sign) == (elementwise, moved)
