"""`explorer extract`: a part that runs alone gives the numbers that it gave in the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace

from explorer.cli.main import main
from explorer.engine.graph.model import Inline, Model
from explorer.engine.split import extract as engine

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")
BERT = [str(SAMPLES / "bert_tiny.onnx"), "--dim", "batch=1", "--dim", "sequence=8"]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["extract", *words]) == code
    out, err = capsys.readouterr()
    return out if code < 2 else err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *words, "--json"))
    return found


def names(ports: list[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in ports]


@pytest.mark.parametrize(
    ("words", "inputs", "outputs", "layers"),
    [
        (["--layer", "conv2"], ["/pool/MaxPool_output_0"], ["/conv2/Conv_output_0"], 1),
        (["--layer", "op:Conv"], ["input", "/pool/MaxPool_output_0"], None, 2),
        (["--from", "conv1", "--to", "conv2"], ["input"], ["/conv2/Conv_output_0"], 4),
        (["--to", "/pool/MaxPool_output_0"], ["input"], ["/pool/MaxPool_output_0"], 3),
        (["--from", "/Flatten_output_0"], ["/Flatten_output_0"], ["logits"], 5),
    ],
)
def test_a_part_has_the_values_of_the_whole_as_its_ends(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    inputs: list[str],
    outputs: list[str] | None,
    layers: int,
) -> None:
    fact = told(capsys, LENET, *words, "-o", str(tmp_path / "part.onnx"))
    assert names(fact["inputs"]) == inputs
    assert outputs is None or names(fact["outputs"]) == outputs
    assert (fact["layers"], fact["exact"]) == (layers, True)
    onnx.checker.check_model(onnx.load(tmp_path / "part.onnx"), full_check=True)


def test_a_block_of_an_encoder_runs_alone_at_other_lengths(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "block.onnx"
    fact = told(capsys, *BERT, "--layer", "encoder.layer.1", "-o", str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x, mask = (one.name for one in session.get_inputs())
    feeds = {x: np.ones((2, 5, 64), np.float32), mask: np.zeros((2, 1, 1, 5), np.float32)}
    assert session.run(None, feeds)[0].shape == (2, 5, 64)
    assert fact["params"] == 49984


def test_a_part_with_another_weight_is_not_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine.part_model

    def wrong(*given: Any) -> Model:
        part = made(*given)
        name, tensor = next(iter(part.graph.initializers.items()))
        data = bytearray(tensor.payload.view())  # type: ignore[union-attr]
        data[-1] ^= 1
        other = replace(tensor, payload=Inline(bytes(data)), record=None)
        return replace(part, graph=replace(part.graph, initializers={**part.graph.initializers, name: other}))

    monkeypatch.setattr(engine, "part_model", wrong)
    text = said(capsys, LENET, "--layer", "conv2", "-o", str(tmp_path / "part.onnx"), code=1)
    assert "OTHER NUMBERS" in text
    assert "nothing was written" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "which part is not said"),
        (["--layer", "conv9"], "no layer is called 'conv9'"),
        (["--from", "conv9"], "no layer or tensor is called 'conv9'"),
        (["--from", "fc3", "--to", "conv1"], "nothing leads from fc3 to conv1"),
        (["--layer", "fc1", "--to", "fc2"], "--layer or --from, --to"),
    ],
)
def test_what_is_no_part_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], line: str
) -> None:
    err = said(capsys, LENET, *words, "-o", str(tmp_path / "part.onnx"), code=2)
    assert line in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
