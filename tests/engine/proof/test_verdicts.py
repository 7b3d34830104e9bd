"""What a verdict claims: equal by construction, equal where it was tried, different, or not proved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model
from explorer.engine.proof.proof import verify
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.facts import TileSpec
from explorer.session import Session
from tests.engine.proof import tiled as t

SAMPLES = Path(__file__).parents[3] / "sample_models"

node = helper.make_node


def saved(model: onnx.ModelProto, path: Path) -> Model:
    onnx.save(model, path)
    return reader.read(str(path))


def changed(name: str, path: Path, change: Callable[[onnx.ModelProto], Any]) -> tuple[Model, Model]:
    """A sample model, and the same with something changed in it."""
    model = onnx.load(SAMPLES / f"{name}.onnx")
    change(model)
    return reader.read(str(SAMPLES / f"{name}.onnx")), saved(model, path / "other.onnx")


def zeroed(operator: str, at: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        name = next(n.input[at] for n in model.graph.node if n.op_type == operator and n.input[at] in stored)
        values = numpy_helper.to_array(stored[name])
        stored[name].CopyFrom(numpy_helper.from_array(np.zeros_like(values), name))

    return change


def pair(
    path: Path,
    nodes: tuple[list[Any], list[Any]],
    feeds: dict[str, Any],
    weights: tuple[dict[str, np.ndarray], dict[str, np.ndarray]],
    **options: Any,
) -> tuple[Model, Model]:
    return (
        t.model(path / "a.onnx", nodes[0], feeds, weights[0], **options),
        t.model(path / "b.onnx", nodes[1], feeds, weights[1], **options),
    )


# different, though a run at the smallest sizes shows nothing


@pytest.mark.parametrize(("name", "operator", "at"), [("lstm_tiny", "LSTM", 2), ("bert_tiny", "MatMul", 1)])
def test_a_weight_that_counts_at_length_two_only_is_missed(
    name: str, operator: str, at: int, tmp_path: Path
) -> None:
    found = verify(*changed(name, tmp_path, zeroed(operator, at)))
    assert found.verdict_kind == "different"
    assert not found.passed
    assert operator in found.verdict


def behind_a_dead_relu(path: Path) -> tuple[Model, Model]:
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "d"], ["y"], group=4),
    ]
    weights = {
        "w": t.weight(4, 3, 1, 1),
        "b": np.full(4, -1e6, np.float32),
        "d": t.weight(4, 1, 3, 3, seed=1),
    }
    return pair(path, (nodes, nodes), {"x": (1, 3, 8, 8)}, (weights, {**weights, "d": weights["d"] * 1.01}))


def with_another_limit(path: Path) -> tuple[Model, Model]:
    def nodes(limit: str) -> list[Any]:
        return [node("MatMul", ["x", "w"], ["m"]), node("Clip", ["m", "low", limit], ["y"])]

    weights = {
        "w": t.weight(8, 8, scale=0.1),
        "low": np.float32(-6),
        "six": np.float32(6),
        "seven": np.float32(7),
    }
    return pair(path, (nodes("six"), nodes("seven")), {"x": (2, 8)}, (weights, weights))


def before_a_head_of_zeros(path: Path) -> tuple[Model, Model]:
    nodes = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Tanh", ["m"], ["h"]),
        node("MatMul", ["h", "z"], ["y"]),
    ]
    weights = {"w": t.weight(8, 8), "z": np.zeros((8, 4), np.float32)}
    other = {**weights, "w": weights["w"] + np.float32(0.01)}
    return pair(path, (nodes, nodes), {"x": (2, 8)}, (weights, other))


def a_row_that_no_id_meets(path: Path) -> tuple[Model, Model]:
    nodes = [node("Gather", ["table", "ids"], ["y"])]
    table = t.weight(5000, 4)
    other = table.copy()
    other[4321] += 1
    return pair(
        path,
        (nodes, nodes),
        {"ids": (1, 8)},
        ({"table": table}, {"table": other}),
        dtypes={"ids": TensorProto.INT64},
    )


def under_an_argmax(path: Path) -> tuple[Model, Model]:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("ArgMax", ["m"], ["y"], axis=1)]
    weights = {"w": t.weight(16, 4)}
    other = {"w": weights["w"] * np.float32(1.001)}
    return pair(path, (nodes, nodes), {"x": (1, 16)}, (weights, other), dtypes={"y": TensorProto.INT64})


def rounded_at_halves(path: Path) -> tuple[Model, Model]:
    up = [node("Add", ["x", "half"], ["a"]), node("Floor", ["a"], ["y"])]
    numbers = {"half": np.float32(0.5)}
    return pair(path, ([node("Round", ["x"], ["y"])], up), {"x": (2, 3, 8, 8)}, ({}, numbers))


def without_a_limit_that_sigmoid_keeps(path: Path) -> tuple[Model, Model]:
    clipped = [node("Sigmoid", ["x"], ["s"]), node("Clip", ["s", "low", "high"], ["y"])]
    rectified = [node("Sigmoid", ["x"], ["s"]), node("Relu", ["s"], ["y"])]
    limits = {"low": np.float32(0), "high": np.float32(6)}
    return pair(path, (clipped, rectified), {"x": (2, 3, 8, 8)}, (limits, {}))


@pytest.mark.parametrize(
    ("models", "kind"),
    [
        (without_a_limit_that_sigmoid_keeps, "unproven"),
        (behind_a_dead_relu, "different"),
        (with_another_limit, "different"),
        (before_a_head_of_zeros, "different"),
        (a_row_that_no_id_meets, "unproven"),
        (under_an_argmax, "different"),
    ],
)
def test_a_change_that_the_outputs_do_not_show_is_found(
    models: Callable[[Path], tuple[Model, Model]], kind: str, tmp_path: Path
) -> None:
    a, b = models(tmp_path)
    found = verify(a, b)
    assert all(out.equal for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == kind


def test_halves_are_tried_where_only_the_sign_of_a_zero_differs(tmp_path: Path) -> None:
    found = verify(*rounded_at_halves(tmp_path))
    assert all(out.max_abs == 0 for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "unproven"


def branch(value: float) -> Any:
    constant = node("Constant", [], ["k"], value=numpy_helper.from_array(np.full((2, 2), value, np.float32)))
    return helper.make_graph(
        [constant, node("Add", ["x", "k"], ["out"])],
        "branch",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, (2, 2))],
    )


@pytest.mark.parametrize("which", ["then_branch", "else_branch"])
def test_a_branch_that_was_not_taken_is_no_evidence(which: str, tmp_path: Path) -> None:
    def nodes(value: float) -> list[Any]:
        bodies = {"then_branch": branch(1.0), "else_branch": branch(2.0), which: branch(value)}
        return [
            node("ReduceSum", ["x"], ["s"], keepdims=0),
            node("Greater", ["s", "limit"], ["cond"]),
            node("If", ["cond"], ["y"], **bodies),
        ]

    weights = {"limit": np.float32(0)}
    same = {"then_branch": 1.0, "else_branch": 2.0}[which]
    a, b = pair(tmp_path, (nodes(same), nodes(3.0)), {"x": (2, 2)}, (weights, weights))
    assert verify(a, b).verdict_kind == "different"
    assert verify(a, a).verdict_kind == "equal"


def test_an_output_made_of_what_another_one_makes_later_is_tested_too(tmp_path: Path) -> None:
    before = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Clip", ["m", "", "k"], ["y"]),
        node("Neg", ["m"], ["u"]),
        node("Relu", ["u"], ["z"]),
    ]
    after = [
        before[0],
        *before[2:],
        node("Mul", ["u", "minus"], ["again"]),
        node("Clip", ["again", "", "k"], ["y"]),
    ]
    weights = {"w": t.weight(8, 8), "k": np.float32(50), "minus": np.float32(-1)}
    ends = {"outputs": ("y", "z")}
    a, b = pair(tmp_path, (before, after), {"x": (2, 8)}, (weights, weights), **ends)
    assert verify(a, b).verdict_kind == "evidence"
    lower = {**weights, "k": np.float32(20)}
    a, b = pair(tmp_path, (before, after), {"x": (2, 8)}, (weights, lower), **ends)
    found = verify(a, b)
    assert all(out.equal for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "different"


def test_weights_that_are_alike_but_for_a_few_numbers_are_told_apart(tmp_path: Path) -> None:
    def marked(base: float, *place: int) -> np.ndarray:
        made = np.full((64, 64), base, np.float32)
        made[place] = 7
        return made

    nodes = [
        node("Add", ["x", "a"], ["p"]),
        node("Mul", ["p", "c"], ["q"]),
        node("Add", ["q", "b"], ["r"]),
        node("Clip", ["r", "", "k"], ["y"]),
    ]
    weights = {"a": marked(0, 20, 5), "c": np.ones((64, 64), np.float32), "b": marked(0, 21, 5)}
    other = {**weights, "b": marked(1, 30, 30)}
    low = {"k": np.float32(-1e3)}
    a, b = pair(tmp_path, (nodes, nodes), {"x": (64, 64)}, ({**weights, **low}, {**other, **low}))
    found = verify(a, b)
    assert all(out.equal for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "different"


def test_a_limit_of_bfloat16_is_looked_at(tmp_path: Path) -> None:
    import ml_dtypes

    nodes = [node("Min", ["x", "k"], ["y"])]
    limits = ({"k": np.array(k, ml_dtypes.bfloat16)} for k in (100, 1000))
    a, b = (t.model(tmp_path / f"{i}.onnx", nodes, {"x": (2, 8)}, k) for i, k in enumerate(limits))
    assert verify(a, b).verdict_kind == "unproven"


# equal by construction


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    kept = {v.name for v in (*model.graph.input, *model.graph.output)}
    for number, one in enumerate(model.graph.node):
        one.name = f"other_{number}"
        for names in (one.input, one.output):
            for at, name in enumerate(names):
                if name and name not in kept:
                    names[at] = f"v_{name}"
    for tensor in model.graph.initializer:
        tensor.name = f"v_{tensor.name}"
    del model.graph.value_info[:]
    return model


def with_constants_and_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    nodes = [node("Constant", [], [w.name], value=w) for w in model.graph.initializer]
    for one in model.graph.node:
        kept = one.input[0]
        nodes.append(node("Identity", [kept], [f"{kept}/{one.output[0]}"]))
        one.input[0] = nodes[-1].output[0]
        nodes.append(one)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.initializer[:]
    return model


def test_an_attribute_that_nothing_reads_makes_no_difference(tmp_path: Path) -> None:
    def nodes(bias: list[str], **given: Any) -> list[Any]:
        return [node("Gemm", ["x", "w", *bias], ["y"], **given)]

    weights = {"w": t.weight(8, 8), "b": t.weight(8)}
    a, b = pair(tmp_path, (nodes([], beta=0.5), nodes([])), {"x": (2, 8)}, (weights, weights))
    assert verify(a, b).verdict_kind == "equal"
    a, b = pair(tmp_path, (nodes(["b"], beta=0.5), nodes(["b"])), {"x": (2, 8)}, (weights, weights))
    assert verify(a, b).verdict_kind == "different"


@pytest.mark.parametrize("change", [renamed, with_constants_and_identities])
def test_names_constants_and_identities_make_no_difference(
    change: Callable[[onnx.ModelProto], onnx.ModelProto], tmp_path: Path
) -> None:
    before = SAMPLES / "lenet.onnx"
    after = saved(change(onnx.load(before)), tmp_path / "other.onnx")
    found = verify(reader.read(str(before)), after)
    assert found.verdict_kind == "equal"
    assert found.verdict.startswith("equal bit for bit: ")
    assert found.nodes == len(reader.read(str(before)).graph.nodes)
    assert found.regions == ()


def test_a_tiled_file_stays_equal_where_another_tool_inlines_its_functions(tmp_path: Path) -> None:
    from onnx import inliner

    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    after, _ = t.tiled(source, TileSpec(tile=(2, 4, 3), form="unrolled"))
    inlined = inliner.inline_local_functions(onnx.load(after.path))
    found = verify(source, saved(inlined, tmp_path / "inlined.onnx"))
    assert found.verdict_kind in ("equal", "evidence")
    bare = renamed(onnx.load(after.path))
    del bare.metadata_props[:]
    found = verify(source, saved(bare, tmp_path / "bare.onnx"))
    assert found.verdict_kind == "evidence"
    assert "1 changed region tested alone" in found.verdict


def test_a_tiled_file_in_which_equal_sizes_were_joined_is_not_different(tmp_path: Path) -> None:
    """A site of open size asks for the shape of its own input: it is that of what lies before it."""
    nodes = [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    source = t.model(tmp_path / "m.onnx", nodes, {"x": ("rows", 8)}, {"w": t.weight(8, 8)})
    session = Session(source.path)
    session.tile(TileSpec((4, 4, 4)), verify=False)
    session.save(str(tmp_path / "tiled.onnx"))
    model = onnx.load(tmp_path / "tiled.onnx")
    shapes = [one for one in model.graph.node if one.op_type == "Shape" and one.input[0] == "r"]
    assert shapes, "or the test shows nothing"
    for one in shapes:
        one.input[0] = "x"
    found = verify(source, saved(model, tmp_path / "joined.onnx"))
    assert found.verdict_kind == "evidence", found.verdict


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["lab", "unrolled", "batched"])
def test_a_tiled_file_whose_values_were_renamed_is_not_different(form: Any, tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="one", pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("Conv", ["r", "v"], ["y"], name="two"),
    ]
    weights = {"w": t.weight(4, 3, 3, 3), "v": t.weight(2, 4, 1, 1)}
    source = t.model(tmp_path / "m.onnx", nodes, {"x": (1, 3, 4, 4)}, weights)
    after, _ = t.tiled(source, TileSpec(tile=(2, 4, 3), form=form))
    found = verify(source, saved(renamed(onnx.load(after.path)), tmp_path / "other.onnx"))
    assert found.verdict_kind in ("equal", "evidence")
    assert found.sites == ()


def test_the_values_of_many_regions_are_fetched_in_few_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run of the whole model for each region takes time with the square of their number."""
    runs: list[str] = []
    run = RuntimeSession.run

    def counted(self: RuntimeSession, *given: Any) -> Any:
        runs.append(self.label)
        return run(self, *given)

    monkeypatch.setattr(RuntimeSession, "run", counted)

    def nodes(op: str, by: str) -> list[Any]:
        made = [
            (node(op, [f"t{i}", by], [f"v{i}"]), node("Tanh", [f"v{i}"], [f"t{i + 1}"])) for i in range(40)
        ]
        return [
            node("Neg", ["x"], ["t0"]),
            *(one for two in made for one in two),
            node("Neg", ["t40"], ["y"]),
        ]

    weights = {"plus": np.float32(0.25)}
    found = verify(
        *pair(tmp_path, (nodes("Add", "plus"), nodes("Sum", "plus")), {"x": (2, 2)}, (weights, weights))
    )
    assert len(found.regions) == 40
    assert runs.count("the original") <= 4


def test_two_draws_of_an_operator_are_two_values(tmp_path: Path) -> None:
    def nodes(second: str) -> list[Any]:
        return [
            node("RandomNormalLike", ["x"], ["p"]),
            node("RandomNormalLike", ["x"], ["q"]),
            node("Sub", ["p", second], ["y"]),
        ]

    weights = {"w": t.weight(1)}
    a, b = pair(tmp_path, (nodes("q"), nodes("p")), {"x": (4, 4)}, (weights, weights))
    assert verify(a, a).verdict_kind == "equal"
    found = verify(a, b)
    assert found.verdict_kind == "different"
    assert "random numbers change the output of the first, but the second draws none" in found.verdict


def test_numbers_added_at_random_are_a_difference_however_small(tmp_path: Path) -> None:
    noisy = [
        node("RandomNormalLike", ["x"], ["p"], scale=1e-6),
        node("Add", ["x", "p"], ["y"]),
    ]
    plain = [node("Neg", ["x"], ["n"]), node("Neg", ["n"], ["y"])]
    a, b = pair(tmp_path, (noisy, plain), {"x": (4, 4)}, ({}, {}))
    assert verify(a, b).verdict_kind == verify(b, a).verdict_kind == "different"


def test_two_ways_to_draw_the_same_numbers_are_not_told_apart(tmp_path: Path) -> None:
    like = [node("RandomNormalLike", ["x"], ["p"]), node("Add", ["x", "p"], ["y"])]
    given = [node("RandomNormal", [], ["p"], shape=[4, 4]), node("Add", ["x", "p"], ["y"])]
    a, b = pair(tmp_path, (like, given), {"x": (4, 4)}, ({}, {}))
    assert verify(a, b).verdict_kind == "unproven"


@pytest.mark.parametrize("behind", ["Exp", "Sign"])
def test_outputs_made_with_random_numbers_are_not_said_to_round(tmp_path: Path, behind: str) -> None:
    drawn = [node("RandomNormalLike", ["x"], ["p"], scale=20.0), node(behind, ["p"], ["e"])]
    one = [*drawn, node("Tanh", ["x"], ["g"]), node("Mul", ["e", "g"], ["y"])]
    two = [
        node("Neg", ["x"], ["n"]),
        node("Tanh", ["n"], ["h"]),
        node("Neg", ["h"], ["g"]),
        *drawn,
        node("Mul", ["e", "g"], ["y"]),
    ]
    a, b = pair(tmp_path, (one, two), {"x": (4, 4)}, ({}, {}))
    found = verify(a, b)
    assert found.verdict_kind == "evidence"
    assert found.outputs[0].drawn
    assert "computed from random numbers, which differ in each run" in found.verdict
    assert "rounding" not in found.verdict


# equal on evidence


def test_a_folded_normalisation_is_equal_on_evidence(tmp_path: Path) -> None:
    scale, shift = t.weight(4, seed=2), t.weight(4, seed=3)
    mean, variance = t.weight(4, seed=4), np.abs(t.weight(4, seed=5)) + 1
    w = t.weight(4, 3, 3, 3)
    factor = scale / np.sqrt(variance + np.float32(1e-5))
    before = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        node("Relu", ["n"], ["y"]),
    ]
    after = [node("Conv", ["x", "w", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    a, b = pair(
        tmp_path,
        (before, after),
        {"x": (1, 3, 8, 8)},
        (
            {"w": w, "s": scale, "t": shift, "m": mean, "v": variance},
            {"w": w * factor[:, None, None, None], "b": shift - mean * factor},
        ),
    )
    found = verify(a, b)
    assert found.verdict_kind == "evidence"
    assert found.verdict.startswith("equal on evidence: ")
    assert [r.kind for r in found.regions] == ["evidence"]
    assert found.regions[0].draws >= 4


def test_what_only_made_up_values_show_is_looked_at_with_what_makes_them(tmp_path: Path) -> None:
    before = [node("Relu", ["x"], ["r"]), node("Abs", ["r"], ["q"]), node("MatMul", ["q", "w"], ["y"])]
    after = [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    weights = {"w": t.weight(8, 8)}
    found = verify(*pair(tmp_path, (before, after), {"x": (2, 8)}, (weights, weights)))
    assert found.verdict_kind == "evidence"


@pytest.mark.parametrize("last", [("ArgMax", {"axis": 1}), ("Softmax", {}), ("Sign", {})])
def test_a_factor_that_was_folded_is_no_difference_where_little_shows_it(
    last: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    op, attributes = last
    before = [
        node("MatMul", ["x", "w"], ["m"]),
        node("Mul", ["m", "two"], ["t"]),
        node(op, ["t"], ["y"], **attributes),
    ]
    after = [node("MatMul", ["x", "w"], ["m"]), node(op, ["m"], ["y"], **attributes)]
    w = t.weight(8, 8)
    weights = {"w": w, "two": np.float32(2)}
    kinds = {"y": TensorProto.INT64} if op == "ArgMax" else {}
    a, b = pair(tmp_path, (before, after), {"x": (2, 8)}, (weights, {"w": w * 2}), dtypes=kinds)
    assert verify(a, b).verdict_kind == "evidence"


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [("Reshape", [[-1, 4]], [[4, 4]]), ("Slice", [[0, 2], [2, 2**62]], [[0, 2], [2, 8]])],
)
def test_a_shape_that_was_written_out_is_no_difference(
    op: str, before: list[list[int]], after: list[list[int]], tmp_path: Path
) -> None:
    inputs = ["s", "e"][: len(before)]
    nodes = [node(op, ["x", *inputs], ["y"])]
    weights = [
        {"unused": t.weight(1), **{n: np.array(v) for n, v in zip(inputs, values, strict=True)}}
        for values in (before, after)
    ]
    a, b = pair(tmp_path, (nodes, nodes), {"x": (2, 8)}, (weights[0], weights[1]))
    assert verify(a, b).verdict_kind == "equal"


# not proved


def test_a_region_whose_output_never_moves_proves_nothing(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["a"]), node("Relu", ["a"], ["y"])]
    weights = {"w": t.weight(8, 8), "b": np.full(8, -1e9, np.float32)}
    other = {**weights, "w": t.weight(8, 8, seed=9)}
    found = verify(*pair(tmp_path, (nodes, nodes), {"x": (2, 8)}, (weights, other)))
    assert found.verdict_kind in ("unproven", "different")
    assert not found.passed


@pytest.mark.parametrize("op", ["Log", "Sqrt"])
def test_outputs_without_one_finite_number_are_no_difference(op: str, tmp_path: Path) -> None:
    """Which NaN a runtime makes is its own affair."""
    nodes = [node("MatMul", ["x", "w"], ["m"]), node(op, ["b"], ["l"]), node("Add", ["m", "l"], ["y"])]
    other = [*nodes[:2], node("Mul", ["m", "minus"], ["n"]), node("Sub", ["l", "n"], ["y"])]
    weights = {"w": t.weight(8, 8), "b": np.full(8, -1, np.float32), "minus": np.float32(-1)}
    found = verify(*pair(tmp_path, (nodes, other), {"x": (2, 8)}, (weights, weights)))
    assert found.verdict_kind == "unproven", found.verdict


def test_outputs_that_do_not_depend_on_the_input_are_named(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("Tanh", ["m"], ["y"])]
    weights = {"w": np.zeros((8, 8), np.float32)}
    a, b = pair(tmp_path, (nodes, nodes), {"x": (2, 8)}, (weights, weights))
    found = verify(a, b)
    assert found.verdict_kind == "equal"
    assert "output 'y' is the same for all inputs, which shows nothing" in found.verdict


# different


def test_swapped_outputs_are_different(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], ["p"]), node("Neg", ["x"], ["q"])]
    weights = {"w": t.weight(1)}
    a = t.model(tmp_path / "a.onnx", nodes, {"x": (2, 2)}, weights, outputs=("p", "q"))
    b = t.model(tmp_path / "b.onnx", nodes, {"x": (2, 2)}, weights, outputs=("q", "p"))
    found = verify(a, b)
    assert found.verdict == "different: the outputs have another order: 'q', 'p'"
    swapped = [node("Relu", ["x"], ["q"]), node("Neg", ["x"], ["p"])]
    c = t.model(tmp_path / "c.onnx", swapped, {"x": (2, 2)}, weights, outputs=("p", "q"))
    assert verify(a, c).verdict_kind == "different"


def test_strings_of_a_model_are_compared_too(tmp_path: Path) -> None:
    def model(path: Path, word: str) -> Model:
        words = helper.make_tensor("words", TensorProto.STRING, [2], [b"a", word.encode()])
        graph = helper.make_graph(
            [node("Gather", ["words", "ids"], ["y"])],
            "g",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, (1,))],
            [helper.make_tensor_value_info("y", TensorProto.STRING, (1,))],
            [words],
        )
        return saved(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
        )

    a, b = model(tmp_path / "a.onnx", "b"), model(tmp_path / "b.onnx", "c")
    assert verify(a, a).verdict_kind == "equal"
    assert verify(a, b).verdict_kind != "equal"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("last", [("MatMul", "w"), ("Sub", "b")])
def test_an_identity_at_the_end_that_was_removed_is_no_difference(
    last: tuple[str, str], tmp_path: Path
) -> None:
    op, name = last
    before = [
        node("Tanh", ["x"], ["h"]),
        node(op, ["h", name], ["v"]),
        node("Identity", ["v"], ["y"]),
    ]
    after = [node("Tanh", ["x"], ["h"]), node("Neg", ["h"], ["n"]), node(op, ["n", name], ["z"])]
    after += [node("Neg", ["z"], ["y"])]
    weights = {"w": t.weight(8, 8), "b": t.weight(8)}
    other = {**weights, "b": -weights["b"]}
    a, b = pair(tmp_path, (before, after), {"x": (2, 8)}, (weights, other))
    found = verify(a, b)
    assert found.verdict_kind == "evidence"
    assert [one.before for one in found.regions] == [f"{op}, Identity"], "v is y: it is not given to it"


@pytest.mark.parametrize(
    ("last", "listed"),
    [
        ((), "2 Sin, Erf, Atan"),
        (("Tanh",), "2 Sin, Erf, Atan and 1 other operator"),
        (("Tanh", "Asinh"), "2 Sin, Erf, Atan and 2 other operators"),
    ],
)
def test_a_region_names_its_first_operators_and_counts_the_rest(
    last: tuple[str, ...], listed: str, tmp_path: Path
) -> None:
    def chain(*ops: str) -> list[onnx.NodeProto]:
        names = ["x", *(f"t{at}" for at in range(len(ops) - 1)), "y"]
        return [node(op, [names[at]], [names[at + 1]]) for at, op in enumerate(ops)]

    # functions that are odd: f(-x) is -f(x)
    odd = ("Sin", "Sin", "Erf", "Atan", *last)
    a, b = pair(tmp_path, (chain(*odd), chain("Neg", *odd, "Neg")), {"x": (2, 8)}, ({}, {}))
    found = verify(a, b)
    assert [(one.kind, one.before) for one in found.regions] == [("evidence", listed)]


# what a verdict counts, and what an interface is


def test_nothing_that_was_found_different_is_among_the_equal(tmp_path: Path) -> None:
    model = onnx.load(SAMPLES / "mobilenet_small.onnx")
    layers = [n for n in model.graph.node if n.op_type in ("Conv", "Gemm")]
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    before = reader.read(str(SAMPLES / "mobilenet_small.onnx"))
    order = [n.name for n in before.graph.nodes]
    for changed_layers in (layers, layers[len(layers) // 2 :]):
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for layer in changed_layers:
            values = numpy_helper.to_array(stored[layer.input[1]])
            tensor = next(t for t in other.graph.initializer if t.name == layer.input[1])
            tensor.CopyFrom(numpy_helper.from_array(values * np.float32(1.5), layer.input[1]))
        found = verify(before, saved(other, tmp_path / "other.onnx"))
        assert found.verdict_kind == "different"
        # what stands before the first of them is the same, and of what stands behind it the constants
        constants = sum(n.op == "Constant" for n in before.graph.nodes)
        assert found.nodes is not None
        assert found.nodes <= order.index(changed_layers[0].name) + constants
    assert found.nodes > 0


def test_swapped_inputs_are_different(tmp_path: Path) -> None:
    nodes = [node("Sub", ["a", "b"], ["y"])]
    paths = []
    for at, names in enumerate(("ab", "ba")):
        info = [helper.make_tensor_value_info(name, 1, (2, 3)) for name in names]
        graph = helper.make_graph(nodes, "g", info, [helper.make_tensor_value_info("y", 1, (2, 3))])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        paths.append(saved(model, tmp_path / f"{at}.onnx"))
    found = verify(*paths)
    assert found.verdict == "different: the inputs have another order: 'b', 'a'"
    assert verify(paths[0], paths[0]).passed


def test_an_input_that_a_caller_may_replace_is_no_constant(tmp_path: Path) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["y"])]
    stored = [numpy_helper.from_array(t.weight(4, 3), "w"), numpy_helper.from_array(t.weight(3), "b")]
    models = []
    for at, replaceable in enumerate((("x", "b"), ("x",))):
        sizes = {"x": (2, 4), "b": (3,)}
        info = [helper.make_tensor_value_info(name, 1, sizes[name]) for name in replaceable]
        graph = helper.make_graph(nodes, "g", info, [helper.make_tensor_value_info("y", 1, (2, 3))], stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        models.append(saved(model, tmp_path / f"{at}.onnx"))
    said = "'b' is an input that a caller may give in the {} model, and a constant or missing in the other"
    for pair_, which in ((models, "first"), (models[::-1], "second")):
        found = verify(*pair_)
        assert (found.verdict_kind, found.verdict) == ("different", f"different: {said.format(which)}")
    assert verify(models[0], models[0]).passed


def test_the_limit_of_a_product_is_written_once() -> None:
    import explorer.engine.proof.sites as sites

    for path in Path(sites.__path__[0]).glob("*.py"):
        assert "= 8.0" not in path.read_text(), path


def test_a_size_that_only_one_model_leaves_open_is_mentioned(tmp_path: Path) -> None:
    nodes = [node("Tanh", ["x"], ["y"])]
    first = t.model(tmp_path / "open.onnx", nodes, {"x": ("rows", 8)}, {})
    second = t.model(tmp_path / "fixed.onnx", nodes, {"x": (3, 8)}, {})
    assert "only the second model fixes a size of input 'x'" in verify(first, second).verdict
    assert "only the first model fixes a size of input 'x'" in verify(second, first).verdict
    assert "fixes a size" not in verify(first, first).verdict
