"""A module in another number format: what is rounded, what stays, what is said of it, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Misuse, Session  # noqa: E402
from explorer.cli import main  # noqa: E402
from explorer.engine.number_formats import find_format  # noqa: E402
from explorer.engine.quantize.torch.rounding import InputRounding  # noqa: E402
from explorer.facts.quantize import QuantizeRule, QuantizeSpec  # noqa: E402

ALL = (
    "int8", "uint8", "int4", "int16", "fixed8.4", "ufixed8.4", "fixed12.6", "float16", "bfloat16",
    "float8e4m3", "float8e5m2", "floatE4M3", "floatE2M1", "mxint8", "mxfp8", "mxfp6e3m2", "mxfp4",
    "binary", "ternary",
)  # fmt: skip


class Net(nn.Module):
    """A convolution, tied layers of which one is called twice and one by name, and one that never is."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.fc.weight
        self.idle = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.conv(x)).mean((2, 3))
        return self.tied(input=self.fc(self.fc(y)))


class Words(nn.Module):
    """An embedding, a recurrent layer, attention, a transposed convolution in groups."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.steps = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.up = nn.ConvTranspose1d(8, 4, 2, groups=2)
        self.normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.steps(self.table(x))
        y, _ = self.attention(y, y, y)
        return self.normed(self.up(y.transpose(1, 2)).transpose(1, 2))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


def test_weights_are_stored_rounded_and_the_callers_module_stays_as_it_is(net: Net) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with Session(net, inputs=(X,)) as session:
        made, fact = session.quantize_module(
            QuantizeSpec(weight="fixed8.4", input="fixed8.4", bias="float32")
        )
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert set(made.state_dict()) == set(before)
    assert made.tied.weight is made.fc.weight  # type: ignore[union-attr]
    assert made.training

    def sixteenths(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.clip(np.rint(x.detach().numpy() * 16), -128, 127) / np.float32(16))

    for name in ("conv.weight", "fc.weight"):
        assert torch.equal(made.state_dict()[name], sixteenths(before[name]))
    assert torch.equal(made.state_dict()["fc.bias"], before["fc.bias"])
    twin = nn.Conv2d(3, 6, 3, padding=1)
    twin.load_state_dict({"weight": sixteenths(before["conv.weight"]), "bias": before["conv.bias"]})
    assert torch.equal(made.conv(X), twin(sixteenths(X)))  # type: ignore[operator]
    reasons = {layer.name: layer.reason for layer in fact.layers}
    assert reasons == {"conv": "", "fc": "", "tied": "", "idle": "it does not run with these inputs"}


@pytest.mark.parametrize("name", ALL)
def test_inputs_are_rounded_to_the_numbers_of_the_format(name: str) -> None:
    fmt = find_format(name)
    assert fmt is not None
    chance = np.random.default_rng(0)
    values = (chance.normal(size=(3, 70, 5)) * 2.0 ** chance.integers(-9, 9, (3, 70, 5))).astype(np.float32)
    values[0, :8, 0] = 0, -0.0, 0.5, -1.5, 1e-38, 1e38, -3e-39, 0.0625
    values[1, :, 1] = 0
    values[2, :32, 2] = 2.0**-130
    values[2, 40, 3] = np.nan
    for low, high in ((-3.0, 3.0), (-0.7, 5.0)):
        grid = fmt.build_grid(np.float32(low), np.float32(high), symmetric=low == -high)
        for axis in (-2, -1):
            with np.errstate(over="ignore"):
                expected = fmt.round_values(values, grid, axis)
            given = InputRounding(fmt, grid, axis).round_values(torch.from_numpy(values)).numpy()
            np.testing.assert_array_equal(given, expected)


def test_figures_of_a_layer_are_those_of_its_own_numbers(net: Net) -> None:
    spec = QuantizeSpec(rules=(QuantizeRule(site="fc", on=False), QuantizeRule(site="tied", on=False)))
    with Session(net, inputs=(X,)) as session:
        _, fact = session.quantize_module(spec, draws=1)
    conv = next(layer for layer in fact.layers if layer.name == "conv")
    assert (conv.op, conv.weight, conv.input, conv.bias) == ("Conv2d", "int8", "int8", "int32")
    weight = net.conv.weight.detach().numpy().reshape(6, -1).astype(np.float64)
    scale = (np.abs(weight).max(1, keepdims=True) / 127).astype(np.float32).astype(np.float64)
    lost = np.rint(weight / scale) * scale - weight
    assert conv.weight_snr_db == pytest.approx(10 * np.log10((weight**2).sum() / (lost**2).sum()), abs=1e-3)
    assert (conv.weight_bytes_before, conv.weight_bytes) == (6 * 27 * 4, 6 * 27 + 6 * 4)
    assert conv.macs == 2 * 8 * 8 * 6 * 27
    assert conv.bitops == conv.macs * 64
    assert conv.accumulator is not None
    assert conv.accumulator.depth == 27
    assert conv.output_snr_db is not None
    assert 25 < conv.output_snr_db < 60
    assert {layer.reason for layer in fact.layers if layer.name in ("fc", "tied")} == {
        "switched off by the specification"
    }
    (output,) = fact.outputs
    assert output.snr_db is not None
    assert output.snr_db > 25


@pytest.mark.slow
def test_recurrent_layers_attention_and_tables_have_weights_alone() -> None:
    torch.manual_seed(0)
    net, x = Words().eval(), torch.arange(6).reshape(1, 6)
    with Session(net, inputs=(x,)) as session:
        made, fact = session.quantize_module(QuantizeSpec(weight="fixed8.4", input="fixed8.4"))
        named, _ = session.quantize_module(QuantizeSpec(ops=("Embedding",)), report=False)
    said = {layer.name: (layer.weight, layer.input, layer.reason) for layer in fact.layers}
    assert said["steps"] == said["attention"] == ("fixed8.4", "", "")
    assert said["up"] == ("fixed8.4", "fixed8.4", "")
    assert said["table"][2] == "unchanged unless you select it: --op Embedding"
    assert said["normed"][2] == "its weight is made by a parametrization"
    for name, value in made.state_dict().items():
        rounded = name.startswith(("steps.weight", "attention.in_proj_weight", "attention.out_proj.weight"))
        assert torch.equal(value * 16, torch.round(value * 16)) or not rounded
        assert rounded or name.startswith("up") or torch.equal(value, net.state_dict()[name])
    assert not torch.equal(named.state_dict()["table.weight"], net.table.weight)


@pytest.mark.slow
@pytest.mark.parametrize("inputs", ["int8", "float32"])
def test_what_torch_fuses_is_rounded_in_the_file_too(inputs: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, path = torch.randn(1, 5, 8), str(tmp_path / "layer.pt2")
    with Session(layer, inputs=(x,)) as session:
        made, fact = session.quantize_module(QuantizeSpec(input=inputs), output=path)
    written = torch.export.load(path).module()(x)
    assert torch.equal(written, made(x))
    assert not torch.allclose(written, layer(x), atol=1e-6)
    assert {(one.name, one.weight, one.input) for one in fact.layers} == {
        ("self_attn", "int8", ""),
        ("linear1", "int8", inputs),
        ("linear2", "int8", inputs),
    }


def test_a_state_that_was_made_as_onnx_is_no_module(net: Net) -> None:
    with Session(net, inputs=(X,)) as session:
        session.quantize(QuantizeSpec(form="qdq"), report=False)
        with pytest.raises(Misuse, match="the current model was made as ONNX: it is not a module"):
            session.quantize_module(QuantizeSpec())


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quantnets.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10))\n"
    )
    return "quantnets:net"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["made.pt2", "made.pt"])
def test_a_file_is_written_of_pytorchs_own_operators(
    factory: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "in.npy", np.random.default_rng(0).normal(size=(3, 1, 6, 6)).astype(np.float32))
    words = ["quantize", factory, "-o", name, "--to", "int8", "--op", "Conv*", "--calibrate", "in.npy"]
    words += ["--input-shape", "input:1,1,6,6", "--json", "--quiet"]
    assert main.main([*words, *(["--dynamic", "input:0=batch"] if name.endswith("2") else [])]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["output"] == name
    assert document["calibration"] == "in.npy, 3 samples"
    assert document["by_op"] == [
        {"op": "Conv2d", "total": 1, "changed": 1, "unchanged": 0},
        {"op": "Linear", "total": 1, "changed": 0, "unchanged": 1},
    ]
    assert document["command"].startswith(f"explorer quantize {factory} -o {name} --to int8")
    x = torch.randn(5, 1, 6, 6)
    if name.endswith("2"):
        program = torch.export.load(name)
        targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
        assert {target.partition(".")[0] for target in targets} == {"aten"}
        written: Any = program.module()
    else:
        written = torch.jit.load(name)
    with Session(factory, input_shapes={"input": (None, (1, 1, 6, 6))}) as session:
        made, _ = session.quantize_module(
            QuantizeSpec(ops=("Conv*",)), calibrate=str(tmp_path / "in.npy"), report=False
        )
    assert torch.allclose(written(x), made.eval()(x), atol=1e-6)


def test_what_cannot_be_done_is_one_line_and_nothing_is_written(
    factory: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    samples = Path(__file__).parents[3] / "sample_models"
    np.save(tmp_path / "nan.npy", np.full((1, 1, 6, 6), np.nan, np.float32))
    shape = ["--input-shape", "input:1,1,6,6"]
    for model, words, message in (
        (str(samples / "lenet.onnx"), [], "a file of the format onnx has none"),
        (factory, [*shape, "--form", "qdq"], "qdq is a way to write ONNX"),
        (factory, [*shape, "--op", "Conv"], "no layer is a 'Conv'; did you mean 'Conv2d'?"),
        (factory, [*shape, "--site", "nothing"], "no layer is called 'nothing'"),
        (factory, [*shape, "--calibrate", "nan.npy"], "has NaN or Inf in sample 1"),
        (factory, [], "input"),
    ):
        assert main.main(["quantize", model, "-o", "x.pt2", "--to", "int8", *words, "--quiet"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert err.count("\n") == 1
    for words, message in (
        (["-o", "x.pt", "--dynamic", "input:0=b"], "--dynamic: does not go with"),
        (["-o", "x.onnx", "--dynamic", "input:0=b"], "an ONNX file keeps its own open sizes"),
    ):
        assert main.main(["quantize", factory, *shape, "--to", "int8", *words, "--quiet"]) == 2
        assert message in capsys.readouterr().err
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".npy", ".py"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("weight", ["int8", "fixed8.4", "mxfp8"])
def test_a_layer_whose_weight_is_no_number_is_left(net: Net, weight: str) -> None:
    """As in a graph; so says the choice, before anything is made."""
    with torch.no_grad():
        net.conv.weight[0, 0, 0, 0] = float("nan")
    spec = QuantizeSpec(weight=weight, input="float32")
    with Session(net, inputs=(X,)) as session:
        chosen = session.quantize_choice(spec).layers
        made, fact = session.quantize_module(spec)
        reasons = {layer.name: layer.reason for layer in fact.layers}
        assert reasons == {layer.name: layer.reason for layer in chosen}
        assert reasons.pop("conv") == "the weight 'conv.weight' holds NaN or infinity"
        assert [name for name, why in reasons.items() if not why] == ["fc", "tied"]
        assert torch.isnan(made(X)).any()
    with Session(net, inputs=(X,)) as session:
        with pytest.raises(Misuse, match="a module with replaced layers cannot be written as ONNX"):
            session.quantize_module(QuantizeSpec(), output="x.onnx")
