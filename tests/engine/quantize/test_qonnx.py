"""Files with QONNX's operators: the `qonnx` package itself reads and executes them to the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.engine.formats.onnx.writer import write
from explorer.engine.graph.model import Graph, Model, Value
from explorer.engine.quantize.functions import qonnx
from explorer.engine.quantize.functions.call import build_call
from tests.engine.quantize.one_call import LEVELS, model_of, run
from tests.engine.quantize.test_functions import SHAPE, fmt, values_of, wild

TYPES = {
    "int8": "SCALEDINT<8>",
    "int4": "SCALEDINT<4>",
    "uint16": "FLOAT32",
    "fixed8.4": "SCALEDINT<8>",
    "ufixed8.4": "SCALEDINT<8>",
    "fixed12.6": "SCALEDINT<12>",
    "fixed6.0": "INT6",
    "ternary": "SCALEDINT<2>",
    "binary": "FLOAT32",
    "floatE4M3": "FLOAT<4,3,7>",
    "floatE5M2": "FLOAT<5,2,15>",
    "floatE2M1": "FLOAT<2,1,1>",
    "floatE7M1": "FLOAT<7,1,63>",
    "floatE2M14": "FLOAT<2,14,1>",
    "float8e4m3": "FLOAT32",
    "float8e5m2": "FLOAT32",
    "float16": "FLOAT32",
}
"""What QONNX calls the numbers: float32 where it has no name, for zero points and floats with a scale."""


@pytest.mark.slow
def test_qonnx_executes_our_file_to_the_same_numbers(
    tmp_path: Path, in_qonnx: Callable[..., dict[str, Any]]
) -> None:
    values, finite = wild(), np.isfinite(wild())
    expected = {}
    for name in TYPES:
        one = fmt(name)
        per_tensor = one.fit_grid(values_of())
        grids = [per_tensor, one.fit_grid(values_of(), axis=0), one.fit_grid(values_of(), axis=1)]
        model = model_of([(one, grid, 1) for grid in grids], SHAPE, 17, ir_version=8)
        write(model, str(tmp_path / f"{name}.onnx"))
        expected[name] = run(tmp_path / f"{name}.onnx", values, LEVELS[-1])
    got = in_qonnx(tmp_path, {name: {"x": values} for name in TYPES})
    for name, outputs in expected.items():
        arrays, types = got[name]
        for at, ours in enumerate(outputs):
            assert np.array_equal(ours[finite], arrays[f"y{at}"][finite]), name
        nan = np.isnan(values)
        assert np.array_equal(outputs[0][nan], arrays["y0"][nan], equal_nan=True), name
        assert types["y0"] == TYPES[name]


@pytest.mark.slow
def test_the_bodies_mean_what_qonnx_means_by_any_attributes(
    tmp_path: Path, in_qonnx: Callable[..., dict[str, Any]]
) -> None:
    values = values_of(2)
    draw = np.random.default_rng(5)
    expected = {}
    for at in range(24):
        bits, signed, narrow = int(draw.integers(2, 17)), int(draw.integers(2)), int(draw.integers(2))
        operands = {
            "scale": np.asarray(draw.uniform(0.01, 2), np.float32),
            "zeropt": np.asarray(draw.integers(0, 5), np.float32),
            "bitwidth": np.asarray(bits, np.float32),
        }
        attributes = {"signed": signed, "narrow": narrow, "rounding_mode": "ROUND"}
        one = build_call(qonnx.DOMAIN, "IntQuant", "x", "y", operands, attributes)
        function = qonnx.build_int_quant(17)
        value = (Value("x", "float32", SHAPE),), (Value("y", "float32", SHAPE),)
        graph = Graph("g", one.nodes, *value, {tensor.name: tensor for tensor in one.tensors})
        model = Model(graph, {"": 17, qonnx.DOMAIN: 1}, 8, {function.key: function})
        write(model, str(tmp_path / f"m{at}.onnx"))
        (expected[f"m{at}"],) = run(tmp_path / f"m{at}.onnx", values, LEVELS[-1])
    got = in_qonnx(tmp_path, {name: {"x": values} for name in expected})
    for name, ours in expected.items():
        assert np.array_equal(ours, got[name][0]["y"]), name
