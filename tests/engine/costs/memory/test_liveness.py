"""The peak of activation memory: what is alive at one step, and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer import Session, TileSpec
from explorer.engine.costs import layer_tree
from explorer.engine.costs.memory.liveness import (
    AnalysisResult,
    ExecutionStep,
    Schedule,
    compute_memory,
    find_live_peak,
)
from explorer.engine.costs.onnx import analyse, visitor
from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.model import Function, Graph, Model, Node, Value
from explorer.facts import Analysis, Info, ModelInfo, TensorInfo
from explorer.facts.memory import Memory

Build = Callable[..., Model]


def made(name: str, size: int) -> tuple[str, TensorInfo, int]:
    return name, TensorInfo(name, "uint8", (size,)), size


def test_inputs_and_outputs_of_a_step_are_alive_together() -> None:
    steps = [
        ExecutionStep("", [], [made("x", 10)]),
        ExecutionStep("a", ["x"], [made("y", 100)]),
        ExecutionStep("b", ["y"], [made("z", 30)]),
        ExecutionStep("c", ["z"], [made("out", 1)]),
    ]
    peak = find_live_peak(steps, keep=["out"])
    assert (peak.bytes, peak.label) == (130, "b")
    assert [t.name for t in peak.tensors] == ["y", "z"]


def test_a_tensor_that_is_needed_later_stays() -> None:
    steps = [
        ExecutionStep("", [], [made("x", 10)]),
        ExecutionStep("a", ["x"], [made("y", 10)]),
        ExecutionStep("b", ["y"], [made("z", 10)]),
        ExecutionStep("add", ["z", "x"], [made("out", 10)]),
    ]
    peak = find_live_peak(steps, keep=["out"])
    assert peak.bytes == 30
    assert {t.name for t in peak.tensors} == {"x", "y", "z"}


def test_an_output_of_the_model_is_never_freed() -> None:
    steps = [
        ExecutionStep("a", [], [made("early", 50)]),
        ExecutionStep("b", [], [made("late", 60)]),
    ]
    assert find_live_peak(steps, keep=["early", "late"]).bytes == 110
    assert find_live_peak(steps, keep=["late"]).bytes == 60


def test_a_view_takes_no_memory_of_its_own() -> None:
    steps = [ExecutionStep("a", [], [made("x", 50)]), ExecutionStep("view", ["x"], [made("x", 50)])]
    assert find_live_peak(steps).bytes == 50


def test_nothing_has_a_peak_of_nothing() -> None:
    assert find_live_peak([]).bytes == 0
    assert find_live_peak([ExecutionStep("a", [], [])]).tensors == ()


def test_only_the_largest_tensors_are_named() -> None:
    outputs = [made(f"t{i}", i + 1) for i in range(40)]
    peak = find_live_peak([ExecutionStep("a", [], outputs)])
    assert peak.bytes == sum(range(1, 41))
    assert [t.name for t in peak.tensors] == [f"t{i}" for i in range(39, 23, -1)]


# -- the timeline --------------------------------------------------------------------------------


def examined(model: Any, **options: Any) -> AnalysisResult:
    return analyse.examine(model, **options)


def timeline(found: Memory) -> list[tuple[str, int]]:
    return [(step.path, step.live_bytes) for step in found.steps]


def alive(found: Memory) -> dict[str, tuple[int, int, int]]:
    return {life.tensor.name: (life.bytes, life.born, life.dies) for life in found.lifetimes}


def test_the_timeline_of_a_graph_with_a_branch_by_hand(build: Build) -> None:
    """x (16 B) -> wide (64) -> left (64), right (64) -> join (64) -> y (16)."""
    nodes = [
        Node("MatMul", ["x", "w"], ["wide"], name="wide"),
        Node("Relu", ["wide"], ["left"], name="left"),
        Node("Tanh", ["wide"], ["right"], name="right"),
        Node("Add", ["left", "right"], ["join"], name="join"),
        Node("MatMul", ["join", "v"], ["y"], name="down"),
    ]
    model = build(nodes, inputs={"x": (1, 4)}, outputs=["y"], weights={"w": (4, 16), "v": (16, 4)})
    both = examined(model)
    found = compute_memory(both)
    assert timeline(found) == [
        ("", 16),
        ("wide", 16 + 64),
        ("left", 64 + 64),
        ("right", 64 + 64 + 64),
        ("join", 64 + 64 + 64),
        ("down", 64 + 16),
    ]
    assert alive(found) == {
        "x": (16, 0, 1),
        "wide": (64, 1, 3),
        "left": (64, 2, 4),
        "right": (64, 3, 4),
        "join": (64, 4, 5),
        "y": (16, 5, 5),
    }
    assert (found.peak_bytes, found.peak_step) == (192, 3)
    assert found.sum_bytes == 16 + 4 * 64 + 16
    assert found.arena_bytes == 192
    # the weights are resident, and in none of the other figures
    assert found.weight_bytes == 2 * 4 * 64
    assert (found.status, found.reason) == ("exact", "")
    assert [s.kind for s in found.steps] == ["", "MatMul", "Relu", "Tanh", "Add", "MatMul"]
    assert [s.layer for s in found.steps] == [None, 0, 1, 2, 3, 4]
    totals = both.analysis.info.totals
    assert (totals.activation_bytes_peak, totals.peak_at) == (192, "right")


def test_an_output_of_the_model_is_alive_to_the_end_and_an_unused_input_only_at_its_start(
    build: Build,
) -> None:
    nodes = [
        Node("Relu", ["x"], ["early"], name="a"),
        Node("Relu", ["x"], ["b"]),
        Node("Relu", ["b"], ["late"]),
    ]
    found = compute_memory(
        examined(build(nodes, inputs={"x": (4,), "idle": (8,)}, outputs=["late", "early"]))
    )
    assert alive(found) == {
        "x": (16, 0, 2),
        "idle": (32, 0, 0),
        "early": (16, 1, 3),
        "b": (16, 2, 3),
        "late": (16, 3, 3),
    }


def test_views_share_the_memory_of_what_they_show(build: Build) -> None:
    """A Reshape, a Squeeze and an Identity of the same 24 numbers are one tensor, alive to its last use."""
    nodes = [
        Node("Relu", ["x"], ["a"], name="a"),
        Node("Reshape", ["a", "to"], ["b"], name="b"),
        Node("Squeeze", ["b"], ["c"], name="c"),
        Node("Identity", ["c"], ["d"], name="d"),
        Node("Relu", ["d"], ["y"], name="y"),
    ]
    model = build(nodes, inputs={"x": (4, 6)}, outputs=["y"], weights={"to": np.array([1, 24])})
    found = compute_memory(examined(model))
    assert alive(found) == {"x": (96, 0, 1), "a": (96, 1, 5), "y": (96, 5, 5)}
    assert [size for _, size in timeline(found)] == [96, 192, 96, 96, 96, 192]


def test_an_output_that_is_a_view_keeps_its_tensor_to_the_end(build: Build) -> None:
    nodes = [Node("Flatten", ["x"], ["flat"], name="flat"), Node("Relu", ["x"], ["y"], name="y")]
    found = compute_memory(examined(build(nodes, inputs={"x": (2, 3)}, outputs=["flat", "y"])))
    assert alive(found) == {"x": (24, 0, 2), "y": (24, 2, 2)}


def test_a_dropout_that_may_train_makes_a_tensor_of_its_own(build: Build) -> None:
    rest = Node("Dropout", ["x"], ["y", "mask"], name="drop")
    found = compute_memory(examined(build([rest], inputs={"x": (4,)}, outputs=["y"])))
    assert set(alive(found)) == {"x", "mask"}
    trains = Node("Dropout", ["x", "", "now"], ["y"], name="drop")
    model = build([trains], inputs={"x": (4,), "now": ("bool", ())}, outputs=["y"])
    assert "y" in alive(compute_memory(examined(model)))


def test_a_stored_tensor_in_another_shape_is_no_activation(build: Build) -> None:
    nodes = [Node("Reshape", ["w", "to"], ["v"], name="v"), Node("MatMul", ["x", "v"], ["y"], name="y")]
    model = build(nodes, inputs={"x": (1, 4)}, outputs=["y"], weights={"w": (16,), "to": np.array([4, 4])})
    assert set(alive(compute_memory(examined(model)))) == {"x", "y"}


def test_a_tensor_whose_size_is_not_known_is_left_out_and_counted(build: Build) -> None:
    nodes = [Node("Relu", ["x"], ["a"], name="a"), Node("Relu", ["k"], ["b"], name="b")]
    model = build(nodes, inputs={"x": ("batch", 4), "k": (8,)}, outputs=["a", "b"])
    found = compute_memory(examined(model))
    assert (found.status, found.reason) == (
        "unknown",
        "2 of 4 tensors are left out: their sizes are not known",
    )
    assert set(alive(found)) == {"k", "b"}
    assert found.peak_bytes == 64
    bound = compute_memory(examined(model, dims={"batch": 2}))
    assert (bound.status, bound.sum_bytes, bound.peak_bytes) == ("exact", 128, 96)


def test_nothing_known_is_unknown_not_zero(build: Build) -> None:
    both = examined(build([Node("Relu", ["x"], ["y"])], inputs={"x": ("n",)}, outputs=["y"]))
    assert both.analysis.info.totals.activation_bytes_peak is None
    assert compute_memory(both).status == "unknown"


def test_figures_of_the_timeline_are_those_of_the_totals(sample: Callable[[str], Path]) -> None:
    for name in ("lenet", "mobilenet_small", "three_inputs", "jsc_tiny"):
        both = examined(read(str(sample(name))))
        found, totals = compute_memory(both), both.analysis.info.totals
        assert found.peak_bytes == totals.activation_bytes_peak == max(s.live_bytes for s in found.steps)
        at = found.steps[found.peak_step]
        assert at.path == totals.peak_at
        there = [x for x in found.lifetimes if x.born <= found.peak_step <= x.dies]
        assert sum(x.bytes for x in there) == found.peak_bytes
        assert {t.name for t in totals.peak_tensors} == {x.tensor.name for x in there}
        assert found.peak_bytes <= found.arena_bytes <= found.sum_bytes
        assert all(s.layer is None or both.analysis.layers[s.layer].path == s.path for s in found.steps)
        assert sum(s.layer is None for s in found.steps) == 1, "the inputs come before the first layer"


steps_of_any_kind = st.lists(
    st.tuples(st.lists(st.integers(0, 9), max_size=3), st.integers(0, 9), st.integers(0, 50)), max_size=12
)


@given(steps_of_any_kind, st.frozensets(st.integers(0, 9), max_size=4))
@settings(deadline=None, max_examples=300)
def test_the_timeline_is_what_its_definition_says(
    plan: list[tuple[list[int], int, int]], keep: frozenset[int]
) -> None:
    """A tensor is alive from the step that makes it first to the last step that reads it or makes it anew."""
    steps = [
        ExecutionStep(f"s{i}", reads, [(key, TensorInfo(str(key), "uint8", (size,)), size)])
        for i, (reads, key, size) in enumerate(plan)
    ]
    uses = [{*reads, key} for reads, key, _ in plan]
    sizes: dict[int, int] = {}
    for _, key, size in plan:
        sizes.setdefault(key, size)

    def alive_at(key: int, at: int) -> bool:
        made = next(i for i, (_, k, _) in enumerate(plan) if k == key)
        return made <= at and (key in keep or any(key in used for used in uses[at:]))

    by_hand = [sum(size for key, size in sizes.items() if alive_at(key, at)) for at in range(len(plan))]
    analysis = Analysis(Info(ModelInfo("m", "onnx", (), ()), {}, layer_tree.compute_totals([])), ())
    found = compute_memory(AnalysisResult.from_analysis(analysis, Schedule(steps, keep, [None] * len(steps))))
    assert [s.live_bytes for s in found.steps] == by_hand
    peak = find_live_peak(steps, keep)
    assert peak.bytes == found.peak_bytes == max(by_hand, default=0)
    if by_hand:
        assert peak.label == found.steps[found.peak_step].path == f"s{by_hand.index(max(by_hand))}"
    for a in found.lifetimes:
        for b in found.lifetimes:
            if a is not b and a.born <= b.dies and b.born <= a.dies:
                assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
    assert found.peak_bytes <= found.arena_bytes <= found.sum_bytes


# -- branches, loops, functions ------------------------------------------------------------------


def body(
    nodes: list[Node], inputs: list[str], outputs: list[str], **values: tuple[str, tuple[int, ...]]
) -> Graph:
    def described(name: str) -> Value:
        return Value(name, *values.get(name, (None, None)))

    return Graph("body", tuple(nodes), tuple(map(described, inputs)), tuple(map(described, outputs)), {}, ())


def test_what_a_loop_hands_on_is_in_and_out_once_and_what_it_sees_stays(build: Build) -> None:
    """h = relu(h @ w + seen) three times; h is 16 B, seen 16 B, and the rows of every run are stacked."""
    inner = body(
        [
            Node("Identity", ["c"], ["c2"], name="go"),
            Node("Add", ["h", "seen"], ["sum"], name="sum"),
            Node("Relu", ["sum"], ["h2"], name="relu"),
            Node("Tanh", ["sum"], ["row"], name="row"),
        ],
        ["i", "c", "h"],
        ["c2", "h2", "row"],
        i=("int64", ()),
        c=("bool", ()),
    )
    nodes = [
        Node("Relu", ["x"], ["seen"], name="before"),
        Node("Loop", ["three", "", "x"], ["last", "rows"], name="again", attributes={"body": inner}),
        Node("Relu", ["last"], ["y"], name="after"),
    ]
    model = build(nodes, inputs={"x": (4,)}, outputs=["y", "rows"], weights={"three": np.array(3)})
    both = examined(model)
    found = compute_memory(both)
    lives = alive(found)
    steps = [s.path for s in found.steps]
    begin, end = steps.index("again"), len(steps) - 1 - steps[::-1].index("again")
    assert lives["rows"] == (3 * 16, begin, len(steps) - 1)
    # the state that goes in and the one that comes out are both there while the body runs
    assert lives["x"] == (16, 0, end)
    assert lives["seen"] == (16, 1, end)
    assert lives["h2"] == (16, steps.index("again/relu"), steps.index("after"))
    assert "last" not in lives
    assert "h" not in lives
    assert found.peak_bytes == 16 * (3 + 1 + 1 + 1 + 1 + 1) + 1, "rows, x, seen, sum, h2, row, c2"
    rows = both.analysis.layers
    assert [rows[s.layer].path for s in found.steps if s.layer is not None] == steps[1:]


def test_of_two_branches_the_one_that_needs_more_memory_is_taken(build: Build) -> None:
    both = [Node("Relu", ["x"], ["e1"]), Node("Tanh", ["x"], ["e2"]), Node("Add", ["e1", "e2"], ["t"])]
    wide = body(both, [], ["t"])
    slim = body([Node("Relu", ["x"], ["e"], name="slim")], [], ["e"])
    branches = {"then_branch": slim, "else_branch": wide}
    nodes = [
        Node("If", ["c"], ["y"], name="which", attributes=branches),
        Node("Relu", ["y"], ["z"], name="after"),
    ]
    found = compute_memory(examined(build(nodes, inputs={"x": (4,), "c": ("bool", ())}, outputs=["z"])))
    assert found.status == "bound"
    assert "branch" in found.reason
    assert {"e1", "e2", "t"} <= set(alive(found))
    assert found.peak_bytes == 3 * 16 + 1, "e1, e2, t and the condition; x is not needed any more"
    # the branch's own result is the result of the If, not a second tensor
    assert "y" not in alive(found)
    assert alive(found)["t"][2] == len(found.steps) - 1


def test_a_function_is_its_body_opened_or_not(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    function = Function(
        "mine",
        "Twice",
        ("a",),
        ("d",),
        (
            Node("Relu", ["a"], ["b"]),
            Node("Concat", ["b", "b"], ["c"], attributes={"axis": 0}),
            Node("Relu", ["c"], ["d"]),
        ),
        {"": 17},
    )
    nodes = [
        Node("Twice", ["x"], ["m"], name="call", domain="mine"),
        Node("Relu", ["m"], ["y"], name="after"),
    ]
    model = build(nodes, inputs={"x": (4,)}, outputs=["y"], functions=[function])
    opened = compute_memory(examined(model))
    assert [size for _, size in timeline(opened)] == [16, 32, 48, 64, 64]
    assert alive(opened)["d"] == (32, 3, 4)
    monkeypatch.setattr(visitor, "MAX_LEAVES", 0)
    closed = compute_memory(examined(model))
    # x is held to the end of the call, so this is a bound: x 16 + inside 64
    assert [size for _, size in timeline(closed)] == [16, 16 + 64, 64]
    assert closed.status == "bound"
    assert "without analyzed contents" in closed.reason


@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
def test_every_step_of_a_tiled_model_knows_its_row(sample: Callable[[str], Path], form: str) -> None:
    with Session(sample("mlp_128")) as session:
        session.tile(TileSpec((64, 64, 64), form=form), verify=False)  # type: ignore[arg-type]
        found, rows = session.memory(), session.analysis().layers
        assert found.peak_bytes == session.info().totals.activation_bytes_peak
        assert [s.layer for s in found.steps].count(None) == 1
        assert all(rows[s.layer].path == s.path for s in found.steps if s.layer is not None)
        assert all(rows[s.layer].kind == s.kind for s in found.steps if s.layer is not None)
        assert session.memory(0).steps != found.steps


def test_two_nodes_of_one_name_are_two_rows(build: Build) -> None:
    nodes = [Node("Relu", ["x"], ["a"], name="same"), Node("Relu", ["a"], ["y"], name="same")]
    found = compute_memory(examined(build(nodes, inputs={"x": (4,)}, outputs=["y"])))
    assert [(s.path, s.layer) for s in found.steps] == [("", None), ("same", 0), ("same#2", 1)]


# -- what is read of what ------------------------------------------------------------------------


def test_reads_of_weights_and_of_activations_are_told_apart(build: Build) -> None:
    nodes = [
        Node("Gather", ["table", "ids"], ["e"], name="embed"),
        Node("MatMul", ["e", "w"], ["h"], name="product"),
        Node("MatMul", ["h", "h2"], ["y"], name="scores"),
    ]
    model = build(
        nodes,
        inputs={"ids": ("int64", (5,)), "h2": (4, 5)},
        outputs=["y"],
        weights={"table": (100, 8), "w": (8, 4)},
    )
    analysis = examined(model).analysis
    found = {x.path: (x.bytes_read, x.weight_bytes_read) for x in analysis.layers}
    assert found == {
        "embed": (5 * 8 + 5 * 8 * 4, 5 * 8 * 4),
        "product": (5 * 8 * 4 + 128, 128),
        "scores": (80 + 80, 0),
    }
    assert analysis.info.totals.weight_bytes_read == 160 + 128


def test_what_is_read_of_weights_is_never_more_than_what_is_read(build: Build) -> None:
    """Where the whole is not known, its part is in no sum either."""
    nodes = [Node("MatMul", ["x", "w"], ["h"], name="open"), Node("MatMul", ["k", "w"], ["y"], name="closed")]
    model = build(nodes, inputs={"x": ("n", 4), "k": (1, 4)}, outputs=["h", "y"], weights={"w": (4, 4)})
    analysis = examined(model).analysis
    assert [x.weight_bytes_read for x in analysis.layers] == [None, 64]
    assert (analysis.info.totals.weight_bytes_read, analysis.info.totals.bytes_read) == (64, 80)


def test_a_function_that_is_not_opened_reads_the_same_weights(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = Function(
        "mine",
        "Two",
        ("a", "u"),
        ("c",),
        (Node("MatMul", ["a", "u"], ["b"]), Node("Relu", ["b"], ["c"])),
        {"": 17},
    )
    nodes = [
        Node("Two", ["x", "w"], ["m"], name="first", domain="mine"),
        Node("Two", ["m", "v"], ["n"], name="second", domain="mine"),
        Node("Two", ["n", "n"], ["y"], name="third", domain="mine"),
    ]
    model = build(
        nodes, inputs={"x": (4, 4)}, outputs=["y"], weights={"w": (4, 4), "v": (4, 4)}, functions=[function]
    )

    def figures() -> tuple[Any, ...]:
        totals = examined(model).analysis.info.totals
        return totals.bytes_read, totals.weight_bytes_read, totals.params, totals.weight_bytes

    opened = figures()
    assert opened == (3 * (128 + 64), 128, 32, 128)
    monkeypatch.setattr(visitor, "MAX_LEAVES", 0)
    assert figures() == opened


# -- modules -------------------------------------------------------------------------------------


def module(make: Callable[[Any], Any], *shape: int) -> AnalysisResult:
    torch = pytest.importorskip("torch")
    from explorer.engine.costs.torch.analyse import examine_module

    with torch.device("meta"):
        model = make(torch)
    return examine_module(model, (torch.empty(*shape, device="meta"),))


def residual(torch: Any) -> Any:
    class Residual(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act, self.down = (
                torch.nn.Linear(4, 16),
                torch.nn.ReLU(inplace=True),
                torch.nn.Linear(16, 4),
            )

        def forward(self, x: Any) -> Any:
            return x + self.down(self.act(self.up(x)))

    return Residual()


def test_the_timeline_of_a_module_by_hand() -> None:
    """x 16 B stays for the sum; the in-place ReLU works in the 64 B that `up` made."""
    both = module(residual, 1, 4)
    found = compute_memory(both)
    assert timeline(found) == [("", 16), ("up", 80), ("act", 80), ("down", 96), ("add", 48)]
    assert [s.layer for s in found.steps] == [None, *(x.id for x in both.analysis.layers)]
    assert (found.peak_bytes, found.peak_step) == (96, 3)
    assert both.analysis.info.totals.activation_bytes_peak == 96
    assert found.sum_bytes == 16 + 64 + 16 + 16


def test_a_view_of_a_module_is_no_tensor_and_no_step() -> None:
    both = module(
        lambda torch: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Tanh()), 1, 2, 3
    )
    found = compute_memory(both)
    assert [(s.path, s.live_bytes) for s in found.steps] == [("", 24), ("0", 48), ("2", 48)]


def test_a_module_reads_weights_and_buffers_and_activations_apart() -> None:
    both = module(lambda torch: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8)), 2, 4)
    linear, norm = both.analysis.layers
    assert (linear.bytes_read, linear.weight_bytes_read) == (32 + 4 * (32 + 8), 4 * (32 + 8))
    assert (norm.bytes_read, norm.weight_bytes_read) == (64 + 4 * 4 * 8, 4 * 4 * 8)
    assert both.analysis.info.totals.weight_bytes_read == 160 + 128


def test_a_module_that_fails_gives_what_ran_and_says_so() -> None:
    both = module(lambda torch: torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(5, 5)), 1, 4)
    found = compute_memory(both)
    assert found.status == "unknown"
    assert "the model failed in 1" in found.reason
    assert [s.path for s in found.steps] == ["", "0"]


def test_sizes_that_depend_on_the_data_are_bounds() -> None:
    def chosen(torch: Any) -> Any:
        class Chosen(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return torch.nonzero(x).float()

        return Chosen()

    found = compute_memory(module(chosen, 3, 4))
    assert found.status == "bound"
    assert found.reason
