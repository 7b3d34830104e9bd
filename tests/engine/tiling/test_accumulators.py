"""The accumulator of integer tiles: what their sums need is reached by an input, and by none more."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from explorer import Session
from explorer.cli.main import main
from explorer.facts import TileSpec
from explorer.facts.quantize import Accumulator
from tests.engine.tiling.test_quantized_products import both, quantized


def needed(where: str) -> Accumulator:
    with Session(where) as session:
        (site,) = session.plan(TileSpec((4, 3, 5), accumulator=32, grouped="pack")).sites
    assert site.sums is not None
    return site.sums


def bits(low: int, high: int) -> int:
    return next(n for n in range(1, 65) if -(1 << (n - 1)) <= low and high < 1 << (n - 1))


def sums_of(codes: np.ndarray, ends: tuple[int, int], bias: np.ndarray) -> tuple[int, int]:
    """The least and the largest sum of (depth, columns), one product after the other."""
    low, high = np.zeros(codes.shape[1], np.int64), np.zeros(codes.shape[1], np.int64)
    for row in codes.astype(np.int64):
        products = np.stack([row * end for end in ends])
        low, high = low + products.min(0), high + products.max(0)
    return min(0, int((low + bias).min())), max(0, int((high + bias).max()))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(
    "name", ["Gemm without its bias", "Gemm with alpha = beta", "Einsum", "ConvTranspose in groups"]
)
def test_the_bits_that_are_told_hold_the_largest_sum_and_no_fewer_do(
    tmp_path: Path, name: str, kind: str
) -> None:
    where = quantized(tmp_path, name, both(kind))
    graph = onnx.load(where).graph
    stored = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    dequantized = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear"}
    (layer,) = (n for n in graph.node if n.op_type in name)
    x, w = (dequantized[value] for value in layer.input[:2])
    a, b = int(stored[x.input[2]]), int(stored[w.input[2]].reshape(-1)[0])
    codes = stored[w.input[0]].astype(np.int64)
    bias = np.zeros((), np.int64)
    if "without" not in name and len(layer.input) > 2:
        bias = stored[dequantized[layer.input[2]].input[0]].astype(np.int64)
    if "ConvTranspose" in name:
        # of a stride of 2 each output meets some of the taps: even and odd ones apart on both axes
        shapes = [codes[g * 2 : g * 2 + 2, :, p::2, q::2] for g in (0, 1) for p in (0, 1) for q in (0, 1)]
        parts = [
            (v.transpose(0, 2, 3, 1).reshape(-1, 3), bias[3 * (i // 4) :][:3]) for i, v in enumerate(shapes)
        ]
    else:
        parts = [(codes, bias)]
    limits = np.iinfo(kind)
    found = []
    for matrix, added in parts:
        found.append(sums_of(matrix, (limits.min, limits.max), np.zeros((), np.int64)))
        found.append(sums_of(matrix - b, (limits.min - a, limits.max - a), added))
    sums = needed(where)
    assert sums.bits == max(bits(low, high) for low, high in found)
    assert sums.reach in {end for pair in found for end in pair}
    assert sums.bits <= sums.bits_any + 1


def test_a_layer_that_the_accumulator_is_too_narrow_for_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = quantized(tmp_path, "Gemm without its bias", both("int8"))
    enough = needed(where).bits
    narrow = str(enough - 1)
    assert main(["tile", where, "--accumulator", narrow, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["accumulator_bits"] == enough - 1
    assert plan["overflows"] == ["fc"]
    assert plan["sites"][0]["sums"]["bits"] == enough
    assert plan["sites"][0]["sums"]["depth"] == 13
    assert main(["tile", where, "--accumulator", narrow]) == 0
    assert f"overflows {narrow} bits" in capsys.readouterr().out
    config = tmp_path / "npu.toml"
    config.write_text(f"[tile]\naccumulator = {enough}\n")
    assert main(["tile", where, "--config", str(config)]) == 0
    assert f"an accumulator of {enough} bits holds every sum" in capsys.readouterr().out


def test_the_command_of_a_tiling_says_the_accumulator(tmp_path: Path) -> None:
    where = quantized(tmp_path, "Einsum", both("int8"))
    spec = TileSpec(accumulator=20)
    with Session(where) as session:
        assert "--accumulator 20" in session.command(spec)
        assert "--accumulator" not in session.command(replace(spec, accumulator=0))


def test_floats_need_no_accumulator_of_integers(tmp_path: Path) -> None:
    where = quantized(tmp_path, "Einsum", replace(both("int8"), input="float32"))
    with Session(where) as session:
        plan = session.plan(TileSpec(accumulator=8))
    assert plan.sites[0].sums is None
    assert not plan.overflows


def test_fixed_point_needs_what_its_bits_need(tmp_path: Path) -> None:
    """Of 12 bits, in whatever type they are stored."""
    where = quantized(tmp_path, "Gemm without its bias", both("fixed12.6"))
    graph = onnx.load(where).graph
    weight = next(numpy_helper.to_array(one) for one in graph.initializer if one.name == "w")
    codes = np.clip(np.rint(weight.astype(np.float64) * 64), -2048, 2047).astype(np.int64)
    low, high = sums_of(codes, (-2048, 2047), np.zeros((), np.int64))
    sums = needed(where)
    assert sums.bits == bits(low, high)
    assert sums.reach in (low, high)
    assert sums.bits_any == bits(0, 13 * 2048 * 2048)
