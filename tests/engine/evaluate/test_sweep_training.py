"""`explorer sweep --train`: a small module trained in several ways, the best first and its checkpoint."""

import json
import pickle
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import explorer
from explorer.base.errors import Cancelled, EngineDied, ExplorerError, Misuse
from explorer.cli.main import main
from explorer.engine.sweep import processes
from explorer.session import Session
from explorer.settings.steps.trials import parse_trials

pytest.importorskip("torch")
if find_spec("lightning") is None:  # to import it takes seconds: the first who needs it does
    pytest.skip("lightning is not installed", allow_module_level=True)

CODE = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), torch.zeros(1, 4)
"""
NET = "nets_to_sweep:net"


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "nets_to_sweep.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(8)
    labels = draw.integers(0, 3, 200)
    x = draw.standard_normal((200, 4)) + 3 * np.eye(4)[labels]
    np.savez("d.npz", x=x.astype(np.float32), y=labels)
    yield tmp_path
    sys.modules.pop("nets_to_sweep", None)


@pytest.mark.parametrize("name", ["large.npy", "large.npz", "large.csv"])
def test_samples_that_no_memory_holds_are_refused_before_they_are_read(here, name, monkeypatch):
    rows = (1 << 40) // 16
    with open(name, "wb") as file:
        if name.endswith("npy"):
            np.lib.format.write_array_header_1_0(
                file, {"descr": "<f4", "fortran_order": False, "shape": (rows, 4)}
            )
        file.truncate(file.tell() + 16 * rows)  # a hole, which takes no place on the disk
    monkeypatch.setattr(
        "explorer.features.sweep.sweep.compute_fingerprint", lambda *given: pytest.fail("it was read")
    )
    with Session(NET) as session, pytest.raises(Misuse):
        session.sweep_training(name, "lr=1e-3,0.1")


@pytest.mark.slow
def test_every_combination_is_trained_as_train_would_and_the_best_is_kept(here):
    with Session(NET) as session:
        found = session.sweep_training(
            "d.npz", "lr=1e-3,0.1,batch=16,64,epochs=2", take=(1, "b.ckpt"), workers=1
        )
        alone = {
            (rate, batch): session.train("d.npz", epochs=2, rate=rate, batch=batch)
            for rate in (1e-3, 0.1)
            for batch in (16, 64)
        }
    assert len(found.trials) == 4
    for trial in found.trials:
        run = alone[trial.rate, trial.batch]
        assert trial.loss == min(epoch.held_loss for epoch in run.epochs)
        assert trial.accuracy == run.epochs[run.best - 1].accuracy
    losses = [trial.loss for trial in found.trials]
    assert losses == sorted(losses)
    # the checkpoint is the best one's: on all samples it does as that one did on those held out
    own = explorer.evaluate_files(NET, data="d.npz", weights_file="b.ckpt").models[0]
    with Session(NET) as session:
        best = found.trials[0]
        session.train("d.npz", epochs=2, rate=best.rate, batch=best.batch, output="again.ckpt")
    again = explorer.evaluate_files(NET, data="d.npz", weights_file="again.ckpt").models[0]
    assert own.loss == again.loss


@pytest.mark.slow
def test_a_sweep_that_is_stopped_goes_on_where_it_was(here, capsys):
    """By what the rows say of themselves: what another model, data or seed made is not taken for it."""
    steps, over = iter(range(1000)), "lr=0.1,0.2,0.4,epochs=2"
    how = {"output": "r.db", "workers": 1}
    with Session(NET) as session:
        with pytest.raises(Cancelled):  # in the third training
            session.sweep_training("d.npz", over, cancel=lambda: next(steps) > 14, **how)
        more = session.sweep_training("d.npz", over, take=(2, "two.ckpt"), **how)
        again = session.sweep_training("d.npz", over, **how)
        other = session.sweep_training("d.npz", over, held=0.3, **how)
    assert (more.made, more.kept, again.made, again.kept) == (1, 2, 0, 3)
    assert again.trials == more.trials
    assert (other.made, other.kept) == (3, 0)
    # a file of results gives weights without a training, and those are the row's
    assert main(["sweep", "r.db", "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["trials"]
    assert len(kept) == 6
    at = 1 + [row["key"] for row in kept].index(more.trials[1].key)
    assert main(["sweep", "r.db", "--take", f"{at}:same.ckpt"]) == 0
    capsys.readouterr()
    assert main(["sweep", "r.db", "--train", "lr=0.2..0.4", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 4
    assert (here / "same.ckpt").read_bytes() == (here / "two.ckpt").read_bytes()
    # the same module by another name is known; with another layer in its file it is another one
    for code, known in ((CODE, 1), (CODE.replace("nn.Linear(4, 3)", "nn.Linear(4, 3), nn.Tanh()"), 0)):
        (here / "moved.py").write_text(code)
        with Session("moved.py:net") as session:
            assert session.sweep_training("d.npz", "lr=0.1,epochs=2", **how).kept == known


@pytest.mark.slow
def test_workers_find_what_one_process_finds(here, monkeypatch):
    def travelled(tasks, done, *, workers, cancel=None):
        for task in tasks:
            done(task, pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(task))())))
        return workers

    monkeypatch.setattr(processes, "run", travelled)
    with Session(NET) as session:
        near = session.sweep_training("d.npz", "lr=1e-2..1,epochs=1", take=(1, "a.ckpt"), workers=1)
        far = session.sweep_training("d.npz", "lr=1e-2..1,epochs=1", take=(1, "b.ckpt"), workers=3)
    assert (near.workers, far.workers) == (0, 3)
    figures = [[(t.rate, t.loss, t.accuracy) for t in fact.trials] for fact in (near, far)]
    assert figures[0] == figures[1]
    said = [
        explorer.evaluate_files(NET, data="d.npz", weights_file=f).models[0].loss
        for f in ("a.ckpt", "b.ckpt")
    ]
    assert said[0] == said[1]


@pytest.mark.slow
def test_a_trial_whose_workers_die_is_a_row_and_the_others_stand(here, monkeypatch):
    def dying(tasks, done, *, workers, cancel=None):
        done(tasks[0], EngineDied("the workers that tried it ended"))
        for task in tasks[1:]:
            done(task, task())
        return workers

    monkeypatch.setattr(processes, "run", dying)
    with Session(NET) as session:
        found = session.sweep_training("d.npz", "lr=0.1,0.2,epochs=1", workers=2).trials
    assert [(trial.rate, trial.epochs) for trial in found] == [(0.2, 1), (0.1, 1)]
    assert found[1].error == "the workers that tried it ended"
    assert found[1].loss is None


@pytest.mark.slow
def test_processes_and_a_cluster_train(here):
    """One process each: to import torch and Lightning takes it longer than to train."""
    pytest.importorskip("distributed")
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
    with Session(NET) as session:
        one = session.sweep_training("d.npz", "lr=0.01,0.1,epochs=1", workers=1)
        two = session.sweep_training("d.npz", "lr=0.1,epochs=1", workers=2)
        assert [t.loss for t in two.trials] == [t.loss for t in one.trials if t.rate == 0.1]
        with subprocess.Popen([*dask, "--no-dashboard"], stderr=subprocess.PIPE, text=True) as scheduler:
            address = next(m[1] for line in scheduler.stderr if (m := re.search(r"at:\s+(tcp://\S+)", line)))
            command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "2"]
            command += ["--no-nanny", "--no-dashboard"]
            with subprocess.Popen(command, stderr=subprocess.DEVNULL) as worker:
                there = session.sweep_training(
                    "d.npz", "lr=0.01,0.1,epochs=1", scheduler=address, take=(1, "c.ckpt")
                )
                worker.terminate()
            scheduler.terminate()
    assert [t.loss for t in there.trials] == pytest.approx([t.loss for t in one.trials], rel=1e-5)
    assert explorer.evaluate_files(NET, data="d.npz", weights_file="c.ckpt").models[0].accuracy > 0.5


def test_the_answer_is_a_table_the_best_first_and_one_that_fails_says_why(here, capsys):
    words = [
        "sweep",
        NET,
        "--train",
        "lr=1e30,0.1,epochs=1,optimizer=sgd",
        "--data",
        "d.npz",
        "--workers",
        "1",
    ]
    assert main([*words, "--take", "1:best.ckpt"]) == 0
    said = capsys.readouterr()
    rows = [line.split()[1:] for line in said.out.splitlines() if "sgd" in line]
    assert [row[0] for row in rows] == ["0.1", "1e+30"]
    assert "NaN or Inf in epoch 1" in said.out
    assert "best is lr 0.1" in said.out
    assert "1 of 2 trials have no figures" in said.err
    assert main([*words, "--take", "1:best.ckpt"]) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*words, "--json"]) == 0
    trials = json.loads(capsys.readouterr().out)["trials"]
    assert [trial["rate"] for trial in trials] == [0.1, 1e30]
    assert trials[1]["loss"] is None


def test_a_range_goes_by_tens_or_doubling_and_draws_come_from_all_of_it():
    grid = parse_trials("lr=1e-4..1e-2,batch=64..300")
    assert [(t["rate"], t["batch"]) for t in grid] == [
        (rate, batch) for rate in (1e-4, 1e-3, 1e-2) for batch in (64, 128, 256, 300)
    ]
    assert parse_trials("lr=0.1,0.1,optimizer=sgd") == ({"rate": 0.1, "optimizer": "sgd"},)
    drawn = parse_trials("lr=1e-4..1e-2,batch=64,256", 40, seed=3)
    assert (
        drawn == parse_trials("lr=1e-4..1e-2,batch=64,256", 40, seed=3) != parse_trials("lr=1e-4..1e-2", 40)
    )
    assert len({t["rate"] for t in drawn}) > 20
    assert all(1e-4 <= t["rate"] <= 1e-2 and t["batch"] in (64, 256) for t in drawn)
    # each decade has its share
    assert 10 < sum(t["rate"] < 1e-3 for t in drawn) < 30
    # of two there are no forty
    assert len(parse_trials("batch=64,256", 40)) == 2
    assert [t["rate"] for t in parse_trials("lr=0.5,0.01..0.1")] == [0.5, 0.01, 0.1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--train", "lr=1e-3"], "--train: needs samples; add --data FILE"),
        (["--data", "d.npz"], "--data: needs --train"),
        (["--train", "lr=0.1", "--data", "d.npz", "--tile", "16"], "--tile: does not apply to trainings"),
        (["--train", "rate=0.1", "--data", "d.npz"], "'rate' is not a setting that can be tried"),
        (["--train", "lr=fast", "--data", "d.npz"], "'fast' is not a value or range of lr"),
        (["--train", "lr=nan", "--data", "d.npz"], "'nan' is not a value or range of lr"),
        (["--train", "batch=64..2", "--data", "d.npz"], "'64..2' is not a value or range of batch"),
        (["--train", "batch=1", "--data", "d.npz"], "'1' is not a value or range of batch"),
        (["--train", f"epochs=1..{10**400}", "--data", "d.npz"], "is not a value or range of epochs"),
        (["--train", "optimizer=adam..sgd", "--data", "d.npz"], "not a value or range of optimizer"),
        (["--train", "lr=0.1", "--data", "d.npz", "--take", "2:new.ckpt"], "there is no row 2"),
        (["--train", "lr=0.1", "--data", "d.npz", "--take", "best"], "'best' is not a row and file"),
        (["--train", "lr=0.1,lr=1", "--data", "d.npz"], "'lr' is listed twice"),
        (["--train", "lr=0.1", "--trials", "2000", "--data", "d.npz"], "1,000 are the most"),
        (["--train", "lr=0.1,1", "--data", "none.npz"], "none.npz"),
        (["--train", "lr=0.1,1", "--data", "/dev/zero"], "not a regular file"),
        (["--train", "lr=1e30", "--data", "d.npz"], "NaN or Inf in epoch 1"),
        (["--train", "lr=0.1", "--data", "d.npz", "--take", "1:d.npz", "--force"], "d.npz"),
        (["other.onnx", "--train", "lr=0.1", "--data", "d.npz"], "one model is trained at a time"),
    ],
)
def test_what_cannot_be_swept_is_one_line_and_nothing_is_written(here, capsys, words, says):
    before = {path: path.stat().st_size for path in here.iterdir()}
    output = [] if "--take" in words or "--tile" in words else ["--take", "1:new.ckpt"]
    assert main(["sweep", NET, *words, *output]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    after = {path: path.stat().st_size for path in here.iterdir() if path.name != "__pycache__"}
    assert after == before


def test_an_object_stays_here_and_who_stops_gets_no_file(here):
    from torch import nn

    with Session(nn.Linear(4, 3)) as session:
        assert len(session.sweep_training("d.npz", "lr=0.1,0.01,epochs=1").trials) == 2
        with pytest.raises(Misuse, match="stays in its process"):
            session.sweep_training("d.npz", "lr=0.1", workers=2)
    with Session(NET) as session, pytest.raises(Cancelled):
        session.sweep_training("d.npz", "lr=0.1", take=(1, "new.ckpt"), cancel=lambda: True)
    assert not (here / "new.ckpt").exists()


def test_a_graph_is_not_trained(here, sample):
    with Session(sample("jsc_tiny")) as session, pytest.raises(ExplorerError, match="is trained here"):
        session.sweep_training("d.npz", "lr=0.1,1")
