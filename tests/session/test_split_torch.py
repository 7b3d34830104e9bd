"""Torch stages of a module: cut, written without sample inputs, and trained a step as the whole is."""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from explorer import EngineDied, Misuse, Session
from explorer.cli.main import main
from explorer.facts.profile.profile import ProfileSpec
from explorer.facts.split.part import PartSpec
from explorer.facts.split.split import SplitSpec
from explorer.features.split.split_words import proof_blocks
from explorer.host import stopped_children
from explorer.report.blocks import Paragraph
from explorer.session import run_pipeline

torch = pytest.importorskip("torch")
nn = torch.nn

SAMPLES = Path(__file__).parent.parent.parent / "sample_models"


class Encoder(nn.Module):  # type: ignore[misc, name-defined]
    """Two layers of attention between an embedding and a head that are one weight."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(50, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Any, mask: Any) -> tuple[Any, Any]:
        """Logits, and a value on the way that the first stage makes."""
        x = self.embed(ids)
        y = self.norm(self.layers(x, src_key_padding_mask=mask))
        return self.head(y), x.relu().mean(-1)


def encoder() -> tuple[Encoder, dict[str, Any]]:
    ids = torch.arange(12).reshape(2, 6) % 7
    return Encoder().train(), {"ids": ids, "mask": torch.zeros(2, 6, dtype=torch.bool)}


def opened() -> Session:
    module, inputs = encoder()
    return Session(module, inputs=inputs)


@pytest.mark.slow
def test_the_stages_give_what_the_module_gives_and_hold_no_sample(tmp_path: Path) -> None:
    module, inputs = encoder()
    folder = tmp_path / "stages"
    with Session(module, inputs=inputs) as session:
        macs = session.open().totals.macs
        fact = session.split(SplitSpec(3), output=str(folder), form="torch", verify=False)
    assert module.training
    assert all(one.grad is None for one in module.parameters())
    assert sum(one.macs or 0 for one in fact.stages) == macs
    manifest = json.loads((folder / "stages.json").read_text())
    assert [one["file"] for one in manifest["stages"]] == ["stage1.pt2", "stage2.pt2", "stage3.pt2"]
    assert [one["names"] for one in manifest["shared"]] == [{"1": "embed.weight", "3": "head.weight"}]
    assert any("embed" in note or "head" in note for note in fact.notes)
    known: dict[str, Any] = dict(inputs)
    stored = 0
    for one in manifest["stages"]:
        with zipfile.ZipFile(folder / one["file"]) as archive:
            samples = [name for name in archive.namelist() if "sample_inputs" in name]
            assert not any(archive.getinfo(name).file_size for name in samples)
        stage = torch.export.load(folder / one["file"]).module()
        stored += sum(value.numel() for value in stage.parameters())
        made = stage(*[known[value["name"]] for value in one["inputs"]])
        made = made if isinstance(made, tuple) else (made,)
        known |= dict(zip([value["name"] for value in one["outputs"]], made, strict=True))
    own = sum(value.numel() for value in module.parameters())
    assert stored == own + 50 * 16  # the weight that two stages have, and nothing else, twice
    for name, value in zip(
        [one["name"] for one in manifest["outputs"]], module.eval()(**inputs), strict=True
    ):
        assert torch.equal(known[name], value)


def test_a_value_is_changed_in_place_only_in_the_stage_that_makes_it() -> None:
    class Chain(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.one(x)
            z = self.two(y)
            y.view(-1).mul_(2.0)
            return y + z

    with Session(Chain(), inputs=torch.ones(2, 4)) as session:
        with pytest.raises(Misuse, match="changes in place"):
            session.split(SplitSpec(cuts=("two",)), form="torch")
        with pytest.raises(Misuse, match="1 place for"):
            session.split(SplitSpec(3), form="torch")


class Frozen(nn.Module):  # type: ignore[misc, name-defined]
    """Its first layer is not trained, by the forward itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            y = self.one(x)
        return self.two(self.norm(y))


@pytest.mark.slow
def test_what_turns_gradients_off_or_trains_as_it_runs_is_one_line(tmp_path: Path) -> None:
    x, output = torch.ones(2, 4), str(tmp_path / "s")
    with Session(Frozen(), inputs=x) as session:
        assert len(session.split(SplitSpec(2), form="torch").stages) == 2
        with pytest.raises(Misuse, match="turns gradients off or on"):
            session.split(SplitSpec(2), form="torch", output=output)
    layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    for name in ("eval", "train"):
        torch.export.save(torch.export.export(layers.train(name == "train"), (x,)), tmp_path / f"{name}.pt2")
    with Session(str(tmp_path / "train.pt2"), trust=True) as session:
        with pytest.raises(
            Misuse, match=r"changes its own '1\.\w+' as it runs.*again after module\.eval\(\)"
        ):
            session.split(SplitSpec(2), form="torch", output=output)
    with Session(str(tmp_path / "eval.pt2"), trust=True) as session:
        assert len(session.split(SplitSpec(2), form="torch").stages) == 2


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([str(SAMPLES / "lenet.onnx"), "-n", "2"], "it is not a module of PyTorch"),
        (["resnet18", "-n", "900"], "cuts; fewer stages"),
        (["resnet18", "-n", "2", "--past", "4"], "--past"),
        (["resnet18", "-n", "2", "--at", "nosuch"], "no module is called 'nosuch'"),
    ],
)
def test_what_torch_cannot_cut_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], line: str
) -> None:
    pytest.importorskip("torchvision")
    assert main(["split", *words, "--to", "torch", "-o", str(tmp_path / "s")]) == 2
    err = capsys.readouterr().err
    assert line in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def trained(session: Session, folder: Path, stages: int, gradients: int) -> None:
    """A step of both schedules, in processes, has the whole's outputs and gradients."""
    fact = session.split(SplitSpec(stages), output=str(folder), form="torch")
    assert fact.verification is not None
    assert (fact.exact, fact.verification.verdict_kind) == (True, "evidence")
    assert [one.schedule for one in fact.steps] == ["gpipe", "1f1b"]
    for step in fact.steps:
        assert all(one.equal for one in step.outputs)
        assert len(step.gradients) == gradients
        assert all(one.passed and (one.max_abs or 0) < 1e-5 for one in step.gradients)
    assert fact.output == str(folder)


@pytest.mark.slow
def test_an_encoder_with_a_shared_weight_trains_as_the_whole(tmp_path: Path) -> None:
    with opened() as session:
        trained(session, tmp_path / "three", 3, sum(1 for _ in Encoder().parameters()))
        # two processes import torch, and not three: nothing else differs here
        session.split(SplitSpec(2), output=str(tmp_path / "s"), form="torch", verify=False)
    run = run_pipeline(str(tmp_path / "s"), micro_batches=2)
    assert len({one.pid for one in run.stages}) == 2
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, str(tmp_path / "s" / "run.py"), "--steps", "3", "--lr", "0.1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    losses = [
        float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines() if "loss" in line
    ]
    assert len(losses) == 3
    assert losses == sorted(losses, reverse=True)


@pytest.mark.slow
def test_another_weight_in_a_stage_is_found_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explorer.engine.split.torch import stages

    save = stages.save

    def wrong(stage: Any, values: Any, path: str, where: str) -> None:
        if path.endswith("stage2.pt2"):
            with torch.no_grad():
                next(stage.module.parameters()).add_(0.01)
        save(stage, values, path, where)

    monkeypatch.setattr(stages, "save", wrong)
    # a constant in front of a layer norm: outputs and gradients hardly show it
    with opened() as session:
        monkeypatch.setattr(stages, "cut_module", _copied(stages.cut_module))
        fact = session.split(SplitSpec(2), output=str(tmp_path / "s"), form="torch")
    assert fact.verification is not None
    assert (fact.output, fact.verification.verdict_kind) == ("", "different")
    assert fact.steps == ()  # nothing that a step could show would change that
    said = " ".join(block.text for block in proof_blocks(fact) if isinstance(block, Paragraph))
    assert "one thread" in said
    assert "optimis" not in said
    assert not list(tmp_path.iterdir())


def _copied(made: Any) -> Any:
    """Stages of a copy, so that who changes a weight changes none of the whole's."""
    import copy

    return lambda module, *given: made(copy.deepcopy(module), *given)


@pytest.mark.slow
def test_a_stage_that_was_changed_or_is_missing_is_refused_by_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "s"
    with opened() as session:
        session.split(SplitSpec(2), output=str(folder), form="torch", verify=False)
    data = bytearray((folder / "stage2.pt2").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "stage2.pt2").write_bytes(data)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(sys, "argv", [str(folder / "run.py"), "--threads", str(torch.get_num_threads())])
    for said in ("its digest differs", "the stage is missing"):
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(folder / "run.py"), run_name="__main__")
        assert ended.value.code == 2
        assert said in capsys.readouterr().err
        (folder / "stage2.pt2").unlink(missing_ok=True)


@pytest.mark.slow
def test_a_stage_that_stands_still_in_the_proof_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopped_children, "MAX_STOPPED_SECONDS", 0.5)
    ended: list[psutil.Process] = []

    def stop() -> bool:
        for one in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # it ends meanwhile
                if "script_process" in " ".join(one.cmdline()) and one.environ()["RANK"] == "1" and not ended:
                    one.send_signal(signal.SIGSTOP)
                    ended.append(one)
        return False

    with (
        opened() as session,
        pytest.raises(EngineDied, match=r"stage2\.pt2: the process of stage 2 no longer answers"),
    ):
        session.split(SplitSpec(2), output=str(tmp_path / "s"), form="torch", cancel=stop)
    assert not ended[0].is_running()
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_disk_that_is_full_is_a_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 19))
    with opened() as session, pytest.raises(Misuse, match="the disk is full"):
        session.split(SplitSpec(2), output=str(tmp_path / "s"), form="torch", verify=False)
    assert list(tmp_path.iterdir()) == []


class Drawing(nn.Module):  # type: ignore[misc]
    """A module that draws behind a layer that does not, and drops nothing in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        x = self.drop(self.first(x))
        return self.last(x + torch.randn(2, 4))


@pytest.mark.slow
def test_what_a_module_draws_is_called_neither_equal_nor_different(tmp_path: Path) -> None:
    with Session(Drawing(), inputs=torch.ones(2, 4)) as session:
        sure = session.extract(PartSpec(layers=("last",)), str(tmp_path / "last.pt2"))
        drawn = session.extract(PartSpec(end=("last",)), str(tmp_path / "whole.pt2"))
        with pytest.raises(Misuse, match="draws random numbers"):
            session.split(SplitSpec(2), output=str(tmp_path / "stages"), form="torch")
    assert (sure.exact, drawn.exact) == (True, None)
    assert not any("random numbers" in note for note in sure.notes)
    assert any(note.startswith("not compared, because it depends on random numbers") for note in drawn.notes)
    assert {path.name for path in tmp_path.iterdir()} == {"last.pt2", "whole.pt2"}


class Shared(nn.Module):  # type: ignore[misc, name-defined]
    """A layer that torch runs as one kernel, one relu that is called twice, a function of no module's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.one, self.two = nn.Linear(16, 32), nn.Linear(32, 4)
        self.act = nn.ReLU()

    def forward(self, ids: Any) -> Any:
        """Numbers."""
        return self.act(self.two(torch.tanh(self.act(self.one(self.layer(self.embed(ids)))))))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "torch"])
def test_times_that_were_measured_of_modules_are_balanced(form: Any) -> None:
    with Session(Shared().eval(), inputs={"ids": torch.arange(12).reshape(2, 6)}) as session:
        with pytest.raises(Misuse, match="the times of the layers are unknown"):
            session.split(SplitSpec(2, "time"), form=form)
        took = session.profile(ProfileSpec(steps=3))
        told = session.split(SplitSpec(4, "time"), form=form)
        names = {one.path for one in took.layers if one.seconds is not None}
        with pytest.raises(Misuse, match="within layer, which was measured as one unit"):
            session.split(SplitSpec(by="time", cuts=(_begins(form, "layer.linear1"),)), form=form)
        session.split(SplitSpec(by="time", cuts=(_begins(form, "two"),)), form=form)
        step = session.profile(ProfileSpec(steps=3, train=True))
        trained = session.split(SplitSpec(3, "time"), form=form)
    assert {"layer", "tanh"} <= names
    known = {one.path: one.seconds.median for one in took.layers if one.seconds is not None}
    assert sum(one.cost for one in told.stages) == pytest.approx(sum(known.values()))
    assert max(one.cost for one in told.stages) >= known["layer"] * (1 - 1e-9)  # its parts are added up
    assert any("the times are those of modules in torch" in note for note in told.notes)
    assert trained.notes[0] == "times come from the measured forward pass of a training step of this model"
    assert sum(one.cost for one in trained.stages) == pytest.approx(
        sum(one.forward_seconds for one in step.layers if one.seconds is not None)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "shape", "said"),
    [
        (
            nn.Sequential(nn.LSTM(8, 8, batch_first=True)),
            (2, 4, 8),
            "it is within 0, which was measured as one unit",
        ),
        (nn.TransformerEncoderLayer(8, 2, 8, batch_first=True).eval(), (2, 4, 8), "layers are unknown"),
    ],
)
def test_a_module_that_was_measured_as_one_is_not_cut_by_time(module: Any, shape: Any, said: str) -> None:
    """Its exporter puts nodes of no module's among those of an LSTM."""
    with Session(module, inputs=(torch.ones(shape),)) as session:
        session.profile(ProfileSpec(steps=3))
        with pytest.raises(Misuse, match=said):
            session.split(SplitSpec(2, "time"))
        assert len(session.split(SplitSpec(2)).stages) == 2


def _begins(form: str, module: str) -> str:
    return module if form == "torch" else f"/{module.replace('.', '/')}/MatMul"
