"""`explorer info`: lines of totals that combine several figures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from explorer.cli.main import main


@pytest.mark.parametrize("name", ["lenet", "mobilenet_small", "three_inputs"])
def test_every_byte_once_is_the_sum_of_the_layers_reads_and_writes(
    sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path = str(sample(name))
    assert main(["layers", path, "--json"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out)["layers"] if not row["group"]]
    moved = sum(row["bytes_read"] + row["bytes_written"] for row in rows)
    assert main(["info", path]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Every byte once" in line)
    assert f" {moved:,} " in line


def test_every_byte_once_is_a_lower_bound_if_a_size_is_open(
    sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(sample("bert_tiny"))]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "Every byte once" in line)
    assert line.split()[3] == ">="


def test_memory_of_a_model_whose_sizes_are_all_open_says_what_is_unknown_and_no_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = "(float[rows,8] x) => (float[rows,4] z) <float[8,4] w> { y = MatMul(x, w)  z = Relu(y) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> g {body}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((8, 4), np.float32), "w"))
    onnx.save(model, tmp_path / "open.onnx")
    path = str(tmp_path / "open.onnx")
    assert main(["memory", path]) == 0
    out = capsys.readouterr().out
    assert "No timeline: no tensor has a known size" in out
    assert "live at step 0" not in out, "no step is the peak"
    assert not re.search(r"\b0 B\b", out)
    assert main(["memory", path, "--dim", "rows=2"]) == 0
    assert "96 B" in capsys.readouterr().out
    assert main(["info", path]) == 0
    assert "? marks them among the layers" in capsys.readouterr().out
