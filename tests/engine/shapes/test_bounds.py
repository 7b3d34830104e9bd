"""Sizes that depend on data: the most that they can be, said to be that; and unknown ones, marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.graph.model import Function, Graph, Model, Node, Value
from explorer.engine.shapes import infer

Build = Callable[..., Model]

BOXES = {"boxes": (1, 100, 4), "scores": (1, 20, 100)}


@pytest.mark.parametrize(
    ("node", "inputs", "shape"),
    [
        # 12 elements, each with its two coordinates
        (Node("NonZero", ["x"], ["y"]), {"x": (3, 4)}, (2, 12)),
        (Node("NonZero", ["x"], ["y"]), {"x": ("N", 4)}, (2, "4*N")),
        (Node("Compress", ["x", "c"], ["y"]), {"x": (3, 4), "c": ("bool", (12,))}, (12,)),
        (
            Node("Compress", ["x", "c"], ["y"], attributes={"axis": 1}),
            {"x": (3, 4), "c": ("bool", (4,))},
            (3, 4),
        ),
        (Node("Unique", ["x"], ["y"]), {"x": (3, 4)}, (12,)),
        (Node("Unique", ["x"], ["y"], attributes={"axis": 0}), {"x": (3, 4)}, (3, 4)),
        (Node("TopK", ["x", "k"], ["y", "i"]), {"x": (3, 40), "k": ("int64", (1,))}, (3, 40)),
        # without a limit in the call nothing comes out, with one at most 20 classes x 7 boxes
        (Node("NonMaxSuppression", ["boxes", "scores", "seven"], ["y"]), BOXES, (140, 3)),
        (Node("NonMaxSuppression", ["boxes", "scores", "many"], ["y"]), BOXES, (2000, 3)),
    ],
)
def test_the_most_that_can_come_out_is_labelled_a_bound(
    build: Build, node: Node, inputs: dict[str, Any], shape: tuple[Any, ...]
) -> None:
    limits = {"seven": np.array([7]), "many": np.array([5000])}
    weights = {name: value for name, value in limits.items() if name in node.inputs}
    found = infer(build([node], inputs=inputs, outputs=["y"], weights=weights)).values["y"]
    assert (found.shape, found.origin) == (shape, "bound")


def test_no_boxes_asked_for_is_exactly_none(build: Build) -> None:
    node = Node("NonMaxSuppression", ["boxes", "scores"], ["y"])
    found = infer(build([node], inputs=BOXES, outputs=["y"])).values["y"]
    assert (found.shape, found.origin) == ((0, 3), "inferred")


def test_a_k_that_is_known_is_exact(build: Build) -> None:
    node = Node("TopK", ["x", "k"], ["y", "i"])
    found = infer(build([node], inputs={"x": (3, 40)}, outputs=["y"], weights={"k": np.array([5])})).values
    assert (found["y"].shape, found["y"].origin) == ((3, 5), "inferred")


def behind() -> list[Node]:
    return [
        Node("NonZero", ["x"], ["at"]),
        Node("Transpose", ["at"], ["rows"]),
        Node("Cast", ["rows"], ["f"], attributes={"to": 1}),
        Node("MatMul", ["f", "w"], ["y"], name="product"),
        Node("Concat", ["y", "y"], ["twice"], attributes={"axis": 0}),
        Node("Add", ["y", "one"], ["plus"]),
        Node("Relu", ["x"], ["z"], name="aside"),
    ]


def test_what_stands_behind_a_bound_is_a_bound_and_so_is_its_cost(build: Build) -> None:
    model = build(
        behind(),
        inputs={"x": (3, 4)},
        outputs=["twice", "plus", "z"],
        weights={"w": (2, 5), "one": np.ones(5, np.float32)},
    )
    found = infer(model).values
    for name, shape in (("rows", (12, 2)), ("y", (12, 5)), ("twice", (24, 5)), ("plus", (12, 5))):
        assert (found[name].shape, found[name].origin) == (shape, "bound"), name
    assert found["z"].origin == "inferred"
    layers = {layer.path: layer for layer in analyse(model).layers}
    assert (layers["product"].macs, layers["product"].status) == (12 * 2 * 5, "bound")
    assert "depends on the data" in layers["product"].reason
    assert layers["aside"].status == "exact"


def test_a_bound_is_never_subtracted(build: Build) -> None:
    """4 rows less the rows that are not zero: at least none, and nobody knows how few."""
    nodes = [
        Node("NonZero", ["x"], ["at"]),
        Node("Shape", ["at"], ["s"]),
        Node("Gather", ["s", "k1"], ["n"]),
        Node("Sub", ["four", "n"], ["left"]),
        Node("ConstantOfShape", ["left"], ["y"]),
        Node("Relu", ["y"], ["z"], name="behind"),
    ]
    weights = {"k1": np.array([1]), "four": np.array([4])}
    model = build(nodes, inputs={"x": (4,)}, outputs=["z"], weights=weights)
    found = infer(model).values
    assert found["z"].shape == (None,)
    layer = next(x for x in analyse(model).layers if x.path == "behind")
    assert layer.status == "unknown"
    assert layer.elementwise_ops is None


def test_a_bound_stays_a_bound_inside_a_function(build: Build) -> None:
    function = Function(
        "f", "Two", ("a",), ("b",), (Node("Neg", ["a"], ["t"]), Node("Abs", ["t"], ["b"])), {"": 17}
    )
    nodes = [Node("NonZero", ["x"], ["at"]), Node("Two", ["at"], ["y"], name="call", domain="f")]
    model = build(nodes, inputs={"x": (3, 4)}, outputs=["y"], functions=[function])
    analysis = analyse(model)
    inside = [x for x in analysis.layers if x.kind in ("Neg", "Abs")]
    assert [x.status for x in inside] == ["bound", "bound"]
    assert all(x.outputs[0].shape == (2, 12) and x.outputs[0].origin == "bound" for x in inside)


def test_behind_an_operator_that_nobody_knows_everything_is_marked_and_nothing_else(build: Build) -> None:
    nodes = [
        Node("Secret", ["x"], ["a"], name="secret", domain="my.ops"),
        Node("Relu", ["a"], ["b"], name="behind"),
        Node("MatMul", ["x", "w"], ["c"], name="aside"),
        Node("Add", ["b", "c"], ["y"], name="both"),
    ]
    model = build(nodes, inputs={"x": (2, 9)}, outputs=["y"], weights={"w": (9, 3)})
    rows = {layer.path: layer for layer in analyse(model).layers}
    assert rows["behind"].status == "unknown"
    assert rows["behind"].outputs[0].shape is None
    assert rows["aside"].macs == 2 * 9 * 3
    assert rows["aside"].status == "exact"
    # a table of unknown rank can be larger than what it is added to
    assert rows["both"].status == "unknown"


def test_a_stale_declaration_in_the_middle_loses_in_functions_and_branches_too(build: Build) -> None:
    branch = Graph(
        "b",
        (Node("MatMul", ["x", "w"], ["t"]), Node("Relu", ["t"], ["r"])),
        (),
        (Value("r", "float32", (9, 9)),),
        {},
        (Value("t", "float32", (7, 7)),),
    )
    nodes = [
        Node("MatMul", ["x", "w"], ["m"]),
        Node("If", ["c"], ["y"], name="choose", attributes={"then_branch": branch, "else_branch": branch}),
        Node("Relu", ["y"], ["z"]),
    ]
    stale = [Value("m", "float32", (5, 5)), Value("y", "float32", (6, 6))]
    model = build(
        nodes, inputs={"x": (2, 3), "c": ("bool", ())}, outputs=["z"], weights={"w": (3, 4)}, values=stale
    )
    found = infer(model).values
    assert [found[n].shape for n in ("m", "y", "z")] == [(2, 4)] * 3
    assert "[5, 5]" in found["m"].conflict
    assert "[6, 6]" in found["y"].conflict
    inside = [x for x in analyse(model).layers if x.path.startswith("choose/then_branch/")]
    assert [x.outputs[0].shape for x in inside] == [(2, 4), (2, 4)]
    assert ["[7, 7]" in inside[0].outputs[0].conflict, "[9, 9]" in inside[1].outputs[0].conflict] == [
        True,
        True,
    ]


def test_a_declared_expression_that_cannot_be_is_a_conflict(build: Build) -> None:
    nodes = [Node("Concat", ["x", "x"], ["y"], attributes={"axis": 0})]
    for declared, words in ((("N", 4), "['N', 4]"), (("2*N", 4), ""), (("some_dim", 4), "")):
        model = build(nodes, inputs={"x": ("N", 4)}, outputs=["y"], values=[Value("y", "float32", declared)])
        conflict = infer(model).values["y"].conflict
        assert (words in conflict) if words else not conflict
