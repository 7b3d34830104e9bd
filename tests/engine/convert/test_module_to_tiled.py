"""A module whose layers are tiled: what is replaced, what stays, what is proved, what is written."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Misuse, Session, TileSpec  # noqa: E402
from explorer.base.errors import ExplorerError  # noqa: E402
from explorer.cli import main  # noqa: E402
from explorer.engine.proof import torch_layers  # noqa: E402
from explorer.engine.tiling.torch import products  # noqa: E402
from explorer.engine.tiling.torch.modules import TiledConv2d, TiledLinear  # noqa: E402
from explorer.engine.tiling.torch.replace import record_rows_of_calls, tile_module  # noqa: E402
from explorer.facts.tiling import TileRule  # noqa: E402

SPEC = TileSpec(tile=(4, 8, 4))


class Net(nn.Module):
    """A convolution, a grouped one, tied layers, one that is called twice, and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.grouped = nn.Conv2d(6, 6, 3, groups=3)
        self.fc = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.fc.weight
        self.idle = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.grouped(torch.relu(self.conv(x))).mean((2, 3))
        return self.tied(self.fc(self.fc(y)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
def test_layers_are_replaced_and_the_callers_module_stays_as_it_is(net: Net) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with Session(net, inputs=(X,)) as session:
        tiled, result = session.tile_module(SPEC)
    assert type(tiled.conv) is TiledConv2d
    assert type(tiled.fc) is TiledLinear
    assert type(net.fc) is nn.Linear
    assert net.training
    assert tiled.training
    assert tiled.fc.tile == (4, 8, 4)
    assert tiled.tied.weight is tiled.fc.weight
    assert tiled.fc.weight is not net.fc.weight
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    net.load_state_dict(tiled.state_dict(), strict=True)
    assert torch.allclose(tiled(X), net(X), atol=1e-5)
    assert result.verification is not None
    assert result.verification.passed
    assert [site.name for site in result.verification.sites] == ["conv", "fc", "tied"]
    assert result.output == ""


def test_the_plan_counts_calls_and_says_what_is_left(net: Net) -> None:
    with Session(net, inputs=(X,)) as session:
        plan = session.plan_module(SPEC)
    sites = {site.name: site for site in plan.sites}
    assert (sites["conv"].M, sites["conv"].K, sites["conv"].N) == (128, 27, 6)
    assert sites["conv"].products == 32 * 4 * 2
    assert sites["fc"].calls == 2
    assert plan.macs == 128 * 27 * 6 + 3 * 2 * 6 * 6
    assert {skip.name: skip.reason for skip in plan.skipped} == {
        "grouped": "grouped: left for the vector unit",
        "idle": "it does not run with these inputs",
    }
    assert plan.macs_total == plan.macs + 2 * 36 * 6 * 18


def test_hooks_stay_and_run(net: Net) -> None:
    seen: list[str] = []
    net.fc.register_forward_hook(lambda *_: seen.append("fc"))
    tiled, _ = tile_module(net, SPEC, {"fc": [2]})
    seen.clear()
    tiled.fc(torch.zeros(1, 6))
    assert seen == ["fc"]


def test_globs_choose_and_what_matches_nothing_is_said(net: Net) -> None:
    calls = record_rows_of_calls(net, (X,), {})
    tiled, plan = tile_module(net, TileSpec(tile=(4, 4, 4), sites=("f*",)), calls)
    assert [site.name for site in plan.sites] == ["fc"]
    assert type(tiled.conv) is nn.Conv2d
    with pytest.raises(Misuse, match="no layer is called 'cnov'; did you mean 'conv'"):
        tile_module(net, TileSpec(sites=("cnov",)), calls)
    with pytest.raises(Misuse, match=r"'grouped' .* cannot be tiled: grouped"):
        tile_module(net, TileSpec(sites=("grouped",)), calls)
    with pytest.raises(Misuse, match="--form"):
        tile_module(net, TileSpec(form="lab"), calls)


def test_rules_hold_for_layers_as_for_nodes(net: Net) -> None:
    rules = (TileRule(op="Conv2d", on=False, origin="npu.toml:3"), TileRule(site="fc", tile=(2, 2, 2)))
    tiled, plan = tile_module(net, TileSpec(tile=(4, 8, 4), rules=rules), record_rows_of_calls(net, (X,), {}))
    assert type(tiled.conv) is nn.Conv2d
    assert tiled.fc.tile == (2, 2, 2)
    assert tiled.tied.tile == (4, 8, 4)
    assert any(skip.name == "conv" and "switched off" in skip.reason for skip in plan.skipped)


def test_a_transformer_goes_through_its_tiled_layers() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 5, 16)
    with torch.no_grad():
        tiled, plan = tile_module(model, SPEC, record_rows_of_calls(model, (x,), {}))
        seen: list[int] = []
        tiled.layers[0].linear1.forward = lambda y: (
            seen.append(1)
            or TiledLinear.forward(  # type: ignore[func-returns-value]
                tiled.layers[0].linear1, y
            )
        )
        assert torch.allclose(tiled(x), model(x), atol=1e-5)
    assert seen  # torch's fused operator would have read its weight and never called it
    assert {skip.op for skip in plan.skipped} == {"MultiheadAttention"}


def faulty(monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    real = products._sum_products
    monkeypatch.setattr(products, "_sum_products", lambda *args: fault(real, *args))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda real, a, b, tk, k, f: real(a[..., tk:], b[..., tk:], tk, k - tk, f), "products of"),
        (lambda real, a, b, tk, k, f: real(a, b, 2 * tk, k, f), "a product of 4x16x4 where tiles are 4x8x4"),
        (lambda real, a, b, tk, k, f: real(a, b, tk, k, f) * 1.001, "rounding .* u, limit"),
        (lambda real, a, b, tk, k, f: real(a, b, tk, k, f) * float("nan"), "NaN"),
    ],
    ids=["a term is missing", "tiles are too deep", "off by 0.1 %", "not a number"],
)
def test_the_proof_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch, fault: Any, reason: str) -> None:
    model = nn.Sequential(nn.Linear(32, 8)).eval()
    faulty(monkeypatch, fault)
    with Session(model, inputs=(torch.randn(4, 32),)) as session:
        with pytest.raises(ExplorerError, match="not the same"):
            session.tile_module(SPEC)
    tiled, plan = tile_module(model, SPEC, {"0": [4]})
    (site,) = torch_layers.compare_sites(model, tiled, plan, lambda m: m(torch.randn(4, 32)), 0, lambda: None)
    assert not site.passed
    assert re.search(reason, site.reason)


def test_another_weight_is_found() -> None:
    model = nn.Sequential(nn.Linear(32, 8)).eval()
    tiled, plan = tile_module(model, SPEC, {"0": [4]})
    with torch.no_grad():
        tiled[0].weight[3, 5] += 1e-6
    (site,) = torch_layers.compare_sites(model, tiled, plan, lambda m: m(torch.randn(4, 32)), 0, lambda: None)
    assert site.structure == "its weight is not the original's"


FACTORY = """
import torch
from torch import nn
def make():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10))
    return net, (torch.zeros(2, 1, 6, 6),)
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "factory_of_nets.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return "factory_of_nets:make"


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["tiled.pt2", "tiled.pt"])
def test_a_file_is_written_and_runs(factory: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tile", factory, "--to", "torch", "--tile", "8", "-o", name, "--json", "--quiet"]
    words += ["--dynamic", "input:0=batch"] if name.endswith("2") else []
    assert main.main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["output"] == name
    assert document["verification"]["passed"]
    assert {site["name"] for site in document["plan"]["sites"]} == {"0", "3"}
    assert "--to torch" in document["command"]
    load: Any = torch.jit.load if name.endswith("pt") else lambda path: torch.export.load(path).module()
    x = torch.randn(5, 1, 6, 6)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 10))
    assert torch.allclose(load(name)(x), plain(x), atol=1e-5)


def test_what_cannot_be_done_is_one_line(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lenet = Path(__file__).parents[3] / "sample_models" / "lenet.onnx"
    os.symlink(lenet, tmp_path / "lenet.onnx")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "state.pt")
    for words, message in (
        (
            [factory, "--to", "torch", "-o", "x.onnx"],
            "a module with replaced layers cannot be written as ONNX",
        ),
        ([factory, "--to", "torch", "--form", "lab"], "forms are ways to write ONNX"),
        ([factory, "--dynamic", "x:0=batch"], "add --to torch"),
        (["lenet.onnx", "--to", "torch"], "a file of the format onnx has none"),
        (["state.pt", "--to", "torch"], "a file of the format checkpoint has none"),
        ([factory, "--to", "tensorflow"], "'tensorflow' is not known"),
    ):
        assert main.main(["tile", *words, "--quiet"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1


def test_the_plan_says_how_much_is_left_in_layers_without_a_tiled_twin() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.steps = nn.LSTM(8, 8, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            return self.steps(self.attention(y, y, y)[0])[0]

    with Session(Mixed(), inputs=(torch.rand(2, 5, 8),)) as session:
        plan = session.plan_module(SPEC)
    # projections, scores and their product with the values; four gates of input and state in each step
    attention = 10 * 8 * 4 * 8 + 2 * 2 * 5 * 5 * (4 + 4)
    assert {skip.name: skip.macs for skip in plan.skipped} == {
        "attention": attention,
        "steps": 10 * 4 * 8 * (8 + 8),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("name", ["tiled.pt", pytest.param("tiled.pt2", marks=pytest.mark.slow)])
def test_a_file_multiplies_no_more_than_the_module_with_ragged_edges(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    # 20 rows, 1 row and 7 rows of tiles of 8: nothing is a whole number of them
    net = nn.Sequential(
        nn.Conv2d(3, 5, 2), nn.Flatten(), nn.Linear(100, 30), nn.ReLU(), nn.Linear(30, 7)
    ).eval()
    target = str(tmp_path / name)
    with Session(net, inputs=(torch.rand(1, 3, 5, 6),)) as session:
        macs = session.info().totals.macs
        _, result = session.tile_module(TileSpec(tile=(8, 16, 8)), output=target, verify=False)
    assert result.plan.macs == macs == 20 * 12 * 5 + 100 * 30 + 30 * 7
    with Session(target) as session:
        assert session.info().totals.macs == macs
