"""`explorer make`: the model of an exercise from a line of text, the same bytes every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from explorer.cli.main import main

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["make", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def run(path: Path, **feeds: Any) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


@pytest.mark.parametrize(
    ("text", "macs", "params", "shape"),
    [
        ("linear:32x64x128", 32 * 64 * 128, 64 * 128, [32, 128]),
        ("linear:32x64x128:bias", 32 * 64 * 128, 64 * 128 + 128, [32, 128]),
        ("conv:3x32x32:16x3x3:stride=2,pad=1,bias", 16 * 16 * 16 * 27, 16 * 27 + 16, [1, 16, 16, 16]),
        ("conv:8x9x9:8x3x3:groups=8", 8 * 7 * 7 * 9, 8 * 9, [1, 8, 7, 7]),
        (
            "attention:2x16x64:heads=4",
            2 * (4 * 16 * 64 * 64 + 2 * 16 * 16 * 64),
            4 * (64 * 64 + 64),
            [2, 16, 64],
        ),
        ("mlp:bn16-relu-16x40-relu-40x5-softmax", 16 * 40 + 40 * 5, 64 + 16 * 40 + 40 + 40 * 5 + 5, [1, 5]),
    ],
)
def test_what_is_made_has_the_figures_of_its_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, macs: int, params: int, shape: list[int]
) -> None:
    fact = json.loads(said(capsys, text, "-o", str(tmp_path / "m.onnx"), "--json"))
    assert (fact["macs"], fact["params"]) == (macs, params)
    assert fact["outputs"][0]["shape"] == shape


def test_the_same_line_makes_the_same_bytes_and_another_seed_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        said(capsys, "mlp:16x5", "-o", str(tmp_path / f"{name}.onnx"), "--seed", seed)
    a, b, c = ((tmp_path / f"{name}.onnx").read_bytes() for name in "abc")
    assert a == b != c


def test_the_jet_classifier_of_the_samples_comes_from_a_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = {
        "jsc_tiny": "mlp:bn16-relu-16x5-relu",
        "jsc_tiny_x10": "mlp:bn16-relu-16x40-bn40-relu-40x25-bn25-relu-25x5",
    }
    for name, text in lines.items():
        said(capsys, text, "--name", name, "-o", str(tmp_path / f"{name}.onnx"))
        made, kept = onnx.load(tmp_path / f"{name}.onnx"), onnx.load(SAMPLES / f"{name}.onnx")
        assert made.graph == kept.graph


def test_attention_is_what_its_formula_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    said(capsys, "attention:1x6x8:heads=2,causal", "-o", str(path))
    stored = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(path).graph.initializer}
    x = np.random.default_rng(0).standard_normal((1, 6, 8)).astype(np.float32)

    def dense(name: str, value: Any) -> Any:
        return value @ stored[f"{name}.weight"] + stored[f"{name}.bias"]

    heads = [dense(name, x).reshape(6, 2, 4).transpose(1, 0, 2) for name in ("query", "key", "value")]
    scores = heads[0] @ heads[1].transpose(0, 2, 1) / 2 + np.triu(np.full((6, 6), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ heads[2]
    wanted = dense("out", mixed.transpose(1, 0, 2).reshape(1, 6, 8))
    np.testing.assert_allclose(run(path, x=x), wanted, atol=1e-5)


def test_weights_may_be_inputs_and_a_batch_open(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    said(capsys, "mlp:4x3", "-o", str(path), "--weight-inputs", "--batch", "batch")
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(size).astype(np.float32) for size in ((7, 4), (3, 4), (3,)))
    given = {"x": x, "layers.0.weight": w, "layers.0.bias": b}
    np.testing.assert_allclose(run(path, **given), x @ w.T + b, rtol=1e-5)
    for text in ("mlp:bn4-4x3", "attention:1x6x8:heads=2,causal", "conv:3x8x8:4x3x3:bias", "linear:2x3x4"):
        fact = json.loads(said(capsys, text, "-o", str(path), "--weight-inputs", "--force", "--json"))
        assert (fact["params"], onnx.load(path).graph.initializer[:]) == (0, []), text


def test_weights_that_are_inputs_may_be_larger_than_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line, path = "linear:32x65536x65536:bias", str(tmp_path / "m.onnx")
    assert main(["make", line, "-o", path]) == 2
    assert "16.00 GiB; no ONNX file holds 2 GiB; --weight-inputs stores none" in capsys.readouterr().err
    fact = json.loads(said(capsys, line, "-o", path, "--weight-inputs", "--json"))
    assert fact["macs"] == 32 * 65536 * 65536


def test_a_causal_mask_is_no_weight(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fact = json.loads(said(capsys, "attention:1x16x8:causal", "-o", str(tmp_path / "m.onnx"), "--json"))
    assert fact["params"] == 4 * (8 * 8 + 8)


def test_an_option_that_would_do_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["linear:2x3x4", "-o", str(tmp_path / "m.onnx"), "--batch", "8"]
    assert "set the number of rows" in said(capsys, *words, code=2)
    assert "the ending .txt is not possible here; possible endings: .onnx (ONNX)" in said(
        capsys, words[0], "-o", "m.txt", code=2
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lineer:1x2x3", "did you mean 'linear'"),
        ("linear:1x2", "is not 3 sizes"),
        ("linear:0x2x3", "is not 3 sizes"),
        ("linear:1x2x3:bais", "there is no option 'bais'"),
        ("linear:1x99999x99999", "its weights would take"),
        ("conv:3x8x8:4x3x3:groups=2", "groups do not divide"),
        ("conv:3x8x8:4x9x9", "the kernel is larger than the image"),
        ("attention:1x4x6:heads=4", "heads do not divide"),
        ("mlp:16x4-5x3", "'5x3' takes 5 features, and gets 4"),
        ("mlp:relu", "no layer sets the number of features"),
        ("mlp:16x4-gelu", "'gelu' is not a layer"),
        ("mlp:bn0", "'bn0' is not a layer"),
        ("mlp:4x0", "'4x0' is not a layer"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, line: str
) -> None:
    err = said(capsys, text, "-o", str(tmp_path / "m.onnx"), code=2)
    assert line in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
