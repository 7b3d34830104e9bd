"""Figures from outside as other tools write them: onnxruntime, torch.profiler, browsers, SCALE-Sim."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

import explorer
from explorer.cli.main import main
from explorer.facts import LayerTable
from tests.session.test_overlay import LENET, asked, file, told


def profiled(folder: Path, level: str, runs: int) -> list[dict[str, Any]]:
    """The events of onnxruntime's own profile of LeNet, and it as a file `run.json`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "raw")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(LENET, options, providers=["CPUExecutionProvider"])
    for _ in range(runs):
        session.run(None, {"input": np.zeros((1, 1, 28, 28), np.float32)})
    Path(session.end_profiling()).rename(folder / "run.json")
    events: list[dict[str, Any]] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return events


def notes(table: LayerTable) -> str:
    assert table.overlay is not None
    return "; ".join(table.overlay.notes)


def test_of_several_runs_of_onnxruntime_a_layer_has_the_median(tmp_path: Path) -> None:
    events = profiled(tmp_path, "ORT_DISABLE_ALL", 5)
    table = asked(str(tmp_path / "run.json"))
    times = [event["dur"] for event in events if event["name"] == "/conv1/Conv_kernel_time"]
    assert len(times) == 5
    assert told(table, "dur")["/conv1/Conv"] == pytest.approx(median(times) * 1e-6)
    assert "5 runs: the time of a layer is the median over the runs" in notes(table)
    assert table.overlay is not None
    assert table.overlay.unmatched == ()


def test_kernels_that_onnxruntime_fused_are_times_of_the_layers_that_they_are_of(tmp_path: Path) -> None:
    events = profiled(tmp_path, "ORT_ENABLE_ALL", 1)
    found = told(asked(str(tmp_path / "run.json")), "dur")
    for kernel, path in (("FusedGemm", "/fc1/Gemm"), ("Gemm", "/fc3/Gemm"), ("Conv", "/conv1/Conv")):
        (first, *_) = [one["dur"] for one in events if one.get("args", {}).get("op_name") == kernel]
        assert found[path] == pytest.approx(first * 1e-6)
    assert "/Relu" not in found


def trace(*spans: tuple[str, float, float], cat: str = "op", **more: Any) -> str:
    """A Chrome trace of events with a name, a start and a duration."""
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": "main", "ts": start, "dur": took, "args": {}}
        for name, start, took in spans
    ]
    named = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
    return json.dumps({"displayTimeUnit": "ms", **more, "traceEvents": [named, *events]})


def test_a_chrome_trace_names_layers_by_path_name_and_module(tmp_path: Path) -> None:
    text = trace(("conv1", 0, 10), ("/conv2/Conv", 10, 20.5), ("nn.Module: fc1", 40, 3), ("conv1", 50, 1))
    found = told(asked(file(tmp_path, text, "t.json")), "dur")
    wanted = {"/conv1/Conv": 11e-6, "/conv2/Conv": 20.5e-6, "/fc1/Gemm": 3e-6, "": 34.5e-6}
    assert found == pytest.approx(wanted)


def test_events_that_begin_and_end_apart_a_list_without_an_end_and_gzip_are_read(tmp_path: Path) -> None:
    pairs = [("conv1", "B", 1), ("fc1", "B", 2), ("fc1", "E", 5), ("conv1", "E", 9)]
    events = [{"name": name, "ph": ph, "ts": ts, "pid": 1, "tid": 1} for name, ph, ts in pairs]
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(events).encode()))
    for path in (str(packed), file(tmp_path, json.dumps(events)[:-1] + ",\n", "open.json")):
        assert told(asked(path), "dur") == pytest.approx({"/conv1/Conv": 8e-6, "/fc1/Gemm": 3e-6, "": 11e-6})


def test_modules_of_torchs_profiler_are_layers_and_its_steps_runs(tmp_path: Path) -> None:
    import torch
    from torch import nn
    from torch.profiler import ProfilerActivity, profile, schedule

    inner = nn.Sequential(nn.Linear(6, 5), nn.ReLU())
    model, path = nn.Sequential(nn.Linear(4, 6), inner, nn.Linear(5, 3)), str(tmp_path / "torch.json")
    with profile(
        activities=[ProfilerActivity.CPU],
        with_stack=True,
        schedule=schedule(wait=0, warmup=1, active=3),
        on_trace_ready=lambda done: done.export_chrome_trace(path),
    ) as profiler:
        for _ in range(4):
            model(torch.zeros(2, 4))
            profiler.step()
    with explorer.Session(model, inputs=torch.zeros(2, 4)) as session:
        table = session.layers(overlay=path)
    events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
    found = told(table, "dur")
    for name, row in (("Linear_0", "0"), ("Linear_1", "1.0"), ("Linear_2", "2"), ("Sequential_1", "1")):
        times = [event["dur"] for event in events if event["name"] == f"nn.Module: {name}"]
        assert found[row] == pytest.approx(median(times) * 1e-6)
    assert "3 runs" in notes(table)


COMPUTE = """LayerID, Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %,
0, 3499, 0, 1.17, 50.0, 4.5,
1, 1599, 12, 12.5, 50.0, 12.51,
2, 999, 0, 2, 3, 4,
3, 99, 0, 2, 3, 4,
4, 9, 0, 2, 3, 4,
"""
BANDWIDTH = """LayerID, Avg IFMAP SRAM BW, Avg FILTER SRAM BW, Avg OFMAP SRAM BW, Avg IFMAP DRAM BW,
0, 1.5, 2.0, 3.0, 4.0,
1, 2.5, 2.0, 3.0, 4.0,
2, 0.5, 2.0, 3.0, 4.0,
3, 0.5, 2.0, 3.0, 4.0,
4, 0.5, 2.0, 3.0, 4.0,
"""
DETAILED = """LayerID, SRAM IFMAP Start Cycle, SRAM IFMAP Stop Cycle, SRAM IFMAP Reads, DRAM OFMAP Writes,
0, 0, 3498, 100, 7,
1, 5, 1598, 50, 7,
"""


def test_reports_of_scale_sim_go_to_the_layers_that_multiply_in_their_order(tmp_path: Path) -> None:
    table = asked(file(tmp_path, COMPUTE, "COMPUTE_REPORT.csv"))
    cycles = told(table, "total_cycles")
    assert cycles == {
        "/conv1/Conv": 3499,
        "/conv2/Conv": 1599,
        "/fc1/Gemm": 999,
        "/fc2/Gemm": 99,
        "/fc3/Gemm": 9,
        "": 6205,
    }
    assert told(table, "overall_util")["/conv2/Conv"] == 0.125
    assert "LayerID counts the 5 layers with MACs, as they run" in notes(table)
    table = asked(file(tmp_path, BANDWIDTH, "BANDWIDTH_REPORT.csv"))
    assert told(table, "avg_ifmap_sram_bw")[""] == pytest.approx(5.5 / 5)


def test_a_report_of_the_convolutions_alone_and_one_with_names(tmp_path: Path) -> None:
    table = asked(file(tmp_path, DETAILED, "DETAILED_ACCESS_REPORT.csv"))
    assert told(table, "sram_ifmap_reads") == {"/conv1/Conv": 100, "/conv2/Conv": 50, "": 150}
    assert told(table, "sram_ifmap_start_cycle")[""] == 0
    assert told(table, "sram_ifmap_stop_cycle")[""] == 3498
    assert "LayerID counts the 2 convolutions, as they run" in notes(table)
    third = "LayerID, Total Cycles (incl. prefetch), Total Cycles,\nfc2, 8, 7,\n/conv2/Conv, 9, 8,\n"
    table = asked(file(tmp_path, third, "COMPUTE_REPORT.csv"))
    assert told(table, "total_cycles") == {"/fc2/Gemm": 7, "/conv2/Conv": 8, "": 15}
    assert told(table, "total_cycles_incl_prefetch")[""] == 17


BAD: dict[str, tuple[str, str, str]] = {
    "nothing matches": (
        "a.csv",
        "layer,cost\nconv_1,1\nx,2\n",
        "no layer is called 'conv_1' or 1 other name;",
    ),
    "nearest": ("a.csv", "layer,cost\nconv_1,1\n", "did you mean 'conv1'?"),
    "nearest of several": (
        "a.csv",
        "layer,cost\nzzz,1\nconv_1,1\n",
        "no layer is called 'conv_1' or 1 other name; did you mean 'conv1'?",
    ),
    "another count": (
        "a.csv",
        COMPUTE.rpartition("3, 99")[0],
        "the report has 3 layers, the model 5 layers with",
    ),
    "a duration of words": (
        "a.json",
        '[{"ph": "X", "name": "conv1", "dur": "x"}]',
        "Expected `float | null`",
    ),
    "backwards": ("a.json", '[{"ph": "X", "name": "conv1", "ts": 1, "dur": -5}]', "ends before it begins"),
    "no modules": ("a.json", trace(("aten::relu", 0, 1), cat="cpu_op"), "with_stack=True"),
    "cut off": ("a.json", '{"traceEvents": [{"ph": "X", "name": "conv1", "dur', "this is not JSON"),
    "only metadata": ("a.json", '{"traceEvents": [{"ph": "M", "name": "x"}]}', "no "),
    "deep": ("a.json", '[{"ph": "X", "more": ' + "[" * 90_000, "nested too deep"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_says_nothing_of_the_model_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    name, text, said = BAD[case]
    assert main(["layers", LENET, "--overlay", file(tmp_path, text, name)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert said in error


def test_what_gzip_makes_of_nothing_much_is_not_unpacked_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.settings.overlay._MAX_TRACE_BYTES", 2 << 20)
    bomb, broken = tmp_path / "bomb.json.gz", tmp_path / "broken.json.gz"
    bomb.write_bytes(gzip.compress(b"[" + b" " * (3 << 20), 1))
    broken.write_bytes(b"\x1f\x8b and no more")
    for path, said in ((bomb, "more than 2 MiB are packed"), (broken, "cannot be unpacked")):
        with explorer.Session(LENET) as session, pytest.raises(explorer.ExplorerError, match=said):
            session.overlay(str(path))
