"""Layers that compute in float16 or float64: rounded in float32, between Casts, read as what they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from explorer import Session, diff_files
from explorer.base.errors import ExplorerError
from explorer.facts.quantize import QuantizeSpec
from tests import stock
from tests.engine.quantize.test_odd_models import adds_exactly, int8
from tests.engine.quantize.test_quantized_model import LEVELS, snr

TYPES = {"float16": np.float16, "float64": np.float64}
PRODUCTS = "h = Gemm<transB=1>(x,w,b) k = Relu(h) y = MatMul(k,v)"
CHANNELS = {"w": 0, "v": 1}


def arrays(dtype: str) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sizes = {"w": (40, 70), "b": (40,), "v": (40, 20)}
    return {n: (random.normal(size=size) / 4).astype(TYPES[dtype]) for n, size in sizes.items()}


def made(dtype: str, stored: dict[str, np.ndarray], path: Path) -> Path:
    word = {"float16": "float16", "float64": "double"}[dtype]
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 19]> g ({word}[3,70] x) => ({word}[3,20] y) {{ {PRODUCTS} }}'
    )
    for name, values in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(model, path)
    return path


def run(path: Path, dtype: str, level: str = LEVELS[0], rounded: Any = None) -> list[Any]:
    """Outputs for one input, which may be rounded first."""
    x = np.random.default_rng(5).normal(size=(3, 70)).astype(TYPES[dtype])
    return stock.outputs(path, {"x": x if rounded is None else rounded(x).astype(x.dtype)}, level)


def fixed(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values.astype(np.float32) * 16), -128, 127) / np.float32(16)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ["int8", "fixed8.4"])
def test_weights_are_those_of_the_format_in_the_type_of_the_layer(
    dtype: str, name: str, tmp_path: Path
) -> None:
    stored, target = arrays(dtype), tmp_path / "q.onnx"
    with Session(made(dtype, stored, tmp_path / "m.onnx")) as session:
        fact = session.quantize(QuantizeSpec(name, "float32", "float32"), output=str(target))
    onnx.checker.check_model(str(target), full_check=True)
    assert [(layer.weight, layer.input, layer.before) for layer in fact.layers] == [(name, dtype, dtype)] * 2
    assert fact.layers[0].bits_before.weight == {"float16": 16, "float64": 64}[dtype]
    rounded = dict(stored)
    for key, axis in CHANNELS.items():
        exact = stored[key].astype(np.float32)
        rounded[key] = (int8(exact, axis) if name == "int8" else fixed(exact)).astype(TYPES[dtype])
    expected = run(made(dtype, rounded, tmp_path / "r.onnx"), dtype)
    if (dtype, name) != ("float16", "int8"):  # where onnxruntime leaves out what rounds to float16
        plain = run(tmp_path / "r.onnx", dtype, "ORT_DISABLE_ALL")
        assert np.array_equal(run(target, dtype, "ORT_DISABLE_ALL")[0], plain[0])
    assert all(snr(expected, run(target, dtype, level)) > 65 for level in LEVELS)
    said = [snr([stored[key]], [rounded[key]]) for key in CHANNELS]
    assert [layer.weight_snr_db for layer in fact.layers] == pytest.approx(said, abs=1e-3)


@pytest.mark.parametrize("dtype", TYPES)
def test_inputs_are_rounded_between_casts_and_a_diff_has_one_row_a_layer(dtype: str, tmp_path: Path) -> None:
    stored, source, target = arrays(dtype), tmp_path / "m.onnx", tmp_path / "q.onnx"
    with Session(made(dtype, stored, source)) as session:
        session.quantize(
            QuantizeSpec("fixed8.4", "fixed8.4", "float32", sites=("h",)), output=str(target), report=False
        )
    expected = run(
        made(dtype, {**stored, "w": fixed(stored["w"]).astype(TYPES[dtype])}, tmp_path / "r.onnx"),
        *(dtype, "ORT_DISABLE_ALL", fixed),
    )
    assert np.array_equal(expected[0], run(target, dtype, "ORT_DISABLE_ALL")[0])
    rows = diff_files(source, target).nodes
    assert [(row.status, row.before) for row in rows] == [("quantized", "h")]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "spec",
    [
        {"weight": "int8", "input": "int8"},
        pytest.param({"weight": "mxfp8", "input": "mxfp8"}, marks=pytest.mark.slow),
        {"weight": "int4", "input": "float32", "block": 32},
        pytest.param({"weight": "ternary", "input": "float32"}, marks=pytest.mark.slow),
        pytest.param({"weight": "float8e4m3", "input": "float8e4m3"}, marks=pytest.mark.slow),
    ],
    ids=lambda spec: spec["weight"],
)
def test_every_family_runs_alike_at_every_level(dtype: str, spec: dict[str, Any], tmp_path: Path) -> None:
    source, target = made(dtype, arrays(dtype), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    with Session(source) as session:
        fact = session.quantize(QuantizeSpec(**spec), output=str(target))
    onnx.checker.check_model(str(target), full_check=True)
    found = run(target, dtype)
    assert snr(run(source, dtype), found) > 3
    assert fact.outputs[0].snr_db is not None
    bytes_flow = spec["input"] == "int8"  # a sum that float16 rounds otherwise may fall on another code
    least = 60 if not bytes_flow else 25 if adds_exactly() else 10
    assert all(snr(found, run(target, dtype, level)) > least for level in LEVELS[1:])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"form": "qoperator"}, "needs float32 inputs and outputs, not float16"),
        ({"weight": "bfloat16", "input": "bfloat16"}, "drops a Cast of float16 to bfloat16 and back"),
    ],
)
def test_what_the_runtime_would_not_compute_is_left(
    spec: dict[str, str], reason: str, tmp_path: Path
) -> None:
    with Session(made("float16", arrays("float16"), tmp_path / "m.onnx")) as session:
        with pytest.raises(ExplorerError, match=reason):
            session.quantize(QuantizeSpec(**spec))  # type: ignore[arg-type]
