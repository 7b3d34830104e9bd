"""A calibrator that costs an output 10 dB beside minmax is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

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


def test_what_a_calibrator_costs_a_module_is_told(tmp_path: Path) -> None:
    """One channel of large values carries the result, and entropy cuts it off."""
    first, last = nn.Linear(48, 48, bias=False), nn.Linear(48, 12, bias=False)
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for layer in (first, last):
            layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / 7)
        first.weight[11] *= 80
    module = nn.Sequential(first, nn.ReLU(), last)
    for calibrator in ("entropy", "minmax"):
        spec = QuantizeSpec(calibrator=calibrator)  # type: ignore[arg-type]
        with Session(module, inputs=(torch.randn(1, 48),)) as session:
            _, fact = session.quantize_module(spec, draws=40)
        told = [note for note in fact.notes if note.startswith("calibrator entropy gives")]
        assert len(told) == (calibrator == "entropy")
        assert all("minmax" in note and "on the same samples" in note for note in told)
