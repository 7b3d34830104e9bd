"""An nn.Module in number formats as a state of a session: undone, proved, diffed and looked at as one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from explorer import Misuse, Session  # noqa: E402
from explorer.cli import main  # noqa: E402
from explorer.facts import TileSpec  # noqa: E402
from explorer.facts.quantize import QuantizeSpec  # noqa: E402
from explorer.facts.verification import Tolerance  # noqa: E402

SAMPLE = str(Path(__file__).parents[2] / "sample_models/jsc.py") + ":jsc_tiny"


class Net(nn.Module):
    """Two linear layers with attention between them, whose output projection is a module in a module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.last(self.attention(y, y, y, need_weights=False)[0])


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(3)
    return Net().eval()


X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def session(net: Net) -> Iterator[Session]:
    with Session(net, inputs=(X,)) as opened:
        yield opened


def eighths(weight: torch.Tensor) -> np.ndarray:
    """Int8 with a scale for each output channel, reckoned by numpy."""
    w = weight.detach().numpy()
    scale = (np.abs(w).max(1, keepdims=True) / np.float32(127)).astype(np.float32)
    rounded: np.ndarray = np.clip(np.rint(w / scale), -127, 127).astype(np.float32) * scale
    return rounded


def test_a_module_is_quantized_by_its_modules_and_its_layers_have_their_names(session: Session) -> None:
    choice = session.quantize_choice(QuantizeSpec())
    fact = session.quantize(QuantizeSpec())
    names = [("first", "Linear"), ("attention", "MultiheadAttention"), ("last", "Linear")]
    for told in (choice, fact):
        assert told.modules
        assert [(layer.name, layer.op) for layer in told.layers] == names
    settings = session.quantize_settings(QuantizeSpec())
    assert [(one.name, one.form) for one in settings.layers] == [(name, "module") for name, _ in names]
    assert fact.outputs[0].snr_db == pytest.approx(45, abs=10)
    # four projections of 10 rows by 8 x 8 have weights of 8 bits; scores and what they weigh have none
    attention = fact.layers[1]
    assert attention.macs == 4 * 10 * 64 + 2 * 10 * 5 * 8
    assert attention.bitops == 4 * 10 * 64 * 8 * 32 + 2 * 10 * 5 * 8 * 32 * 32
    history = session.history()
    assert [(one.label, one.path) for one in history.entries] == [("original", None), ("quantize int8", None)]
    assert session.info().model.format == "torch"


@pytest.mark.slow
def test_weights_and_activations_of_the_state_are_those_of_the_quantized_module(
    session: Session, net: Net
) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    session.quantize(QuantizeSpec())
    told = session.values("first.weight", ":, :", before=0)
    assert np.array_equal(np.array(told.values, np.float32).reshape(8, 8), eighths(net.first.weight))
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    made, _ = session.undo() and session.quantize_module(QuantizeSpec())
    session.redo()
    with torch.no_grad():
        # the session's own inputs
        mean = float(made(X).double().mean())
    stats = session.activations(["last"])
    assert stats.tensors[0].mean == pytest.approx(mean, rel=1e-6)
    assert session.activations(["last"], index=0).tensors[0].mean != stats.tensors[0].mean


@pytest.mark.slow
def test_steps_back_and_branches_are_those_of_other_states(session: Session) -> None:
    session.quantize(QuantizeSpec())
    session.quantize(QuantizeSpec("fixed8.4", "fixed8.4"), state=0)
    assert [one.parent for one in session.history().entries] == [None, 0, 0]
    session.go(1)
    fact = session.requantize("last", weight="int4")
    assert {layer.name: layer.weight for layer in fact.layers}["last"] == "int4"
    assert session.history().entries[3].parent == 0
    (row,) = session.diff(1).nodes
    assert row.before == "last"
    assert row.what.startswith("int8, per channel, ")
    assert row.what.endswith(" dB -> int4 x int8, per channel")
    assert session.undo().current == 0
    assert session.diff(0, 1).nodes[0].before == "first"


def test_a_diff_has_one_row_a_module_with_what_its_stored_weight_lost(session: Session, net: Net) -> None:
    fact = session.quantize(QuantizeSpec())
    diff = session.diff()
    rows = {row.before: row for row in diff.nodes}
    assert list(rows) == ["first", "attention", "last"]
    assert {row.status for row in diff.nodes} == {"quantized"}
    w = net.first.weight.detach().double().numpy()
    snr = 10 * np.log10((w**2).sum() / ((eighths(net.first.weight) - w) ** 2).sum())
    assert rows["first"].what == f"Linear -> int8, per channel, {snr:.1f} dB"
    assert fact.layers[0].weight_snr_db == pytest.approx(snr, abs=1e-3)
    tree = session.tree_diff()
    states = {row.before.path: row.status for row in tree.rows if row.before}
    assert [path for path, state in states.items() if state == "quantized"] == list(rows)
    assert (tree.form, tree.values_compared, tree.equal) == ("rows", True, False)
    back = {row.before: row.what for row in session.diff(1, 0).nodes}
    assert back["first"] == f"int8, per channel, {snr:.1f} dB -> Linear"
    assert session.diff(1, 1).equal


def test_a_module_that_is_quantized_once_more_rounds_what_was_left_as_before(session: Session) -> None:
    session.quantize(QuantizeSpec(), report=False)
    session.quantize(QuantizeSpec("int4", "float32", ops=("Linear",)), report=False)
    rows = {row.before: row.what for row in session.diff(0).nodes}
    assert rows["first"].startswith("Linear -> int4 x int8, per channel")
    assert rows["attention"].startswith("MultiheadAttention -> weight int8")


@pytest.mark.slow
def test_a_diff_between_two_quantizations_names_both_formats(session: Session) -> None:
    session.quantize(QuantizeSpec("int8", "float32"))
    session.quantize(QuantizeSpec("int8", "int8"), state=0)
    (first, *_) = session.diff(1, 2).nodes
    # the stored weight is the same; that the input is rounded is a difference all the same
    assert (first.before, first.status) == ("first", "changed")
    assert first.what == "weight int8, per channel -> int8, per channel"


@pytest.mark.slow
def test_a_quantized_module_is_verified_as_its_export_computes(session: Session) -> None:
    fact = session.quantize(QuantizeSpec())
    assert not session.verify(0).passed
    least = fact.outputs[0].snr_db
    assert least is not None
    assert session.verify(0, tolerance=Tolerance(snr=least - 10)).passed
    assert not session.verify(0, tolerance=Tolerance(snr=least + 20)).passed
    assert session.blame(0, draws=1).first is not None
    made = session.requantize("/first/MatMul", on=False)  # as a blame of the export calls it
    assert [layer.name for layer in made.layers if layer.reason] == ["first"]


def test_a_session_that_ended_makes_the_same_module_again_without_its_samples(
    session: Session, net: Net, tmp_path: Path
) -> None:
    np.save(tmp_path / "seen.npy", np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32) * 4)
    session.quantize(QuantizeSpec(), calibrate=str(tmp_path / "seen.npy"))
    (tmp_path / "seen.npy").unlink()
    out = session.activations(["last"]).tensors[0]
    with Session(net, inputs=(X,)) as again:
        again.restore(session.history())
        assert again.activations(["last"]).tensors[0] == out
        assert again.diff(0).nodes == session.diff(0).nodes


def test_tiles_and_scripts_say_what_they_cannot_do_with_a_quantized_module(session: Session) -> None:
    session.quantize(QuantizeSpec())
    with pytest.raises(Misuse, match="cannot be tiled") as caught:
        session.plan(TileSpec((4, 4, 4)))
    assert "form qdq" in caught.value.hint
    with pytest.raises(Misuse, match="the model as opened is converted"):
        session.convert("x.pt2")
    session.go(0)
    session.quantize(QuantizeSpec(form="qdq"), report=False)
    assert session.plan(TileSpec((4, 4, 4))).sites


@pytest.mark.slow
def test_a_state_is_saved_as_a_module_or_as_onnx(session: Session, tmp_path: Path) -> None:
    session.quantize(QuantizeSpec())
    session.save(str(tmp_path / "made.pt2"))
    session.save(str(tmp_path / "made.onnx"))
    out = torch.export.load(tmp_path / "made.pt2").module()(X)
    ran = onnxruntime.InferenceSession(str(tmp_path / "made.onnx"))
    (found,) = ran.run(None, {ran.get_inputs()[0].name: X.numpy()})
    assert np.abs(found - out.detach().numpy()).max() < 0.05
    made, _ = session.undo() and session.quantize_module(QuantizeSpec())
    assert torch.equal(out, made(X))


def test_weights_of_a_file_are_quantized_and_what_it_lacks_is_said(
    net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))\n"
    )
    held = {"0.weight": net.first.weight, "0.bias": net.first.bias, "2.weight": net.last.weight}
    lacks = "not in held.pt, and left as the callable made them: 2.bias"
    for prefix in ("", "model.", "module.", "_orig_mod.", "state_dict.model._orig_mod."):
        torch.save({f"{prefix}{name}": tensor.detach() for name, tensor in held.items()}, "held.pt")
        shape = {"input": (None, (2, 8))}
        with Session("plain.py:net", weights_file="held.pt", input_shapes=shape, cache=False) as session:
            fact = session.quantize(QuantizeSpec(), draws=1)
            made = session.values("0.weight", ":, :").values
        assert fact.notes[0].startswith("weights of held.pt: 3 tensors")
        assert lacks in fact.notes
        assert np.array_equal(np.array(made, np.float32).reshape(8, 8), eighths(net.first.weight))
    words = ["plain.py:net", "--weights-file", "held.pt", "--input-shape", "input:2,8", "--quiet"]
    for verb in (["quantize", "-o", "made.onnx", "--to", "int8"], ["activations", "--layer", "2"]):
        assert main.main([verb[0], *words, *verb[1:]]) == 0
        assert lacks in " ".join(capsys.readouterr().out.split())


def test_a_file_of_weights_that_would_run_code_or_does_not_fit_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save(Hostile(), "hostile.pt")
    torch.save({"layers.2.weight": torch.zeros(3, 3)}, "shape.pt")
    for file, message in (("hostile.pt", "was not run"), ("shape.pt", "'layers.2.weight' is [3, 3] there")):
        words = [SAMPLE, "-o", "made.pt2", "--to", "int8", "--weights-file", file, "--quiet"]
        assert main.main(["quantize", *words]) == 2
        out, err = capsys.readouterr()
        assert message in err
        assert (out, err.count("\n")) == ("", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hostile.pt", "shape.pt"]


def test_tiles_of_a_quantized_module_are_proved_on_the_quantized_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "tiled.onnx")
    words = ["tile", SAMPLE, "--tile", "4x4x4", "--quantize", "int8", "-o", out, "--json", "--quiet"]
    assert main.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verification"]["passed"]
    # the module that was opened computes something else
    assert {one["reference"] for one in told["verification"]["outputs"]} != {"torch"}


def test_without_an_output_the_command_tells_the_choice_by_modules(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["quantize", SAMPLE, "--to", "int8", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["modules"] is True
    assert [(layer["name"], layer["op"]) for layer in told["layers"]] == [("layers.2", "Linear")]
    assert told["command"].endswith("jsc.py_jsc_tiny_quantized.pt2 --to int8")
    assert main.main(["quantize", SAMPLE, "--to", "int8", "--quiet"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no file was written. -o FILE.pt2 quantizes the modules" in said
    assert re.search(r"468 B -> (\d+) B 468 -> \1 ", said)
    assert main.main(["settings", SAMPLE, "--formats", "--to", "int8", "--json", "--quiet"]) == 0
    assert [one["form"] for one in json.loads(capsys.readouterr().out)["layers"]] == ["module"]
    assert main.main(["quantize", SAMPLE, "--to", "int8", "--form", "qdq", "--json", "--quiet"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["modules"], told["layers"][0]["op"]) == (False, "Gemm")
