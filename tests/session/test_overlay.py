"""Figures from outside, of a profiler or a spreadsheet, on the layers of a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import explorer
from explorer.cli.main import main
from explorer.facts import LayerTable
from tests.documents import schema

LENET = "sample_models/lenet.onnx"
BERT = "sample_models/bert_tiny.onnx"


def told(table: LayerTable, column: str) -> dict[str, Any]:
    """What rows have in a column, by path; '': the whole model."""
    at = table.columns.index(column)
    rows = {row.path: values[at] for row, values in zip(table.layers, table.values, strict=True)}
    return {path: value for path, value in rows.items() if value is not None} | {"": table.totals[at]}


def asked(figures: Any, query: str = "", source: str = LENET, **how: Any) -> LayerTable:
    with explorer.Session(source) as session:
        return session.layers(query, overlay=figures, **how)


def file(folder: Path, text: str, name: str = "profile.csv") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_figures_are_matched_by_path_name_tensor_and_glob_and_groups_sum_them(tmp_path: Path) -> None:
    text = "layer,latency (us)\n/conv1/Conv,12.5\nconv2,100\nlogits,7\n/pool/*,2\nnobody,1\n"
    table = asked(file(tmp_path, text))
    layers = {
        "/conv1/Conv": 12.5,
        "/conv2/Conv": 100,
        "/fc3/Gemm": 7,
        "/pool/MaxPool": 2,
        "/pool/MaxPool_1": 2,
    }
    sums = {"pool": 4, "": 123.5}
    wanted = {path: pytest.approx(value * 1e-6) for path, value in (layers | sums).items()}
    assert told(table, "latency") == wanted
    assert table.overlay is not None
    assert (table.overlay.rows, table.overlay.matched, table.overlay.layers) == (5, 4, 5)
    assert table.overlay.unmatched == ("nobody",)


def test_columns_from_outside_sort_and_filter_as_ours_do() -> None:
    figures = {"conv1": {"p99": 3}, "conv2": {"p99": 1}, "fc1": {"p99": 2}}
    table = asked(figures, "p99 >= 2", flat=True, sort="p99")
    assert [row.name for row in table.layers] == ["conv1", "fc1"]
    assert told(table, "p99")[""] == 5
    assert [row.name for row in asked(figures, sort="-p99", flat=True).layers[:3]] == [
        "conv2",
        "fc1",
        "conv1",
    ]


def test_a_group_of_which_a_filter_leaves_some_layers_has_what_is_left() -> None:
    figures = {"/pool/MaxPool": {"top:max": 3, "cost": 3}, "/pool/MaxPool_1": {"top:max": 5, "cost": 5}}
    table = asked(figures, "cost<4")
    assert told(table, "top") == {"pool": 3, "/pool/MaxPool": 3, "": 3}
    assert told(table, "cost") == {"pool": 3, "/pool/MaxPool": 3, "": 3}
    assert told(asked(figures, "is:group"), "cost") == {"pool": 8, "": 8}


def test_what_does_not_add_up_is_the_largest_the_least_or_the_mean(tmp_path: Path) -> None:
    text = "name,peak:max,low:min,busy:mean,load\n/pool/MaxPool,3,3,2,50%\n/pool/MaxPool_1,5,5,4,10%\n"
    text += "conv1,0,9,9,90%\n"
    table = asked(file(tmp_path, text))
    assert [told(table, name)["pool"] for name in ("peak", "low", "busy", "load")] == [5, 3, 3, 0.3]
    # over layers, not over groups
    assert [told(table, name)[""] for name in ("peak", "low", "busy", "load")] == [5, 3, 5, 0.5]


def test_a_path_holds_before_a_glob_and_of_globs_the_first() -> None:
    table = asked({"/conv*": {"cost": 1}, "*": {"cost": 2}, "/conv1/Conv": {"cost": 3}})
    found = told(table, "cost")
    assert (found["/conv1/Conv"], found["/conv2/Conv"], found["/fc1/Gemm"]) == (3, 1, 2)
    assert table.overlay is not None
    assert table.overlay.notes == ("2 layers match several patterns: the first in the file applies",)


def test_rows_of_one_layer_are_taken_together_and_a_name_of_several_layers_is_none(tmp_path: Path) -> None:
    text = "name,cost,top:max\nconv1,1,1\nconv1,2,2\nMaxPool,3,3\nLayerNorm,1,1\n"
    table = asked(file(tmp_path, text))
    assert (told(table, "cost")["/conv1/Conv"], told(table, "top")["/conv1/Conv"]) == (3, 2)
    table = asked({"dense": {"cost": 1}}, source=BERT)
    assert table.overlay is not None
    assert table.overlay.ambiguous == ("dense",)
    assert table.overlay.matched == 0


def test_a_figure_of_a_group_stands_for_those_inside() -> None:
    assert told(asked({"pool": {"cost": 9}, "/pool/*": {"cost": 1}, "conv1": {"cost": 1}}), "cost") == {
        "pool": 9,
        "/pool/MaxPool": 1,
        "/pool/MaxPool_1": 1,
        "/conv1/Conv": 1,
        "": 10,
    }


@pytest.mark.parametrize(
    ("head", "cell", "name", "value"),
    [
        ("latency (ms)", "1,234.5", "latency", 1.2345),
        ("latency_ms", "2", "latency", 0.002),
        ("peak [KiB]", "2", "peak", 2048),
        ("Energy (mJ)", "2", "energy", 2),
        ("macs", "2", "overlay_macs", 2),
        ("load %", "25%", "load", 0.25),
        ("99th", "2", "c_99th", 2),
        ("größe", "-1e-3", "gr_sse", -0.001),
    ],
)
def test_units_and_names_of_columns(tmp_path: Path, head: str, cell: str, name: str, value: float) -> None:
    table = asked(file(tmp_path, f'"{head}",layer\n"{cell}",conv1\n'))
    assert told(table, name)["/conv1/Conv"] == pytest.approx(value)


@pytest.mark.parametrize(
    "value",
    [
        [
            {"name": "conv1", "cost": 1, "of": "x"},
            {"name": "conv2", "cost": "2"},
            {"name": "fc1", "cost": None},
        ],
        {"conv1": {"cost": 1}, "conv2": {"cost": 2}},
        {"results": {"/conv1/Conv": {"value": 1}, "/conv2/Conv": {"value": 2}}, "name": "cost"},
        {"main": {"results": {"conv1": {"value": 1}, "conv2": {"value": 2}}, "name": "cost"}},
    ],
)
def test_the_forms_of_json_say_the_same(tmp_path: Path, value: Any) -> None:
    path = file(tmp_path, json.dumps(value), "cost.json")
    assert told(asked(path), "cost") == {"/conv1/Conv": 1, "/conv2/Conv": 2, "": 3}


def test_node_data_that_explorer_wrote_comes_back_as_a_column(tmp_path: Path) -> None:
    path = tmp_path / "macs.json"
    assert main(["graph", LENET, "-o", str(path), "--quiet"]) == 0
    table = asked(str(path))
    with explorer.Session(LENET) as session:
        macs = {row.path: row.macs for row in session.analysis().layers}
    found = told(table, "overlay_macs")
    assert found.pop("") == 416_520
    assert found == macs


def test_a_profile_of_onnxruntime_is_an_overlay(tmp_path: Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "run")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(LENET, options, providers=["CPUExecutionProvider"])
    session.run(None, {"input": np.zeros((1, 1, 28, 28), np.float32)})
    profile = session.end_profiling()
    table = asked(profile)
    events = json.loads(Path(profile).read_text(encoding="utf-8"))
    wanted = sum(event["dur"] for event in events if event["name"].endswith("_kernel_time"))
    assert told(table, "dur")[""] == pytest.approx(wanted * 1e-6)
    assert table.overlay is not None
    assert table.overlay.layers == 12


def test_several_files_are_columns_beside_each_other(tmp_path: Path) -> None:
    paths = [file(tmp_path, f"layer,cost\nconv1,{at}\n", f"{at}.csv") for at in (1, 2)]
    table = asked(paths)
    assert [told(table, name)["/conv1/Conv"] for name in ("cost", "cost_2")] == [1, 2]
    alike = asked(file(tmp_path, "layer,cost (us),cost_ms\nconv1,1,2\n"))
    for found in (table, alike):
        assert found.overlay is not None
        assert [column.head for column in found.overlay.columns] == ["cost", "cost_2"]


def test_the_command_says_what_matched_and_json_has_it_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file(tmp_path, "layer;latency (us);remark\nconv1;12.5;slow\nnobody;1;\n")
    assert main(["layers", LENET, "--overlay", path]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "12.5 µs" in text
    assert "1 of 2 rows are of this model, and give figures to 1 of its layers" in text
    assert "No layer is called 'nobody'." in text
    assert "'remark' is left out: 'slow' is not a number." in text
    assert main(["layers", LENET, "--overlay", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema("layers"))
    assert document["table"][0]["latency"] == pytest.approx(12.5e-6)
    assert document["overlay"]["unmatched"] == ["nobody"]
    assert document["overlay"]["columns"] == [
        {"name": "latency", "head": "latency", "unit": "seconds", "over": "sum"}
    ]


@pytest.mark.parametrize("ending", [".svg", ".dot", ".html"])
def test_a_graph_is_coloured_by_figures_from_outside(tmp_path: Path, ending: str) -> None:
    path = file(tmp_path, "layer,latency (us)\nconv1,12.5\nconv2,100\n/pool/*,2\n")
    drawn = tmp_path / f"graph{ending}"
    assert (
        main(["graph", LENET, "-o", str(drawn), "--overlay", path, "--color", "latency", "--depth", "1"]) == 0
    )
    text = drawn.read_text(encoding="utf-8").replace("\\u00b5", "µ")
    assert "12.5 µs latency" in text
    assert "100 µs latency" in text
    assert "4 µs latency" in text


def test_node_data_for_model_explorer_may_be_from_outside(tmp_path: Path) -> None:
    drawn = tmp_path / "graph.json"
    path = file(tmp_path, "layer,cost\nconv1,12.5\n")
    assert main(["graph", LENET, "-o", str(drawn), "--overlay", path, "--color", "cost", "--quiet"]) == 0
    assert json.loads(drawn.read_text(encoding="utf-8"))["results"] == {"/conv1/Conv": {"value": 12.5}}


BAD: dict[str, tuple[str, str, str]] = {
    "no rows": ("a.csv", "layer,cost\n", "no rows"),
    "empty": ("a.csv", "", "no rows"),
    "no numbers": ("a.csv", "layer,cost\nconv1,x\n", "no figures: 'cost' is left out: 'x' is not a number"),
    "blank": ("a.csv", "layer,cost\nconv1,-\n", "no column holds numbers"),
    "infinite": ("a.csv", "layer,cost\nconv1,1e999\n", "'1e999' is too large"),
    "a sum of it is infinite": ("a.csv", "layer,cost\nconv1,1e308\nconv2,1e308\n", "'1e308' is too large"),
    "a comma for a point": ("a.csv", "layer;cost\nconv1;1,5\n", "'1,5' is not a number"),
    "too many cells": ("a.csv", "layer,cost\nconv1,1,2\n", "a.csv:2: 3 cells under 2 headers"),
    "a quote": ("a.csv", 'layer,cost\n"conv1,1\n', "this is not CSV"),
    "one head twice": ("a.csv", "layer,cost,cost\nconv1,1,2\n", "two columns are called 'cost'"),
    "a long head": ("a.csv", f"layer,{'n ' * 200}\nconv1,1\n", "399 letters"),
    "a long cell": ("a.csv", f"layer,cost\n{'c' * 200_000},1\n", "this is not CSV: field larger"),
    "many columns": (
        "a.csv",
        "layer," + ",".join(map(str, range(99))) + "\nconv1,1\n",
        "99 columns; 64 are read",
    ),
    "many globs": (
        "a.csv",
        "layer,cost\n" + "".join(f"*{at}*,1\n" for at in range(300)),
        "at most 256 are allowed",
    ),
    "no JSON": ("a.json", '{"conv1": }', "a.json:1: this is not JSON"),
    "deep JSON": ("a.json", "[" * 100_000, "nested too deep"),
    "twice": ("a.json", '{"conv1": 1, "conv1": 2}', "'conv1' occurs twice"),
    "a list of numbers": ("a.json", "[1, 2]", "a list of records, or a mapping"),
    "many digits": ("a.json", '{"conv1": ' + "9" * 5000 + "}", "not an overlay"),
    "a number": ("a.json", "3", "a list of records, or a mapping"),
    "a large number": ("a.json", '{"conv1": 1e999}', "no figures"),
    "too large": ("a.csv", "layer,cost\n" + "x" * (17 << 20), "more than 16 MiB"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_file_that_is_no_overlay_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    name, text, said = BAD[case]
    assert main(["layers", LENET, "--overlay", file(tmp_path, text, name)]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert said in error


def test_what_is_no_file_or_no_text_or_no_figure_is_one_line_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = file(tmp_path, "layer,cost\nconv1,1\n")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00layer")
    (tmp_path / "trace.json").write_bytes(b'{"traceEvents": [{"ph": "X", "name": "\xec"}]}')
    drawn = tmp_path / "graph.svg"
    for words, said in (
        (["--overlay", str(tmp_path)], "cannot be read"),
        (["--overlay", str(tmp_path / "none.csv")], "No such file"),
        (["--overlay", str(tmp_path / "binary.csv")], "not text in UTF-8"),
        (["--overlay", str(tmp_path / "trace.json")], "not text in UTF-8"),
        (["--overlay", good, "--color", "latency"], "no figure is called 'latency'"),
        (["--color", "latency"], "no figure is called 'latency'"),
    ):
        assert main(["graph", LENET, "-o", str(drawn), *words]) == 2
        assert said in capsys.readouterr().err
        assert not drawn.exists()
    assert main(["layers", LENET, "--columns", "latency"]) == 2
    assert "there is no column 'latency'" in capsys.readouterr().err


def test_the_screen_does_not_open_on_a_file_that_is_no_overlay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([LENET, "--overlay", file(tmp_path, "layer,cost\n")]) == 2
    assert "the overlay has no rows" in capsys.readouterr().err
