"""Bytes of weights are what hardware stores: numbers, shared exponents, scales, zero points but 0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from explorer import Session
from explorer.facts.quantize import QuantizeSpec

SHAPES = {"k": (6, 70, 3, 3), "c": (6,), "w": (150, 11), "b": (11,)}
"""Of a convolution and its bias, of a product and its bias: channels 6 and 11, depths 70 and 150."""

COUNTS = (6 * 70 * 9, 150 * 11)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bytes") / "m.onnx"
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,70,7,7] x) => (float[1,11] y)'
        " { a = Conv(x,k,c) f = Flatten(a) y = Gemm(f,w,b) }"
    )
    random = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        proto.graph.initializer.append(numpy_helper.from_array(random.random(shape, np.float32) - 0.3, name))
    onnx.save(proto, path)
    return str(path)


def exponents(bits: int) -> tuple[int, int]:
    """MX: a byte for each 32 numbers along the depth, of each place of the kernel and each channel."""
    return COUNTS[0] * bits // 8 + 6 * 9 * 3, -(-COUNTS[1] * bits // 8) + 11 * 5


def scaled(bits: int, each: int = 4) -> tuple[int, int]:
    """A scale for each channel."""
    return -(-COUNTS[0] * bits // 8) + 6 * each, -(-COUNTS[1] * bits // 8) + 11 * each


def plain(bits: int, more: int = 0) -> tuple[int, int]:
    """Nothing beside the numbers but so many bytes."""
    return -(-COUNTS[0] * bits // 8) + more, -(-COUNTS[1] * bits // 8) + more


CASES: dict[str, tuple[dict[str, Any], Callable[[], tuple[int, int]]]] = {
    "int8": ({}, lambda: scaled(8)),
    "int16": ({}, lambda: scaled(16)),
    "int8 in one scale": ({"granularity": "tensor"}, lambda: plain(8, 4)),
    "uint8 with zero points": ({"symmetric": False}, lambda: scaled(8, 5)),
    "int4": ({}, lambda: scaled(4)),
    "int4 in blocks": ({"block": 32}, lambda: (COUNTS[0] // 2 + 4 * 6 * 9 * 3, COUNTS[1] // 2 + 4 * 11 * 5)),
    "fixed8.4": ({}, lambda: plain(8)),
    "fixed6.3": ({}, lambda: plain(6)),
    "ufixed12.6": ({}, lambda: plain(12)),
    "float16": ({}, lambda: plain(16)),
    "bfloat16": ({}, lambda: plain(16)),
    "float8e4m3": ({}, lambda: scaled(8)),
    "floatE3M2": ({}, lambda: plain(6)),
    "mxint8": ({}, lambda: exponents(8)),
    "mxfp8": ({}, lambda: exponents(8)),
    "mxfp6": ({}, lambda: exponents(6)),
    "mxfp4": ({}, lambda: exponents(4)),
    "binary": ({}, lambda: scaled(1)),
    "ternary": ({}, lambda: scaled(2)),
    "binary has no blocks": ({"block": 32}, lambda: scaled(1)),
    "ternary has no blocks": ({"block": 32}, lambda: scaled(2)),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("inputs", ["float32", "the same"])
def test_bytes_of_weights(name: str, inputs: str, source: str, tmp_path: Path) -> None:
    """By layer and in all; a bias is 4 bytes a channel, in float32 or in the integers of the products."""
    spec, expected = CASES[name]
    fmt = name.partition(" ")[0]
    given = fmt if inputs == "the same" and fmt not in ("binary", "ternary") else "float32"
    asked = QuantizeSpec(**{"weight": fmt, "input": given, **spec})
    with Session(source) as session:
        found = session.quantize(asked, output=str(tmp_path / "q.onnx"), report=False)
    assert tuple(layer.weight_bytes for layer in found.layers) == expected()
    assert found.totals.weight_bytes.before == 4 * (sum(COUNTS) + 17)
    assert found.totals.weight_bytes.after == sum(expected()) + 4 * 17


def test_a_weight_that_others_read_too_is_stored_twice(tmp_path: Path) -> None:
    """An output, a node that is no layer: they have it as it was, where that is no output of all."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3,8] x) => (float[3,8] y, float[8,8] v) {'
        " a = MatMul(x,v) t = Transpose(w) b = MatMul(a,t) c = Sin(u) d = MatMul(b,u) y = MatMul(d,c) }"
    )
    for name in "vwu":
        proto.graph.initializer.append(numpy_helper.from_array(np.eye(8, dtype=np.float32), name))
    onnx.save(proto, tmp_path / "m.onnx")
    with Session(str(tmp_path / "m.onnx")) as session:
        found = session.quantize_choice(QuantizeSpec(input="float32"))
    coded = 8 * 8 + 4 * 8
    assert found.totals.weight_bytes.before == 3 * 4 * 64
    assert found.totals.weight_bytes.after == 3 * coded + 2 * 4 * 64
