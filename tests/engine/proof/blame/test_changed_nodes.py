"""The node at fault is named, not the one behind it: what was inserted, removed, replaced or renamed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from explorer import blame_files
from explorer.engine.formats.onnx import reader
from explorer.engine.proof.blame.search import blame
from tests.engine.proof import tiled as t

node = helper.make_node


def net(path: Path) -> str:
    """Two branches of layers with weights, whose product is pooled and classified."""
    nodes = [
        node("Conv", ["x", "w1"], ["c1"], name="stem", pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"], name="stem_act"),
        node("Conv", ["r1", "w2"], ["c2"], name="left", pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c2"], ["s2"], name="gate"),
        node("Conv", ["r1", "w3"], ["c3"], name="right"),
        node("Sub", ["s2", "c3"], ["d"], name="difference"),
        node("Tanh", ["d"], ["t"], name="squash"),
        node("GlobalAveragePool", ["t"], ["p"], name="pool"),
        node("Flatten", ["p"], ["f"], name="flat"),
        node("Gemm", ["f", "w4", "b4"], ["y"], name="head", transB=1),
    ]
    stored = {
        "w1": t.weight(6, 3, 3, 3, scale=0.3),
        "w2": t.weight(6, 6, 3, 3, scale=0.2, seed=1),
        "w3": t.weight(6, 6, 1, 1, scale=0.4, seed=2),
        "w4": t.weight(5, 6, seed=3),
        "b4": t.weight(5, seed=4),
    }
    t.model(path, nodes, {"x": (1, 3, 8, 8)}, stored)
    return str(path)


def renamed(graph: Any, old: str, new: str) -> None:
    """Everybody reads `new` in place of `old`."""
    for each in graph.node:
        for at, name in enumerate(each.input):
            if name == old:
                each.input[at] = new


def named(graph: Any, name: str) -> Any:
    return next(each for each in graph.node if each.name == name)


def insert(graph: Any, behind: str, *, keep: bool) -> None:
    """A node `planted` behind another; whoever reads its output is told so, or the value keeps its name."""
    at = [each.name for each in graph.node].index(behind)
    value = graph.node[at].output[0]
    if keep:
        graph.node[at].output[0] = "raw"
        graph.node.insert(at + 1, node("Softplus", ["raw"], [value], name="planted"))
        return
    renamed(graph, value, "made")
    graph.node.insert(at + 1, node("Softplus", [value], ["made"], name="planted"))


def remove(graph: Any, name: str) -> None:
    gone = named(graph, name)
    renamed(graph, gone.output[0], gone.input[0])
    graph.node.remove(gone)


def replace(graph: Any, name: str, op: str) -> None:
    named(graph, name).op_type = op


def change(graph: Any, name: str, *, rename: bool = False) -> None:
    """Another weight; with another name for the node and its value, too."""
    each = named(graph, name)
    stored = next(tensor for tensor in graph.initializer if tensor.name == each.input[1])
    numbers = numpy_helper.to_array(stored) * np.float32(1.5)
    stored.CopyFrom(numpy_helper.from_array(numbers, stored.name))
    if rename:
        renamed(graph, each.output[0], "quite_another")
        each.output[0], each.name = "quite_another", "under_another_name"


def swap(graph: Any, name: str) -> None:
    each = named(graph, name)
    each.input[0], each.input[1] = each.input[1], each.input[0]


FAULTS = {
    "inserted before the head": (lambda g: insert(g, "flat", keep=False), "planted", "inserted"),
    "inserted before two readers": (lambda g: insert(g, "stem_act", keep=False), "planted", "inserted"),
    "inserted under the old name": (lambda g: insert(g, "right", keep=True), "planted", "inserted"),
    "an activation removed": (lambda g: remove(g, "squash"), "squash", "removed"),
    "a gate removed": (lambda g: remove(g, "gate"), "gate", "removed"),
    "a pool replaced": (lambda g: replace(g, "pool", "GlobalMaxPool"), "pool", "replaced"),
    "an activation replaced": (lambda g: replace(g, "stem_act", "Elu"), "stem_act", "replaced"),
    "a weight changed": (lambda g: change(g, "left"), "left", "changed"),
    "renamed and changed": (lambda g: change(g, "right", rename=True), "right", "changed"),
    "operands swapped": (lambda g: swap(g, "difference"), "difference", "connected otherwise"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_the_node_at_fault_is_named(tmp_path: Path, case: str) -> None:
    plant, name, kind = FAULTS[case]
    source, target = net(tmp_path / "m.onnx"), str(tmp_path / "f.onnx")
    made = onnx.load(source)
    del made.graph.value_info[:]
    plant(made.graph)
    onnx.save(made, target)
    fact = blame_files(source, target)
    assert fact.first is not None, fact.verdict
    first = fact.probes[fact.first]
    assert (first.layer, first.change) == (name, kind)
    assert f"'{name}', which " in fact.verdict
    if case == "renamed and changed":
        assert first.layer_after == "under_another_name"
        assert "under_another_name" in fact.verdict


def test_what_cannot_be_run_alone_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from explorer.base.errors import BadModel
    from explorer.engine.proof.blame import probe

    source = net(tmp_path / "m.onnx")
    model = reader.read(source)
    made = onnx.load(source)
    change(made.graph, "left")
    onnx.save(made, tmp_path / "f.onnx")

    def refuse(self: Any, *given: Any) -> None:
        raise BadModel("onnxruntime cannot load it")

    monkeypatch.setattr(probe.LayerProbe, "_try_group", refuse)
    same = blame(model, model)
    assert (same.kind, same.same) == ("equal", True)
    assert "10 layers could not be run alone" in same.verdict
    other = blame(model, reader.read(str(tmp_path / "f.onnx")))
    assert (other.kind, other.same) == ("undecided", False)
    assert other.verdict.startswith("not decided: the first difference is at Conv 'left'")


@pytest.mark.slow
def test_of_thirty_random_faults_nearly_all_are_named(tmp_path: Path) -> None:
    rng = random.Random(33)
    source = net(tmp_path / "m.onnx")
    hits = 0
    for at in range(30):
        plant, name, _ = FAULTS[rng.choice([*FAULTS])]
        made = onnx.load(source)
        del made.graph.value_info[:]
        for tensor in made.graph.initializer:
            numbers = numpy_helper.to_array(tensor) * np.float32(rng.uniform(0.5, 2))
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
        onnx.save(made, tmp_path / f"{at}.onnx")
        plant(made.graph)
        onnx.save(made, tmp_path / "f.onnx")
        fact = blame_files(str(tmp_path / f"{at}.onnx"), str(tmp_path / "f.onnx"))
        hits += fact.first is not None and fact.probes[fact.first].layer == name
    assert hits >= 28
