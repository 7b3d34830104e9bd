"""`explorer profile` into files for other tools: a trace, collapsed stacks, tables, TensorBoard's events."""

from __future__ import annotations

import errno
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from explorer.cli.main import main
from explorer.host import output_files

LENET = "sample_models/lenet.onnx"
QUICK = ("--steps", "6", "--warmup", "1")


def profile(*words: Any, model: Any = LENET) -> int:
    return main(["profile", str(model), *QUICK, *map(str, words)])


def events(path: Path, pid: int = 1) -> list[dict[str, Any]]:
    found = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [one for one in found if one["ph"] == "X" and one["pid"] == pid]


def test_one_measurement_is_a_trace_a_document_and_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, document = tmp_path / "trace.json", tmp_path / "profile.json"
    assert profile("--trace", trace, "-o", document, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(document.read_text(encoding="utf-8")) == printed
    found = events(trace)
    runs = [one for one in found if one["cat"] == "run"]
    assert [one["name"] for one in runs] == ["run 1", "run 2", "run 3"]
    assert all(is_nested(found, lane) for lane in {one["tid"] for one in found})
    timed = {one["path"]: one for one in printed["layers"] if one["seconds"]}
    for run in runs:
        inside = [one for one in found if run["ts"] <= one["ts"] < run["ts"] + run["dur"]]
        layers = [one for one in inside if one["cat"] == "layer"]
        assert {one["name"] for one in layers} == {*timed}
        # kernels of one run, one behind the other as they ran, and the gaps between them
        assert sum(one["dur"] for one in inside if one["cat"] in ("layer", "other")) <= run["dur"]
        assert {one["name"] for one in inside if one["cat"] == "kernel"} == {
            one["op"] for one in timed.values()
        }
    assert layers[0]["args"]["median_seconds"] == timed[layers[0]["name"]]["seconds"]["median"]
    assert "recording" not in printed or not printed["recording"]
    starts = {one["ts"] - runs[0]["ts"] for one in found}
    assert len(starts) > len(timed), "moments, not places in a row"


def is_nested(found: list[dict[str, Any]], lane: int) -> bool:
    """Whether each slice of a lane lies in what is around it, as Perfetto wants it."""
    around: list[float] = []
    for one in sorted((e for e in found if e["tid"] == lane), key=lambda e: (e["ts"], -e["dur"])):
        while around and one["ts"] >= around[-1] - 1e-6:
            around.pop()
        if around and one["ts"] + one["dur"] > around[-1] + 0.01:
            return False
        around.append(one["ts"] + one["dur"])
    return True


_NET = """
import torch
from torch import nn
def net():
    made = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    return made, torch.randn(2, 3, 8, 8)
"""


@pytest.mark.slow
def test_a_training_loop_is_a_trace_for_perfetto_and_events_for_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(_NET)
    trace, folder = tmp_path / "loop.json", tmp_path / "runs"
    more = ["--tensorboard", str(folder)] if importlib.util.find_spec("tensorboardX") else []
    words = ["--train", "--optimizer", "adam", "--trace", trace, *more, "--json"]
    assert profile(*words, model=f"{tmp_path / 'net.py'}:net") == 0
    printed = json.loads(capsys.readouterr().out)
    found = events(trace)
    named = [one["name"] for one in found if one["cat"] == "user_annotation"]
    assert [name for name in named if "#" in name] == [f"ProfilerStep#{at}" for at in (1, 2, 3)]
    assert all(is_nested(found, lane) for lane in {one["tid"] for one in found})
    parts = ["forward", "loss", "backward", "optimizer step"]
    assert [name for name in named if "#" not in name] == 3 * parts
    modules = [one["name"] for one in found if one["cat"] == "layer"]
    assert modules == 3 * ["0", "1", "2", "3", "4"]
    kernels = {one["name"] for one in found if one["cat"] == "cpu_op"}
    assert {"aten::convolution", "ConvolutionBackward0"} <= {name.rpartition(" ")[2] for name in kernels}
    if more:
        reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
        read = reader.EventAccumulator(str(folder))
        read.Reload()
        for one in printed["phases"]:
            (value,) = read.Scalars(f"phases/{one['name'].replace(' ', '_')}")
            assert value.value == pytest.approx(one["seconds"]["median"])


def test_a_trace_is_an_overlay_of_the_model_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, table = tmp_path / "trace.json", tmp_path / "profile.csv"
    assert profile("--trace", trace, "-o", table, "--optimize", "none") == 0
    assert f"written  {trace}" in capsys.readouterr().out
    assert main(["layers", LENET, "--overlay", str(trace), "--json"]) == 0
    overlay = json.loads(capsys.readouterr().out)["overlay"]
    assert (overlay["rows"], overlay["matched"], overlay["unmatched"]) == (12, 12, [])
    assert len(table.read_text(encoding="utf-8").splitlines()) == 13


def test_collapsed_stacks_are_lines_of_names_and_whole_nanoseconds_whatever_layers_are_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "block;one/a b"),
        helper.make_node("Exp", ["h"], ["y"], "tab\tand\nline"),
    ]
    sizes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 64]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", sizes[:1], sizes[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    stacks, trace = tmp_path / "m.folded", tmp_path / "m.json"
    assert profile("-o", stacks, "--trace", trace, "--batch", "1,8", model=tmp_path / "m.onnx") == 0
    lines = stacks.read_text(encoding="utf-8").splitlines()
    every = [re.fullmatch(r"(.+) (\d+)", line) for line in lines]
    assert all(every)
    assert {line.partition(";")[0] for line in lines} == {"m.onnx, batch 1", "m.onnx, batch 8"}
    for pid in (1, 2):
        assert {one["name"] for one in events(trace, pid) if one["cat"] == "kernel"} == {"Relu", "Exp"}
        mine = [one[2] for one in every if one and one[1].startswith(f"m.onnx, batch {(1, 8)[pid - 1]}")]
        assert len(mine) >= 2
        assert any(int(took) >= 1000 for took in mine)


def test_where_one_file_finds_no_room_none_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = output_files.open_text

    def full(path: str, *how: Any, **more: Any) -> Any:
        if path.endswith("trace.json"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(path, *how, **more)

    (tmp_path / "old.csv").write_text("mine")
    monkeypatch.setattr(output_files, "open_text", full)
    events = ["--tensorboard", tmp_path / "runs"] if importlib.util.find_spec("tensorboardX") else []
    code = profile("--trace", tmp_path / "trace.json", "-o", tmp_path / "old.csv", "--force", *events)
    assert code == 2
    assert "the disk is full; nothing was written" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["old.csv"]
    assert (tmp_path / "old.csv").read_text() == "mine"


def test_a_file_that_would_be_lost_or_is_no_format_of_ours_is_refused_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("explorer.Session.profile", never)
    there, read = tmp_path / "there.json", tmp_path / "read.json"
    there.write_text("mine")
    read.write_text("mine")
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("-o", there), "the file exists"),
        (("--trace", there), "the file exists"),
        (("--trace", read, "--force", "--input", read), "the result would replace its own input"),
        (("-o", tmp_path / "x.txt"), "use .csv or .json or .folded"),
        (("--trace", tmp_path / "x.csv"), "use .json"),
        (("-o", tmp_path / "x.json", "--trace", tmp_path / "x.json"), "two outputs have the same file name"),
        ((LENET, "--trace", tmp_path / "x.json"), "a file has the profile of one model"),
        (("--tensorboard", there), "is not a folder"),
        (("--tensorboard", tmp_path / "none" / "there"), "there is no such folder"),
        (("--trace", tmp_path / "none" / "x.json"), "there is no such folder"),
        (("-o", tmp_path / "none" / "x.csv", "--tensorboard", tmp_path / "runs"), "there is no such folder"),
    ]
    for words, said in cases:
        assert profile(*words) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert said in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["read.json", "there.json"]
    assert (there.read_text(), read.read_text()) == ("mine", "mine")


def test_a_trace_lies_in_the_new_folder_of_tensorboard_too(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    assert profile("--trace", runs / "x.pt.trace.json", "--tensorboard", runs) == 0
    assert sorted(path.suffix for path in runs.iterdir())[-1] == ".json"
    assert len([*runs.iterdir()]) == 2


def test_without_tensorboardx_the_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert profile("--tensorboard", tmp_path / "runs") == 2
    assert "explorer-nn[tensorboard]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_tensorboard_reads_the_scalars_and_histograms_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    folder = tmp_path / "runs"
    for _ in range(2):  # what is there stays
        assert profile("--tensorboard", folder, "--json") == 0
        printed = json.loads(capsys.readouterr().out)
    assert len(list(folder.iterdir())) == 2
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    newest = max(folder.iterdir(), key=lambda path: (path.stat().st_mtime_ns, path.name))
    events = reader.EventAccumulator(str(newest))
    events.Reload()
    tags = events.Tags()
    (wall,) = events.Scalars("wall_seconds")
    assert wall.value == pytest.approx(printed["wall_seconds"])
    timed = [one for one in printed["layers"] if one["seconds"]]
    assert sum(tag.startswith("layers/") for tag in tags["scalars"]) == len(timed)
    (conv,) = events.Scalars("layers/conv1/Conv")
    first = next(one for one in timed if one["path"] == "/conv1/Conv")
    assert conv.value == pytest.approx(first["seconds"]["median"])
    (histogram,) = events.Histograms("layer_seconds")
    assert histogram.histogram_value.num == len(timed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["time", "timeline", "flame"])
def test_measured_time_is_a_picture_with_the_names_of_what_takes_it(tmp_path: Path, what: str) -> None:
    picture = tmp_path / "time.svg"
    words = ["--what", what, "--steps", "6", "-o", str(picture), "--quiet"]
    assert main(["plot", LENET, *words]) == 0
    text = picture.read_text(encoding="utf-8")
    assert "lenet.onnx: " in text
    assert "a run, cpu" in text
    # of layers their paths, of kernels what the runtime calls them
    assert {"time": "/conv2/Conv", "timeline": "Conv", "flame": "conv"}[what] in text


@pytest.mark.slow
def test_a_roofline_has_what_each_layer_reached(tmp_path: Path) -> None:
    picture = tmp_path / "roof.svg"
    machine = ["--peak-macs", "1T", "--bandwidth", "50GB/s"]
    words = ["--what", "roofline", "--measured", *machine, "--steps", "6", "-o", str(picture), "--quiet"]
    assert main(["plot", LENET, *words]) == 0
    text = picture.read_text(encoding="utf-8")
    # two convolutions and three products
    assert "5 layers as measured (area: share of the run)" in text
    assert ", measured " in text


def test_a_picture_of_time_has_one_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", LENET, "--what", "time", "--batch", "1,8", "-o", str(tmp_path / "x.svg")]) == 2
    assert "one batch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
