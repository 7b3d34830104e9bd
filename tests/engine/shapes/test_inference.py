"""Shapes: inferred beats stale, declared fills gaps, symbols stay, and bodies are followed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from explorer.base.errors import Misuse
from explorer.engine.graph.model import AttributeRef, Function, Graph, Model, Node, Value
from explorer.engine.shapes import Inference, infer

Build = Callable[..., Model]


def test_a_stale_declaration_does_not_win_and_the_conflict_is_said(build: Build) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["a"]), Node("Relu", ["a"], ["y"])]
    stale = [Value("a", "float32", (2, 99))]
    model = build(nodes, inputs={"x": (2, 3)}, outputs=["y"], weights={"w": (3, 4)}, values=stale)
    found = infer(model).values
    assert found["a"].shape == (2, 4)
    assert found["y"].shape == (2, 4)
    assert found["a"].origin == "inferred"
    assert "[2, 99]" in found["a"].conflict
    assert found["y"].conflict == ""


def test_behind_an_unknown_operator_the_declared_shape_is_used_and_inference_goes_on(build: Build) -> None:
    nodes = [
        Node("Secret", ["x"], ["a"], domain="my.ops"),
        Node("MatMul", ["a", "w"], ["b"]),
        Node("Secret", ["b"], ["c"], domain="my.ops"),
        Node("Relu", ["c"], ["y"]),
    ]
    declared = [Value("a", "float32", (2, 3)), Value("b", "float32", (7, 7)), Value("c", "float32", (2, 5))]
    model = build(nodes, inputs={"x": (2, 9)}, outputs=["y"], weights={"w": (3, 4)}, values=declared)
    found = infer(model).values
    assert (found["a"].shape, found["a"].origin) == ((2, 3), "declared")
    # inferred from there, not what the file says
    assert (found["b"].shape, found["b"].origin) == ((2, 4), "inferred")
    assert found["y"].shape == (2, 5)


def test_an_unknown_operator_without_a_declaration_blanks_only_what_needs_it(build: Build) -> None:
    nodes = [
        Node("Secret", ["x"], ["a"], domain="my.ops"),
        Node("Relu", ["a"], ["y"]),
        Node("Relu", ["x"], ["z"]),
    ]
    found = infer(build(nodes, inputs={"x": (2, 9)}, outputs=["y", "z"])).values
    assert "a" not in found or found["a"].shape is None
    assert found["z"].shape == (2, 9)


def test_declarations_are_not_believed_once_the_user_asks_for_another_size(build: Build) -> None:
    nodes = [Node("Secret", ["x"], ["a"], domain="my.ops"), Node("Relu", ["a"], ["y"])]
    model = build(nodes, inputs={"x": (1, 9)}, outputs=["y"], values=[Value("a", "float32", (1, 3))])
    found = infer(model, input_shapes={"x": (None, (4, 9))}).values
    assert "y" not in found or found["y"].shape is None


def test_symbolic_dimensions_stay_symbolic_until_bound(build: Build) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["y"])]
    model = build(nodes, inputs={"x": ("batch", 3)}, outputs=["y"], weights={"w": (3, 4)})
    assert infer(model).values["y"].shape == ("batch", 4)
    bound = infer(model, {"batch": 8})
    assert bound.values["y"].shape == (8, 4)
    assert bound.values["x"].shape == (8, 3)
    assert bound.dims == {"batch": 8}


def test_a_shape_for_an_input_binds_its_names_everywhere(build: Build) -> None:
    nodes = [Node("Add", ["x", "z"], ["y"])]
    model = build(nodes, inputs={"x": ("batch", 3), "z": ("batch", 3)}, outputs=["y"])
    found = infer(model, input_shapes={"x": (None, (5, 3))})
    assert found.values["y"].shape == (5, 3)
    assert found.values["z"].shape == (5, 3)


def test_a_fixed_size_can_be_overruled(build: Build) -> None:
    model = build([Node("Relu", ["x"], ["y"])], inputs={"x": (1, 3)}, outputs=["y"])
    found = infer(model, input_shapes={"x": ("float16", (6, 3))}).values["y"]
    assert (found.shape, found.dtype) == ((6, 3), "float16")


@pytest.mark.parametrize(
    ("dims", "inputs", "words"),
    [
        ({"bach": 2}, None, "did you mean 'batch'"),
        ({"batch": 0}, None, "cannot be 0"),
        (None, {"xx": (None, (1, 3))}, "choose from: x"),
        (None, {"x": (None, (1, 3, 4))}, "2 dimensions, not 3"),
        ({"batch": 2}, {"x": (None, (3, 3))}, "2 and 3 at once"),
    ],
)
def test_a_wrong_name_or_size_is_refused_with_a_hint(
    build: Build, dims: dict[str, int] | None, inputs: object, words: str
) -> None:
    model = build([Node("Relu", ["x"], ["y"])], inputs={"x": ("batch", 3)}, outputs=["y"])
    with pytest.raises(Misuse, match=words):
        infer(model, dims, inputs)  # type: ignore[arg-type]


def flatten_by_hand() -> list[Node]:
    """What TorchScript writes for x.view(x.size(0), x.size(1) // 2, -1), rows times 2 taken apart."""
    return [
        Node("Shape", ["x"], ["s"]),
        Node("Gather", ["s", "zero"], ["batch"]),
        Node("Gather", ["s", "one"], ["length"]),
        Node("Div", ["length", "two"], ["half"]),
        Node("Unsqueeze", ["batch", "axes"], ["u0"]),
        Node("Unsqueeze", ["half", "axes"], ["u1"]),
        Node("Concat", ["u0", "u1", "rest"], ["to"], attributes={"axis": 0}),
        Node("Reshape", ["x", "to"], ["y"]),
    ]


NUMBERS = {
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "axes": np.array([0]),
    "rest": np.array([-1]),
}


def test_arithmetic_on_shapes_is_followed_where_onnx_does_not(build: Build) -> None:
    model = build(flatten_by_hand(), inputs={"x": (3, 10, 4)}, outputs=["y"], weights=NUMBERS)
    found = infer(model)
    assert found.values["y"].shape == (3, 5, 8)
    assert found.constants["to"].tolist() == [3, 5, -1]


def test_a_symbol_survives_arithmetic_on_shapes(build: Build) -> None:
    model = build(flatten_by_hand(), inputs={"x": ("batch", 10, 4)}, outputs=["y"], weights=NUMBERS)
    assert infer(model).values["y"].shape == ("batch", 5, 8)


def test_what_depends_on_a_symbol_by_more_than_its_name_is_an_expression(build: Build) -> None:
    model = build(flatten_by_hand(), inputs={"x": (3, "length", 4)}, outputs=["y"], weights=NUMBERS)
    # 4 x length elements in rows of floor(length / 2): a length that is not even fails at run time
    assert infer(model).values["y"].shape is not None
    assert infer(model).values["y"].shape[:2] == (3, "floor(length/2)")  # type: ignore[index]
    assert infer(model, {"length": 12}).values["y"].shape == (3, 6, 8)


def test_a_function_body_is_inferred_for_the_arguments_it_gets(build: Build) -> None:
    function = Function(
        "f", "Twice", ("a", "b"), ("c",),
        (Node("MatMul", ["a", "b"], ["t"]), Node("Relu", ["t"], ["c"])), {"": 17},
    )  # fmt: skip
    nodes = [
        Node("Twice", ["x", "w"], ["y"], domain="f"),
        Node("Twice", ["y", "v"], ["z"], domain="f"),
    ]
    model = build(
        nodes, inputs={"x": (2, 3)}, outputs=["z"], weights={"w": (3, 4), "v": (4, 5)}, functions=[function]
    )
    inference = Inference(model)
    assert inference.main.values["z"].shape == (2, 5)
    types = [inference.main.values[n] for n in ("y", "v")]
    _, inside = inference.infer_function(function, nodes[1], types, {})
    assert inside.values["t"].shape == (2, 5)


def test_ten_thousand_calls_alike_are_inferred_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    function = Function(
        "f", "Two", ("a", "b"), ("c",),
        (Node("MatMul", ["a", "b"], ["t"]), Node("Relu", ["t"], ["c"])), {"": 17},
    )  # fmt: skip
    calls = [Node("Two", ["x", "w"], [f"y{i}"], domain="f") for i in range(1000)]
    model = build(calls, inputs={"x": (2, 3)}, outputs=["y0"], weights={"w": (3, 4)}, functions=[function])
    inference = Inference(model)
    runs = []
    run = Inference._infer
    monkeypatch.setattr(Inference, "_infer", lambda self, *a: runs.append(1) or run(self, *a))
    del inference._bodies
    inference._bodies = {}
    for call in calls:
        types = [inference.main.values[n] for n in call.inputs]
        inference.infer_function(function, call, types, inference.main.constants)
    assert len(runs) == 1


def test_attributes_of_a_call_reach_the_function_body(build: Build) -> None:
    body = Node("Flatten", ["a"], ["b"], attributes={"axis": AttributeRef("where", 2)})
    function = Function("f", "Flat", ("a",), ("c",), (body, Node("Relu", ["b"], ["c"])), {"": 17}, ("where",))
    call = Node("Flat", ["x"], ["y"], domain="f", attributes={"where": 2})
    model = build([call], inputs={"x": (2, 3, 4)}, outputs=["y"], functions=[function])
    inference = Inference(model)
    assert inference.main.values["y"].shape == (6, 4)
    nodes, inside = inference.infer_function(function, call, [inference.main.values["x"]], {})
    assert nodes[0].attributes["axis"] == 2
    assert inside.values["b"].shape == (6, 4)


def test_a_body_sees_the_values_around_it(build: Build) -> None:
    branch = Graph("b", (Node("MatMul", ["x", "w"], ["t"]),), (), (Value("t", None, None),), {})
    node = Node("If", ["c"], ["y"], attributes={"then_branch": branch, "else_branch": branch})
    model = build([node], inputs={"x": (2, 3), "c": ("bool", ())}, outputs=["y"], weights={"w": (3, 4)})
    inference = Inference(model)
    inside = inference.infer_body(branch, (), inference.main.values, inference.main.constants)
    assert inside.values["t"].shape == (2, 4)


def test_functions_that_multiply_beyond_measure_do_not_hang(build: Build) -> None:
    functions = [Function("f", "F0", ("a",), ("b",), (Node("Relu", ["a"], ["b"]),), {"": 17})]
    for i in range(1, 30):
        calls = [Node(f"F{i - 1}", ["a"], [f"t{j}"], domain="f") for j in range(9)]
        calls.append(Node(f"F{i - 1}", ["a"], ["b"], domain="f"))
        functions.append(Function("f", f"F{i}", ("a",), ("b",), tuple(calls), {"": 17, "f": 1}))
    model = build(
        [Node("F29", ["x"], ["y"], domain="f"), Node("Relu", ["y"], ["z"])],
        inputs={"x": (2, 3)},
        outputs=["y", "z"],
        functions=functions,
    )
    # 10 to the power of 29 operators; every body is looked at once
    assert infer(model).values["z"].shape == (2, 3)


def test_one_node_that_inference_refuses_does_not_blank_the_rest(build: Build) -> None:
    nodes = [Node("Relu", ["x"], [f"a{i}"], name=f"a{i}") for i in range(20)]
    nodes.insert(7, Node("Conv", [], ["bad"], name="bad one"))
    nodes.insert(15, Node("Conv", [], ["worse"], name="worse"))
    nodes.append(Node("Relu", ["bad"], ["behind"]))
    found = infer(build(nodes, inputs={"x": (2, 3)}, outputs=["a0"]))
    assert all(found.values[f"a{i}"].shape == (2, 3) for i in range(20))
    assert "behind" not in found.values or found.values["behind"].shape is None
    assert [n.split(":")[0] for n in found.notes] == [
        "shape inference refuses Conv 'bad one'",
        "shape inference refuses Conv 'worse'",
    ]


def test_a_model_that_inference_refuses_keeps_what_is_declared(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    from explorer.engine.shapes import onnx_subprocess

    def refuse(_: bytes) -> None:
        raise onnx_subprocess.GraphRefused("no")

    monkeypatch.setattr(onnx_subprocess, "infer", refuse)
    nodes = [Node("Det", ["x"], ["y"]), Node("Relu", ["x"], ["z"])]
    declared = [Value("y", "float32", (5,))]
    model = build(nodes, inputs={"x": (5, 3, 3)}, outputs=["y", "z"], values=declared)
    found = infer(model)
    assert found.values["z"].shape == (5, 3, 3)
    assert (found.values["y"].shape, found.values["y"].origin) == ((5,), "declared")
    assert found.notes


@pytest.mark.parametrize(
    ("op", "more", "attributes", "why"),
    [
        ("Reshape", [1, 16], {}, "32 elements cannot take the shape [1, 16]"),
        ("Reshape", [-1, 5], {}, "32 elements cannot take the shape [-1, 5]"),
        ("DepthToSpace", None, {"blocksize": 3}, "2 channels do not divide into blocks of 3 x 3"),
    ],
)
def test_behind_an_operator_that_cannot_run_at_the_size_asked_for_nothing_is_claimed(
    build: Build, op: str, more: list[int] | None, attributes: dict[str, int], why: str
) -> None:
    """Sizes fixed in the graph, or declared in the file, would go on as if nothing had been asked for."""
    nodes = [
        Node(op, ["x", "s"] if more else ["x"], ["r"], name="fixed", attributes=attributes),
        Node("Relu", ["r"], ["z"]),
    ]
    declared = [Value("r", "float32", (1, 16)), Value("z", "float32", (1, 16))]
    weights = {"s": np.array(more)} if more else None
    inputs = {"x": ("float32", ("N", 2, 4, 2))}
    model = build(nodes, inputs=inputs, weights=weights, outputs=["z"], values=declared)
    for found in (
        infer(model, input_shapes={"x": (None, (2, 2, 4, 2))}),
        infer(model, {"N": 2}),
        Inference(model, {"N": 2}, observed={"r": ("float32", (1, 16)), "z": ("float32", (1, 16))}).main,
    ):
        assert found.values["r"].shape is None
        assert found.values["r"].conflict == why
        assert "z" not in found.values or found.values["z"].shape is None
        assert list(found.notes) == [f"{op} 'fixed' cannot run: {why}; the sizes after it are unknown"]


def test_a_reshape_that_fits_the_size_asked_for_is_followed(build: Build) -> None:
    model = build(
        [Node("Reshape", ["x", "s"], ["r"])],
        inputs={"x": (2, 8)},
        weights={"s": np.array([-1, 4])},
        outputs=["r"],
    )
    found = infer(model, input_shapes={"x": (None, (3, 8))})
    assert found.values["r"].shape == (6, 4)
    assert not found.notes


def test_behind_a_loop_that_keeps_its_shapes_inference_goes_on(build: Build) -> None:
    body = Graph(
        "body",
        (Node("MatMul", ["h", "w"], ["h2"]), Node("Identity", ["cond"], ["go"])),
        (Value("i", "int64", ()), Value("cond", "bool", ()), Value("h", None, None)),
        (Value("go", None, None), Value("h2", None, None)),
        {},
    )
    nodes = [
        Node("Loop", ["n", "", "x"], ["y"], attributes={"body": body}),
        Node("Relu", ["y"], ["z"]),
    ]
    inputs = {"x": ("batch", 3), "n": ("int64", ())}
    model = build(nodes, inputs=inputs, outputs=["z"], weights={"w": (3, 3)})
    assert infer(model).values["z"].shape == ("batch", 3)


def test_a_size_that_only_the_third_iteration_changes_is_unknown(build: Build) -> None:
    """Each carried value takes the value of the one before it, and only the first one grows."""
    carried = ("a", "b", "c", "d")
    body = Graph(
        "body",
        (
            Node("Concat", ["a", "a"], ["a2"], attributes={"axis": 0}),
            *(Node("Identity", [old], [f"{new}2"]) for old, new in itertools.pairwise(carried)),
            Node("Identity", ["cond"], ["go"]),
        ),
        (Value("i", "int64", ()), Value("cond", "bool", ()), *(Value(name, None, None) for name in carried)),
        (Value("go", None, None), *(Value(f"{name}2", None, None) for name in carried)),
        {},
    )
    loop = Node("Loop", ["n", "", *"xxxx"], ["ya", "yb", "yc", "yd"], attributes={"body": body})
    model = build([loop], inputs={"x": (2, 3), "n": ("int64", ())}, outputs=list(loop.outputs))
    assert [infer(model).values[name].shape for name in loop.outputs] == [(None, 3)] * 4
