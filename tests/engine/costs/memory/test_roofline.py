"""Layers against a machine's two limits, worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from explorer.engine.costs.memory.roofline import compute_roofline
from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.facts.roofline import Machine, RooflinePoint
from explorer.settings import machines

Build = Callable[..., Model]

MACHINE = Machine("toy", 1000.0, 100.0)
"""10 MACs or one byte per hundredth of a second: the ridge is at 20 FLOPs per byte."""


def points(model: Model, **options: Any) -> dict[str, RooflinePoint]:
    return {p.path: p for p in compute_roofline(analyse(model, **options), MACHINE).points}


def product(build: Build, m: int, k: int, n: int) -> Model:
    nodes = [Node("MatMul", ["x", "w"], ["h"], name="product"), Node("Relu", ["h"], ["y"], name="act")]
    return build(nodes, inputs={"x": (m, k)}, outputs=["y"], weights={"w": (k, n)})


def test_a_product_and_its_activation_by_hand(build: Build) -> None:
    """(64,32) x (32,16): 32,768 MACs; 4 x (2048 + 512 + 1024) bytes. ReLU: 0 MACs, 2 x 4 x 1024 bytes."""
    found = compute_roofline(analyse(product(build, 64, 32, 16)), MACHINE)
    mm, act = found.points
    assert (mm.macs, mm.bytes) == (32_768, 14_336)
    assert mm.intensity == pytest.approx(2 * 32_768 / 14_336)
    assert mm.seconds == pytest.approx(143.36)
    assert (mm.limit, act.limit) == ("memory", "memory")
    assert (act.macs, act.bytes, act.intensity) == (0, 8192, 0.0)
    assert act.seconds == pytest.approx(81.92)
    assert found.seconds == pytest.approx(143.36 + 81.92)
    assert [p.share for p in found.points] == pytest.approx([143.36 / 225.28, 81.92 / 225.28])
    assert found.compute_seconds == pytest.approx(32.768)
    assert found.memory_seconds == pytest.approx((14_336 + 8192) / 100)
    assert (found.ridge, found.coverage) == (20.0, 1.0)
    assert (found.compute_bound, found.memory_bound, found.unknown) == (0, 2, 0)


def test_the_time_of_what_nobody_knows_is_no_zero(build: Build) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["h"], name="product"), Node("Shape", ["h"], ["y"], name="shape")]
    model = build(nodes, inputs={"x": ("n", 8)}, outputs=["y"], weights={"w": (8, 8)})
    found = compute_roofline(analyse(model), MACHINE)
    assert found.unknown > 0
    assert found.compute_seconds is None, "no product is known"
    assert compute_roofline(analyse(model, dims={"n": 2}), MACHINE).compute_seconds == pytest.approx(0.128)


def test_right_of_the_ridge_the_peak_decides_and_on_it_too(build: Build) -> None:
    """n x n x n: n^3 MACs over 12 n^2 bytes is n / 6 FLOPs per byte: 120 lies on the ridge."""
    for n, limit in ((114, "memory"), (120, "compute"), (126, "compute")):
        mm = points(product(build, n, n, n))["product"]
        assert mm.intensity == pytest.approx(n / 6)
        assert mm.limit == limit
        assert mm.seconds == pytest.approx(max(n**3 / 1000, 12 * n * n / 100))


def test_a_faster_memory_turns_a_layer_from_memory_to_compute_bound(build: Build) -> None:
    analysis = analyse(product(build, 64, 64, 64))
    slow, fast = (compute_roofline(analysis, Machine("", 1000.0, width)) for width in (100.0, 10_000.0))
    assert (slow.points[0].limit, fast.points[0].limit) == ("memory", "compute")
    assert fast.seconds < slow.seconds


def test_what_is_unknown_has_no_time_and_lowers_the_coverage(build: Build) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["h"], name="product"), Node("Relu", ["k"], ["y"], name="act")]
    model = build(nodes, inputs={"x": ("n", 4), "k": (8,)}, outputs=["h", "y"], weights={"w": (4, 4)})
    found = compute_roofline(analyse(model), MACHINE)
    assert [(p.limit, p.seconds, p.intensity) for p in found.points] == [
        ("unknown", None, None),
        ("memory", 0.64, 0.0),
    ]
    assert (found.coverage, found.unknown, found.seconds) == (0.5, 1, 0.64)


def test_groups_idle_layers_and_the_branch_that_does_not_run_have_no_point(build: Build) -> None:
    def branch(op: str) -> Graph:
        return Graph("b", (Node(op, ["x", "w"], ["t"], name=op),), (), (Value("t", None, None),), {})

    both = {"then_branch": branch("MatMul"), "else_branch": branch("Add")}
    nodes = [
        Node("If", ["c"], ["m"], name="which", attributes=both),
        Node("Constant", [], ["one"], name="one", attributes={"value_float": 1.0}),
        Node("Mul", ["m", "one"], ["y"], name="scale"),
    ]
    model = build(nodes, inputs={"x": (4, 4), "c": ("bool", ())}, outputs=["y"], weights={"w": (4, 4)})
    analysis = analyse(model)
    found = compute_roofline(analysis, MACHINE)
    assert [p.path for p in found.points] == ["which/then_branch/MatMul", "scale"]
    assert all(analysis.layers[p.layer].path == p.path for p in found.points)
    hidden = next(x for x in analysis.layers if x.path == "which/else_branch/Add")
    assert not hidden.counted


def test_views_of_a_module_are_free() -> None:
    torch = pytest.importorskip("torch")
    from explorer.engine.costs.torch.analyse import examine_module

    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Flatten(), torch.nn.Dropout())
    analysis = examine_module(model, (torch.empty(2, 8, device="meta"),)).analysis
    assert [p.path for p in compute_roofline(analysis, MACHINE).points] == ["0"]


def test_the_lower_bound_is_never_below_either_limit_of_the_whole(sample: Callable[[str], Any]) -> None:
    from explorer import Session

    machine = machines.find(None, "1G", "100MB/s")
    with Session(sample("lenet")) as session:
        found, totals = session.roofline(machine), session.info().totals
    assert found.seconds >= max(found.compute_seconds, found.memory_seconds)
    assert found.compute_seconds == pytest.approx((totals.macs or 0) / 1e9)
    assert found.memory_seconds == pytest.approx(
        ((totals.bytes_read or 0) + (totals.bytes_written or 0)) / 1e8
    )
    assert sum(p.share for p in found.points) == pytest.approx(1.0)
