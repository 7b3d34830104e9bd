"""A calibrator that costs an output 10 dB beside minmax is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from explorer import QuantizeSpec, Session


def wide(path: Path) -> str:
    """A product of few large numbers, which carry the result, and very many small ones."""
    rng = np.random.default_rng(5)
    weight = rng.standard_normal((64, 8)).astype(np.float32)
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["a"], "square"),
        helper.make_node("Mul", ["a", "x"], ["b"], "cube"),
        helper.make_node("Mul", ["b", "a"], ["c"], "fifth"),
        helper.make_node("MatMul", ["c", "w"], ["y"], "product"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, [64, 64])],
        [value("y", 1, [64, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize("calibrator", ["minmax", "percentile"])
def test_what_a_calibrator_costs_is_told(calibrator: str, tmp_path: Path) -> None:
    spec = QuantizeSpec(calibrator=calibrator, percentile=96.0)  # type: ignore[arg-type]
    with Session(wide(tmp_path / "m.onnx")) as session:
        fact = session.quantize(spec, output=str(tmp_path / "q.onnx"))
    said = [note for note in fact.notes if note.startswith("calibrator percentile gives")]
    assert len(said) == (calibrator == "percentile")
    assert all("minmax" in note and "on the same samples" in note for note in said)
