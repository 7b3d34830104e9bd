"""Weights of one name in different graphs of a model, and operator sets as old as 7."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import helper, numpy_helper

import explorer.engine.tiling as tiling
from explorer import Session, TileSpec
from explorer.base.errors import Misuse
from explorer.engine.tiling.builder import FIRST_OPSET, Emission, GraphBuilder
from tests.engine.tiling.test_tile import run, weight

node = helper.make_node


def info(name: str, shape: Any, kind: int = 1) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, graph: Any, opset: int = 17, functions: Any = ()) -> str:
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return str(path)


def scaled(seed: int) -> Any:
    """A branch whose weight, an initializer `w` of its own behind a Transpose, depends on the seed."""
    nodes = [node("Transpose", ["w"], ["t"]), node("MatMul", ["x", "t"], ["o"], name="mm")]
    return helper.make_graph(
        nodes, "b", [], [info("o", [3, 9])], [numpy_helper.from_array(weight(9, 7, seed=seed), "w")]
    )


def dequantized(seed: int) -> Any:
    """The same with a weight that is dequantized."""
    codes = np.random.default_rng(seed).integers(-90, 90, (7, 9)).astype(np.int8)
    stored = {"q": codes, "s": np.float32(0.03), "z": np.int8(0)}
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["w"]), node("MatMul", ["x", "w"], ["o"], name="mm")]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in stored.items()]
    return helper.make_graph(nodes, "b", [], [info("o", [3, 9])], tensors)


@pytest.mark.parametrize("form", ["lab", "unrolled", "scan", "batched"])
@pytest.mark.parametrize("branch", [scaled, dequantized])
def test_weights_of_one_name_in_three_graphs_stay_apart(tmp_path: Path, branch: Any, form: Any) -> None:
    inner = node("If", ["d"], ["o"], name="inner", then_branch=branch(1), else_branch=branch(2))
    outer = helper.make_graph([inner], "outer", [], [info("o", [3, 9])])
    top = node("If", ["c"], ["y"], name="outer", then_branch=branch(3), else_branch=outer)
    feeds = [info("x", [3, 7]), info("c", [], 9), info("d", [], 9)]
    source = save(tmp_path / "m.onnx", helper.make_graph([top], "g", feeds, [info("y", [3, 9])]))
    target = str(tmp_path / "t.onnx")
    with Session(source) as session:
        session.tile(TileSpec((2, 3, 4), form=form), output=target, verify=False)
    # onnxruntime rounds what meets a dequantized weight; another weight would be off by more than 1
    x = weight(3, 7, seed=9)
    for c, d in product((True, False), repeat=2):
        given = {"x": x, "c": np.asarray(c), "d": np.asarray(d)}
        assert np.allclose(run(source, given)[0], run(target, given)[0], atol=0.2), (c, d)


def test_what_tiling_writes_and_opset_7_lacks_is_in_the_table() -> None:
    written: set[str] = set()
    for path in Path(tiling.__path__[0]).rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add" and call.args:
                first = call.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value:
                    written.add(first.value)
    standard = {s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain}
    assert {"MatMul", "Expand", "Scan"} <= written & standard
    for op in written & standard:
        first_version = min(
            s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op and not s.domain
        )
        # the Scan of opset 8 has an axis of its own for the batch
        due = max(first_version, 9 if op == "Scan" else 0)
        assert FIRST_OPSET.get(op, 7) == max(due, 7), op


def test_an_operator_that_the_operator_set_lacks_is_refused() -> None:
    builder = GraphBuilder(Emission(9, set()), "", "")
    with pytest.raises(Misuse, match="needs the operator Mod, which opset 9 does not have"):
        builder.add("Mod", ("a", "b"), "m")
    GraphBuilder(Emission(10, set()), "", "").add("Mod", ("a", "b"), "m")


PAIRS = {
    "rows for a stack": ([1, 5, 4], (3, 4, 6), [3, 5, 6]),
    "two leading axes": ([2, 1, 5, 4], (3, 4, 6), [2, 3, 5, 6]),
    "a vector": ([4], (3, 4, 6), [3, 6]),
}


@pytest.mark.parametrize("opset", [7, 8, 9, 13])
@pytest.mark.parametrize("case", PAIRS)
def test_a_broadcast_stack_is_written_in_the_operator_set_of_the_model(
    tmp_path: Path, case: str, opset: int
) -> None:
    shape, stored, out = PAIRS[case]
    graph = helper.make_graph(
        [node("MatMul", ["x", "w"], ["y"], name="mm")],
        "g",
        [info("x", shape)],
        [info("y", out)],
        [numpy_helper.from_array(weight(*stored), "w")],
    )
    source, target = save(tmp_path / "m.onnx", graph, opset), tmp_path / "t.onnx"
    for form in ("lab", "unrolled", "batched"):
        with Session(source) as session:
            spec = TileSpec((2, 3, 4), form=form)  # type: ignore[arg-type]
            result = session.tile(spec, output=str(target), overwrite=True)
        assert result.verification is not None
        assert result.verification.verdict_kind == "equal"
        onnx.checker.check_model(onnx.load(target), full_check=True)
