"""TorchScript files: the same numbers as the module that was saved, and nothing of the file is run."""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

import torchvision  # noqa: E402
from torch import nn  # noqa: E402

from explorer.base.errors import BadModel, ExplorerError, Misuse  # noqa: E402
from explorer.engine.formats.torch_files.tensors import read_strictly  # noqa: E402
from explorer.engine.formats.torch_files.zip_archive import ZipArchive  # noqa: E402
from explorer.engine.formats.torch_replay import torchscript_interpreter  # noqa: E402
from explorer.facts import TileSpec  # noqa: E402
from explorer.session import Session, verify_files  # noqa: E402
from tests.engine.formats.torch_replay.torch_nets import (  # noqa: E402
    IMAGE,
    MODELS,
    SMALL,
    Detector,
    Looping,
    Pair,
    Small,
    by_module,
    rewritten,
    rows,
    saved_script,
)

SIZES = {("transformer", False): 2 * 5}
"""Elementwise work that only the file has: a trace keeps the arithmetic of sizes, 5 steps in an attention."""


def shapes_of(x: torch.Tensor, name: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(x.dtype).removeprefix("torch."), tuple(x.shape))}


def code_of(source: str) -> tuple[str, str]:
    """Name and text of the entry with the code of the model's own class."""
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            text = archive.read(name).decode() if name.endswith(".py") else ""
            if "class Small(Module)" in text:
                return name.partition("/")[2], text
    raise AssertionError("the file has no class of its own")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_script(Small(), (SMALL,), tmp_path_factory.mktemp("script") / "small.pt")


# -- the same numbers


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize("name", MODELS)
def test_a_file_has_the_numbers_of_its_module(name: str, scripted: bool, tmp_path: Path) -> None:
    make, x = MODELS[name]
    module = make().eval()
    path = saved_script(module, (x,), tmp_path / f"{name}.pt", scripted=scripted)
    given = next(iter(torch.jit.load(path).forward.schema.arguments[1:])).name
    found = Session(path, input_shapes=shapes_of(x, given) if scripted else None).analysis()
    expected = by_module(module, x)
    assert found.info.totals.params == expected.info.totals.params
    assert found.info.totals.macs == expected.info.totals.macs
    more = SIZES.get((name, scripted), 0)
    assert found.info.totals.elementwise_ops == (expected.info.totals.elementwise_ops or 0) + more
    assert found.info.totals.activation_bytes_peak == expected.info.totals.activation_bytes_peak
    assert found.info.totals.coverage == 1
    assert rows(found) == rows(expected)


@pytest.mark.slow
def test_alexnet_as_a_file_has_the_figures_that_are_published(tmp_path: Path) -> None:
    path = saved_script(torchvision.models.alexnet(), (IMAGE,), tmp_path / "alexnet.pt")
    totals = Session(path).info().totals
    assert (totals.params, totals.macs, totals.weight_bytes) == (61_100_840, 714_188_480, 244_403_360)


def test_weights_are_not_read_for_the_numbers(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: ZipArchive, name: str) -> memoryview:
        raise AssertionError(f"{name} was read")

    monkeypatch.setattr(ZipArchive, "view", refuse)
    assert Session(small).info().totals.params == 36 + 8 + 272 + 51


def test_a_fused_attention_layer_in_a_trace_is_counted_as_what_it_does(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.zeros(2, 5, 16)
    with torch.no_grad():
        traced = torch.jit.trace(layer, (x,), check_trace=False)
    assert "_transformer_encoder_layer_fwd" in traced.code, "torch traces this by another way now"
    torch.jit.save(traced, str(tmp_path / "layer.pt"))
    found = Session(str(tmp_path / "layer.pt")).info().totals
    assert found.macs == by_module(layer, x).info.totals.macs
    # projections 4 x 16 x 16, products 2 x 5 x 5 x 16, two linear layers 16 x 32, for batches of 5
    assert found.macs == 2 * (5 * 4 * 16 * 16 + 2 * 5 * 5 * 16 + 5 * 2 * 16 * 32)


def test_loops_and_branches_of_a_script_are_followed(tmp_path: Path) -> None:
    module = Looping()
    path = saved_script(module, (), tmp_path / "looping.pt", scripted=True)
    analysis = Session(path, input_shapes={"x": ("float32", (4, 8))}).analysis()
    step = next(layer for layer in analysis.layers if layer.path == "step")
    assert (step.calls, step.macs, step.params) == (3, 3 * 4 * 8 * 8, 72)
    assert any(layer.kind == "stack" for layer in analysis.layers)
    alone = Session(path, input_shapes={"x": ("float32", (1, 8))}).analysis()
    assert not any(layer.kind == "stack" for layer in alone.layers)


def test_an_assertion_of_the_model_names_the_layer_and_keeps_the_rest(tmp_path: Path) -> None:
    path = saved_script(Looping(), (), tmp_path / "looping.pt", scripted=True)
    analysis = Session(path, input_shapes={"x": ("float32", (4, 2, 8))}).analysis()
    assert any("two dimensions" in note for note in analysis.info.model.notes)
    assert next(layer for layer in analysis.layers if layer.path == "step").macs == 3 * 8 * 64
    assert next(layer for layer in analysis.layers if layer.path == "last").macs is None


def test_lists_of_images_and_classes_of_the_models_own_are_followed(tmp_path: Path) -> None:
    path = saved_script(Detector(), (), tmp_path / "detector.pt", scripted=True)
    for shape in ((3, 6, 6), (1, 3, 6, 6)):
        analysis = Session(path, input_shapes={"images": (None, shape)}).analysis()
        assert analysis.info.totals.coverage == 1
        assert analysis.info.totals.macs == 2 * 16 * 27
        assert [o.shape for o in analysis.info.model.outputs] == [(1, 2, 4, 4)]


def test_a_quantized_layer_says_why_its_cost_is_not_known(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(8, 4)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    path = saved_script(quantized, (), tmp_path / "quantized.pt", scripted=True)
    analysis = Session(path, input_shapes={"input": (None, (2, 8))}).analysis()
    assert analysis.info.totals.macs is None
    assert any("packed for quantized operators" in note for note in analysis.info.model.notes)


def test_code_that_makes_lists_or_numbers_without_end_is_stopped(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchscript_interpreter, "MAX_STEPS", 10_000)
    inner, code = code_of(small)
    for line in (
        "a = torch.mul([0], 1000000000000)",
        "a = torch.pow(9, 999999999)",
        "while True:\n      pass",
    ):
        changed = code.replace("    out = self.out\n", f"    {line}\n    out = self.out\n", 1)
        evil = rewritten(small, tmp_path / "evil.pt", {inner: changed.encode()})
        assert any(re.search("endless|without a limit", note) for note in Session(evil).info().model.notes)


class Repeated(nn.Module):
    """A product that a loop repeats; scripted, its file holds the loop."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = torch.relu(x)
        return self.layer(x)


def test_a_long_loop_is_followed_for_who_trusts_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchscript_interpreter, "MAX_STEPS", 2_000)
    path = saved_script(Repeated(100), (), tmp_path / "loop.pt", scripted=True)
    shapes = {"x": (None, (2, 4))}
    notes = Session(path, input_shapes=shapes).info().model.notes
    assert any("endlessly" in note and "--trust" in note for note in notes)
    totals = Session(path, input_shapes=shapes, trust=True).info().totals
    assert (totals.macs, totals.coverage) == (32, 1)


def test_a_frozen_model_counts_the_constants_that_its_weights_became(tmp_path: Path) -> None:
    module = Small().eval()
    frozen = torch.jit.freeze(torch.jit.script(module))
    torch.jit.save(frozen, str(tmp_path / "frozen.pt"))
    info = Session(str(tmp_path / "frozen.pt"), input_shapes=shapes_of(SMALL, "image")).info()
    assert info.totals.macs == by_module(module, SMALL).info.totals.macs
    # freezing folds the norm away (bias 4 instead of weight and bias 8)
    assert info.totals.params == 36 + 4 + 272 + 51
    assert any("frozen" in note for note in info.model.notes)


# -- inputs


def test_a_traced_file_knows_what_it_was_traced_with(small: str) -> None:
    (given,) = Session(small).info().model.inputs
    assert (given.name, given.dtype, given.shape) == ("image", "float32", (2, 1, 8, 8))


def test_the_batch_can_be_chosen(small: str) -> None:
    one = Session(small, dims={"batch": 1}).info().totals.macs
    assert one is not None
    assert Session(small, dims={"batch": 6}).info().totals.macs == 6 * one


def test_a_script_without_sizes_asks_for_them_by_the_names_of_its_inputs(tmp_path: Path) -> None:
    path = saved_script(Pair(), (), tmp_path / "pair.pt", scripted=True)
    with pytest.raises(Misuse) as error:
        Session(path).analysis()
    assert "left, right" in str(error.value)
    assert "--input-shape" in str(error.value)
    shapes: dict[str, Any] = {"left": (None, (2, 3)), "right": (None, (3, 4))}
    assert Session(path, input_shapes=shapes).info().totals.macs == 24


# -- what can be done with a module can be done with a file


def test_a_file_runs_as_torch_runs_it(small: str) -> None:
    x = torch.rand(2, 1, 8, 8)
    run = Session(small).parts.models.open_state().runner()
    assert run is not None
    (found,) = run([x.numpy()])
    with torch.no_grad():
        assert np.array_equal(found, torch.jit.load(small)(x).numpy())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "recurrent"])
def test_a_file_is_exported_tiled_and_proved(name: str, tmp_path: Path) -> None:
    make, x = MODELS[name]
    with Session(saved_script(make(), (x,), tmp_path / f"{name}.pt")) as session:
        result = session.tile(TileSpec((4, 4, 4)), output=str(tmp_path / "tiled.onnx"), draws=1)
        assert result.verification is not None
        assert result.verification.passed
        # torch's own run of the file is among the evidence
        assert result.verification.torch


def test_two_files_of_one_model_compute_the_same(tmp_path: Path) -> None:
    module = Small()
    traced = saved_script(module, (SMALL,), tmp_path / "a.pt")
    scripted = saved_script(module, (SMALL,), tmp_path / "b.pt", scripted=True)
    assert verify_files(traced, scripted, draws=1, input_shapes=shapes_of(SMALL, "image")).passed


def test_weights_of_a_file_are_those_of_the_module(tmp_path: Path) -> None:
    module = Small()
    path = saved_script(module, (SMALL,), tmp_path / "small.pt")
    found = {one.tensor.name: one for one in Session(path).weights().tensors}
    weight = module.out.weight.detach()
    assert found["out.weight"].mean == pytest.approx(float(weight.mean()), abs=1e-6)
    assert set(found) >= set(dict(module.named_parameters()))


# -- nothing of a file is run


class _Runs:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


def test_a_pickle_that_would_run_a_command_is_refused_unrun(small: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    evil = rewritten(small, tmp_path / "evil.pt", {"data.pkl": pickle.dumps(_Runs(f"touch {marker}"), 2)})
    with pytest.raises(BadModel, match=r"system, which runs code and was not run"):
        Session(evil).analysis()
    assert not marker.exists()


def test_a_pickle_cannot_change_what_later_files_are_read_with() -> None:
    # BUILD with a dict as state, on the very object that stands for torch.FloatStorage
    poison = b"\x80\x02ctorch\nFloatStorage\n}X\x05\x00\x00\x00dtypeX\x05\x00\x00\x00int64sb."
    with pytest.raises(BadModel, match="broken"):
        read_strictly(poison, "file")
    assert read_strictly(b"\x80\x02ctorch\nFloatStorage\n.", "file").dtype == "float32"


class _Writes(nn.Module):
    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.before = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        torch.save(y, self.path)
        return y


def test_an_operator_that_writes_files_is_not_called(tmp_path: Path) -> None:
    marker = tmp_path / "written"
    path = saved_script(_Writes(str(marker)), (), tmp_path / "writes.pt", scripted=True)
    analysis = Session(path, input_shapes={"x": (None, (1, 4))}).analysis()
    assert any("aten::save" in note for note in analysis.info.model.notes)
    assert next(layer for layer in analysis.layers if layer.path == "before").macs == 16
    session = Session(path, input_shapes={"x": (None, (1, 4))})
    session.analysis()
    run = session.parts.models.open_state().runner()
    assert run is not None
    with pytest.raises(BadModel, match="aten::save"):
        run([np.zeros((1, 4), "float32")])
    assert not marker.exists()


def test_code_that_is_more_than_torchscript_is_not_run(small: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    inner, code = code_of(small)
    for line in (
        f"__import__('os').system('touch {marker}')",
        f"open('{marker}', 'w')",
        "x = [1 for _ in (1,)]",
    ):
        changed = code.replace("    out = self.out\n", f"    {line}\n    out = self.out\n", 1)
        assert changed != code
        evil = rewritten(small, tmp_path / "evil.pt", {inner: changed.encode()})
        analysis = Session(evil).analysis()
        assert analysis.info.totals.coverage < 1
        assert any("not TorchScript" in note or "has no value" in note for note in analysis.info.model.notes)
        assert not marker.exists()


# -- broken files


def _cut(source: str, target: Path, share: float) -> str:
    content = Path(source).read_bytes()
    target.write_bytes(content[: int(len(content) * share)])
    return str(target)


BROKEN: dict[str, tuple[Callable[[str, Path], str], str]] = {
    "cut off": (lambda s, t: _cut(s, t, 0.7), "broken or cut off"),
    "a header alone": (lambda s, t: _cut(s, t, 0.001), "broken or cut off"),
    "no pickle": (lambda s, t: rewritten(s, t, {"data.pkl": b""}), "pickle is broken"),
    "no weights": (lambda s, t: rewritten(s, t, {"data/0": None}), "has no 'data/0'"),
    "too few weights": (lambda s, t: rewritten(s, t, {"data/0": b"abc"}), "fewer bytes than its tensor"),
    "no code": (lambda s, t: rewritten(s, t, {code_of(s)[0]: None}), "no TorchScript module"),
    "code that is none": (lambda s, t: rewritten(s, t, {code_of(s)[0]: b"class ("}), "is broken"),
    "a pickle of something else": (
        lambda s, t: rewritten(s, t, {"data.pkl": pickle.dumps([1, 2], 2)}),
        "no TorchScript module",
    ),
    "code that is huge unpacked": (
        lambda s, t: rewritten(s, t, {"data.pkl": bytes(65 << 20)}, packed=True),
        "would take 68,157,440 bytes unpacked",
    ),
    "packed weights": (
        lambda s, t: rewritten(s, t, {"data/0": bytes(4096)}, packed=True),
        "compressed",
    ),
    "another archive": (lambda s, t: _archive(t), "without a model of torch"),
    "text": (lambda s, t: _text(t), "not a file that torch wrote"),
    "nothing": (lambda s, t: str(t), "no such file"),
}


def _archive(target: Path) -> str:
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("notes.txt", "nothing")
    return str(target)


def _text(target: Path) -> str:
    target.write_text("weights will follow")
    return str(target)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line_that_says_what_it_is(case: str, small: str, tmp_path: Path) -> None:
    make, expected = BROKEN[case]
    path = make(small, tmp_path / "broken.pt")
    with pytest.raises(ExplorerError) as error:
        # compressed weights are found when somebody wants their values
        Session(path).weights()
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert "broken.pt" in str(error.value)


def test_a_tensor_that_claims_more_than_its_storage_takes_no_memory(small: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(small) as archive:
        name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
        content = archive.read(name)
    # 4 x 1 x 3 x 3 elements become 255 times as many, in the tensor and not in its storage
    changed = content.replace(b"(K\x04K\x01K\x03K\x03t", b"(K\xffK\xffK\xffK\xfft")
    assert changed != content
    with pytest.raises(BadModel, match="pickle is broken"):
        Session(rewritten(small, tmp_path / "large.pt", {"data.pkl": changed})).analysis()


class LargeConstant(nn.Module):
    """Adds a constant whose size, 2.4 GB, is a number in the file."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        self.operator = operator
        self.layer = nn.Linear(3, 5)
        self.register_buffer("size", torch.tensor([300_000_000]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.operator == "bincount":
            constant = torch.bincount(self.size)
        elif self.operator == "one_hot":
            constant = nn.functional.one_hot(self.size)[0]
        elif self.operator == "indices":
            constant = torch.repeat_interleave(self.size)
        elif self.operator == "repeat":
            constant = torch.repeat_interleave(torch.ones(1, 1), self.size, 0)[:, 0]
        else:
            constant = torch.zeros(int(self.size[0])).cumsum(0)
        return self.layer(x) + constant[:5]


@pytest.mark.parametrize("operator", ["bincount", "one_hot", "indices", "repeat", "zeros"])
def test_a_constant_that_a_value_makes_large_takes_no_memory(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved_script(LargeConstant(operator), (), tmp_path / "large.pt", scripted=True)
    sizes: list[int] = []
    run = torchscript_interpreter.operators.call_operator

    def run_and_measure(*args: Any, **kwargs: Any) -> Any:
        result = run(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not result.is_meta:
            sizes.append(result.untyped_storage().nbytes())
        return result

    monkeypatch.setattr(torchscript_interpreter.operators, "call_operator", run_and_measure)
    info = Session(path, input_shapes={"x": (None, (2, 3))}, cache=False).info()
    assert info.totals.params == 3 * 5 + 5
    assert max(sizes, default=0) < 1e9


def test_the_command_line_says_it_in_one_line_and_ends_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from explorer.cli.main import main

    (tmp_path / "broken.pt").write_bytes(b"PK\x03\x04" + bytes(40))
    assert main(["info", str(tmp_path / "broken.pt")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert "broken or cut off" in said.err
