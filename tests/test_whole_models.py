"""Whole models onto tiles: proven and compared by one command, and by keys alone in a real terminal.

The models are small ones of the kinds that the tiling is for: convolutions, an encoder and an LSTM of open
sizes, and a network of 8-bit integers in both of the ways in which they are written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from explorer.cli.main import main
from tests.terminal import explorer

Sample = Callable[[str], Path]


def quantized(source: Path, target: Path, how: str) -> Path:
    """A model in 8 bits, as onnxruntime makes it."""
    pytest.importorskip("onnxruntime.quantization")
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            value = onnx.load(source).graph.input[0]
            self.name, self.left = value.name, 2
            self.shape = [d.dim_value for d in value.type.tensor_type.shape.dim]

        def get_next(self) -> dict[str, np.ndarray] | None:
            self.left -= 1
            if self.left < 0:
                return None
            rng = np.random.default_rng(self.left)
            return {self.name: rng.standard_normal(self.shape).astype(np.float32)}

    quantize_static(source, target, Reader(), quant_format=getattr(QuantFormat, how))
    return target


WHOLE = {
    "lenet": {"Conv", "Gemm"},
    "mobilenet_small": {"Conv", "Gemm"},
    "bert_tiny": {"MatMul", "Gemm"},
    "lstm_tiny": {"LSTM", "MatMul"},
    "lenet in QDQ": {"Conv", "Gemm"},
    "lenet in QOperator": {"QLinearConv", "QGemm"},
}
"""Model, and where it is an 8-bit one how that is written; operators that are tiled in it."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model", WHOLE)
def test_one_command_makes_proves_and_compares(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    name, _, how = model.partition(" in ")
    source = quantized(sample(name), tmp_path / "int8.onnx", how) if how else sample(name)
    target = tmp_path / "tiled.onnx"
    assert main(["tile", str(source), "-o", str(target), "--tile", "16", "--grouped", "pack", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    plan, proof = made["plan"], made["verification"]
    assert plan["macs"] == plan["macs_total"], "something was left"
    assert proof["passed"]
    assert [site["name"] for site in proof["sites"]] == [site["name"] for site in plan["sites"]]
    assert all(site["passed"] and site["tiles"] for site in proof["sites"])
    sizes = [word for name, size in plan["dims"].items() for word in ("--dim", f"{name}={size}")]
    assert main(["diff", str(source), str(target), *sizes, "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["nodes"]
    assert {row["op_before"] for row in rows if row["status"] == "tiled"} == WHOLE[model]
    # what a packed or 8-bit operator brought along may change, and nothing may come or go by itself
    assert {row["status"] for row in rows} <= {"tiled", "removed"}
    assert main(["info", str(target), *sizes, "--json"]) == 0
    share = json.loads(capsys.readouterr().out)["tiled"]
    assert share["left"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "sites", "size"),
    [("lenet", 5, (80, 24)), ("bert_tiny", 25, (140, 40)), ("lstm_tiny", 5, (80, 24))],
)
def test_keys_alone_tile_prove_and_compare(
    sample: Sample, tmp_path: Path, model: str, sites: int, size: tuple[int, int]
) -> None:
    with explorer(sample(model), columns=size[0], rows=size[1]) as terminal:
        terminal.wait_for("coverage")
        terminal.press("t")
        terminal.wait_for(f"in {sites} matmuls")
        terminal.press("\r")
        proven = "Equal on evidence" if model == "lstm_tiny" else "Proven equal"
        terminal.wait_for(proven)
        terminal.wait_for(f"{sites} matmuls,")
        terminal.press("\r")
        terminal.wait_for("nothing else changed")
        # the last row of the diff is a product: into its tiles and back
        terminal.press("\x1b[F")
        terminal.settle()
        terminal.press("i")
        terminal.wait_for("Output")
        terminal.wait_for("Esc back")
        assert f"of {sites}" in terminal.text()
        terminal.press("escape")
        terminal.wait_for("Tab pane")
        terminal.press("u")
        terminal.wait_for(lambda: "not saved" not in terminal.text())
        terminal.press("r")
        terminal.wait_for("not saved")
        terminal.settle()
        terminal.press("H")
        terminal.wait_for("History")
        terminal.wait_for(proven.lower())
