"""Whole models are mapped on three machines, emitted as C code, and proved in numbers and bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.cli import main
from explorer.engine.mapping.proof import find_compiler

Sample = Callable[[str], Path]

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")

MODELS = ("alexnet", "resnet50", "bert_tiny", "mobilenet_v2 in int8")
"""Networks of torchvision, one of them in 8 bits, and an encoder with open sizes."""
MACHINES = ("gemmini", "edge-npu", "zen4-core")
"""Machines that hold tiles of float32; the FIFO of tpu-v1 holds only tiles of 8 bits."""


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("model", MODELS)
def test_a_whole_model_is_mapped_emitted_and_proved(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, machine: str
) -> None:
    def ask(*words: str | Path) -> dict:
        assert main.main([*map(str, words), "--json"]) == 0, capsys.readouterr().err
        return json.loads(capsys.readouterr().out)

    name, _, form = model.partition(" in ")
    sizes: list[str | Path] = []
    source: str | Path = name
    if name == "bert_tiny":
        source = sample(name)
        sizes = ["--dim", "batch=1", "--dim", "sequence=24"]
    else:
        pytest.importorskip("torchvision")
    if form:
        source = tmp_path / "int8.onnx"
        ask("quantize", name, "-o", source, "--to", form)
    mapping, folder = tmp_path / "mapping.toml", tmp_path / "code"
    mapped = ask("map", source, "--machine", machine, "-o", mapping, *sizes)
    proof = ask("emit", source, "--machine", machine, "--mapping", mapping, "-o", folder, *sizes)
    assert proof["verdict_kind"] in ("equal", "evidence"), proof["verdict"]
    assert [site["name"] for site in proof["sites"]] == [site["name"] for site in mapped["sites"]]
    for site in proof["sites"]:
        assert site["counters"] > 0
        assert site["differences"] == [], site["name"]
        assert site["values"] == ["original", "dense"], site["name"]
        assert site["restored"], site["name"]
        assert site["exact"] or site["error"] <= site["limit"]
    # integers are compared bit for bit
    assert any(site["exact"] for site in proof["sites"]) is (form == "int8")
    again = ask("verify", source, folder, "--seed", "3", *sizes)
    assert again["verdict_kind"] == proof["verdict_kind"]
