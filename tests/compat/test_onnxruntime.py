"""onnxruntime at each of its optimization levels: the same outputs, and a time for the layers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.cli.main import main

LENET = Path(__file__).parents[2] / "sample_models" / "lenet.onnx"


@pytest.mark.parametrize("level", ["none", "basic", "extended", "all"])
def test_every_layer_has_a_time_at_each_level(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(LENET), "--optimize", level, "--steps", "3", "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["wall"]["count"] == 3
    timed = {row["path"] for row in document["layers"] if row["seconds"] and row["seconds"]["median"] > 0}
    assert {"/conv1/Conv", "/fc3/Gemm"} <= timed
