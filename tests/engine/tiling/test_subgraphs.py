"""Products inside branches, loops, Scans and functions are tiled where they stand, and proved there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session, TileSpec, diff_files
from explorer.cli import main
from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model, Node
from explorer.engine.shapes.subgraphs import find_view
from explorer.facts import Plan
from tests.engine.proof import tiled as t
from tests.engine.tiling.test_tile import run, weight

F = TensorProto.FLOAT


def info(name: str, shape: Any, kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, value: Any, dtype: Any = np.int64) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value, dtype)))


def save(path: Path, graph: Any, functions: Any = (), extra: Any = ()) -> str:
    opsets = [helper.make_opsetid("", 17), *extra]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return str(path)


def scan(path: Path) -> str:
    """A recurrence: h = tanh(x W + h R), its weights captured from around."""
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x_t", "W"], ["a"], name="in"),
            helper.make_node("MatMul", ["h", "R"], ["b"], name="back"),
            helper.make_node("Add", ["a", "b"], ["s"]),
            helper.make_node("Tanh", ["s"], ["h_out"]),
            helper.make_node("Identity", ["h_out"], ["y_t"]),
        ],
        "body",
        [info("h", [2, 9]), info("x_t", [2, 7])],
        [info("h_out", [2, 9]), info("y_t", [2, 9])],
    )
    node = helper.make_node("Scan", ["h0", "x"], ["h_n", "y"], name="rnn", body=body, num_scan_inputs=1)
    graph = helper.make_graph(
        [node],
        "g",
        [info("h0", [2, 9]), info("x", [5, 2, 7])],
        [info("y", [5, 2, 9])],
        [numpy_helper.from_array(weight(7, 9), "W"), numpy_helper.from_array(weight(9, 9, seed=1) / 4, "R")],
    )
    return save(path, graph)


def loop(path: Path) -> str:
    """Three times y = y W, the weight stored in the body."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("MatMul", ["y_in", "W"], ["y_out"], name="step"),
        ],
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("y_in", [3, 6])],
        [info("go_on", [], TensorProto.BOOL), info("y_out", [3, 6])],
        [numpy_helper.from_array(weight(6, 6) / 3, "W")],
    )
    nodes = [constant("n", 3), helper.make_node("Loop", ["n", "", "x"], ["y"], name="again", body=body)]
    return save(path, helper.make_graph(nodes, "g", [info("x", [3, 6])], [info("y", [3, 6])]))


def branches(path: Path) -> str:
    """One of two products, as the data say; both weights around."""
    parts = [
        helper.make_graph(
            [helper.make_node("Gemm", ["x", name], ["out_" + name], name="fc", transB=1)],
            name,
            [],
            [info("out_" + name, [3, 5])],
        )
        for name in ("A", "B")
    ]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        constant("zero", 0.0, np.float32),
        helper.make_node("Greater", ["sum", "zero"], ["more"]),
        helper.make_node("If", ["more"], ["y"], name="which", then_branch=parts[0], else_branch=parts[1]),
    ]
    weights = [numpy_helper.from_array(weight(5, 6, seed=i), n) for i, n in enumerate("AB")]
    return save(path, helper.make_graph(nodes, "g", [info("x", [3, 6])], [info("y", [3, 5])], weights))


def functions(path: Path) -> str:
    """A block called twice with other rows, one weight in it and one handed in."""
    block = helper.make_function(
        "mine",
        "Block",
        ["X", "V"],
        ["Y"],
        [
            helper.make_node(
                "Constant", [], ["U"], value=numpy_helper.from_array(weight(6, 4), "U"), name="U"
            ),
            helper.make_node("MatMul", ["X", "U"], ["H"], name="first"),
            helper.make_node("MatMul", ["H", "V"], ["Y"], name="second"),
        ],
        [helper.make_opsetid("", 17)],
    )
    nodes = [
        helper.make_node("Block", ["a", "V"], ["p"], domain="mine", name="one"),
        helper.make_node("Block", ["b", "V"], ["q"], domain="mine", name="two"),
        helper.make_node("Concat", ["p", "q"], ["y"], axis=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [info("a", [3, 6]), info("b", [8, 6])],
        [info("y", [11, 5])],
        [numpy_helper.from_array(weight(4, 5), "V")],
    )
    return save(path, graph, [block], [helper.make_opsetid("mine", 1)])


CASES: dict[str, tuple[Any, dict[str, int | None]]] = {
    "Scan": (scan, {"rnn.body/in": 5, "rnn.body/back": 5}),
    "Loop": (loop, {"again.body/step": 3}),
    "If": (branches, {"which.else_branch/fc": 1, "which.then_branch/fc": 0}),
    "function": (functions, {"Block()/first": 2, "Block()/second": 2}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("form", ["auto", "scan", "unrolled", "batched"])
def test_products_are_tiled_where_they_stand(tmp_path: Path, case: str, form: Any) -> None:
    build, names = CASES[case]
    if case == "function" and form != "auto" and form != "scan":
        pytest.skip("rows differ from call to call: only a Scan takes both")
    source, target = build(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    with Session(source) as session:
        result = session.tile(TileSpec((2, 3, 4), form=form), output=target)
    assert {site.name: site.calls for site in result.plan.sites} == names
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    repeats = any(site.calls != 1 for site in result.plan.sites)
    assert ("those that run several times counted once" in result.verification.verdict) == repeats
    assert len(result.verification.sites) == len(names)
    onnx.checker.check_model(target, full_check=True)
    rng = np.random.default_rng(0)
    for _ in range(4):
        feeds = {
            v.name: rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(
                np.float32
            )
            for v in onnx.load(source).graph.input
        }
        feeds = {name: drawn.astype(np.float32) for name, drawn in feeds.items()}
        np.testing.assert_allclose(run(target, feeds), run(source, feeds), rtol=2e-5, atol=2e-5)


def test_every_mac_of_a_loop_counts_as_often_as_it_runs(tmp_path: Path) -> None:
    with Session(scan(tmp_path / "a.onnx")) as session:
        plan = session.plan(TileSpec((2, 3, 4)))
    assert plan.macs == 5 * (2 * 7 * 9 + 2 * 9 * 9) == plan.macs_total


def test_of_the_branches_of_an_if_the_costliest_counts_as_in_info(tmp_path: Path) -> None:
    source = branches(tmp_path / "a.onnx")
    with Session(source) as session:
        plan = session.plan(TileSpec((2, 3, 4)))
        assert plan.macs == plan.macs_total == session.info().totals.macs == 3 * 6 * 5
        assert plan.products == 2 * 2 * 2
        assert session.cost(TileSpec((2, 3, 4))).macs == 3 * 6 * 5
        session.tile(TileSpec((2, 3, 4)), output=str(tmp_path / "b.onnx"), verify=False)
    with Session(str(tmp_path / "b.onnx")) as session:
        tiled = session.info().tiled
        assert tiled is not None
        assert (tiled.products, tiled.macs, tiled.share) == (8, 90, 1.0)


def test_the_figure_of_a_loop_whose_turns_the_data_decides_is_unknown_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(loop(tmp_path / "a.onnx"))
    del model.graph.node[0]
    model.graph.input.append(info("n", [], TensorProto.INT64))
    model.graph.node.append(helper.make_node("MatMul", ["y", "V"], ["z"], name="behind"))
    model.graph.initializer.append(numpy_helper.from_array(weight(6, 5), "V"))
    model.graph.output[0].CopyFrom(info("z", [3, 5]))
    source = str(tmp_path / "b.onnx")
    onnx.save(model, source)
    with Session(source) as session:
        plan = session.plan(TileSpec((2, 3, 4)))
        cost = session.cost(TileSpec((2, 3, 4)))
    assert {site.name: site.calls for site in plan.sites} == {"behind": 1, "again.body/step": None}
    assert (plan.products, plan.macs, plan.macs_total) == (None, None, None)
    assert cost.macs == 3 * 6 * 5
    assert any("number of runs depends on the data: again.body/step" in said for said in cost.assumptions)
    for verb in ("tile", "plan"):
        assert main.main([verb, source, "--tile", "2x3x4"]) == 0
        assert "? runs" in capsys.readouterr().out


def test_a_function_called_with_other_rows_is_counted_call_by_call(tmp_path: Path) -> None:
    with Session(functions(tmp_path / "a.onnx")) as session:
        plan = session.plan(TileSpec((2, 3, 4)))
        cost = session.cost(TileSpec((2, 3, 4)))
    macs = (3 + 8) * (6 * 4 + 4 * 5)
    assert plan.macs == plan.macs_total == cost.macs == macs
    # 2 and 4 blocks of rows; 2 x 1 and 2 x 2 tiles of the weights
    assert plan.products == cost.products == (2 + 4) * (2 + 4)


def spoiled(made: Model, plan: Plan) -> Model:
    """Another weight in the first tile of the first site."""
    name = next(n for n in made.graph.initializers if "/tile_0_0" in n)
    return t.with_array(made, name, lambda a: a * np.float32(1.001))


def test_a_fault_inside_a_loop_is_found_there(tmp_path: Path) -> None:
    source = scan(tmp_path / "a.onnx")
    with Session(source) as session:
        target = str(tmp_path / "b.onnx")
        plan = session.tile(TileSpec((2, 3, 4), form="unrolled"), output=target, verify=False).plan
    from explorer.engine.formats.onnx import writer
    from explorer.engine.proof.proof import verify

    writer.write(spoiled(reader.read(target), plan), str(tmp_path / "c.onnx"))
    evidence = verify(reader.read(source), reader.read(str(tmp_path / "c.onnx")), plan=plan)
    assert not evidence.passed
    assert "rnn.body/in" in evidence.verdict
    assert "not its slice of the weight" in evidence.verdict


@pytest.mark.parametrize("case", CASES)
def test_a_diff_names_each_product_where_it_stands_and_nothing_else(tmp_path: Path, case: str) -> None:
    build, names = CASES[case]
    source, target = build(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    with Session(source) as session:
        session.tile(TileSpec((4, 4, 4)), output=target, verify=False)
    assert {(row.status, row.before) for row in diff_files(source, target).nodes} == {
        ("tiled", name) for name in names
    }
    assert {(row.status, row.after) for row in diff_files(target, source).nodes} == {
        ("merged", name) for name in names
    }


@pytest.mark.parametrize(("case", "old", "new"), [("Scan", "Tanh", "Sigmoid"), ("Loop", "Identity", "Neg")])
def test_what_else_differs_beside_a_tiled_product_is_not_hidden(
    tmp_path: Path, case: str, old: str, new: str
) -> None:
    source, target = CASES[case][0](tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    with Session(source) as session:
        session.tile(TileSpec((4, 4, 4)), output=target, verify=False)
    model = onnx.load(target)
    bodies = [a.g.node for n in model.graph.node for a in n.attribute if a.HasField("g")]
    found = [n for nodes in bodies for n in nodes if n.op_type == old]
    assert found, "nothing to spoil"
    found[-1].op_type = new
    onnx.save(model, target)
    assert "changed" in {row.status for row in diff_files(source, target).nodes}


def test_a_place_that_is_not_there_is_none(tmp_path: Path) -> None:
    model = reader.read(scan(tmp_path / "a.onnx"))
    assert find_view(model, ("rnn.body",)) is not None
    assert find_view(model, ("rnn.else_branch",)) is None
    assert isinstance(find_view(model, ()).graph.nodes[0], Node)  # type: ignore[union-attr]


@pytest.mark.parametrize("ends", [False, True])
def test_a_loop_that_the_data_may_end_gives_upper_bounds(
    tmp_path: Path, ends: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = [
        helper.make_node("MatMul", ["y_in", "W"], ["y_out"], name="step"),
        helper.make_node("ReduceMax", ["y_out"], ["most"], keepdims=0),
        helper.make_node("Less", ["most", "limit"], ["small"]),
        helper.make_node("Identity", ["small" if ends else "go"], ["go_on"]),
    ]
    body = helper.make_graph(
        inner,
        "body",
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("y_in", [3, 6])],
        [info("go_on", [], TensorProto.BOOL), info("y_out", [3, 6])],
        [numpy_helper.from_array(weight(6, 6), "W"), numpy_helper.from_array(np.float32(5), "limit")],
    )
    nodes = [constant("n", 5), helper.make_node("Loop", ["n", "", "x"], ["y"], name="again", body=body)]
    graph = helper.make_graph(nodes, "g", [info("x", [3, 6])], [info("y", [3, 6])])
    source = save(tmp_path / "m.onnx", graph)
    with Session(source) as session:
        plan = session.plan(TileSpec((2, 3, 4)))
    assert (plan.sites[0].calls, plan.sites[0].at_most) == (5, ends)
    main.main(["tile", source, "--tile", "2x3x4"])
    said = capsys.readouterr().out
    assert ("<= 5 runs" in said) is ends
    assert ("<= 40" in said) is ends
    assert ("upper bounds" in said) is ends
    main.main(["plan", source, "--tile", "2x3x4"])
    said = capsys.readouterr().out
    cells = {line.split("  ")[1].strip(): line for line in said.splitlines() if line.startswith("  ")}
    for name in ("MACs on tiles", "Tile matmuls", "Traffic", "Lower bound", "again.body/step"):
        assert ("<= " in cells[name]) is ends, cells[name]
    main.main(["sweep", source, "--tile", "2x3x4,3x3x3"])
    assert ("<= 40" in capsys.readouterr().out) is ends
    tiled = str(tmp_path / "tiled.onnx")
    main.main(["tile", source, "--tile", "2x3x4", "-o", tiled])
    capsys.readouterr()
    main.main(["info", tiled])
    assert ("<= 40 tile matmuls" in capsys.readouterr().out) is ends
    with Session(source) as session:
        layer = next(one for one in session.layers().layers if one.name == "step")
        session.tile(TileSpec((2, 3, 4)), verify=False)
        state = session.history().entries[-1]
    assert (layer.kind_text == "MatMul, at most 5 calls") is ends
    assert state.plan is not None
    assert (state.plan.sign == "<= ") is ends


@pytest.mark.parametrize("known", [False, True])
def test_a_branch_in_whose_place_another_one_may_run_gives_upper_bounds(
    tmp_path: Path, known: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def branch(name: str, depth: int) -> Any:
        first = numpy_helper.from_array(weight(6, depth), "V")
        second = numpy_helper.from_array(weight(depth, 6), "W")
        inner = [helper.make_node("MatMul", ["x", "V"], ["h"], name="up")]
        inner += [helper.make_node("MatMul", ["h", "W"], ["o"], name="down")]
        return helper.make_graph(inner, name, [], [info("o", [3, 6])], [first, second])

    bodies = {"then_branch": branch("then", 12), "else_branch": branch("else", 4)}
    nodes = [helper.make_node("If", ["c"], ["y"], name="choice", **bodies)]
    inputs = [info("x", [3, 6])] + ([] if known else [info("c", [], TensorProto.BOOL)])
    stored = [numpy_helper.from_array(np.asarray(True), "c")] if known else []
    source = save(tmp_path / "m.onnx", helper.make_graph(nodes, "g", inputs, [info("y", [3, 6])], stored))
    with Session(source) as session:
        sites = session.plan(TileSpec((3, 3, 3))).sites
    assert [(site.calls, site.at_most) for site in sites if site.calls] == [(1, not known)] * 2
    for verb in ("plan", "tile", "sweep"):
        assert main.main([verb, source, "--tile", "3x3x3" if verb != "sweep" else "3x3x3,2x2x2"]) == 0
        assert ("<= " in capsys.readouterr().out) is not known
