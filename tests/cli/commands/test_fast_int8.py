"""`quantize --to int8`: what runs fast is written, said with its form, looked at in the runtime and timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnxruntime
import pytest

from explorer.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def made(*words: object, code: int = 0) -> str:
        assert main.main([*map(str, words), "--quiet"]) == code
        said = capsys.readouterr()
        return said.err if code == 2 else said.out

    return made


def test_a_replay_elsewhere_makes_the_same_file(
    sample: Callable[[str], str], tmp_path: Path, run: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that is told names formats and form: another processor changes nothing of it."""
    source, first, again = sample("lenet"), tmp_path / "a.onnx", tmp_path / "b.onnx"
    told = json.loads(run("quantize", source, "-o", first, "--to", "int8", "--no-report", "--json"))
    words = told["command"].split()
    assert "--form" in words
    monkeypatch.setattr("explorer.features.quantize.quantize.find_instruction_set", lambda: "neon_dotprod")
    words[words.index("-o") + 1] = str(again)
    run(*words[1:], "--no-report")
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ((), "--form"),
        (("--form", "qdq"), "--form qdq"),
        (("--granularity", "tensor"), "--granularity tensor"),
        (("--symmetric",), "--symmetric"),
    ],
)
def test_who_says_how_int8_is_written_gets_that(
    words: tuple[str, ...], form: str, sample: Callable[[str], str], run: Callable[..., str]
) -> None:
    """The table holds for int8 alone; the command that is told chooses nothing anew."""
    told = json.loads(run("quantize", sample("linear_32x64x128"), "--to", "int8", *words, "--json"))
    (layer,) = told["layers"]
    assert layer["input"] == ("int8" if words else "uint8")
    assert form in told["command"]
    saved = told["command"].split()[1:]
    del saved[saved.index("-o") : saved.index("-o") + 2]
    again = json.loads(run(*saved, "--json"))
    assert again["layers"] == told["layers"]


def test_the_runtime_is_looked_at(
    sample: Callable[[str], str], run: Callable[..., str], tmp_path: Path
) -> None:
    """How many layers run on integer kernels, and times unless no report is wanted."""
    source = sample("lenet")
    told = json.loads(run("quantize", source, "-o", tmp_path / "a.onnx", "--to", "int8", "--json"))
    kernels, times = told["kernels"], told["times"]
    assert (kernels["integer_layers"], kernels["layers"]) == (5, 5)
    assert {kernel["op"] for kernel in kernels["kernels"]} == {layer["kernel"] for layer in told["layers"]}
    assert kernels["runtime"] == f"onnxruntime {onnxruntime.__version__}"
    assert 0 < times["after_min"] <= times["after_median"]
    bare = run("quantize", source, "-o", tmp_path / "b.onnx", "--to", "int8", "--no-report")
    assert "5 of 5 layers run on integer kernels: 3 QGemm, 2 QLinearConv" in bare
    assert "shortest" not in bare
    floats = run("quantize", source, "-o", tmp_path / "c.onnx", "--to", "weight=int8", "--no-report")
    assert "0 of 5 layers run on integer kernels" in floats


def test_a_module_has_no_such_options(run: Callable[..., str]) -> None:
    """They are of files that onnxruntime runs."""
    for option in ("--unsaturated", "--bias-correction"):
        said = run("quantize", "sample_models/jsc.py:jsc_tiny", "--to", "int8", option, code=2)
        assert option in said
        assert "needs an ONNX file" in said


def test_settings_say_what_is_written(sample: Callable[[str], str], run: Callable[..., str]) -> None:
    """`settings --formats` has the formats and the form that `quantize` writes."""
    source = sample("lenet")
    told = json.loads(run("settings", source, "--formats", "--to", "int8", "--json"))
    made = json.loads(run("quantize", source, "--to", "int8", "--json"))
    (said,) = {layer["form"] for layer in told["layers"]}
    assert f"--form {said}" in made["command"]
    assert {layer["input"] for layer in told["layers"]} == {layer["input"] for layer in made["layers"]}
