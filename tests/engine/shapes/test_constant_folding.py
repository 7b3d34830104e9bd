"""Arithmetic on small values gives what onnx's own reference gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from explorer.engine.graph.model import Model, Node
from explorer.engine.shapes import constant_folding
from explorer.engine.shapes.constants import ConstantContents, compute_contents

Build = Callable[..., Model]


def folded(nodes: list[Node], known: dict[str, Any]) -> dict[str, Any]:
    """What follows from known contents, by name."""
    contents = ConstantContents({})
    for name, value in known.items():
        contents.set_array(name, np.asarray(value))
    made = {node.outputs[0]: compute_contents(node, None, None, contents) for node in nodes}
    return {name: value for name, value in made.items() if value is not None}


V = np.array([7, -3, 5, 2])
M = np.arange(6).reshape(2, 3)

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("Identity", [V], {}),
    ("Mod", [V, np.array([2, 2, -3, 7])], {}),
    ("Mod", [V, np.array([2, 2, -3, 7])], {"fmod": 1}),
    ("Cast", [V], {"to": 1}),
    ("Gather", [V, np.array([2, -1])], {}),
    ("Gather", [M, np.array(1)], {"axis": 1}),
    ("Concat", [V, V[:2]], {"axis": 0}),
    ("Unsqueeze", [V, np.array([0, 2])], {}),
    ("Squeeze", [V.reshape(1, 4, 1), np.array([0])], {}),
    ("Squeeze", [V.reshape(1, 4, 1)], {}),
    ("Slice", [V, np.array([1]), np.array([3])], {}),
    ("Slice", [V, np.array([-1]), np.array([-(2**63)]), np.array([0]), np.array([-1])], {}),
    ("Slice", [M, np.array([0, 1]), np.array([9, 9]), np.array([0, 1]), np.array([1, 2])], {}),
    ("Reshape", [M, np.array([0, -1, 1])], {}),
    ("Expand", [V.reshape(4, 1), np.array([4, 3])], {}),
    ("Transpose", [M], {"perm": (1, 0)}),
    ("Transpose", [M], {}),
    ("ConstantOfShape", [np.array([2, 3])], {}),
    ("Range", [np.array(2), np.array(11), np.array(3)], {}),
    ("Range", [np.array(5), np.array(0), np.array(-2)], {}),
    ("Add", [V, V[:1]], {}),
    ("Sub", [V, V[::-1].copy()], {}),
    ("Mul", [V, V], {}),
    ("Div", [V, np.array([2, 2, -2, 3])], {}),
    ("Div", [V.astype(np.float32), np.array([2], np.float32)], {}),
    ("Neg", [V], {}),
    ("Abs", [V], {}),
    ("Floor", [np.array([1.5, -1.5], np.float32)], {}),
    ("Ceil", [np.array([1.5, -1.5], np.float32)], {}),
    ("Sqrt", [np.array([4.0], np.float32)], {}),
    ("Min", [V, V[:1], V[1:2]], {}),
    ("Max", [V, V[:1]], {}),
    ("Equal", [V, np.array([7])], {}),
    ("Less", [V, np.array([5])], {}),
    ("LessOrEqual", [V, np.array([5])], {}),
    ("Greater", [V, np.array([5])], {}),
    ("GreaterOrEqual", [V, np.array([5])], {}),
    ("Not", [V > 2], {}),
    ("And", [V > 2, V < 6], {}),
    ("Or", [V > 6, V < 0], {}),
    ("Where", [V > 2, V, -V], {}),
    ("ReduceProd", [M], {"axes": (1,), "keepdims": 0}),
    ("ReduceSum", [M, np.array([0])], {"keepdims": 1}),
    ("ReduceMax", [M], {}),
    ("ReduceMin", [M], {"axes": (0,)}),
]


@pytest.mark.parametrize(
    ("op", "arguments", "attributes"), CASES, ids=lambda v: v if isinstance(v, str) else ""
)
def test_a_folded_operator_answers_as_the_reference_does(
    op: str, arguments: list[Any], attributes: dict[str, Any]
) -> None:
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [f"i{i}" for i in range(len(arguments))]
    feeds = dict(zip(names, arguments, strict=True))
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None)
        for n, a in feeds.items()
    ]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "g",
        types,
        [helper.make_empty_tensor_value_info("y")],
    )
    # reductions took their axes as an attribute before opset 18, Squeeze and ReduceSum before 13
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    found = folded([Node(op, names, ["y"], attributes=attributes)], feeds)["y"]
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected.dtype
    assert found.shape == np.shape(expected)


def test_every_operator_that_is_folded_is_tested() -> None:
    assert {op for op, _, _ in CASES} | {"Shape", "Size"} == set(constant_folding.FOLDABLE)


def test_shape_and_size_come_from_types() -> None:
    start = Node("Shape", ["x"], ["s"], attributes={"start": 1})
    known = compute_contents(start, (2, 3, 4), "int64", ConstantContents({}))
    assert known is not None
    assert known.tolist() == [3, 4]
    size = compute_contents(Node("Size", ["x"], ["n"]), (2, 3, 4), "int64", ConstantContents({}))
    assert size is not None
    assert int(size) == 24
    assert compute_contents(start, None, "int64", ConstantContents({})) is None
    named = compute_contents(Node("Shape", ["x"], ["s"]), (2, "n", None), "int64", ConstantContents({}))
    assert named is not None
    assert [str(getattr(v, "text", v)) for v in named] == ["2", "n", "None"]


def test_nothing_large_is_computed() -> None:
    nodes = [
        Node("ConstantOfShape", ["huge"], ["a"]),
        Node("Expand", ["one", "huge"], ["b"]),
        Node("Range", ["zero", "many", "one0"], ["c"]),
    ]
    constants = {
        "huge": np.array([1 << 40]),
        "one": np.array([1]),
        "zero": np.array(0),
        "many": np.array(1 << 40),
        "one0": np.array(1),
    }
    assert folded(nodes, constants) == {}


def test_a_malformed_node_is_passed_over() -> None:
    nodes = [
        Node("Gather", ["v", "far"], ["a"]),
        Node("Concat", ["v", "v"], ["b"]),
        Node("Reshape", ["v"], ["c"]),
        Node("Range", ["v", "v", "v"], ["d"]),
        Node("Add", ["v", "v"], ["e"]),
    ]
    found = folded(nodes, {"v": V, "far": np.array([99])})
    assert set(found) == {"e"}


def test_constants_are_known_and_weights_are_not_touched(build: Build) -> None:
    model = build(
        [Node("Constant", [], ["k"], attributes={"value_ints": (4, 5)}), Node("Add", ["x", "w"], ["y"])],
        inputs={"x": (64, 64)},
        outputs=["y"],
        weights={"w": (64, 64), "axes": np.array([1, 2])},
    )
    found = constant_folding.collect_small_constants(model.graph)
    assert found["k"].tolist() == [4, 5]
    assert found["axes"].tolist() == [1, 2]
    assert "w" not in found
