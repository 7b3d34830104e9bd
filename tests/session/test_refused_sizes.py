"""Sizes of the user that a graph cannot run with are an error, unless partial; a file is shown as it is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from explorer.cli.main import main

STORED = {"w": np.ones((2, 3, 3, 3), np.float32), "m": np.ones((6, 4), np.float32), "s": np.array([4, 5])}


def build(path: Path, body: str, shape: str) -> str:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] x) => (float[] z) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for name, array in STORED.items():
        if name in body.partition("=")[2]:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(proto, path)
    return str(path)


CASES = [
    ("z = Conv(x,w)", "1,5,9,9", "5 channels, but the weight expects 3"),
    ("z = MatMul(x,m)", "2,8", "8 columns against 6 rows"),
    ("z = Mul(x,m)", "6,5", "5 and 4 of one axis do not broadcast"),
    ("z = Concat<axis = 0>(x,m)", "6,5", r"other sizes on axis 1: \[4, 5\]"),
    ("z = Reshape(x,s)", "3,7", "21 elements cannot take the shape"),
]


@pytest.mark.parametrize(("body", "sizes", "reason"), CASES)
@pytest.mark.parametrize("verb", ["info", "layers"])
def test_sizes_of_the_user_that_do_not_fit(
    verb: str, body: str, sizes: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = build(tmp_path / "m.onnx", body, ",".join("abcd"[: sizes.count(",") + 1]))
    words = [verb, path, "--input-shape", f"x:{sizes}"]
    assert main(words) == 2
    line = capsys.readouterr().err
    assert re.search(reason, line)
    assert "--partial" in line
    assert main([*words, "--partial"]) == 0


@pytest.mark.parametrize(("body", "sizes", "reason"), CASES)
def test_a_file_whose_own_sizes_do_not_fit_is_shown(
    body: str, sizes: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", build(tmp_path / "m.onnx", body, sizes)]) == 0
    assert "?" in capsys.readouterr().out
