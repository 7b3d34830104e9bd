"""Whatever is tiled, in whatever form, is proved: every product bit for bit, and within rounding."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from explorer.base.errors import Cancelled, Misuse
from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Function, Model, Node
from explorer.engine.proof.outputs import run as outputs
from explorer.engine.proof.proof import verify
from explorer.engine.proof.sites.recovery import recover_plan
from explorer.facts import Progress, TileSpec
from tests.engine.proof import tiled as t
from tests.pairs import pairs, turns


def proved(source: Model, spec: TileSpec, **options: Any) -> None:
    after, plan = t.tiled(source, spec)
    evidence = verify(source, after, plan=plan, **options)
    assert evidence.passed, evidence.verdict
    assert [s.tiles for s in evidence.sites] == [s.products for s in plan.sites]
    assert all(s.bound_ratio is not None and s.bound_ratio < s.limit for s in evidence.sites)
    many = "" if plan.products == 1 else "s"
    assert f"{plan.products:,} tile matmul{many} checked bit for bit" in evidence.verdict


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("size", "form", "edges"), pairs([(1, 9, 7), (5, 7, 11), (8, 16, 24), (3, 4, 2)], t.FORMS, t.EDGES)
)
def test_every_form_and_edge(size: tuple[int, int, int], edges: Any, form: Any, tmp_path: Path) -> None:
    proved(t.linear(tmp_path / "m.onnx", *size), TileSpec(tile=(2, 4, 3), form=form, edges=edges))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("attributes", "form"),
    turns(
        [
            {"transA": 1},
            {"transB": 1},
            {"alpha": 0.37},
            {"beta": 1.7},
            {"transA": 1, "transB": 1, "alpha": -2.5, "beta": 0.1},
            {"beta": 0.0},
        ],
        t.FORMS,
    ),
)
def test_gemm_attributes(attributes: dict[str, Any], form: Any, tmp_path: Path) -> None:
    proved(t.linear(tmp_path / "m.onnx", 5, 9, 7, **attributes), TileSpec(tile=(2, 4, 3), form=form))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("shape", "form"), turns([(7,), (1, 7), (5, 1), (5, 7), (1,), ()], t.FORMS))
def test_bias_shapes(shape: tuple[int, ...], form: Any, tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc")
    weights = {"w": t.weight(9, 7), "b": t.weight(*shape, seed=1)}
    proved(t.model(tmp_path / "m.onnx", [node], {"x": (5, 9)}, weights), TileSpec(tile=(2, 4, 3), form=form))


@pytest.mark.parametrize("form", t.FORMS)
def test_a_bias_that_is_computed(form: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["c"], ["b"]),
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc"),
    ]
    source = t.model(tmp_path / "m.onnx", nodes, {"x": (5, 9), "c": (5, 7)}, {"w": t.weight(9, 7)})
    proved(source, TileSpec(tile=(2, 4, 3), form=form))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("shapes", "form"),
    turns(
        [
            ((9,), (9, 7), False),
            ((2, 3, 9), (9, 7), False),
            ((2, 3, 9), (1, 9, 7), False),
            ((2, 1, 3, 9), (9, 7), False),
            ((5, 9), (9,), False),
            ((9, 7), (5, 9), True),
        ],
        t.FORMS,
    ),
)
def test_matmul_operands(shapes: Any, form: Any, tmp_path: Path) -> None:
    x, w, left = shapes
    operands = ["w", "x"] if left else ["x", "w"]
    node = helper.make_node("MatMul", operands, ["y"], name="product")
    source = t.model(tmp_path / "m.onnx", [node], {"x": x}, {"w": t.weight(*w)})
    proved(source, TileSpec(tile=(2, 4, 3), form=form))


@pytest.mark.parametrize("form", t.FORMS)
def test_a_weight_behind_identity_transpose_and_constant(form: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Transpose", ["same"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["h"], name="first"),
        helper.make_node("Constant", [], ["c"], value=t.numpy_helper.from_array(t.weight(7, 6))),
        helper.make_node("MatMul", ["h", "c"], ["y"], name="second"),
    ]
    source = t.model(tmp_path / "m.onnx", nodes, {"x": (5, 9)}, {"w": t.weight(7, 9)})
    proved(source, TileSpec(tile=(2, 4, 3), form=form))


@pytest.mark.parametrize("form", t.FORMS)
def test_one_weight_that_two_products_share(form: Any, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="first"),
        helper.make_node("Gemm", ["h", "w"], ["y"], name="second", transB=1),
    ]
    source = t.model(tmp_path / "m.onnx", nodes, {"x": (5, 8)}, {"w": t.weight(8, 8)})
    proved(source, TileSpec(tile=(2, 4, 4), form=form))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", t.FORMS)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(dtype: Any, form: Any, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 40, 12, dtype=dtype)
    proved(source, TileSpec(tile=(2, 16, 8), form=form))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("opset", "form", "edges"), pairs([9, 11, 12, 13, 18, 21], t.FORMS, t.EDGES))
def test_operator_sets_old_and_new(form: Any, edges: Any, opset: int, tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc")
    weights = {"w": t.weight(9, 7), "b": t.weight(7, seed=1)}
    source = t.model(tmp_path / "m.onnx", [node], {"x": (5, 9)}, weights, opset=opset)
    proved(source, TileSpec(tile=(2, 4, 3), form=form, edges=edges))


def test_weights_in_a_file_beside_the_model(tmp_path: Path) -> None:
    t.linear(tmp_path / "m.onnx", 5, 90, 70)
    whole = t.onnx.load(tmp_path / "m.onnx")
    (tmp_path / "e").mkdir()
    t.onnx.save(whole, tmp_path / "e" / "m.onnx", save_as_external_data=True, location="m.data")
    source = t.reader.read(str(tmp_path / "e" / "m.onnx"))
    assert source.graph.initializers["w"].external == "m.data"
    proved(source, TileSpec(tile=(4, 32, 32)))


def test_rows_and_columns_scanned_when_a_body_would_grow_too_large(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 67, 140, 9)
    proved(source, TileSpec(tile=(2, 2, 4), form="scan"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "edges", "dtype"), pairs(["unrolled", "lab"], t.EDGES, [np.float32, np.float16])
)
def test_thousands_of_products_side_by_side_are_run_a_column_at_a_time(
    form: Any, edges: Any, dtype: Any, tmp_path: Path
) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 63, 95, dtype=dtype, transB=1)
    after, plan = t.tiled(source, TileSpec(tile=(2, 2, 2), form=form, edges=edges))
    evidence = verify(source, after, plan=plan)
    assert evidence.passed, evidence.verdict
    assert evidence.sites[0].tiles == 2 * 32 * 48
    assert "in scan form" in evidence.outputs[0].reason


@pytest.mark.slow
@pytest.mark.parametrize("form", ["unrolled", "lab"])
def test_a_wrong_function_body_is_found_a_column_at_a_time(form: Any, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 64, 96)
    rectified = (Node("MatMul", ["A", "B"], ["P"]), Node("Relu", ["P"], ["C"]))

    def spoil(function: Function) -> Function:
        return t.replace(function, nodes=rectified, record=None)

    evidence = t.prove(source, TileSpec(tile=(2, 2, 2), form=form), lambda m: t.with_body(m, "2DMM", spoil))
    assert not evidence.passed
    assert evidence.sites[0].bound_ratio is not None
    assert evidence.sites[0].bound_ratio > 8


def positive(path: Path, K: int) -> Model:
    """A product in which every term has one sign, so that partial sums, and their roundings, grow."""
    nodes = [
        helper.make_node("Abs", ["x"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="fc"),
    ]
    return t.model(path, nodes, {"x": (32, K)}, {"w": np.abs(t.weight(K, 32))})


@pytest.mark.parametrize("depth", [2, 64, 1024])
def test_long_sums_of_one_sign_may_round_as_such_sums_do(depth: int, tmp_path: Path) -> None:
    source = positive(tmp_path / "m.onnx", 1024)
    proved(source, TileSpec(tile=(32, depth, 32), form="batched"))


def test_a_fault_in_a_long_sum_of_one_sign_is_found_all_the_same(tmp_path: Path) -> None:
    def off(array: np.ndarray) -> np.ndarray:
        array[0, 0, 1, 1] *= 1.5
        return array

    evidence = t.prove(
        positive(tmp_path / "m.onnx", 1024),
        TileSpec(tile=(32, 64, 32), form="batched"),
        lambda m: t.with_array(m, "w/blocks_64x32", off),
    )
    site = evidence.sites[0]
    assert site.structure
    assert site.bound_ratio is not None
    assert site.bound_ratio > site.limit


def test_dynamic_batch_is_taken_from_the_tiled_file(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="fc")
    free = t.model(tmp_path / "free.onnx", [node], {"x": ("batch", 9)}, {"w": t.weight(9, 7)})
    bound = t.model(tmp_path / "bound.onnx", [node], {"x": (5, 9)}, {"w": t.weight(9, 7)})
    after, plan = t.tiled(bound, TileSpec(tile=(2, 4, 3)))
    evidence = verify(free, after, plan=plan)
    assert evidence.passed, evidence.verdict
    assert evidence.inputs == ("x: float32 [5, 9], standard normal",)


def test_the_plan_is_recovered_from_the_file(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    after, plan = t.tiled(source, TileSpec(tile=(2, 4, 3)))
    assert recover_plan(source) is None
    recovered = recover_plan(after)
    assert recovered is not None
    assert recovered.sites == plan.sites
    assert verify(source, after).sites[0].tiles == plan.products


def test_every_site_of_a_model_that_was_tiled_twice_is_proved(
    sample: Callable[[str], Path], tmp_path: Path
) -> None:
    source = reader.read(shutil.copy(sample("lenet"), tmp_path))
    once, first = t.tiled(source, TileSpec(tile=(16, 16, 16), sites=("*conv*",), form="scan"))
    twice, second = t.tiled(once, TileSpec(tile=(8, 8, 8), form="batched"))
    assert first.sites
    assert second.sites
    evidence = verify(source, twice)
    assert evidence.passed, evidence.verdict
    tiles = {s.name: s.products for s in (*first.sites, *second.sites)}
    assert {s.name: s.tiles for s in evidence.sites} == tiles
    assert f"{sum(tiles.values()):,} tile matmuls checked bit for bit" in evidence.verdict


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sites": 3}', '{"sites": [{}], "tile": [1, 2, 3]}'])
def test_a_plan_that_cannot_be_read_is_no_plan(text: str, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    forged = t.replace(source, metadata={"tile_hw.plan": text})
    evidence = verify(source, forged)
    assert evidence.sites == ()
    assert evidence.verdict_kind == "equal"


def test_two_tilings_of_one_model_are_compared_as_wholes(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    first, _ = t.tiled(source, TileSpec(tile=(2, 4, 3), form="scan"))
    second, _ = t.tiled(source, TileSpec(tile=(2, 4, 3), form="lab"))
    evidence = verify(first, second)
    assert evidence.passed, evidence.verdict
    assert evidence.sites == ()


def test_what_torch_computes_is_compared_too(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    after, plan = t.tiled(source, TileSpec(tile=(2, 4, 3)))
    w, b = (source.graph.initializers[n].array() for n in ("w", "b"))
    good = verify(source, after, plan=plan, torch_run=lambda xs: [xs[0] @ w + b])
    assert good.passed, good.verdict
    assert "export from PyTorch equal on evidence: within" in good.verdict
    bad = verify(source, after, plan=plan, torch_run=lambda xs: [xs[0] @ w * np.float32(1.001) + b])
    assert not bad.passed
    assert bad.outputs[0].passed
    assert "torch's output 'y'" in bad.verdict


@pytest.mark.parametrize("processors", [1, 2])
def test_the_whole_tiled_model_is_run_once(
    processors: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    after, plan = t.tiled(source, TileSpec(tile=(2, 4, 3)))
    w, b = (source.graph.initializers[n].array() for n in ("w", "b"))
    ran: list[Model] = []

    def run(model: Model, *rest: Any, **options: Any) -> outputs.ModelOutputs:
        ran.append(model)
        return run_all(model, *rest, **options)

    run_all = outputs.run_all
    monkeypatch.setattr("explorer.engine.runtime.parallel.count_processors", lambda: processors)
    monkeypatch.setattr(outputs, "run_all", run)
    assert verify(source, after, plan=plan, torch_run=lambda xs: [xs[0] @ w + b]).passed
    assert ran == [after]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is mapped stands in /proc")
def test_weights_that_were_compared_count_as_memory_no_longer(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 1024, 2048)
    after, plan = t.tiled(source, TileSpec(tile=(64, 64, 64), form="scan"))
    mapped: list[int] = []

    def look(progress: Progress) -> None:
        if progress.phase == "matching the graphs":
            lines = Path("/proc/self/smaps").read_text().splitlines()
            ours = [at for at, line in enumerate(lines) if str(tmp_path) in line]
            mapped.append(sum(int(lines[at + 4].split()[1]) for at in ours if "Rss" in lines[at + 4]))

    assert verify(source, after, plan=plan, draws=2, on_progress=look).passed
    assert mapped[0] < 1024


def test_the_same_seed_gives_the_same_evidence(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    after, plan = t.tiled(source, TileSpec(tile=(2, 4, 3)))
    runs = [t.replace(verify(source, after, plan=plan, seed=7, draws=3), seconds=0.0) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0].seeds == (7, 8, 9)


@pytest.mark.slow
def test_the_evidence_does_not_depend_on_how_many_processors_there_are(
    sample: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = reader.read(shutil.copy(sample("lenet"), tmp_path))
    after, plan = t.tiled(source, TileSpec(tile=(16, 16, 16)))
    runs = []
    for count in (1, 3):
        monkeypatch.setattr("explorer.engine.runtime.parallel.count_processors", lambda count=count: count)
        runs.append(t.replace(verify(source, after, plan=plan), seconds=0.0))
    assert len(runs[0].sites) > 3
    assert runs[0] == runs[1]


def test_it_tells_where_it_stands_and_stops_when_asked(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    after, plan = t.tiled(source, TileSpec(tile=(2, 4, 3)))
    told: list[Progress] = []
    verify(source, after, plan=plan, on_progress=told.append)
    assert list(dict.fromkeys(p.phase for p in told)) == [
        "proving matmuls",
        "matching the graphs",
        "loading the models",
        "running the whole model",
    ]
    assert all(0 <= p.done <= p.total for p in told)
    with pytest.raises(Cancelled):
        verify(source, after, plan=plan, cancel=lambda: True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("draws", [0, -1])
def test_no_draws_prove_nothing(draws: int, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    with pytest.raises(Misuse, match="draws prove nothing"):
        verify(source, source, draws=draws)
