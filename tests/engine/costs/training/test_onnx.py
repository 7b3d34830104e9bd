"""Where gradients flow in an ONNX graph, worked by hand; and the batch that a file can be trained with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from explorer.base.errors import Misuse
from explorer.engine.costs.training.onnx import analyze_training_step, choose_batch_sizes
from explorer.engine.costs.training.step import compute_training
from explorer.engine.graph.model import Function, Graph, Node, Value
from explorer.facts.training import LayerTraining, Training


def trained(model: Any, **options: Any) -> Training:
    return compute_training(analyze_training_step(model, **options), "adam")


def rows(found: Training) -> dict[str, LayerTraining]:
    return {layer.path: layer for layer in found.layers}


def macs(found: Training, path: str) -> tuple[Any, Any, Any]:
    row = rows(found)[path]
    return row.forward_macs, row.backward_input_macs, row.backward_weight_macs


def test_a_chain_by_hand(build: Any) -> None:
    """(2,3) x (3,4) = 24, then x (4,5) = 40: the first has no gradient of its input."""
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="first"),
        Node("Relu", ["a"], ["b"], name="relu"),
        Node("Gemm", ["b", "v", "c"], ["y"], name="second"),
    ]
    weights = {"w": (3, 4), "v": (4, 5), "c": (5,)}
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights=weights, outputs=["y"]))
    assert macs(found, "first") == (24, 0, 24)
    assert macs(found, "second") == (40, 40, 40)
    assert (found.forward_macs, found.backward_macs, found.coverage) == (64, 104, 1.0)
    assert found.input_bytes == 24
    assert found.activation_bytes == (8 + 8 + 10) * 4
    assert found.param_bytes == found.gradient_bytes == (12 + 20 + 5) * 4
    assert found.optimizer_bytes == 2 * found.gradient_bytes
    assert found.sum_bytes == 24 + 104 + 4 * 148
    assert found.batch == 2
    assert "every floating-point parameter" in found.notes[0]


def test_an_input_of_strings_has_unknown_bytes(build: Any) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["y"], name="first"),
        Node("Identity", ["text"], ["label"], name="label"),
    ]
    inputs = {"x": (2, 3), "text": ("string", (2,))}
    step_facts = trained(build(nodes, inputs=inputs, weights={"w": (3, 4)}, outputs=["y", "label"]))
    assert step_facts.input_bytes is None


def test_branches_meet_and_each_has_its_own_past(build: Any) -> None:
    """y = (x w) * (x), then y x^T: the right operand has nothing trained before it."""
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="left"),
        Node("Mul", ["a", "x"], ["m"], name="mul"),
        Node("Transpose", ["x"], ["t"], name="turn", attributes={"perm": (1, 0)}),
        Node("MatMul", ["m", "t"], ["y"], name="meet"),
        Node("MatMul", ["m", "m2"], ["z"], name="values"),
        Node("Transpose", ["m"], ["m2"], name="turn2", attributes={"perm": (1, 0)}),
    ]
    nodes[4], nodes[5] = nodes[5], nodes[4]
    found = trained(build(nodes, inputs={"x": (3, 3)}, weights={"w": (3, 3)}, outputs=["y", "z"]))
    assert macs(found, "left") == (27, 0, 27)
    assert macs(found, "meet") == (27, 27, 0)
    assert macs(found, "values") == (27, 54, 0)


def test_integers_stop_a_gradient_and_tables_are_trained(build: Any) -> None:
    nodes = [
        Node("Gather", ["table", "ids"], ["e"], name="embed"),
        Node("MatMul", ["e", "w"], ["a"], name="project"),
        Node("ArgMax", ["a"], ["best"], name="choose", attributes={"axis": 1, "keepdims": 0}),
        Node("Gather", ["table", "best"], ["again"], name="embed2"),
        Node("MatMul", ["again", "w"], ["y"], name="project2"),
    ]
    inputs = {"ids": ("int64", (2,))}
    found = trained(build(nodes, inputs=inputs, weights={"table": (9, 4), "w": (4, 4)}, outputs=["y"]))
    assert macs(found, "project") == (32, 32, 32)
    assert found.gradient_bytes == (36 + 16) * 4
    # the gradient of the second look-up is scattered by these
    assert rows(found)["choose"].activation_bytes == 2 * 8
    assert rows(found)["embed"].activation_bytes == 2 * 4 * 4


def test_a_cut_in_the_flow_leaves_no_gradient_behind_it(build: Any) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="before"),
        Node("Floor", ["a"], ["f"], name="floor"),
        Node("MatMul", ["f", "v"], ["y"], name="after"),
    ]
    weights = {"w": (3, 3), "v": (3, 3)}
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights=weights, outputs=["y"]))
    assert macs(found, "after") == (18, 0, 18)


def test_running_statistics_and_integers_are_not_trained(build: Any) -> None:
    nodes = [
        Node("BatchNormalization", ["x", "s", "b", "m", "v"], ["n"], name="norm"),
        Node("DequantizeLinear", ["q", "qs", "qz"], ["w"], name="dq"),
        Node("MatMul", ["n", "w"], ["y"], name="mm"),
    ]
    weights = {
        **dict.fromkeys("sbmv", (3,)),
        "q": ("int8", (3, 4)),
        "qs": np.array(0.1, np.float32),
        "qz": np.array(0, np.int8),
    }
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights=weights, outputs=["y"]))
    assert found.gradient_bytes == 2 * 3 * 4
    assert macs(found, "mm") == (24, 24, 0)
    assert any("not trained" in note for note in found.notes)


def test_a_weight_in_another_guise_is_a_weight(build: Any) -> None:
    nodes = [
        Node("Transpose", ["w"], ["t"], name="turn", attributes={"perm": (1, 0)}),
        Node("MatMul", ["x", "t"], ["y"], name="mm"),
    ]
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights={"w": (4, 3)}, outputs=["y"]))
    assert macs(found, "mm") == (24, 0, 24)


def test_a_weight_used_twice_is_kept_once(build: Any) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="one"),
        Node("MatMul", ["a", "w"], ["y"], name="two"),
    ]
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights={"w": (3, 3)}, outputs=["y"]))
    assert [rows(found)[p].param_bytes for p in ("one", "two")] == [36, 0]
    assert found.gradient_bytes == 36


def test_a_function_is_followed_into_its_body(build: Any) -> None:
    """A call that is one product, and one that is two of them."""
    one = Function("own", "Product", ("p", "q"), ("r",), (Node("MatMul", ["p", "q"], ["r"]),), {"": 17})
    two = Function(
        "own",
        "Twice",
        ("p", "q"),
        ("r",),
        (Node("MatMul", ["p", "q"], ["h"], name="a"), Node("MatMul", ["h", "q"], ["r"], name="b")),
        {"": 17},
    )
    nodes = [
        Node("Product", ["x", "w"], ["h"], name="single", domain="own"),
        Node("Twice", ["h", "v"], ["y"], name="double", domain="own"),
    ]
    weights = {"w": (3, 3), "v": (3, 3)}
    model = build(nodes, inputs={"x": (2, 3)}, weights=weights, outputs=["y"], functions=[one, two])
    found = trained(model)
    assert macs(found, "single") == (18, 0, 18)
    assert macs(found, "double/a") == (18, 18, 18)
    assert macs(found, "double/b") == (18, 18, 18)


def test_what_no_output_depends_on_has_no_gradient(build: Any) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="used"),
        Node("MatMul", ["a", "v"], ["b"], name="unused"),
        Node("MatMul", ["b", "v"], ["c"], name="neither"),
    ]
    weights = {"w": (3, 3), "v": (3, 3)}
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights=weights, outputs=["a"]))
    assert macs(found, "used") == (18, 0, 18)
    assert macs(found, "unused") == macs(found, "neither") == (18, 0, 0)


def test_what_a_loop_carries_is_a_bound(build: Any) -> None:
    body = Graph(
        "body",
        (
            Node("Identity", ["go"], ["on"], name="on"),
            Node("MatMul", ["h", "w"], ["next"], name="mm"),
        ),
        (Value("i", "int64", ()), Value("go", "bool", ()), Value("h", "float32", (2, 3))),
        (Value("on", "bool", ()), Value("next", "float32", (2, 3))),
        {},
    )
    nodes = [Node("Loop", ["n", "yes", "x"], ["y"], name="loop", attributes={"body": body})]
    weights = {"n": np.array(5, np.int64), "yes": np.array(True), "w": (3, 3)}
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights=weights, outputs=["y"]))
    row = rows(found)["loop/mm"]
    assert (row.forward_macs, row.backward_weight_macs) == (90, 90)
    assert (row.backward_input_macs, row.status) == (90, "bound")


def test_the_cheaper_branch_costs_nothing_and_keeps_its_parameters(build: Any) -> None:
    def branch(name: str, weight: str, wide: int) -> Graph:
        return Graph(
            name,
            (Node("MatMul", ["x", weight], [f"{name}_y"], name=f"{name}_mm"),),
            (),
            (Value(f"{name}_y", "float32", (2, wide)),),
            {},
        )

    nodes = [
        Node(
            "If",
            ["c"],
            ["y"],
            name="if",
            attributes={"then_branch": branch("t", "w", 3), "else_branch": branch("e", "v", 9)},
        )
    ]
    inputs = {"x": (2, 3), "c": ("bool", ())}
    found = trained(build(nodes, inputs=inputs, weights={"w": (3, 3), "v": (3, 9)}, outputs=["y"]))
    assert found.forward_macs == found.backward_macs == 54
    assert found.gradient_bytes == (9 + 27) * 4


def test_an_operator_without_a_rule_is_unknown_and_not_nothing(build: Any) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="mm"),
        Node("Strange", ["a"], ["y"], name="strange", domain="some.where"),
    ]
    found = trained(build(nodes, inputs={"x": (2, 3)}, weights={"w": (3, 3)}, outputs=["y"]))
    assert rows(found)["strange"].status == "unknown"
    assert found.coverage == 0.5


def test_an_output_of_unknown_size_is_unknown_and_says_so(build: Any) -> None:
    nodes = [Node("Transpose", ["x"], ["y"], name="turn", attributes={"perm": (1, 0)})]
    found = trained(build(nodes, inputs={"x": ("rows", 3)}, outputs=["y"]))
    row = rows(found)["turn"]
    assert (row.activation_bytes, row.status) == (None, "unknown")
    assert "is unknown" in row.reason
    assert found.coverage == 0


def test_an_open_dimension_leaves_the_figures_open(build: Any) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["y"], name="mm")]
    model = build(nodes, inputs={"x": ("batch", 3)}, weights={"w": (3, 4)}, outputs=["y"])
    found = trained(model)
    assert found.batch is found.forward_macs is found.backward_macs is found.input_bytes is None
    assert found.gradient_bytes == 48
    assert found.sum_bytes is None
    eight = trained(model, batch=8)
    assert (eight.batch, eight.forward_macs, eight.backward_macs) == (8, 96, 96)


@pytest.mark.parametrize(
    ("inputs", "dims", "shapes"),
    [
        # a dimension that is called a batch is it, wherever it stands
        ({"x": ("seq", "batch", 3)}, {"batch": 8}, {}),
        ({"x": ("N", 3), "y": ("M", 3)}, {"N": 8}, {}),
        # without such a name, the open first dimensions are
        ({"x": ("p", 3), "y": ("q", "r")}, {"p": 8, "q": 8}, {}),
        # without those, the first of every input
        ({"x": (1, 3), "y": (1, 5)}, {}, {"x": (None, (8, 3)), "y": (None, (8, 5))}),
    ],
)
def test_where_the_batch_is(inputs: Any, dims: Any, shapes: Any, build: Any) -> None:
    model = build([Node("Identity", ["x"], ["y0"], name="i")], inputs=inputs, outputs=["y0"])
    assert choose_batch_sizes(model, 8, {}, {}) == (dims, shapes)


def test_a_model_without_a_batch_is_refused(build: Any) -> None:
    model = build([Node("Identity", ["x"], ["y"], name="i")], inputs={"x": ()}, outputs=["y"])
    with pytest.raises(Misuse, match="could be the batch"):
        trained(model, batch=8)


def test_a_file_with_sizes_written_into_it_is_refused_for_another_batch(build: Any) -> None:
    """Multiplying its figures would be wrong, and so would be counting the layers behind the fixed size."""
    nodes = [
        Node("Reshape", ["x", "shape"], ["f"], name="flatten"),
        Node("MatMul", ["f", "w"], ["y"], name="mm"),
    ]
    weights: dict[str, Any] = {"shape": np.array([1, 6], np.int64), "w": (6, 4)}
    model = build(nodes, inputs={"x": (1, 2, 3)}, weights=weights, outputs=["y"])
    assert trained(model, batch=1).forward_macs == 24
    with pytest.raises(Misuse, match="flatten contains a size of it; export it with an open batch"):
        trained(model, batch=8)
    weights["shape"] = np.array([-1, 6], np.int64)
    free = build(nodes, inputs={"x": (1, 2, 3)}, weights=weights, outputs=["y"])
    assert trained(free, batch=8).forward_macs == 8 * 24


def test_elementwise_work_backward_by_hand(build: Any) -> None:
    """2 rows: a bias of 4, a ReLU, a scale of 4 (one multiplication), a bias of 3; what is not trained."""
    nodes = [
        Node("Gemm", ["x", "w1", "b1"], ["a"], name="first"),
        Node("Relu", ["a"], ["r"], name="act"),
        Node("Mul", ["r", "s"], ["m"], name="scale"),
        Node("Gemm", ["m", "w2", "b2"], ["y"], name="last"),
        Node("Abs", ["x"], ["z"], name="aside"),
    ]
    weights = {"w1": (5, 4), "b1": (4,), "s": (4,), "w2": (4, 3), "b2": (3,)}
    found = trained(build(nodes, inputs={"x": (2, 5)}, outputs=["y", "z"], weights=weights))
    by_hand = {
        "first": 2 * 4,  # the bias; nobody wants the gradient of x
        "act": 2 * 4,
        "scale": 2 * 4 + 2 * 4,  # of what comes in, and of the scale
        "last": 2 * 3 + 2 * 3,
        "aside": 0,
    }
    assert {path: x.backward_elementwise_ops for path, x in rows(found).items()} == by_hand
    assert found.backward_elementwise_ops == sum(by_hand.values())
    assert found.elementwise_ops == 2 * 4 + 2 * 4 + 2 * 4 + 2 * 3 + 2 * 5
