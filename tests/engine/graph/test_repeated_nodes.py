"""What is held in bulk is what it would be one by one: nodes, weights, and the bytes of both."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest

from explorer.engine.formats.onnx.writer import encode
from explorer.engine.graph.model import Graph, Model, Node, Tensor, Value, build_tensor
from explorer.engine.graph.repeated_nodes import (
    NodeRun,
    Nodes,
    Tensors,
    WeightBundle,
    combine_nodes,
    list_stored_nodes,
)

TILES = [np.full((2, 3), at, np.float32) for at in range(4)]


def run(stem: str = "p") -> NodeRun:
    count = len(TILES)
    return NodeRun(
        "MatMul",
        "",
        (["x"] * count, [f"w{i}" for i in range(count)]),
        [f"{stem}{i}" for i in range(count)],
        [f"site/{stem}{i}" for i in range(count)],
        {"site": "fc"},
        "mnk",
        [f"0,{i},0" for i in range(count)],
    )


def bundle() -> WeightBundle:
    def data() -> Iterator[memoryview]:
        return (tile.reshape(-1).view(np.uint8).data for tile in TILES)

    names = [f"w{i}" for i in range(len(TILES))]
    return WeightBundle(
        "float32", names, [t.shape for t in TILES], lambda at: build_tensor(names[at], TILES[at]), data
    )


def model(nodes: list[Node], weights: dict[str, Tensor] | Tensors) -> Model:
    total = Node("Sum", nodes[0].outputs, ("y",), name="sum")
    graph = Graph(
        name="g",
        nodes=combine_nodes([*nodes, total]),
        inputs=(Value("x", "float32", (5, 2)),),
        outputs=(Value("y", "float32", (5, 3)),),
        initializers=weights,
    )
    return Model(graph, {"": 17}, 8)


def test_a_graph_of_runs_shows_every_node() -> None:
    nodes = combine_nodes([Node("Identity", ("a",), ("b",)), run()])
    assert isinstance(nodes, Nodes)
    assert len(list_stored_nodes(nodes)) == 2
    assert [n.op for n in nodes] == ["Identity", *["MatMul"] * 4]
    assert nodes[2].inputs == ("x", "w1")
    assert nodes[2].outputs == ("p1",)
    assert nodes[2].name == "site/p1"
    assert dict(nodes[2].metadata) == {"site": "fc", "mnk": "0,1,0"}
    assert nodes[-1] is nodes[4]
    assert next(n.outputs for n in reversed(nodes)) == ("p3",)


def test_nodes_without_runs_stay_a_tuple() -> None:
    assert isinstance(combine_nodes([Node("Identity", ("a",), ("b",))]), tuple)


def test_weights_in_a_bundle_are_found_by_name() -> None:
    weights = Tensors({"bias": build_tensor("bias", np.zeros(3))}, [bundle()])
    assert len(weights) == 5
    assert set(weights) == {"bias", "w0", "w1", "w2", "w3"}
    assert "w9" not in weights
    np.testing.assert_array_equal(weights["w2"].array(), TILES[2])


@pytest.mark.parametrize("stem", ["p", "é", "long" * 40])
def test_a_file_is_the_same_written_in_bulk_or_one_by_one(stem: str) -> None:
    many = run(stem)
    written = onnx.load_from_string(encode(model([many], Tensors({}, [bundle()]))))
    singly = [*many.build_nodes()]
    total = Node("Sum", many.outputs, ("y",), name="sum")
    plain = Graph(
        "g", (*singly, total), (Value("x", "float32", (5, 2)),), (Value("y", "float32", (5, 3)),), {}
    )
    alone = onnx.load_from_string(encode(Model(plain, {"": 17}, 8)))

    def told(node: onnx.NodeProto) -> tuple[object, ...]:
        pairs = sorted((p.key, p.value) for p in node.metadata_props)
        return node.op_type, node.domain, node.name, [*node.input], [*node.output], pairs

    assert [told(n) for n in written.graph.node] == [told(n) for n in alone.graph.node]
    assert [t.name for t in written.graph.initializer] == ["w0", "w1", "w2", "w3"]
    for tensor, tile in zip(written.graph.initializer, TILES, strict=True):
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), tile)
    onnx.checker.check_model(written)
