"""What feeds a layer, and what it feeds: in Python, in text and in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from explorer import Misuse, Session
from explorer.cli.main import main
from explorer.facts.graph.connections import Connections

Sample = Callable[[str], Path]
F32 = TensorProto.FLOAT


def _sources(found: Connections) -> list[str]:
    return [one.producer.path if one.producer else one.source for one in found.inputs]


def _readers(found: Connections) -> list[list[str]]:
    return [[reader.path for reader in one.readers] for one in found.outputs]


class _Residual(nn.Module):
    """Adds its input to what a convolution and an activation in place make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)
        self.act = nn.ReLU(inplace=True)
        self.same = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.same(self.act(self.conv(x)))


class _Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _Residual(), _Residual()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x))
        z = y.flatten(1)
        z[:, 0] = 0.0
        return y.mT


def test_a_residual_names_both_of_its_producers() -> None:
    with Session(_Two(), inputs=torch.zeros(1, 4, 2, 2)) as session:
        assert _sources(session.connections("first.add")) == ["input", "first.same"]
        assert _sources(session.connections("second.add")) == ["first.add", "second.same"]
        # what works in place is on the way like anything else, and so is what hands on what it got
        assert _sources(session.connections("first.act")) == ["first.conv"]
        assert _sources(session.connections("first.same")) == ["first.act"]
        assert _readers(session.connections("first.act")) == [["first.same"]]
        # of a group only what crosses its boundary
        first = session.connections("first")
        assert _sources(first) == ["input"]
        assert _readers(first) == [["second.conv", "second.add"]]
        assert [o.tensor.shape for o in first.outputs] == [(1, 4, 2, 2)]


def test_what_was_written_into_by_a_view_comes_from_who_wrote() -> None:
    with Session(_Two(), inputs=torch.zeros(1, 4, 2, 2)) as session:
        rows = {layer.kind: layer.path for layer in session.analysis().layers if layer.parent is None}
        assert _sources(session.connections(rows["setitem"]))[0] == rows["flatten"]
        last = session.connections(session.analysis().layers[-1].path)
        assert _sources(last) == [rows["setitem"]]
        assert [one.model_output for one in last.outputs] == [True]


def _loop(path: Path) -> str:
    """y = x + x three times over, and a branch that hands on a Relu."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["on"], name="keep"),
            helper.make_node("Add", ["item", "around"], ["sum"], name="plus"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("item", F32, [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", F32, [2]),
        ],
    )
    branch = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node(op, ["looped"], [side], name=side)],
            side,
            [],
            [helper.make_tensor_value_info(side, F32, [2])],
        )
        for side, op in (("then", "Relu"), ("else", "Neg"))
    }
    graph = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["around"], name="abs"),
            helper.make_node("Loop", ["trips", "", "x"], ["looped"], name="again", body=body),
            helper.make_node("If", ["flag"], ["y"], name="choose", **branch),
            helper.make_node("Exp", ["y"], ["z"], name="exp"),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", F32, [2]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("z", F32, [2])],
        [helper.make_tensor("trips", TensorProto.INT64, [], [3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def test_bodies_are_fed_by_who_carries_them_and_by_what_they_see(tmp_path: Path) -> None:
    with Session(_loop(tmp_path / "loop.onnx")) as session:
        # the item comes from the loop, what it adds from outside
        assert _sources(session.connections("again/plus")) == ["again", "abs"]
        assert _readers(session.connections("again/plus")) == [["again"]]
        assert _sources(session.connections("again")) == ["input", "abs"]
        assert sorted(_readers(session.connections("again"))[0]) == [
            "choose/else_branch/else",
            "choose/then_branch/then",
        ]
        # a branch that does not count feeds the If, too
        for side in ("then", "else"):
            assert _readers(session.connections(f"choose/{side}_branch/{side}")) == [["choose"]]
        assert _sources(session.connections("exp")) == ["choose"]
        assert [(o.tensor.name, o.model_output) for o in session.connections("exp").outputs] == [("z", True)]


def _fan(path: Path, many: int) -> str:
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="source")]
    nodes += [helper.make_node("Abs", ["r"], [f"a{n}"], name=f"abs{n}") for n in range(many)]
    nodes.append(helper.make_node("Sum", [f"a{n}" for n in range(many)], ["y"], name="sink"))
    ports = [helper.make_tensor_value_info(n, F32, [2]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def test_what_comes_from_the_data_stands_before_constants_which_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"c{i}" for i in range(5)]
    stored = helper.make_tensor("s", F32, [2], [1.0, 2.0])
    nodes = [
        *(helper.make_node("Identity", ["s"], [name], name=f"/same{name}") for name in names),
        helper.make_node("Relu", ["x"], ["r"], name="/relu"),
        helper.make_node("Sum", [*names, "r"], ["y"], name="/sum"),
    ]
    feeds = [helper.make_tensor_value_info("x", F32, [2])]
    ends = [helper.make_tensor_value_info("y", F32, [2])]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", feeds, ends, [stored])), path)
    with Session(str(path)) as session:
        found = session.connections("/sum")
    assert [one.constant for one in found.inputs] == [False] + [True] * 5
    assert _sources(found)[0] == "/relu"
    assert main(["layers", str(path), "--layer", "/sum"]) == 0
    shown = capsys.readouterr().out
    assert "← /relu" in shown
    assert "+5 constants" in shown
    assert "/samec0" not in shown


def test_what_goes_on_stands_before_what_is_asked_for_its_size_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = range(5)
    nodes = [
        *(helper.make_node("Neg", ["x"], [f"n{i}"], name=f"/body/neg{i}") for i in sides),
        helper.make_node("Relu", ["x"], ["r"], name="/body/relu"),
        *(helper.make_node("Shape", [f"n{i}"], [f"s{i}"], name=f"/shape{i}") for i in sides),
        helper.make_node("Max", [f"s{i}" for i in sides], ["s"], name="/max"),
        helper.make_node("Transpose", ["r"], ["t"], name="/turn"),
        helper.make_node("Reshape", ["t", "s"], ["y"], name="/back"),
    ]
    feeds = [helper.make_tensor_value_info("x", F32, [2, 3])]
    ends = [helper.make_tensor_value_info("y", F32, [2, 3])]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", feeds, ends)), path)
    with Session(str(path)) as session:
        found = session.connections("body")
        group = next(layer for layer in session.analysis().layers if layer.path == "body")
    assert _readers(found) == [["/turn"], *([f"/shape{i}"] for i in sides)]
    assert [one.constant for one in found.outputs] == [False] + [True] * 5
    assert [tensor.name for tensor in group.outputs] == ["r", "n0", "n1", "n2", "n3", "n4"]
    assert main(["layers", str(path), "--layer", "body"]) == 0
    shown = capsys.readouterr().out
    assert "→ /turn" in shown
    assert "+5 for constants and shape arithmetic" in shown
    assert "/shape0" not in shown


def test_a_thousand_readers_are_counted_and_the_first_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _fan(tmp_path / "fan.onnx", 1000)
    with Session(path) as session:
        (out,) = session.connections("source").outputs
        assert (out.reader_count, len(out.readers)) == (1000, 64)
        sink = session.connections("sink")
        assert (sink.input_count, len(sink.inputs)) == (1000, 64)
    assert main(["layers", path, "--layer", "source"]) == 0
    text = capsys.readouterr().out
    assert "and 936 more readers, 1,000 in all" in text
    assert text.count("→ abs") == 64


def test_text_and_json_of_one_layer_say_where_to_and_where_from(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(sample("lenet"))
    assert main(["layers", path, "--layer", "/fc3/Gemm"]) == 0
    text = capsys.readouterr().out
    assert "← /Relu_3  Relu  [1, 84]  float32" in text
    assert "output of the model" in text
    assert main(["layers", path, "--layer", "*Relu_3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layer"]["path"] == "/Relu_3"
    assert found["inputs"][0]["producer"] == {"id": 10, "path": "/fc2/Gemm", "kind": "Gemm"}
    assert found["inputs"][0]["tensor"]["shape"] == [1, 84]
    assert [reader["path"] for reader in found["outputs"][0]["readers"]] == ["/fc3/Gemm"]


def test_a_name_that_is_no_layer_or_several_is_one_line(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (
        (["--layer", "/Rlu"], "no layer '/Rlu'; did you mean '/Relu'?"),
        (["--layer", "*Conv*"], "'*Conv*' is 2 layers; choose from: /conv1/Conv, /conv2/Conv"),
        (["--layer", "pool", "--csv"], "one layer is not a table"),
    ):
        assert main(["layers", str(sample("lenet")), *words]) == 2
        assert said in capsys.readouterr().err
    with Session(sample("lenet")) as session, pytest.raises(Misuse, match="no layer 99"):
        session.connections(99)


def test_a_file_of_weights_says_that_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    assert main(["layers", str(tmp_path / "w.pt"), "--layer", "weight"]) == 0
    assert "which layer feeds which is not known" in capsys.readouterr().out


def test_a_tiled_site_is_fed_as_the_matmul_was(sample: Sample) -> None:
    from explorer import TileSpec

    with Session(sample("mlp_128")) as session:
        plain = session.analysis().layers
        site = next(layer for layer in plain if layer.kind in ("Gemm", "MatMul"))
        before = session.connections(site.id)
        session.tile(TileSpec((64, 64, 64)))
        after = session.connections(site.path)
        assert after.layer.group
        assert [one.tensor.name for one in after.inputs if one.source != "stored"] == [
            one.tensor.name for one in before.inputs
        ]
        assert [one.tensor.name for one in after.outputs] == [one.tensor.name for one in before.outputs]


def test_a_page_tells_shapes_apart_that_are_declared_and_inferred_and_names_bound_sizes(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["layers", str(sample("bert_tiny")), "--dim", "batch=2", "--layer", "*word_embeddings/Gather"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "input_ids  [2, sequence]  int64  bound, declared [batch, sequence]" in text
    assert "[2, sequence, 64]  float32  inferred" in text
    assert "sizes that were bound: batch=2" in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["tensor"]["origin"] for one in (*found["inputs"], *found["outputs"])] == [
        "declared",
        "inferred",
    ]


def test_a_shape_that_the_file_leaves_open_stands_beside_the_bound_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def value(name: str, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="first"),
        helper.make_node("Neg", ["h"], ["y"], name="next"),
    ]
    graph = helper.make_graph(
        nodes, "g", [value("x", "batch", 3)], [value("y", "batch", 3)], value_info=[value("h", "batch", 3)]
    )
    path = str(tmp_path / "open.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    sizes: tuple[dict[str, Any], ...] = ({"dims": {"batch": 8}}, {"input_shapes": {"x": (None, (8, 3))}})
    for options in sizes:
        with Session(path, **options) as session:
            found = session.connections("first")
        assert found.inputs[0].tensor.shape == found.outputs[0].tensor.shape == (8, 3)
        assert found.declared == {"x": ("batch", 3), "h": ("batch", 3)}
    with Session(path) as session:
        assert session.connections("first").declared == {}
    assert main(["layers", path, "--layer", "first", "--dim", "batch=8"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "x [8, 3] float32 bound, declared [batch, 3]" in text
    assert "[8, 3] float32 inferred, declared [batch, 3] h" in text


def test_a_weight_that_another_node_reads_too_is_no_input_of_a_layer(tmp_path: Path) -> None:
    """As torch exports biases that are alike: one is stored, and Identity nodes hand it on."""
    nodes = [
        helper.make_node("Identity", ["b"], ["again"], name="copy"),
        helper.make_node("Conv", ["x", "w", "b"], ["h"], name="first"),
        helper.make_node("Conv", ["h", "w", "again"], ["y"], name="second"),
    ]
    tensors = [
        helper.make_tensor(name, F32, shape, [0.5] * math.prod(shape))
        for name, shape in (("w", (4, 4, 1, 1)), ("b", (4,)))
    ]
    ports = [helper.make_tensor_value_info(name, F32, [1, 4, 2, 2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    with Session(tmp_path / "m.onnx") as session:
        assert _sources(session.connections("first")) == ["input"]
        assert _sources(session.connections("copy")) == ["stored"]
        assert [one.name for one in session.connections("first").layer.weights] == ["w", "b"]
