"""Sequences that are declared: what is taken out of them has the declared type and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from explorer import ExplorerError, Session

Proto = Any
N = helper.make_node
FLOAT = TensorProto.FLOAT


def tensor(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> Proto:
    return helper.make_tensor_value_info(name, kind, shape)


def held(name: str, shape: Sequence[int | str], *, optional: bool = False) -> Proto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, shape))
    return helper.make_value_info(name, helper.make_optional_type_proto(kind) if optional else kind)


def session(path: Path, nodes: Sequence[Proto], inputs: Sequence[Proto], **options: Any) -> Session:
    """A model whose value 'x' is multiplied by a weight of 6 x 2."""
    weights = [
        onnx.numpy_helper.from_array(np.ones((6, 2), np.float32), "w"),
        onnx.numpy_helper.from_array(np.array(0, np.int64), "first"),
        onnx.numpy_helper.from_array(np.array(4, np.int64), "four"),
    ]
    graph = helper.make_graph(
        [*nodes, N("MatMul", ["x", "w"], ["y"])], "g", inputs, [tensor("y", None)], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path / "m.onnx")
    return Session(str(path / "m.onnx"), cache=False, **options)


AT = N("SequenceAt", ["s", "first"], ["x"])

CHAINS: dict[str, tuple[list[Proto], list[Proto]]] = {
    "at": ([AT], [held("s", (5, 6))]),
    "erased": ([N("SequenceErase", ["r"], ["s"]), AT], [held("r", (5, 6))]),
    "inserted": ([N("SequenceInsert", ["r", "t"], ["s"]), AT], [held("r", (5, 6)), tensor("t", (5, 6))]),
    "handed on": ([N("Identity", ["r"], ["s"]), AT], [held("r", (5, 6))]),
    "optional": ([N("OptionalGetElement", ["o"], ["s"]), AT], [held("o", (5, 6), optional=True)]),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_an_element_of_a_declared_sequence_has_the_declared_sizes(chain: str, tmp_path: Path) -> None:
    with session(tmp_path, *CHAINS[chain]) as opened:
        info = opened.info()
    assert (info.model.outputs[0].dtype, info.model.outputs[0].shape) == ("float32", (5, 2))
    assert info.totals.macs == 5 * 6 * 2
    # how many bytes a sequence has is not known, which is said
    assert info.totals.coverage < 1


def test_a_branch_sees_the_sequence_around_it(tmp_path: Path) -> None:
    body = helper.make_graph([N("SequenceAt", ["s", "first"], ["b"])], "b", [], [tensor("b", None)])
    nodes = [N("If", ["c"], ["x"], then_branch=body, else_branch=body)]
    inputs = [held("s", (5, 6)), tensor("c", (), TensorProto.BOOL)]
    with session(tmp_path, nodes, inputs) as opened:
        rows = {layer.path: layer for layer in opened.analysis().layers}
    assert rows["x/then_branch/b"].outputs[0].shape == (5, 6)


def test_a_loop_carries_a_sequence(tmp_path: Path) -> None:
    nodes = [N("SequenceAt", ["q", "first"], ["e"]), N("MatMul", ["e", "w"], ["row"])]
    nodes += [N("Identity", ["q"], ["q2"]), N("Identity", ["go"], ["go2"])]
    given = [tensor("i", (), TensorProto.INT64), tensor("go", (), TensorProto.BOOL), held("q", (5, 6))]
    made = [tensor("go2", (), TensorProto.BOOL), held("q2", (5, 6)), tensor("row", None)]
    body = helper.make_graph(nodes, "body", given, made)
    loop = N("Loop", ["four", "", "s"], ["s2", "rows"], body=body)
    with session(tmp_path, [loop, AT], [held("s", (5, 6))]) as opened:
        assert opened.info().totals.macs == (4 + 1) * 5 * 6 * 2


def test_names_of_sizes_in_a_sequence_are_bound(tmp_path: Path) -> None:
    with session(tmp_path, [AT], [held("s", ("rows", 6))], dims={"rows": 7}) as opened:
        assert opened.info().totals.macs == 7 * 6 * 2
    with session(tmp_path, [AT], [held("s", ("rows", 6))]) as opened:
        assert opened.info().model.outputs[0].shape == ("rows", 2)
    with (
        pytest.raises(ExplorerError, match="no dimension is called"),
        session(tmp_path, [AT], [held("s", ("rows", 6))], dims={"cols": 7}) as opened,
    ):
        opened.info()


def test_how_many_rows_a_whole_sequence_has_stays_unknown(tmp_path: Path) -> None:
    nodes = [N("ConcatFromSequence", ["s"], ["x"], axis=0)]
    with session(tmp_path, nodes, [held("s", (5, 6))]) as opened:
        info = opened.info()
    assert info.model.outputs[0].shape == (None, 2)
    assert info.totals.macs is None
