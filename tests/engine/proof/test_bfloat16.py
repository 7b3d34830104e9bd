"""The proof promises of bfloat16: what onnxruntime cannot run is proven, and the proof says how."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session, TileSpec
from explorer.engine.formats.onnx import reader
from tests.engine.proof.tiled import prove, with_array

ml_dtypes = pytest.importorskip("ml_dtypes")

CASES: dict[str, tuple[Any, tuple[int, ...], dict[str, tuple[int, ...]], tuple[int, ...]]] = {
    "MatMul": (helper.make_node("MatMul", ["x", "w"], ["y"]), (7, 70), {"w": (70, 11)}, (7, 11)),
    "Gemm": (
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1),
        (7, 70),
        {"w": (11, 70), "b": (11,)},
        (7, 11),
    ),
    "Conv": (
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1]),
        (2, 4, 6, 6),
        {"w": (5, 4, 3, 3), "b": (5,)},
        (2, 5, 6, 6),
    ),
}


def save(path: Path, name: str) -> str:
    node, x, stored, y = CASES[name]
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, x)],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, y)],
        [
            numpy_helper.from_array(rng.standard_normal(shape).astype(ml_dtypes.bfloat16), n)
            for n, shape in stored.items()
        ],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_is_tiled_and_proven(tmp_path: Path, name: str, form: Any) -> None:
    source = save(tmp_path / "a.onnx", name)
    result = Session(source).tile(
        TileSpec((4, 6, 5), form=form), output=str(tmp_path / "b.onnx"), verify=True
    )
    onnx.checker.check_model(str(tmp_path / "b.onnx"), full_check=True)
    assert (result.plan.sites[0].dtype, result.plan.sites[0].accumulator) == ("bfloat16", "float32")
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert "onnx's reference evaluator" in result.verification.verdict
    assert result.verification.sites[0].tiles > 1


def test_a_fault_in_bfloat16_is_found(tmp_path: Path) -> None:
    source = reader.read(save(tmp_path / "a.onnx", "MatMul"))

    def spoil(made: Any) -> Any:
        first = next(name for name in made.graph.initializers if "/tile_" in name)
        return with_array(made, first, lambda w: np.roll(w, 1, 1))

    found = prove(source, TileSpec((4, 6, 5), form="unrolled"), spoil)
    assert not found.passed
    assert "not its slice of the weight" in found.sites[0].reason
