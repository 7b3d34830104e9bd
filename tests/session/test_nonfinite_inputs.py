"""A format that cannot hold NaN or infinity in the input of a layer is named, in files and in modules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

from explorer import ExplorerError, QuantizeSpec, Session


def roots(path: Path) -> str:
    """A product of square roots: those of negative numbers are NaN."""
    weight = np.random.default_rng(3).standard_normal((12, 6)).astype(np.float32)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Sqrt", ["x"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["y"], "product")],
        "g",
        [value("x", 1, [5, 12])],
        [value("y", 1, [5, 6])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


FORMATS = [
    ("fixed8.4", "NaN on these samples: fixed8.4 has no NaN, so the written layer computes with other"),
    ("mxint8", "in mxint8, all numbers of a block that holds one become NaN"),
    ("float16", ""),
    ("floatE4M3", ""),
]


@pytest.mark.parametrize(("name", "words"), FORMATS)
def test_a_file_whose_layers_get_nan_is_written_with_a_note(tmp_path: Path, name: str, words: str) -> None:
    with Session(roots(tmp_path / "m.onnx")) as session:
        fact = session.quantize(QuantizeSpec(name, name, form="auto"), output=str(tmp_path / "q.onnx"))
    said = [note for note in fact.notes if "the input of 'product'" in note]
    assert len(said) == bool(words)
    assert all(words in note for note in said)


def test_a_range_of_nan_is_refused(tmp_path: Path) -> None:
    with (
        Session(roots(tmp_path / "m.onnx")) as session,
        pytest.raises(ExplorerError, match="NaN with random"),
    ):
        session.quantize(QuantizeSpec("int8", "int8"), output=str(tmp_path / "q.onnx"))
    assert not (tmp_path / "q.onnx").exists()


class Roots(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.product = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.product(torch.sqrt(x))
        return result


@pytest.mark.parametrize(("name", "count"), [("mxint8", 1), ("fixed8.4", 0)])
def test_a_module_keeps_nan_or_has_a_note(name: str, count: int) -> None:
    x = torch.randn(5, 12)
    with Session(Roots(), inputs=x) as session:
        module, fact = session.quantize_module(QuantizeSpec(name, name))
    assert len([note for note in fact.notes if "the input of 'product' holds" in note]) == count
    assert module(x).isnan().all()
