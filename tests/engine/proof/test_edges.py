"""Verdicts on models that round on the way: where every part is proved, whole outputs may differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from explorer.base.exit_codes import DONE, IF_PROVED
from explorer.engine.graph.model import Model
from explorer.facts import TileSpec
from explorer.report.layout import Page
from explorer.report.present.compare.verify import verification
from tests.engine.proof import tiled as t

node = helper.make_node
SPEC = TileSpec((64, 32, 64), form="scan")


def steep(path: Path, ends: list[Any], **how: Any) -> Model:
    """A product of which every element is put on the steps of a stair, close beside each other."""
    weights = {"w": t.weight(512, 64), "many": np.float32(500.0)}
    nodes = [node("MatMul", ["x", "w"], ["m"], name="fc"), node("Mul", ["m", "many"], ["s"]), *ends]
    return t.model(path / "a.onnx", nodes, {"x": (256, 512)}, weights, **how)


def between_quantizers(path: Path) -> Model:
    """The same, of integers: the sums are exact, and what multiplies them by the scales rounds."""
    rng = np.random.default_rng(3)
    weights = {
        "xs": np.float32(0.0213),
        "ws": np.float32(0.00177),
        "zero": np.int8(0),
        "w": rng.integers(-127, 128, (512, 64)).astype(np.int8),
        "b": t.weight(64, seed=2),
        "many": np.float32(5e3),
    }
    nodes = [
        node("QuantizeLinear", ["x", "xs", "zero"], ["xq"]),
        node("DequantizeLinear", ["xq", "xs", "zero"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "zero"], ["wd"]),
        node("Gemm", ["xd", "wd", "b"], ["m"], name="fc"),
        node("Mul", ["m", "many"], ["s"]),
        node("Round", ["s"], ["y"]),
    ]
    return t.model(path / "a.onnx", nodes, {"x": (256, 512)}, weights)


@pytest.mark.parametrize("integers", [False, True])
def test_where_a_rounding_becomes_a_step_the_parts_are_equal_and_the_outputs_are_not(
    tmp_path: Path, integers: bool
) -> None:
    source = between_quantizers(tmp_path) if integers else steep(tmp_path, [node("Round", ["s"], ["y"])])
    found = t.prove(source, SPEC)
    gap = found.outputs[0].max_abs
    assert gap is not None
    assert gap >= 1, "or the test shows nothing"
    part = "integer sum is proved exact" if integers else "part is proved equal"
    assert found.verdict.startswith(f"every {part}, yet the outputs differ by up to {gap:.1e} (")
    assert "within rounding" not in found.verdict
    assert found.outputs[0].stepped
    assert found.passed
    assert found.verdict_kind == "parts"
    assert IF_PROVED[found.verdict_kind] == DONE
    text = "".join(Page(verification(found), fit=False).plain())
    assert f"yet the outputs differ by up to {gap:.1e}" in text
    assert "over a threshold" in text
    assert "equal within rounding" not in text


def test_whole_numbers_that_differ_are_told(tmp_path: Path) -> None:
    ends = [node("Round", ["s"], ["r"]), node("Cast", ["r"], ["y"], to=TensorProto.INT64)]
    found = t.prove(steep(tmp_path, ends, dtypes={"y": TensorProto.INT64}), SPEC)
    assert found.verdict_kind == "parts"
    assert found.verdict.startswith("every part is proved equal, yet of output 'y' ")
    assert "of 16,384 elements differ" in found.verdict


def test_without_a_step_on_the_way_it_is_rounding(tmp_path: Path) -> None:
    found = t.prove(steep(tmp_path, [node("Neg", ["s"], ["y"])]), SPEC)
    assert found.verdict_kind == "equal"
    assert found.verdict.startswith("equal within rounding: ")
