"""The sample models: looked at, tiled, and compared with their tiled form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.cli.main import main

SAMPLES = Path(__file__).parents[2] / "sample_models"


def dims(path: Path) -> list[str]:
    """Sizes of the dimensions that a model leaves open."""
    import onnx

    names = {
        d.dim_param
        for value in onnx.load(path).graph.input
        for d in value.type.tensor_type.shape.dim
        if d.dim_param
    }
    sizes = {"batch": 2, "sequence": 5}
    return [word for name in sorted(names) for word in ("--dim", f"{name}={sizes.get(name, 2)}")]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict]:
    """The JSON that a command prints; the command must end well."""

    def call(*words: object) -> dict:
        code = main([*map(str, words), "--json", "--quiet"])
        text = capsys.readouterr()
        assert code == 0, text.err
        return dict(json.loads(text.out))

    return call


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.onnx")), ids=lambda path: path.stem)
def test_a_sample_is_counted_tiled_and_the_same_afterwards(
    path: Path, answer: Callable[..., dict], tmp_path: Path
) -> None:
    sizes, tiled = dims(path), tmp_path / "tiled.onnx"
    assert answer("info", path, *sizes)["totals"]["macs"] > 0
    assert answer("layers", path, *sizes)["layers"]
    assert answer("tile", path, "--tile", "64", "-o", tiled, *sizes)["verification"]["passed"] is True
    assert answer("verify", path, tiled, *sizes)["passed"] is True
