"""`explorer tile --quantize`: a format and tiles by one command, the tiles proved on the integers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer import Session, TileSpec
from explorer.cli import main
from explorer.facts.quantize import QuantizeSpec

Sample = Callable[[str], Path]


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8", "fixed8.4"])
def test_one_command_quantizes_and_tiles_and_proves_the_sums_exact(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], fmt: str
) -> None:
    output = tmp_path / "tiled.onnx"
    words = ["tile", str(sample("lenet")), "-o", str(output), "--quantize", fmt, "--tile", "16x16x16"]
    assert main.main([*words, "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {site["dtype"] for site in document["plan"]["sites"]} <= {"int8", "uint8"}
    assert "their sums are exact" in document["verification"]["verdict"]
    assert {layer["weight"] for layer in document["quantization"]["layers"]} == {fmt}
    assert document["quantization"]["output"] == ""  # the quantized file was the session's own
    first = output.read_bytes()
    again = shlex.split(document["command"])[1:]
    assert main.main([*again, "--force", "--quiet"]) == 0
    assert output.read_bytes() == first
    two = tmp_path / "two.onnx"
    words = ["quantize", str(sample("lenet")), "--to", fmt, "--form", "auto"]
    assert main.main([*words, "-o", str(tmp_path / "q.onnx"), "--quiet"]) == 0
    assert main.main(["tile", str(tmp_path / "q.onnx"), "-o", str(two), "--tile", "16x16x16", "--quiet"]) == 0
    assert two.read_bytes() == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quantize", "int9"], "--quantize: there is no number format 'int9'"),
        (["--calibrate", "some.npz"], "--calibrate: only quantization uses these samples"),
        (["--quantize", "int8", "--to", "torch"], "--quantize: modules are not quantized"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    output = tmp_path / "tiled.onnx"
    assert main.main(["tile", str(sample("lenet")), "-o", str(output), *words, "--quiet"]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert not output.exists()


def test_samples_that_ranges_come_from_are_not_written_over(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "samples.npy"
    data.write_bytes(b"samples")
    words = ["--quantize", "int8", "--calibrate", str(data), "-o", str(data), "--force", "--quiet"]
    assert main.main(["tile", str(sample("jsc_tiny")), *words]) == 2
    assert "choose another name" in capsys.readouterr().err
    assert data.read_bytes() == b"samples"


def test_no_command_is_told_that_would_tile_the_model_without_its_quantization(sample: Sample) -> None:
    """`--quantize` has formats and samples; scales of the whole tensor it cannot say."""
    with Session(sample("lenet")) as session:
        session.quantize(QuantizeSpec(granularity="tensor"), report=False)
        assert session.tile(TileSpec((16, 16, 16)), verify=False).command == ""
        session.go(0)
        session.quantize(QuantizeSpec(), report=False)
        assert "--quantize int8" in session.tile(TileSpec((16, 16, 16)), verify=False).command
