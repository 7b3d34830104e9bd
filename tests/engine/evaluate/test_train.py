"""`explorer train`: a small module on a data file, and the checkpoint that `--weights-file` takes."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import explorer
from explorer.base.errors import Cancelled, MissingExtra, Misuse
from explorer.cli.main import main
from explorer.session import Session

pytest.importorskip("torch")
if find_spec("lightning") is None:  # to import it takes seconds: the first who needs it does
    pytest.skip("lightning is not installed", allow_module_level=True)

CODE = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), torch.zeros(1, 4)

def number():
    return nn.Linear(4, 1), torch.zeros(1, 4)

def frozen():
    return nn.Linear(4, 3).requires_grad_(False), torch.zeros(1, 4)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_to_train.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(8)
    labels = draw.integers(0, 3, 241)
    x = draw.standard_normal((241, 4)) + 3 * np.eye(4)[labels]
    np.savez("d.npz", x=x.astype(np.float32), y=labels)
    np.savez("n.npz", x=x.astype(np.float32), y=(x @ [1, -2, 0.5, 0]).astype(np.float32))
    yield tmp_path
    sys.modules.pop("nets_to_train", None)


def test_it_learns_and_the_checkpoint_is_the_best_epochs(here):
    with Session("nets_to_train:net") as session:
        before = session.evaluate("d.npz").models[0].accuracy
        found = session.train("d.npz", epochs=4, rate=0.1, batch=32, output="best.ckpt")
        # the module of the session stays as it was
        assert session.evaluate("d.npz").models[0].accuracy == before
    assert (found.samples, found.held, len(found.epochs)) == (193, 48, 4)
    best = min(found.epochs, key=lambda epoch: epoch.held_loss)
    assert found.best == best.epoch
    after = explorer.evaluate_files("nets_to_train:net", data="d.npz", weights_file="best.ckpt").models[0]
    assert after.accuracy > 0.85 > before
    assert any("'state_dict.model.' removed" in note for note in after.notes)


def test_the_same_seed_makes_the_same_run(here):
    def run(seed):
        with Session("nets_to_train:net") as session:
            found = session.train("d.npz", epochs=2, seed=seed, batch=240)
        return [(epoch.loss, epoch.held_loss) for epoch in found.epochs]

    assert run(1) == run(1) != run(2)


@pytest.mark.slow
def test_numbers_are_met_by_squared_error(here):
    with Session("nets_to_train:number") as session:
        found = session.train("n.npz", epochs=20, rate=0.01, batch=16, optimizer="momentum", output="b.ckpt")
    assert (found.task, found.loss) == ("regression", "squared error")
    assert found.epochs[0].accuracy is None
    fit = explorer.evaluate_files("nets_to_train:number", data="n.npz", weights_file="b.ckpt").models[0]
    assert fit.r2 > 0.95


def test_the_answer_shows_a_curve_and_every_epoch(here, capsys):
    words = ["train", "nets_to_train:net", "--data", "d.npz", "--epochs", "3", "-o", "a.ckpt"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "cross entropy, held out" in said
    assert "█" in said
    assert "a.ckpt" in said
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*words[:-2], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [epoch["epoch"] for epoch in document["epochs"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nets_to_train:net", "--data", "d.npz", "--lr", "1e30"], "NaN or Inf in epoch 1"),
        (["nets_to_train:frozen", "--data", "d.npz"], "the model has no trainable parameters"),
        (["nets_to_train:net", "--data", "x.npy"], "it has no labels"),
        (["nets_to_train:net", "--data", "bad.npz"], "the label 3 in sample 3 is not a class"),
        (["nets_to_train:net", "--data", "n.npz"], "do not go with an output"),
        (["nets_to_train:net", "--data", "one.npz"], "too few samples"),
        (["nets_to_train:net", "--data", "d.npz", "--held", "1"], "is not a number between 0 and 1"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_nothing_is_written(here, capsys, words, says):
    np.save("x.npy", np.zeros((9, 4), np.float32))
    np.savez("bad.npz", x=np.zeros((9, 4), np.float32), y=np.array([0, 1, 3, 0, 0, 0, 0, 0, 0]))
    np.savez("one.npz", x=np.zeros((1, 4), np.float32), y=np.zeros(1, int))
    before = sorted(here.iterdir())
    assert main(["train", *words, "--epochs", "1", "-o", "new.ckpt"]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert sorted(p for p in here.iterdir() if p.name != "__pycache__") == before


def test_a_checkpoint_is_not_written_under_the_ending_of_a_model(here, capsys):
    before = sorted(here.iterdir())
    assert main(["train", "nets_to_train:net", "--data", "d.npz", "-o", "x.onnx"]) == 2
    assert "the ending .onnx is not possible here; possible endings: .pt, .pth" in capsys.readouterr().err
    assert sorted(p for p in here.iterdir() if p.name != "__pycache__") == before


def test_a_graph_is_not_trained_and_who_stops_gets_no_file(here, sample):
    with Session(sample("jsc_tiny")) as session, pytest.raises(Misuse, match="is trained here"):
        session.train("d.npz")
    with Session("nets_to_train:net") as session, pytest.raises(Cancelled):
        session.train("d.npz", output="new.ckpt", cancel=lambda: True)
    assert not (here / "new.ckpt").exists()


def test_without_lightning_it_says_what_to_install(here, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    with Session("nets_to_train:net") as session, pytest.raises(MissingExtra, match=r"explorer-nn\[train\]"):
        session.train("d.npz")
