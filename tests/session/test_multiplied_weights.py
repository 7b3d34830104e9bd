"""Values of quantized weights: the numbers that layers multiply by, whatever lies in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.facts.quantize import QuantizeSpec
from explorer.session import Session

WEIGHT = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)


@pytest.fixture(params=["MatMul", "Gemm"])
def source(request: Any, tmp_path: Path) -> str:
    """One product with a square weight, whose rows are inputs (MatMul), or outputs (Gemm with transB)."""
    more: dict[str, Any] = {"transB": 1} if request.param == "Gemm" else {}
    node = helper.make_node(request.param, ["x", "w"], ["y"], name="fc", **more)
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "g",
        [value("x", TensorProto.FLOAT, [4, 64])],
        [value("y", TensorProto.FLOAT, [4, 64])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "a.onnx")
    return str(tmp_path / "a.onnx")


FORMATS = {
    "int8": {"weight": "int8"},
    "int4": {"weight": "int4", "input": "float32", "block": 32},
    "fixed12.6": {"weight": "fixed12.6", "input": "float32"},
    "mxfp4": {"weight": "mxfp4", "input": "float32"},
    "floatE4M3": {"weight": "floatE4M3", "input": "float32"},
    "binary": {"weight": "binary", "input": "float32"},
    "ternary": {"weight": "ternary", "input": "float32"},
    "uint8": {"weight": "uint8", "input": "float32", "symmetric": False, "form": "function"},
}


def multiplied(path: Path) -> np.ndarray:
    """What onnxruntime multiplies the unit matrix by: the weight with a row for each input."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 64
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (made,) = session.run(None, {"x": np.eye(64, dtype=np.float32)})
    return np.asarray(made)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FORMATS)
def test_a_quantized_weight_is_told_as_its_layer_multiplies_by_it(
    source: str, name: str, tmp_path: Path
) -> None:
    made, spec = tmp_path / "q.onnx", QuantizeSpec(**FORMATS[name])
    with Session(source) as session:
        session.quantize(spec, output=str(made), report=False, draws=1)
    with Session(made) as session:
        fact = session.values("w", ":, :", before=source)
        stats = session.weights([fact.tensor.name], stat="absmax")
    told = np.array(fact.values, np.float32).reshape(64, 64)
    wanted = multiplied(made)
    wanted = wanted.T if source_is_gemm(source) else wanted
    if name == "int8":
        np.testing.assert_allclose(told, WEIGHT, atol=0.02)
    else:
        np.testing.assert_allclose(told, wanted, rtol=1e-5, atol=1e-6)
    assert fact.before is not None
    np.testing.assert_allclose(np.reshape(fact.before.values, (64, 64)), WEIGHT)
    assert fact.before.largest == pytest.approx(np.abs(told - WEIGHT).max(), rel=1e-5)
    codes, scales, zeros = (np.array(part) for part in (fact.codes, fact.scales, fact.zero_points))
    np.testing.assert_allclose(((codes - zeros) * scales).reshape(64, 64), told, rtol=1e-5)
    (row,) = stats.tensors
    assert row.chosen["absmax"] == pytest.approx((np.abs(told).max(),))
    assert "the figures of 1 quantized tensor are those of the dequantized numbers" in stats.notes


def source_is_gemm(path: str) -> bool:
    return bool(onnx.load(path).graph.node[0].op_type == "Gemm")
