"""A weight that a caller may replace (an input with a default) is never written into tiles: who gives another
gets from the tiled model what the original gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from explorer import Misuse, Session, TileSpec
from tests import stock
from tests.engine.tiling.test_subgraphs import info
from tests.engine.tiling.test_tile import weight

REASON = "an operand is an input with a default, which a caller may replace"
SPEC = TileSpec((2, 3, 4))


def save(
    path: Path,
    nodes: list[Any],
    weights: dict[str, np.ndarray],
    replaceable: tuple[str, ...],
    *,
    ir_version: int = 8,
    x: tuple[int, ...] = (3, 6),
) -> str:
    """A model x -> y that lists the weights of `replaceable` among its inputs, too."""
    kinds = {n: helper.np_dtype_to_tensor_dtype(w.dtype) for n, w in weights.items()}
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", x), *(info(n, list(weights[n].shape), kinds[n]) for n in replaceable)],
        [info("y", None)],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    opset = 8 if ir_version < 4 else 17
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    model = onnx.shape_inference.infer_shapes(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return str(path)


def run(path: str, **feeds: np.ndarray) -> np.ndarray:
    return stock.outputs(path, feeds)[0]


def same(before: str, after: Path, **feeds: np.ndarray) -> None:
    np.testing.assert_allclose(run(str(after), **feeds), run(before, **feeds), rtol=1e-5, atol=1e-5)


def test_what_a_caller_gives_in_place_of_a_weight_counts_in_the_tiled_model_too(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="open"),
        helper.make_node("Gemm", ["a", "v", "c"], ["y"], name="closed"),
    ]
    weights = {"w": weight(6, 5), "v": weight(5, 4, seed=1), "c": weight(4, seed=2)}
    source = save(tmp_path / "a.onnx", nodes, weights, ("w", "c"))
    session = Session(source)
    evidence = session.tile(SPEC, output=str(tmp_path / "b.onnx")).verification
    assert evidence is not None
    assert evidence.passed, evidence.verdict
    plan = session.history().entries[1].plan
    assert plan is not None
    assert [site.name for site in plan.sites] == ["closed"]
    assert [(s.name, s.reason.startswith(REASON)) for s in plan.skipped] == [("open", True)]
    x = weight(3, 6, seed=3)
    same(source, tmp_path / "b.onnx", x=x)
    # the bias is read at run time, and may be replaced as well
    same(source, tmp_path / "b.onnx", x=x, w=weight(6, 5, seed=4), c=weight(4, seed=5))


def conv() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    return [helper.make_node("Conv", ["x", "w"], ["y"])], {"w": weight(4, 2, 3, 3)}, (1, 2, 5, 5)


def hidden() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Transpose", ["same"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    return nodes, {"w": weight(5, 6)}, (3, 6)


def quantized() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "w"], ["floats"]),
        helper.make_node("MatMul", ["x", "floats"], ["y"]),
    ]
    # the scale is what may be replaced
    return nodes, {"w": np.array(0.5, np.float32), "q": np.arange(30, dtype=np.int8).reshape(6, 5)}, (3, 6)


def on_the_left() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    return [helper.make_node("Gemm", ["w", "x"], ["y"], transA=1)], {"w": weight(3, 5)}, (3, 6)


def einsum() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    return [helper.make_node("Einsum", ["x", "w"], ["y"], equation="ij,jk->ik")], {"w": weight(6, 5)}, (3, 6)


def lstm() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    node = helper.make_node("LSTM", ["x", "v", "w"], ["y"], hidden_size=4)
    return [node], {"v": weight(1, 16, 6), "w": weight(1, 16, 4, seed=1)}, (5, 2, 6)


def branch() -> tuple[list[Any], dict[str, np.ndarray], tuple[int, ...]]:
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["in"])], "t", [], [info("in", [3, 5])])
    other = helper.make_graph([helper.make_node("Identity", ["d"], ["out"])], "e", [], [info("out", [3, 5])])
    node = helper.make_node("If", ["which"], ["y"], then_branch=body, else_branch=other)
    weights = {"w": weight(6, 5), "which": np.asarray(True), "d": weight(3, 5)}
    return [node], weights, (3, 6)


@pytest.mark.parametrize("make", [conv, hidden, quantized, on_the_left, einsum, lstm, branch])
def test_no_operator_takes_a_weight_that_a_caller_may_replace(tmp_path: Path, make: Any) -> None:
    nodes, weights, x = make()
    source = save(tmp_path / "a.onnx", nodes, weights, ("w",), x=x)
    with pytest.raises(Misuse, match=REASON):
        Session(source).tile(SPEC, output=str(tmp_path / "b.onnx"))
    assert not (tmp_path / "b.onnx").exists()
    closed = save(tmp_path / "c.onnx", nodes, weights, (), x=x)
    assert Session(closed).plan(SPEC).sites


def test_every_weight_of_an_old_file_is_a_constant_although_it_is_listed_among_the_inputs(
    tmp_path: Path,
) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "c"], ["y"])]
    weights = {"w": weight(6, 5), "c": weight(5, seed=1)}
    source = save(tmp_path / "a.onnx", nodes, weights, ("w", "c"), ir_version=3)
    evidence = Session(source).tile(SPEC, output=str(tmp_path / "b.onnx")).verification
    assert evidence is not None
    assert evidence.passed, evidence.verdict
    same(source, tmp_path / "b.onnx", x=weight(3, 6, seed=3))
    # tiles need a later version of the format, in which a caller may replace such an input
    made = onnx.load(tmp_path / "b.onnx")
    assert made.ir_version >= 8
    assert [value.name for value in made.graph.input] == ["x"]


def test_no_size_of_the_tiles_follows_from_a_value_that_a_caller_may_replace(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "sizes"], ["wide"]),
        helper.make_node("MatMul", ["wide", "v"], ["y"]),
    ]
    weights = {"sizes": np.array([2, 2, 6]), "v": weight(6, 5)}
    source = save(tmp_path / "a.onnx", nodes, weights, ("sizes",), x=(4, 6))
    model = onnx.load(source)
    del model.graph.value_info[:], model.graph.output[:]
    model.graph.output.append(info("y", ["a", "b", "c"]))
    onnx.save(model, source)
    with pytest.raises(Misuse, match="the shape of its activation depends on the data"):
        Session(source).plan(SPEC)
    del model.graph.input[1:]
    onnx.save(model, source)
    assert Session(source).plan(SPEC).sites[0].M == 4
