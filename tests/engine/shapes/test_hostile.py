"""Files made to take for ever, or to break what follows shapes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.engine.shapes import Inference, infer, inference

Build = Callable[..., Model]


def test_a_size_squared_a_hundred_times_is_unknown(build: Build) -> None:
    nodes = [Node("Shape", ["x"], ["s0"])]
    nodes += [Node("Mul", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(100)]
    nodes.append(Node("ConstantOfShape", ["s100"], ["y"]))
    assert infer(build(nodes, inputs={"x": ("N",)}, outputs=["y"])).values["y"].shape == (None,)
    # numbers run over, as they do in the model
    assert infer(build(nodes, inputs={"x": (3,)}, outputs=["y"])).values["y"].dtype == "float32"


def test_a_size_added_to_itself_for_ever_is_answered(build: Build) -> None:
    nodes = [Node("Concat", [f"a{i}"] * 2, [f"a{i + 1}"], attributes={"axis": 0}) for i in range(2000)]
    found = infer(build(nodes, inputs={"a0": ("N",)}, outputs=["a2000"])).values
    assert found["a3"].shape == ("8*N",)
    assert found["a2000"].shape == (None,)


def nested(depth: int) -> Node:
    """A Loop in a Loop in a Loop, each with a body that doubles what it carries."""
    cond = Value("c", "bool", ()), Value("k", None, None)
    inner: list[Node] = []
    name = "h0"
    for level in range(depth):
        twice = Node("Concat", [f"h{level}"] * 2, [f"t{level}"], attributes={"axis": 0})
        body = Graph(
            f"body{level}",
            (Node("Identity", ["c"], ["k"]), *inner, twice),
            (Value("i", "int64", ()), cond[0], Value(f"h{level}", None, None)),
            (cond[1], Value(f"t{level}", None, None)),
            {},
        )
        inner = [
            Node("Loop", ["n", "", f"h{level + 1}"], [f"l{level}"], attributes={"body": body}),
            Node("Loop", ["n", "", f"l{level}"], [f"m{level}"], attributes={"body": body}),
        ]
        name = f"h{level + 1}"
    return Node("Loop", ["n", "", name], ["y"], attributes={"body": body})


def test_loops_in_loops_are_followed_up_to_a_limit(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "MAX_BODIES", 5)
    model = build([nested(7)], inputs={"h7": (2, 3), "n": ("int64", ())}, outputs=["y"])
    found = Inference(model)
    assert any("5 bodies" in note for note in found.main.notes)
    monkeypatch.undo()
    whole = Inference(model)
    assert whole.main.notes == ()
    assert whole.main.values["y"].shape == (None, 3)


@pytest.mark.parametrize("seed", range(8))
def test_attributes_of_the_wrong_kind_break_nothing(build: Build, seed: int) -> None:
    """Every rule is given attributes that are not what its operator's definition says."""
    draw = random.Random(seed)
    wrong = (
        *("text", b"\xff", 3.5, -7, 1 << 62),
        *((), (1, "a"), (-1, -1), (0,) * 9, (1.5, 2.5)),
        Graph("g", (), (), (), {}),
    )
    names = """
        axis axes perm kernel_shape strides pads dilations group auto_pad ceil_mode to dtype equation keepdims
        start end blocksize split num_outputs hidden_size direction layout scales mode value shape k N
        output_shape output_padding output_dtype allowzero
    """.split()  # noqa: SIM905 (a table of words)
    nodes = []
    for at, (domain, op) in enumerate(sorted(inference._OPERATORS)):
        attributes = {name: draw.choice(wrong) for name in draw.sample(names, 12)}
        inputs = [draw.choice(("x", "s", "v", "", "u")) for _ in range(draw.randint(0, 5))]
        outputs = [f"y{at}_{i}" for i in range(draw.randint(1, 3))]
        nodes.append(Node(op, inputs, outputs, domain=domain, attributes=attributes))
    model = build(
        nodes,
        inputs={"x": (2, "N", 4), "s": ("int64", ()), "u": ("int64", (2,))},
        outputs=["y0_0"],
        weights={"v": np.array([-(1 << 62), 1 << 62, 0])},
    )
    table = inference.ShapeTable(
        {"x": ("float32", (2, "N", 4)), "s": ("int64", ()), "u": ("int64", (2,)), "v": ("int64", (3,))},
        inference.ConstantContents(model.graph.initializers),
    )
    found = Inference(build([], inputs={"x": (1,)}, outputs=["x"]))
    for opset in (1, 6, 13, 25):
        found._propagate(nodes, table, {"": opset, "com.microsoft": 1})
    for _, shape in table.types.values():
        assert shape is None or all(d is None or isinstance(d, str) or d >= 0 for d in shape)
