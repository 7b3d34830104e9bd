"""`explorer nodes`: attributes of every node, and shape, elements, bytes and values of its tensors."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session
from explorer.cli.main import main
from tests.cli.commands.test_graph import saved

Sample = Callable[[str], Path]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file with a stored weight, a Constant, an input that is left out, a body, and a header."""
    limit = helper.make_tensor("limit", TensorProto.FLOAT, [], [6.0])
    branch = helper.make_graph(
        [helper.make_node("Relu", ["clipped"], ["relu"], name="inner")],
        "branch",
        [],
        [helper.make_tensor_value_info("relu", TensorProto.FLOAT, [2, 3])],
    )
    weight = np.arange(12, dtype=np.float16).reshape(4, 3)
    path = saved(
        tmp_path / "m.onnx",
        [
            helper.make_node("Cast", ["weight"], ["w32"], name="cast", to=TensorProto.FLOAT),
            helper.make_node("Gemm", ["x", "w32"], ["product"], name="fc/gemm", alpha=0.5, transB=0),
            helper.make_node("Constant", [], ["six"], name="fc/six", value=limit),
            helper.make_node("Clip", ["product", "", "six"], ["clipped"], name="fc/clip"),
            helper.make_node("If", ["yes"], ["y"], name="choice", then_branch=branch, else_branch=branch),
        ],
        ["y"],
        initializer=[
            numpy_helper.from_array(weight, "weight"),
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        ],
    )
    proto = onnx.load(path)
    proto.model_version, proto.doc_string, proto.graph.doc_string = 7, "a test", "its graph"
    onnx.save(proto, path)
    return path


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    assert main(["nodes", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_each_node_has_its_attributes_and_every_tensor(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fact = answer(capsys, model)
    assert (fact["model_version"], fact["doc_string"], fact["graph_doc_string"]) == (7, "a test", "its graph")
    assert [(node["index"], node["op"]) for node in fact["nodes"]] == [
        *((0, "Cast"), (1, "Gemm"), (2, "Constant"), (3, "Clip"), (4, "If"), (5, "Relu"), (6, "Relu"))
    ]
    nodes = {node["path"]: node for node in fact["nodes"]}
    assert nodes["fc/gemm"]["attributes"] == {"alpha": 0.5, "transB": 0}
    stored = nodes["cast"]["inputs"][0]
    assert (stored["dtype"], stored["shape"], stored["elements"], stored["bytes"]) == (
        *("float16", [4, 3], 12, 24),
    )
    assert stored["values"] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert nodes["fc/six"]["attributes"] == {"value": 6.0}
    left, low, high = nodes["fc/clip"]["inputs"]
    assert (left["name"], left["elements"], left["bytes"], left["stored"]) == ("product", 6, 24, False)
    assert low["name"] == ""
    assert (high["name"], high["shape"], high["bytes"], high["values"]) == ("six", [], 4, 6.0)
    inner = [node for node in fact["nodes"] if node["name"] == "inner"]
    assert [node["inside"] for node in inner] == ["choice/else_branch", "choice/then_branch"]
    assert [node["outputs"][0]["bytes"] for node in inner] == [24, 24]


def test_csv_has_a_row_for_each_tensor_of_each_node(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", str(model), "--layer", "fc", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["op"], row["role"], row["tensor"], row["bytes"]) for row in rows] == [
        ("Gemm", "input", "x", "32"),
        ("Gemm", "input", "w32", "48"),
        ("Gemm", "output", "product", "24"),
        ("Constant", "output", "six", "4"),
        ("Clip", "input", "product", "24"),
        ("Clip", "input", "", "0"),
        ("Clip", "input", "six", "4"),
        ("Clip", "output", "clipped", "24"),
    ]


def test_the_text_shows_attributes_and_values(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", str(model), "--op", "clip", "--op", "constant"]) == 0
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "Nodes 2 of 7 in the file" in lines
    assert "Model version 7" in lines
    assert "Description a test" in lines
    assert lines[lines.index("2 fc/six Constant") + 1] == "value 6"
    assert "in six stored float32 [] 1 4 B 6" in lines
    assert "in left out" in lines


@pytest.mark.parametrize("name", ["lenet", "mobilenet_small"])
def test_the_nodes_of_a_graph_are_the_layers_with_their_bytes(name: str, sample: Sample) -> None:
    with Session(str(sample(name))) as session:
        layers = {layer.path: layer for layer in session.analysis().layers if not layer.group}
        nodes = session.nodes().nodes
    assert {node.path for node in nodes} == set(layers)
    for node in nodes:
        layer = layers[node.path]
        assert layer.activation_bytes in (0, sum(tensor.bytes or 0 for tensor in node.outputs))
        assert {t.name for t in layer.weights} <= {t.name for t in node.inputs if t.stored}


def test_what_is_not_there_is_named(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nodes", str(model), "--op", "Gem"]) == 2
    assert capsys.readouterr().err == "explorer: --op: no node is a 'Gem'; did you mean 'Gemm'?\n"
    assert main(["nodes", str(model), "--layer", "fc/gem"]) == 2
    assert "--layer: no node matches 'fc/gem'; did you mean 'fc/gemm'?" in capsys.readouterr().err
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    weights = tmp_path / "w.safetensors"
    weights.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert main(["nodes", str(weights)]) == 2
    assert f"another format; explorer layers {weights} lists its layers" in capsys.readouterr().err
