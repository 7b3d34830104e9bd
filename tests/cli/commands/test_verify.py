"""`explorer verify`: several sizes, inputs from a file, models that may differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session, TileSpec, verify_files
from explorer.cli import main
from explorer.facts.verification import Tolerance


def linear(path: Path, w: np.ndarray, *, above: int | None = None, columns: int = 4) -> Path:
    """y = x W for any number of rows; above some number of them one is added."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Shape", ["x"], ["length"], start=0, end=1),
        helper.make_node("Greater", ["length", "limit"], ["many"]),
        helper.make_node("Cast", ["many"], ["extra"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["h", "extra"], ["y"]),
    ]
    if above is None:
        nodes[1:] = [helper.make_node("Identity", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["seq", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["seq", columns])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array([above or 0]), "limit")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two models that are the same up to ten rows."""
    return linear(tmp_path / "a.onnx", W), linear(tmp_path / "b.onnx", W, above=10)


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert main.main([*map(str, words), "--quiet"]) == code
    said = capsys.readouterr()
    return " ".join((said.out or said.err).split())


def test_a_module_of_another_input_shape_gets_the_option_that_sets_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text("from torch import nn\n\ndef net():\n    return nn.Conv2d(3, 4, 3)\n")
    net, file = f"{tmp_path / 'net.py'}:net", str(tmp_path / "small.onnx")
    run(capsys, "convert", net, "-o", file, "--input-shape", "input:1,3,8,8", "--no-verify")
    for pair in ((net, file), (file, net)):
        message = run(capsys, "verify", *pair, code=2)
        assert message.startswith(f"explorer: {pair[1]}: ")
        assert message.endswith("; add --input-shape input:1,3,8,8")
    run(capsys, "verify", net, file, "--input-shape", "input:1,3,8,8")


def test_models_that_differ_at_some_sizes_are_different(
    pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "DIFFERENT" in run(capsys, "verify", *pair, code=1)
    # both sizes lie below the limit that only one of the two models holds
    assert "sizes: seq=5; seq=9" in run(capsys, "verify", *pair, "--dim", "seq=5,9", code=3)
    found = json.loads(run(capsys, "verify", *pair, "--dim", "seq=5,16", "--json", code=1))
    assert found["sizes"] == [{"seq": 5}, {"seq": 16}]
    assert "give one" in run(capsys, "info", pair[0], "--dim", "seq=5,16", code=2)
    with Session(pair[0]) as session:
        session.tile(TileSpec((4, 4, 4)))
        assert {"seq": 7} in session.verify(dims={"seq": (7, 30)}).sizes


def test_inputs_from_a_file_take_the_place_of_random_ones(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rows, code in ((5, 3), (20, 1)):
        file = tmp_path / f"{rows}.npz"
        np.savez(file, x=np.ones((rows, 4), np.float32))
        assert f"x: float32 [{rows}, 4], from {file}" in run(
            capsys, "verify", *pair, "--input", file, code=code
        )
        made = tmp_path / f"tiled{rows}.onnx"
        tile = ("tile", pair[0], "--tile", "4", "-o", made, "--input", file)
        assert f"x: float32 [{rows}, 4], from {file}" in run(capsys, *tile)
    for arrays in ({"z": np.ones(3)}, {"x": np.ones((5, 4))}, {"x": np.ones((5, 3), np.float32)}):
        np.savez(tmp_path / "bad.npz", **arrays)
        said = run(capsys, "verify", *pair, "--input", tmp_path / "bad.npz", code=2)
        assert str(tmp_path / "bad.npz") in said
    assert "--dim" in run(capsys, "verify", *pair, "--input", file, "--dim", "seq=5", code=2)


@pytest.mark.parametrize(
    ("limits", "code", "said"),
    [
        (("--snr", "30"), 0, "a signal to noise ratio of at least 30 dB"),
        (("--snr", "90"), 1, "signal to noise "),
        (("--atol", "0.1", "--rtol", "0.01"), 0, "differences of at most 0.1 + 0.01 of the value"),
        (("--atol", "1e-9"), 1, "of the limit; allowed: differences of at most 1e-09"),
        (("--atol", "0.1", "--snr", "90"), 1, "signal to noise "),
        (("--snr", "x"), 2, "--snr: 'x' is not a number of 0 or more"),
        (("--rtol", "-1"), 2, "'-1' is not a number of 0 or more"),
    ],
)
def test_models_that_may_differ_are_held_to_what_is_asked(
    limits: tuple[str, ...], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = np.random.default_rng(1).standard_normal(W.shape)
    a = linear(tmp_path / "a.onnx", W)
    b = linear(tmp_path / "b.onnx", (W * (1 + 1e-3 * noise)).astype(np.float32))
    assert said in run(capsys, "verify", a, b, *limits, code=code)


def test_a_tolerance_does_not_pass_what_is_worse_at_one_size_or_is_nan(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    wide = Tolerance(atol=0.5)
    assert not verify_files(*pair, tolerance=wide).passed
    assert verify_files(*pair, tolerance=wide, dims={"seq": 5}).passed
    broken = linear(tmp_path / "nan.onnx", W * np.where(np.eye(4) > 0, np.nan, 1).astype(np.float32))
    found = verify_files(pair[0], broken, tolerance=Tolerance(atol=1e9))
    assert found.verdict_kind == "different"
    assert "NaN or Inf in one model only" in found.verdict
    still = linear(tmp_path / "zero.onnx", np.zeros_like(W))
    assert verify_files(still, still, tolerance=wide).verdict_kind == "unproven"
