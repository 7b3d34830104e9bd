"""Weights as torchao's tensors: the definition's numbers to the last bit, told layer by layer, in no file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")

from torch import nn  # noqa: E402
from torchao.quantization import IntxUnpackedToInt8Tensor  # noqa: E402

from explorer import Misuse, Session  # noqa: E402
from explorer.base.errors import MissingExtra  # noqa: E402
from explorer.cli.main import main  # noqa: E402
from explorer.facts.quantize import QuantizeSpec  # noqa: E402

JSC = Path(__file__).parent.parent.parent.parent / "sample_models" / "jsc.py"


class Net(nn.Module):
    """What torchao has (an Embedding, a Conv2d, a Linear twice with one weight), and what it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.conv = nn.Conv2d(1, 6, 3, padding=1, padding_mode="reflect")
        self.flat = nn.Conv1d(6, 4, 3)
        self.fc = nn.Linear(56, 32)
        self.tied = nn.Linear(56, 32, bias=False)
        self.tied.weight = self.fc.weight
        self.steps = nn.GRU(32, 8)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.table(words)[:, None]).flatten(2)
        y = self.flat(x)[..., :14].flatten(1)
        return self.steps((self.fc(y) + self.tied(y))[None])[0]


WORDS = torch.arange(8).reshape(2, 4)
HAD = {"table", "conv", "fc", "tied"}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def codes_of(weight: np.ndarray, bits: int, zero: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scale and zero point of each row, by the definition of an integer with a sign."""
    rows = weight.reshape(len(weight), -1)
    least, largest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    low, high = np.minimum(rows.min(1), 0), np.maximum(rows.max(1), 0)
    scale = (high - low) / np.float32(2**bits - 1) if zero else np.maximum(-low, high) / np.float32(largest)
    middle = np.clip(np.rint(least - low / scale), least, largest) if zero else np.zeros_like(scale)
    codes = np.clip(np.rint(rows / scale[:, None]) + middle[:, None], least, largest)
    return codes.reshape(weight.shape), scale, middle


@pytest.mark.parametrize(("bits", "zero"), [(8, False), (4, True)])
def test_the_numbers_are_those_of_the_definition(net: Net, bits: int, zero: bool) -> None:
    spec = QuantizeSpec(f"int{bits}", "float32", "float32", symmetric=not zero, sites=("*",), form="torchao")
    with Session(net, inputs=(WORDS,)) as session:
        made, fact = session.quantize_module(spec)
    assert {layer.name: layer.held for layer in fact.layers} == {
        name: "torchao" if name in HAD else "float32" for name in (*HAD, "flat", "steps")
    }
    expected = Net().eval()
    for name, parameter in net.state_dict().items():
        codes, scale, middle = codes_of(parameter.numpy(), bits, zero)
        rows = (-1, *[1] * (parameter.dim() - 1))
        value = (codes - middle.reshape(rows)).astype(np.float32) * scale.reshape(rows)
        owner = name.partition(".")[0]
        if parameter.dim() > 1:
            with torch.no_grad():
                expected.get_parameter(name).copy_(torch.from_numpy(value))
        else:
            expected.get_parameter(name).data.copy_(parameter)
        if parameter.dim() > 1 and owner in HAD:
            held = made.get_parameter(name)
            assert isinstance(held, IntxUnpackedToInt8Tensor)
            assert held.target_dtype == getattr(torch, f"int{bits}")
            assert np.array_equal(held.qdata.numpy(), codes)
    assert made.tied.weight is made.fc.weight  # type: ignore[union-attr]
    with torch.no_grad():
        assert torch.equal(made(WORDS), expected(WORDS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how", "had"),
    [
        ("uint8", {}, HAD),
        ("uint4", {"symmetric": False, "granularity": "tensor"}, HAD),
        ("fixed6.4", {"input": "fixed8.4"}, HAD),
        ("int8", {"input": "int8"}, HAD),
        ("int4", {"block": 8}, HAD),
        ("int4", {"block": 32}, {"table", "conv"}),
        ("int16", {}, set()),
        ("mxfp8", {"input": "mxfp8"}, set()),
        ("ternary", {}, set()),
    ],
)
def test_a_module_of_them_computes_what_the_rounded_one_does(
    net: Net, name: str, how: dict[str, object], had: set[str]
) -> None:
    spec = QuantizeSpec(**{"weight": name, "input": "float32", "sites": ("*",), **how})  # type: ignore[arg-type]
    with Session(net, inputs=(WORDS,)) as session:
        rounded, before = session.quantize_module(spec)
        made, fact = session.quantize_module(
            QuantizeSpec(**{"weight": name, "input": "float32", "sites": ("*",), "form": "torchao", **how})  # type: ignore[arg-type]
        )
    assert {layer.name for layer in fact.layers if layer.held == "torchao"} == had
    assert {layer.held for layer in before.layers} == {""}
    assert [layer.output_snr_db for layer in fact.layers] == [layer.output_snr_db for layer in before.layers]
    with torch.no_grad():
        assert torch.equal(made(WORDS), rounded(WORDS))


def test_a_file_of_them_is_refused_and_the_choice_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("net.pt2", "net.onnx"):
        assert main(["quantize", f"{JSC}:jsc_tiny", "-o", str(tmp_path / name), "--form", "torchao"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "--form: " in error
        assert "pickle" in error
    assert not list(tmp_path.iterdir())
    assert main(["quantize", f"{JSC}:jsc_tiny", "--to", "int8", "--form", "torchao"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "layers.2" in line)
    assert "torchao" in line
    assert main(["quantize", str(JSC.parent / "lenet.onnx"), "--form", "torchao"]) == 2
    assert "torchao is for layers of an nn.Module" in capsys.readouterr().err


def test_a_state_of_them_is_refused(net: Net) -> None:
    with Session(net, inputs=(WORDS,)) as session:
        with pytest.raises(Misuse, match="neither a state nor a file"):
            session.quantize(QuantizeSpec(form="torchao"))
        assert len(session.history().entries) == 1


def test_where_it_is_not_installed_the_command_that_installs_it_is_named(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchao.quantization", None)
    with Session(net, inputs=(WORDS,)) as session, pytest.raises(MissingExtra, match="torchao"):
        session.quantize_module(QuantizeSpec(form="torchao"))
