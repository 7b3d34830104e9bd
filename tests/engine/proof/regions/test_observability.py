"""What a run does not show: limits, branches and turns that are not met, and weights below rounding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.engine.graph.model import Model
from explorer.engine.proof.proof import verify
from tests.engine.proof import tiled as t
from tests.engine.proof.test_verdicts import branch, pair, saved

node = helper.make_node


def one_node(path: Path, before: Any, after: Any, opset: int = 17, **weights: Any) -> tuple[Model, Model]:
    return pair(path, ([before], [after]), {"x": (2, 8)}, (weights, weights), opset=opset)


def a_limit_in_an_attribute(path: Path) -> tuple[Model, Model]:
    limits = (node("Clip", ["x"], ["y"], min=-1e6, max=top) for top in (1e5, 1e6))
    return one_node(path, *limits, opset=10)


def a_limit_that_is_gone(path: Path) -> tuple[Model, Model]:
    return one_node(
        path, node("Clip", ["x", "", "m"], ["y"]), node("Identity", ["x"], ["y"]), m=np.float32(1e6)
    )


def a_limit_in_a_constant(path: Path) -> tuple[Model, Model]:
    def nodes(top: float) -> list[Any]:
        constant = node("Constant", [], ["k"], value=numpy_helper.from_array(np.float32(top)))
        return [constant, node("Clip", ["x", "", "k"], ["y"])]

    return pair(path, (nodes(1e5), nodes(1e6)), {"x": (2, 8)}, ({}, {}))


def another_epsilon(path: Path) -> tuple[Model, Model]:
    nodes = (node("LayerNormalization", ["x", "s"], ["y"], epsilon=e) for e in (1e-5, 1.0001e-5))
    return one_node(path, *nodes, s=t.weight(8))


def another_choice_among_equals(path: Path) -> tuple[Model, Model]:
    nodes = [[node("ArgMax", ["x"], ["y"], axis=1, select_last_index=last)] for last in (0, 1)]
    return pair(path, (nodes[0], nodes[1]), {"x": (2, 8)}, ({}, {}), dtypes={"y": TensorProto.INT64})


def a_weight_below_rounding(path: Path) -> tuple[Model, Model]:
    w = t.weight(64, 8)
    w[3, 3] = 5e-4
    other = w.copy()
    other[3, 3] *= np.float32(1.001)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    return pair(path, (nodes, nodes), {"x": (2, 64)}, ({"w": w}, {"w": other}))


def a_body_that_never_runs(path: Path) -> tuple[Model, Model]:
    return pair(
        path,
        ([counting(2.0)], [counting(3.0)]),
        {"x": (2, 2)},
        ({"m": np.int64(0), "c": np.bool_(True)},) * 2,
        dtypes=dict.fromkeys("xy", TensorProto.FLOAT),
    )


def a_branch_in_a_function(path: Path) -> tuple[Model, Model]:
    def model(name: str, value: float) -> Model:
        body = [
            node("ReduceSum", ["x"], ["s"], keepdims=0),
            node("Constant", [], ["low"], value=numpy_helper.from_array(np.float32(-1e6))),
            node("Greater", ["s", "low"], ["cond"]),
            node("If", ["cond"], ["y"], then_branch=branch(1.0), else_branch=branch(value)),
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        function = helper.make_function("own", "F", ["x"], ["y"], body, opsets[:1])
        values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 2)) for n in "xy"]
        graph = helper.make_graph([node("F", ["x"], ["y"], domain="own")], "g", values[:1], values[1:])
        made = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
        return saved(made, path / name)

    return model("a.onnx", 2.0), model("b.onnx", 3.0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "models",
    [
        a_limit_in_an_attribute,
        a_limit_that_is_gone,
        a_limit_in_a_constant,
        another_epsilon,
        another_choice_among_equals,
        a_weight_below_rounding,
        a_body_that_never_runs,
        a_branch_in_a_function,
    ],
)
def test_what_no_random_value_shows_is_not_equal(
    models: Callable[[Path], tuple[Model, Model]], tmp_path: Path
) -> None:
    a, b = models(tmp_path)
    found = verify(a, b)
    assert found.outputs[0].passed, "or the test shows nothing"
    assert not found.passed
    assert verify(a, a).verdict_kind == "equal"


def counting(by: float) -> Any:
    """x + by (0 + 1 + ... m - 1)."""
    values = [("i", TensorProto.INT64, ()), ("on", TensorProto.BOOL, ()), ("s", TensorProto.FLOAT, (2, 2))]
    ends = [("more", TensorProto.BOOL, ()), ("sum", TensorProto.FLOAT, (2, 2))]
    body = helper.make_graph(
        [
            node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            node("Constant", [], ["by"], value=numpy_helper.from_array(np.float32(by))),
            node("Mul", ["f", "by"], ["g"]),
            node("Add", ["s", "g"], ["sum"]),
            node("Identity", ["on"], ["more"]),
        ],
        "body",
        [helper.make_tensor_value_info(*v) for v in values],
        [helper.make_tensor_value_info(*v) for v in ends],
    )
    return node("Loop", ["m", "c", "x"], ["y"], body=body)


def test_a_loop_whose_turns_are_given_is_tried_at_several(tmp_path: Path) -> None:
    kinds = {"m": TensorProto.INT64, "c": TensorProto.BOOL}
    weights = {"unused": t.weight(1)}
    feeds = {"x": (2, 2), "m": (), "c": ()}
    a, b = pair(tmp_path, ([counting(1.0)], [counting(2.0)]), feeds, (weights, weights), dtypes=kinds)
    found = verify(a, b)
    assert all(out.equal for out in found.outputs), "it runs once, and the first turn adds nothing"
    assert found.verdict_kind == "different"


def test_a_function_with_a_loop_is_equal_to_the_loop(tmp_path: Path) -> None:
    from onnx import inliner

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    body = [
        node("Constant", [], ["m"], value=numpy_helper.from_array(np.int64(3))),
        node("Constant", [], ["c"], value=numpy_helper.from_array(np.bool_(True))),
        counting(1.0),
    ]
    function = helper.make_function("own", "F", ["x"], ["y"], body, opsets[:1])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 2)) for n in "xy"]
    graph = helper.make_graph([node("F", ["x"], ["y"], domain="own")], "g", values[:1], values[1:])
    made = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8)
    inlined = inliner.inline_local_functions(made)
    assert not inlined.functions
    found = verify(saved(made, tmp_path / "a.onnx"), saved(inlined, tmp_path / "b.onnx"))
    assert found.verdict_kind == "equal"


def test_a_decision_at_one_number_is_not_hidden_by_what_stands_before_it(tmp_path: Path) -> None:
    def nodes(op: str) -> list[Any]:
        return [
            node("MatMul", ["x", "w"], ["m"]),
            node(op, ["m", "k"], ["more"]),
            node("Where", ["more", "m", "k2"], ["y"]),
        ]

    weights = {"w": t.weight(8, 8), "k": np.float32(0.3), "k2": np.float32(7)}
    a, b = pair(tmp_path, (nodes("Greater"), nodes("GreaterOrEqual")), {"x": (2, 8)}, (weights, weights))
    found = verify(a, b)
    assert found.outputs[0].equal, "or the test shows nothing"
    assert found.verdict_kind == "unproven"


@pytest.mark.parametrize(
    ("op", "given"),
    [("LeakyRelu", {"alpha": 0.01}), ("Gelu", {"approximate": "none"}), ("Elu", {"alpha": 1.0})],
)
def test_a_default_that_is_written_out_is_no_difference(
    op: str, given: dict[str, Any], tmp_path: Path
) -> None:
    a, b = one_node(tmp_path, node(op, ["x"], ["y"]), node(op, ["x"], ["y"], **given), opset=20)
    assert verify(a, b).verdict_kind == "equal"


def _build_masked_softmax(path: Path, number: float, form: str, row_start: int) -> Model:
    """Builds the Softmax of five rows of scores, with `number` at later positions than `row_start` + row."""
    keep = np.tril(np.ones((5, 7), bool), row_start)
    scores = np.asarray(number, np.float32)
    inputs: dict[str, tuple[int, ...]] = {"x": (2, 5, 7)}
    nodes: list[Any]
    weights: dict[str, np.ndarray]
    if form == "stored sum":
        weights = {"m": np.where(keep, np.float32(0), scores)}
        nodes = [node("Add", ["x", "m"], ["masked"])]
    elif form == "choice":
        weights = {"n": scores, "keep": keep}
        nodes = [node("Where", ["keep", "x", "n"], ["masked"])]
    else:
        weights = {"n": scores, "one": np.ones((), np.float32)}
        inputs["flags"] = (5, 7)
        nodes = [
            node("Cast", ["flags"], ["kept"], to=TensorProto.FLOAT),
            node("Sub", ["one", "kept"], ["lost"]),
            node("Mul", ["lost", "n"], ["m"]),
            node("Add", ["x", "m"], ["masked"]),
        ]
    nodes.append(node("Softmax", ["masked"], ["y"], axis=-1))
    return t.model(path, nodes, inputs, weights, dtypes={"flags": TensorProto.BOOL})


@pytest.mark.parametrize(
    ("numbers", "row_start", "form", "kind"),
    [
        ((-2e9, -7e8), 1, "stored sum", "unproven"),
        ((-2e9, -7e8), 1, "choice", "unproven"),
        ((-2e9, -7e8), 1, "computed sum", "unproven"),
        ((-float("inf"), -65504.0), 1, "stored sum", "unproven"),
        ((-float("inf"), -65504.0), 1, "choice", "unproven"),
        ((-3.0, -2e9), 1, "stored sum", "different"),
        ((-3.0, -2e9), 1, "choice", "different"),
        ((-3.0, -2e9), 1, "computed sum", "different"),
        ((-float("inf"), -2e9), -1, "stored sum", "different"),  # the first row keeps no element
        ((-float("inf"), -2e9), -1, "choice", "different"),
    ],
)
def test_masks_that_softmax_makes_zero_are_neither_equal_nor_different(
    tmp_path: Path, numbers: tuple[float, float], row_start: int, form: str, kind: str
) -> None:
    first, second = (
        _build_masked_softmax(tmp_path / f"{at}.onnx", number, form, row_start)
        for at, number in enumerate(numbers)
    )
    verification = verify(first, second)
    assert verification.verdict_kind == kind, verification.verdict
    assert ("Softmax gives 0 in both models" in verification.verdict) == (kind == "unproven")
