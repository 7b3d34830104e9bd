"""`explorer profile`: text, JSON and CSV of what was measured, and one line for what cannot be."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from explorer.cli.main import main
from explorer.facts.profile.comparison import LayerChange
from explorer.features.profile.profile_comparison_words import build_change_table
from explorer.report.blocks import Span

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")
FEW = ["--steps", "2", "--warmup", "0"]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["profile", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


def test_the_text_has_the_wall_time_the_layers_and_what_is_no_layer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = said(capsys, LENET, *FEW, "--top", "3", "--optimize", "none")
    lines = [line.strip() for line in text.splitlines()]
    for head in ("Wall time", "Runtime overhead", "Profiler's cost", "Runs on"):
        assert any(line.startswith(head) for line in lines), head
    (cost,) = [line for line in lines if line.startswith("Profiler's cost")]
    assert re.search(r"on a run, [+-]\d+ % on average: it was on in \d+ of \d+ runs;", cost)
    assert "3 of 12 layers; --top shows more" in lines
    assert "optimize none" in text
    assert ("and time that other processes took" in text) == ("Loaded machine" in text)


def test_of_one_run_on_one_thread_nothing_is_said_of_ten(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, LENET, "--steps", "1", "--warmup", "0", "--threads", "1")
    (wall,) = [line for line in text.splitlines() if line.strip().startswith("Wall time")]
    assert wall.endswith("one run")
    assert "cpu, 1 thread " in text


def test_json_has_the_keys_of_the_contract_and_all_layers(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(said(capsys, LENET, *FEW, "--json", "--sort", "order"))
    assert {
        *("wall_seconds", "overhead_seconds", "layers", "operators", "modules", "other", "runs"),
        *("device", "threads", "loaded", "settled", "stopped", "profiler_overhead", "removed"),
        *("profiled_runs", "profiling_overhead"),
    } <= told.keys()
    assert told["profiled_runs"] >= 1
    layer = told["layers"][0]
    assert {"median", "p10", "p90"} <= layer["seconds"].keys()
    assert {"path", "kind", "calls", "share", "macs_per_second", "bytes_per_second"} <= layer.keys()
    assert {"predicted_seconds", "limit_seconds", "within"} <= layer.keys()
    assert [one["layer"] for one in told["layers"]] == sorted(one["layer"] for one in told["layers"])
    assert len(told["layers"]) == 12
    took = [one["seconds"]["median"] for one in told["layers"] if one["seconds"]]
    other = [one["seconds"] for one in told["other"]]
    whole = sum(took) + sum(other) + told["overhead_seconds"] - told["slowed_seconds"]
    assert whole == pytest.approx(told["wall_seconds"])


def test_csv_has_a_row_a_layer_with_the_largest_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(said(capsys, LENET, *FEW, "--csv", "--top", "4"))))
    shares = [float(row["share"]) for row in rows]
    assert len(rows) == 4
    assert shares == sorted(shares, reverse=True)


@pytest.mark.slow
def test_several_batches_are_several_profiles(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(SAMPLES / "bert_tiny.onnx")
    told = json.loads(said(capsys, model, *FEW, "--batch", "1,3", "--dim", "sequence=4", "--json"))
    assert [(one["batch"], one["rows"]) for one in told["profiles"]] == [(1, 1), (3, 3)]
    assert told["profiles"][1]["inputs"][0].startswith("input_ids: int64 [3, 4]")
    for side, one in zip(told["batches"], told["profiles"], strict=True):
        assert side["row_seconds"] * side["batch"] == pytest.approx(one["wall_seconds"])
    rows = list(csv.DictReader(io.StringIO(said(capsys, model, *FEW, "--batch", "1,3", "--csv"))))
    assert [row["batch"] for row in rows] == ["1", "3"]
    text = said(capsys, model, *FEW, "--batch", "1,3")
    assert "Batch 3" in text


@pytest.mark.slow
def test_two_models_are_compared(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = json.loads(said(capsys, LENET, LENET, *FEW, "--json", "--top", "2"))
    assert told["difference"] == told["after"]["wall_seconds"] - told["before"]["wall_seconds"]
    assert len(told["layers"]) == 2
    assert {"path", "before", "after", "difference", "significant", "status"} <= told["layers"][0].keys()
    assert told["significant"] is None  # two runs say nothing
    # three under the profiler whatever they cost, for the ranks of the layers' times
    assert [told[side]["profiled_runs"] for side in ("before", "after")] == [3, 3]
    text = said(capsys, LENET, LENET, *FEW)
    assert "each needs at least six runs" in text
    assert "Uncertain layers" in text
    assert "under the profiler, but each needs six: pass a longer --time-limit" in text


def test_a_difference_of_rounded_numbers_is_none() -> None:
    change = LayerChange("conv", "conv", "conv", "Conv", "same", None, None, -1.7e-21, False)
    told = build_change_table([change]).rows[0][5]
    assert isinstance(told, Span)
    assert told.text == "0 ms"


def test_what_cannot_be_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", input=np.zeros((1, 3, 28, 28), np.float32))
    for words, expected in (
        (["--device", "quantum"], "--device: onnxruntime has no 'quantum' here"),
        (["--threads", "4096"], "--threads: 4,096 threads on"),
        (["--input", str(tmp_path / "wrong.npz")], "is [1, 3, 28, 28] there and [1, 1, 28, 28] in the model"),
        (["--batch", "8"], "explorer rebatch MODEL 8 -o OUT.onnx"),
        (["--steps", "0"], "--steps: "),
        (["--optimize", "most"], "--optimize: "),
        (["--time-limit", "0"], "--time-limit: "),
    ):
        err = said(capsys, LENET, *words, code=2)
        assert expected in err, err
        assert len(err.strip().splitlines()) == 1


def test_columns_of_a_profile_say_who_makes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layers", LENET, "--columns", "measured"]) == 2
    err = capsys.readouterr().err
    assert "'measured' needs a profile" in err
    assert len(err.splitlines()) == 1


_NET = """
import torch
from torch import nn
def net():
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return made, torch.randn(2, 3, 8, 8)
"""


@pytest.mark.slow
def test_a_module_has_its_operators_with_their_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "timed_net.py").write_text(_NET)
    model = f"{tmp_path / 'timed_net.py'}:net"
    told = json.loads(said(capsys, model, *FEW, "--batch", "5", "--json"))
    assert told["rows"] == 5
    kernels = {one["op"]: one for one in told["operators"]}
    assert kernels["aten::addmm"]["allocated_bytes"] == 5 * 5 * 4
    own = [one["self_seconds"] for one in told["operators"]]
    assert own == sorted(own, reverse=True)
    assert all(one["seconds"] >= one["self_seconds"] for one in told["operators"])
    text = said(capsys, model, *FEW, "--train", "--optimizer", "adam")
    for head in ("forward", "backward", "optimizer step", "memory", "self"):
        assert head in text
    assert "aten::convolution_backward" in text
    rows = list(csv.DictReader(io.StringIO(said(capsys, model, *FEW, "--training", "--csv"))))
    assert {row["path"]: bool(row["backward_seconds"]) for row in rows}["3"]


def test_a_training_step_is_of_a_module(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--train: only a module has a training step" in said(capsys, LENET, "--train", code=2)
    # of other verbs --train takes a value; it is the verb that says, wherever it stands
    assert main(["--train", "profile", LENET]) == 2
    assert "--train: only a module has a training step" in capsys.readouterr().err
    assert main(["--train", "lr=1e-3", "sweep", LENET]) == 2
    assert "no such" not in capsys.readouterr().err
