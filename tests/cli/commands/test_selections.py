"""`--layer` and `--site` take names, patterns of names, and the filter of `explorer layers`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import explorer
from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.facts import TileSpec

LENET = "sample_models/lenet.onnx"


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("op:Gemm params>1k", ["/fc1/Gemm", "/fc2/Gemm"]),
        ("op:Gemm OR kernel=5x5 out:[*,6,...]", ["/conv1/Conv", "/fc1/Gemm", "/fc2/Gemm", "/fc3/Gemm"]),
        ("M>=100 NOT name:conv2", ["/conv1/Conv"]),
        ("read>15k written<10k", ["/fc1/Gemm", "/fc2/Gemm"]),
        ("*fc*", ["/fc1/Gemm", "/fc2/Gemm", "/fc3/Gemm"]),
        ("/conv2/Conv", ["/conv2/Conv"]),
    ],
)
def test_a_tiling_takes_the_sites_that_a_filter_finds(
    said: str, meant: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [site["name"] for site in answer(capsys, "plan", LENET, "--site", said)["sites"]] == meant
    settings = answer(capsys, "settings", LENET, "--site", said)["sites"]
    assert [site["name"] for site in settings if site["on"]] == meant


def test_a_filter_that_finds_no_site_or_cannot_be_read_is_one_line() -> None:
    with explorer.Session(LENET) as session:
        with pytest.raises(Misuse, match="no matmul is found by 'op:Relu'"):
            session.plan(TileSpec(sites=("op:Relu",)))
        with pytest.raises(Misuse, match="did you mean 'macs'") as refused:
            session.plan(TileSpec(sites=("op:Gemm mac>1",)))
        assert refused.value.where == "filter, character 9"
        with pytest.raises(Misuse, match="no site is called 'fc'"):
            session.plan(TileSpec(sites=("fc",)))


def test_layers_of_a_module_are_found_too() -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 36, 5))
    with explorer.Session(net, inputs=torch.zeros(1, 3, 8, 8)) as session:
        _, found = session.tile_module(TileSpec(tile=(8, 8, 8), sites=("kernel=3x3",)))
        assert [site.name for site in found.plan.sites] == ["0"]
        weights = session.weights(["op:Linear params>1k"])
        assert {stats.tensor.name for stats in weights.tensors} == {"2.weight", "2.bias"}


def test_tensors_and_activations_are_those_of_the_layers_found(capsys: pytest.CaptureFixture[str]) -> None:
    said = "kernel=5x5 OR out:[*,10]"
    tensors = answer(capsys, "weights", LENET, "--layer", said)["tensors"]
    assert {tensor["name"].partition(".")[0] for tensor in tensors} == {"conv1", "conv2", "fc3"}
    outputs = answer(capsys, "activations", LENET, "--layer", said)["tensors"]
    assert [stats["layer"] for stats in outputs] == ["/conv1/Conv", "/conv2/Conv", "/fc3/Gemm"]
    assert answer(capsys, "layers", LENET, "--layer", "op:Gemm params<1k")["layer"]["path"] == "/fc3/Gemm"
    assert main(["weights", LENET, "--layer", "op:Relu"]) == 2
    assert "no stored tensor or layer matches 'op:Relu'" in capsys.readouterr().err
