"""`explorer profile` into files for other tools: a trace, collapsed stacks, tables, TensorBoard's events."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from explorer.cli.main import main

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
    (run,) = [one for one in found if one["cat"] == "run"]
    medians = {one["path"]: one["seconds"]["median"] for one in printed["layers"] if one["seconds"]}
    assert {one["name"]: one["dur"] for one in found if one["cat"] == "layer"} == pytest.approx(
        {path: seconds * 1e6 for path, seconds in medians.items()}
    )
    # the pieces are the run, and each lies in what is around it
    pieces = sum(one["dur"] for one in found if one["cat"] in ("layer", "own", "other", "overhead"))
    assert run["dur"] == pytest.approx(max(pieces, printed["wall_seconds"] * 1e6))
    groups = {one["path"]: one["seconds"] * 1e6 for one in printed["modules"]}
    assert {one["name"]: one["dur"] for one in found if one["cat"] == "group"} == pytest.approx(groups)
    around: list[dict[str, Any]] = []
    for one in found:
        while around and one["ts"] >= around[-1]["ts"] + around[-1]["dur"] - 1e-6:
            around.pop()
        assert not around or one["ts"] + one["dur"] <= around[-1]["ts"] + around[-1]["dur"] + 1e-6
        around.append(one)
    assert "no recording" in json.loads(trace.read_text(encoding="utf-8"))["otherData"]["what"]


def test_a_trace_is_an_overlay_of_the_model_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, table = tmp_path / "trace.json", tmp_path / "profile.csv"
    assert profile("--trace", trace, "-o", table, "--optimize", "none") == 0
    assert f"written  {trace}" in capsys.readouterr().out
    assert main(["layers", LENET, "--overlay", str(trace), "--json"]) == 0
    overlay = json.loads(capsys.readouterr().out)["overlay"]
    assert (overlay["rows"], overlay["matched"], overlay["unmatched"]) == (12, 12, [])
    assert len(table.read_text(encoding="utf-8").splitlines()) == 13


def test_collapsed_stacks_are_lines_of_names_and_microseconds_whatever_layers_are_called(
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
    every = [re.fullmatch(r"(.+) (\d+\.\d+)", line) for line in lines]
    assert all(every)
    assert {line.partition(";")[0] for line in lines} == {"m.onnx, batch 1", "m.onnx, batch 8"}
    for pid in (1, 2):
        leaves = [one["dur"] for one in events(trace, pid) if one["cat"] in ("layer", "other", "overhead")]
        mine = [one[2] for one in every if one and one[1].startswith(f"m.onnx, batch {(1, 8)[pid - 1]}")]
        assert sum(map(float, mine)) == pytest.approx(sum(leaves), abs=0.01)


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
        (("--trace", read, "--force", "--input", read), "this file is read for it"),
        (("-o", tmp_path / "x.txt"), "use .csv or .json or .folded"),
        (("--trace", tmp_path / "x.csv"), "use .json"),
        (("-o", tmp_path / "x.json", "--trace", tmp_path / "x.json"), "two files of one name"),
        ((LENET, "--trace", tmp_path / "x.json"), "a file is of one model"),
        (("--tensorboard", there), "is no folder"),
        (("--tensorboard", tmp_path / "none" / "there"), "there is no such folder"),
    ]
    for words, said in cases:
        assert profile(*words) == 2
        out, error = capsys.readouterr()
        assert (out, error.count("\n")) == ("", 1)
        assert said in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["read.json", "there.json"]
    assert (there.read_text(), read.read_text()) == ("mine", "mine")


def test_a_folder_that_is_not_there_is_one_line_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile("--trace", tmp_path / "none" / "x.json") == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_without_tensorboardx_the_line_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    assert profile("--tensorboard", tmp_path / "runs") == 2
    assert "explorer-nn[tensorboard]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


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
