"""Zeros that tiles multiply though the operator does not are said: phases with fewer taps, packed groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, numpy_helper

import explorer.cli.main as cli
from explorer import Session, TileSpec
from tests.engine.tiling.test_tile import weight

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any], tuple[str, ...]]] = {
    "phases of 1, 2, 2 and 4 taps": ((4, 6, 3, 3), {"strides": [2, 2]}, ()),
    "phases of one size": ((4, 6, 2, 2), {"strides": [2, 2]}, ()),
    "packed groups": ((4, 3, 2, 2), {"strides": [2, 2], "group": 2}, ("--grouped", "pack")),
}


@pytest.mark.parametrize("case", CASES)
def test_zeros_that_are_multiplied_are_said(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shape, attributes, options = CASES[case]
    info = [helper.make_tensor_value_info("x", 1, [1, 4, 5, 5]), helper.make_tensor_value_info("y", 1, None)]
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="up", **attributes)
    stored = [numpy_helper.from_array(weight(*shape), "w")]
    graph = helper.make_graph([node], "g", info[:1], info[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = str(tmp_path / "m.onnx")
    onnx.save(onnx.shape_inference.infer_shapes(model), source)
    with Session(source) as session:
        site = session.plan(TileSpec((16, 16, 16), grouped="pack")).sites[0]
        needed = session.info().totals.macs
    assert needed is not None
    assert site.zeros == site.batch * site.M * site.K * site.N - needed
    assert (site.zeros > 0) is (case != "phases of one size")
    cli.main(["tile", source, "--tile", "16", *options])
    assert ("multiply zeros in the kernels" in capsys.readouterr().out) is bool(site.zeros)
