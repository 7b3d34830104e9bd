"""Spellings that onnxruntime takes in a whole model: every verb takes them, in its parts, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import QuantizeSpec, Session, TileSpec, blame_files, verify_files
from explorer.base.errors import BadModel
from explorer.engine.formats.onnx import reader
from explorer.engine.runtime.plain_form import build_plain_form
from tests.engine.tiling.test_tile import run, weight

node = helper.make_node


def info(name: str, shape: Any, kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, graph: Any, *, ir: int = 8, opsets: dict[str, int] | None = None) -> str:
    imports = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"": 15}).items()]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=ir), path)
    return str(path)


def sparse_of(dense: np.ndarray, name: str, *, flat: bool) -> Any:
    """A SparseTensorProto of what is not zero, with indices in one number or in one for each axis."""
    places = np.flatnonzero(dense)
    values = numpy_helper.from_array(dense.reshape(-1)[places], name)
    indices = places if flat else np.stack(np.unravel_index(places, dense.shape), 1)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices, ""), dense.shape)


def thinned(*shape: int, seed: int = 0) -> np.ndarray:
    dense = weight(*shape, seed=seed)
    return np.where(np.abs(dense) > 0.5, dense, 0).astype(np.float32)


def sparse_initializer(path: Path) -> str:
    """Two products, whose weights are stored without zeros; one behind a Transpose."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="first"),
        node("Transpose", ["v"], ["t"]),
        node("MatMul", ["h", "t"], ["y"], name="second"),
    ]
    graph = helper.make_graph(nodes, "g", [info("x", [3, 6])], [info("y", [3, 5])])
    graph.sparse_initializer.append(sparse_of(thinned(6, 7), "w", flat=True))
    graph.sparse_initializer.append(sparse_of(thinned(5, 7, seed=1), "v", flat=False))
    return save(path, graph)


def sparse_constant(path: Path) -> str:
    """A weight in a Constant of a branch."""
    inner = [
        node("Constant", [], ["w"], sparse_value=sparse_of(thinned(6, 7), "", flat=False)),
        node("MatMul", ["x", "w"], ["o"], name="mm"),
    ]
    other = [node("MatMul", ["x", "u"], ["o"], name="mm")]
    branches = [
        helper.make_graph(nodes, name, [], [info("o", [3, 7])])
        for name, nodes in (("a", inner), ("b", other))
    ]
    top = node("If", ["c"], ["y"], name="if", then_branch=branches[0], else_branch=branches[1])
    feeds = [info("x", [3, 6]), info("c", [], TensorProto.BOOL)]
    stored = [numpy_helper.from_array(weight(6, 7, seed=2), "u")]
    return save(path, helper.make_graph([top], "g", feeds, [info("y", [3, 7])], stored))


def old_initializers(path: Path) -> str:
    """IR version 3, where all that is stored is an input, too."""
    nodes = [
        node("Conv", ["x", "w", "b"], ["h"], name="conv"),
        node("Relu", ["h"], ["r"]),
        node("Conv", ["r", "v"], ["y"], name="last"),
    ]
    stored = {"w": weight(4, 2, 3, 3), "b": weight(4), "v": weight(3, 4, 1, 1)}
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    feeds = [info("x", [1, 2, 6, 6]), *(info(name, value.shape) for name, value in stored.items())]
    graph = helper.make_graph(nodes, "g", feeds, [info("y", [1, 3, 4, 4])], tensors)
    return save(path, graph, ir=3, opsets={"": 9})


def texts(path: Path) -> str:
    """Texts as input, and texts as output beside a product."""
    nodes = [
        node(
            "LabelEncoder", ["s"], ["i"], domain="ai.onnx.ml", keys_strings=["to", "be"], values_int64s=[2, 1]
        ),
        node("Max", ["i", "zero"], ["j"]),
        node("Gather", ["e", "j"], ["v"]),
        node("MatMul", ["v", "w"], ["y"], name="mm"),
        node("Identity", ["s"], ["again"]),
    ]
    stored = {"e": weight(3, 6), "w": weight(6, 5), "zero": np.asarray(0)}
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    ends = [info("y", [4, 5]), info("again", [4], TensorProto.STRING)]
    graph = helper.make_graph(nodes, "g", [info("s", [4], TensorProto.STRING)], ends, tensors)
    return save(path, graph, opsets={"": 15, "ai.onnx.ml": 2})


CASES = (sparse_initializer, sparse_constant, old_initializers, texts)


@pytest.mark.parametrize("case", CASES)
def test_what_the_runtime_takes_is_tiled_proved_and_profiled(tmp_path: Path, case: Any) -> None:
    source, target = case(tmp_path / "m.onnx"), str(tmp_path / "t.onnx")
    with Session(source) as session:
        result = session.tile(TileSpec((2, 2, 2)), output=target)
        assert result.verification is not None
        assert result.verification.verdict_kind == "equal", result.verification.verdict
    assert verify_files(source, source).verdict.startswith("equal bit for bit")
    assert verify_files(source, target).passed
    assert blame_files(source, target).same
    with Session(source) as session:
        assert session.profile().layers


@pytest.mark.parametrize("case", [sparse_initializer, old_initializers])
def test_and_quantized(tmp_path: Path, case: Any) -> None:
    source, target = case(tmp_path / "m.onnx"), tmp_path / "q.onnx"
    with Session(source) as session:
        session.quantize(QuantizeSpec(weight="int8"), output=str(target))
    x = weight(3, 6) if case is sparse_initializer else weight(1, 2, 6, 6)
    before, after = run(source, {"x": x})[0], run(str(target), {"x": x})[0]
    assert np.abs(before - after).max() < 0.1 * np.abs(before).max()


def test_nodes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "a"], ["h"], name="mm"),
        node("MatMul", ["h", "b"], ["k"], name="mm"),
        node("MatMul", ["k", "a"], ["y"], name="mm#2"),
    ]
    stored = [numpy_helper.from_array(weight(6, 6, seed=s), n) for s, n in enumerate("ab")]
    graph = helper.make_graph(nodes, "g", [info("x", [3, 6])], [info("y", [3, 6])], stored)
    source, target = save(tmp_path / "m.onnx", graph), str(tmp_path / "t.onnx")
    names = [each.name for each in build_plain_form(reader.read(source)).graph.nodes]
    assert len(set(names)) == 3
    assert names[0] == "mm"
    with Session(source) as session:
        result = session.tile(TileSpec((2, 2, 2)), output=target)
        assert result.verification is not None
        assert result.verification.verdict_kind == "equal"
    assert blame_files(source, target).same
    assert verify_files(source, source).verdict_kind == "equal"


def test_indices_outside_of_a_sparse_tensor_are_one_line(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [node("MatMul", ["x", "w"], ["y"])], "g", [info("x", [3, 6])], [info("y", [3, 7])]
    )
    wrong = sparse_of(thinned(6, 7), "w", flat=True)
    indices = numpy_helper.to_array(wrong.indices).copy()
    indices[-1] = 42
    wrong.indices.CopyFrom(numpy_helper.from_array(indices, ""))
    graph.sparse_initializer.append(wrong)
    source = save(tmp_path / "m.onnx", graph)
    tensor = build_plain_form(reader.read(source)).graph.initializers["w"]
    with pytest.raises(BadModel, match="the indices of sparse tensor 'w' do not fit its shape"):
        tensor.array()
