"""The share of the MACs on tiles promises: what is counted are products of tiles, not claims of being one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from explorer import Session, TileSpec
from explorer.engine.costs.onnx import visitor
from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.graph.model import Function, Model, Node
from explorer.facts import TiledMacs

Build = Callable[..., Model]

LINEAR = 400 * 120 + 120 * 84 + 84 * 10
CONV = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 6 * 25


def product(name: str = "2DMM_64x64x64", domain: str = "tile_hw", op: str = "MatMul") -> Function:
    return Function(domain, name, ("A", "B"), ("C",), (Node(op, ("A", "B"), ("C",)),), {"": 17})


def called(
    build: Build, function: Function, rows: Any, depth: int, columns: int, **more: Any
) -> TiledMacs | None:
    """What is said of one call of a function."""
    call = Node(function.name, ("x", "w"), ("y",), name="call", domain=function.domain)
    model = build(
        [call],
        inputs={"x": (rows, depth), "w": (depth, columns)},
        outputs=["y"],
        functions=[function],
    )
    model.metadata.update(more.get("metadata", {}))
    return analyse(model).info.tiled


@pytest.mark.parametrize("form", ["lab", "scan", "unrolled"])
def test_every_mac_of_a_tiled_product_is_on_tiles_and_the_rest_is_listed(
    sample: Callable[[str], Path], form: Any
) -> None:
    session = Session(str(sample("lenet")))
    linear = [s.name for s in session.plan(TileSpec()).sites if s.op == "Gemm"]
    assert linear
    made = session.tile(TileSpec(tile=(8, 16, 32), form=form, sites=tuple(linear)), verify=False)
    tiled = session.info().tiled
    assert tiled is not None
    assert tiled.macs == LINEAR
    assert tiled.macs_total == LINEAR + CONV == session.info().totals.macs
    assert tiled.share == LINEAR / (LINEAR + CONV)
    assert tiled.products == made.plan.products == 1 * 25 * 4 + 1 * 8 * 3 + 1 * 6 * 1
    assert {row.op: (row.count, row.macs) for row in tiled.left} == {"Conv": (2, CONV)}
    assert all(row.reason for row in tiled.left)


def test_zeros_that_fill_tiles_up_are_macs_of_the_tiled_model(sample: Callable[[str], Path]) -> None:
    session = Session(str(sample("lenet")))
    linear = [s.name for s in session.plan(TileSpec()).sites if s.op == "Gemm"]
    spec = TileSpec(tile=(8, 16, 32), form="batched", sites=tuple(linear))
    made = session.tile(spec, verify=False)
    tiled = session.info().tiled
    assert tiled is not None
    assert tiled.products == made.plan.products
    assert tiled.macs == made.plan.products * 8 * 16 * 32


def test_what_stays_closed_is_counted_like_what_is_opened(
    sample: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(visitor, "MAX_LEAVES", 5)
    session = Session(str(sample("lenet")))
    linear = [s.name for s in session.plan(TileSpec()).sites if s.op == "Gemm"]
    session.tile(TileSpec(tile=(8, 16, 32), form="lab", sites=tuple(linear)), verify=False)
    tiled = session.info().tiled
    assert tiled is not None
    assert tiled.macs == LINEAR
    assert tiled.products == 1 * 25 * 4 + 1 * 8 * 3 + 1 * 6 * 1
    assert [row.op for row in tiled.left] == ["Conv"]


def test_an_encoder_of_any_size_runs_on_tiles_with_its_attention(
    sample: Callable[[str], Path], tmp_path: Path
) -> None:
    out = str(tmp_path / "tiled.onnx")
    with Session(str(sample("bert_tiny"))) as session:
        made = session.tile(TileSpec(tile=(16, 16, 16)), output=out, verify=False)
    assert not made.plan.skipped
    with Session(out, dims={"batch": 2, "sequence": 40}) as session:
        tiled = session.info().tiled
    assert tiled is not None
    assert (tiled.share, tiled.left) == (1.0, ())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dims", [{}, {"batch": 3}])
def test_of_sizes_left_open_the_share_is_that_of_the_plans_and_says_so(
    sample: Callable[[str], Path], tmp_path: Path, dims: dict[str, int]
) -> None:
    out = str(tmp_path / "tiled.onnx")
    with Session(str(sample("bert_tiny"))) as session:
        left = "/encoder/layer.0/*"
        made = session.tile(TileSpec((16, 16, 16), sites=(left,)), output=out, verify=False)
    with Session(out, dims=dims) as session:
        info = session.info()
    with Session(out, dims={"batch": 1, "sequence": 64} | dims) as session:
        bound = session.info()
    assert made.plan.dims == {"batch": 1, "sequence": 64}
    assert info.tiled is not None
    assert bound.tiled is not None
    assert 0 < (bound.tiled.share or 0) < 1
    assert info.tiled.dims == {name: size for name, size in made.plan.dims.items() if name not in dims}
    assert replace(info.tiled, dims={}) == bound.tiled
    assert info.totals.coverage < 1, "all other figures are those of any size"


def open_product(build: Build, dims: Any) -> TiledMacs | None:
    """What is said of one product of open rows and columns, with these sizes in its plan."""
    plan = json.dumps({"tile": [64, 64, 64], "sites": [], "dims": dims})
    return called(build, product(), "batch", 50, 40, metadata={"tile_hw.plan": plan})


def test_sizes_of_a_plan_that_cannot_be_are_not_taken(build: Build) -> None:
    taken = open_product(build, {"batch": 2, "none": 5})
    assert taken is not None
    assert (taken.macs, taken.dims) == (2 * 50 * 40, {"batch": 2})
    for dims in ({"batch": 0}, {"batch": 1 << 40}, {"batch": "2"}, {"batch": None}, ["batch"], {"other": 2}):
        tiled = open_product(build, dims)
        assert tiled is not None
        assert (tiled.share, tiled.dims) == (None, {}), dims


def test_a_model_without_tiles_says_nothing_of_them(sample: Callable[[str], Path]) -> None:
    assert Session(str(sample("lenet"))).info().tiled is None


def test_all_of_a_model_on_tiles_is_a_share_of_one(build: Build) -> None:
    tiled = called(build, product(), 3, 50, 40)
    assert tiled == TiledMacs(products=1, macs=3 * 50 * 40, macs_total=3 * 50 * 40, share=1.0)


@pytest.mark.parametrize("size", [(65, 64, 64), (64, 65, 64), (64, 64, 65)])
def test_what_is_larger_than_its_tile_is_none(build: Build, size: tuple[int, int, int]) -> None:
    tiled = called(build, product(), *size)
    assert tiled is not None
    assert (tiled.macs, tiled.products, tiled.share) == (0, 0, 0.0)
    [row] = tiled.left
    assert (row.op, row.name, row.macs) == ("2DMM_64x64x64", "call", size[0] * size[1] * size[2])
    assert "its sizes exceed the tile" in row.reason


def test_a_function_of_that_name_in_another_domain_is_no_tile(build: Build) -> None:
    assert called(build, product(domain="mine"), 3, 50, 40) is None
    plan = {"tile_hw.plan": json.dumps({"sites": []})}
    tiled = called(build, product(domain="mine"), 3, 50, 40, metadata=plan)
    assert tiled is not None
    assert tiled.share == 0
    assert tiled.left[0].macs == 3 * 50 * 40


def test_a_plan_that_claims_sites_moves_no_mac_onto_tiles(build: Build) -> None:
    site = {"name": "p", "tile": [64, 64, 64]}
    plan = {"tile": [64, 64, 64], "sites": [site], "skipped": [{"name": "q", "reason": "no reason at all"}]}
    marks = {"tile_hw.site": "p", "tile_hw.mnk": "*,*,*"}
    model = build(
        [
            Node("MatMul", ("x", "w"), ("h",), name="p", metadata=marks),
            Node("MatMul", ("h", "v"), ("y",), name="q"),
        ],
        inputs={"x": (2, 65)},
        weights={"w": (65, 32), "v": (32, 8)},
        outputs=["y"],
    )
    model.metadata["tile_hw.plan"] = json.dumps(plan)
    tiled = analyse(model).info.tiled
    assert tiled is not None
    assert (tiled.macs, tiled.share) == (0, 0)
    assert {row.name: row.macs for row in tiled.left} == {"p": 2 * 65 * 32, "q": 2 * 32 * 8}
    assert {row.reason for row in tiled.left if row.name == "q"} == {"no reason at all"}


@pytest.mark.parametrize("text", ["[", "null", "3", '{"sites": 3}', '{"sites": [{}]}', '{"sites": [[]]}'])
def test_a_plan_that_cannot_be_read_is_no_plan(build: Build, text: str) -> None:
    tiled = called(build, product(), 3, 50, 40, metadata={"tile_hw.plan": text})
    assert tiled is not None
    assert tiled.share == 1


def test_of_an_unknown_size_no_share_is_told(build: Build) -> None:
    tiled = called(build, product(), "batch", 50, 40)
    assert tiled is not None
    assert (tiled.macs, tiled.macs_total, tiled.share, tiled.products) == (None, None, None, None)
    assert not tiled.left


def test_a_tile_operator_of_several_nodes_is_one_product(build: Build) -> None:
    nodes = (
        Node("Cast", ("A",), ("a",), attributes={"to": 1}),
        Node("Cast", ("B",), ("b",), attributes={"to": 1}),
        Node("MatMul", ("a", "b"), ("C",)),
    )
    half = Function("tile_hw", "2DMM_64x64x64_float16", ("A", "B"), ("C",), nodes, {"": 17})
    model = build(
        [Node(half.name, ("x", "w"), ("y",), name="call", domain="tile_hw")],
        inputs={"x": ("float16", (3, 50)), "w": ("float16", (50, 40))},
        outputs=["y"],
        functions=[half],
    )
    tiled = analyse(model).info.tiled
    assert tiled is not None
    assert (tiled.products, tiled.macs, tiled.share) == (1, 3 * 50 * 40, 1.0)


def test_two_products_in_one_tile_operator_are_told(build: Build) -> None:
    nodes = (Node("MatMul", ("A", "B"), ("c",)), Node("MatMul", ("c", "B"), ("C",)))
    twice = Function("tile_hw", "2DMM_8x8x8", ("A", "B"), ("C",), nodes, {"": 17})
    tiled = called(build, twice, 8, 8, 8)
    assert tiled is not None
    assert tiled.products == 2, "both are products within the tile: what runs is counted, not calls"


def test_a_file_that_was_tiled_says_how(sample: Callable[[str], Path], tmp_path: Path) -> None:
    out = str(tmp_path / "tiled.onnx")
    with Session(str(sample("lenet"))) as session:
        assert session.tiling() is None
        made = session.tile(TileSpec(tile=(8, 16, 32)), output=out, verify=False)
        assert session.tiling() == made.plan
        session.undo()
        assert session.tiling() is None
    with Session(out) as session:
        said = session.tiling()
    assert said is not None
    assert [(s.name, s.tile, s.grid, s.products) for s in said.sites] == [
        (s.name, s.tile, s.grid, s.products) for s in made.plan.sites
    ]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
def test_a_model_that_was_tiled_twice_has_the_products_of_both(
    sample: Callable[[str], Path], tmp_path: Path, form: Any
) -> None:
    once, twice = str(tmp_path / "once.onnx"), str(tmp_path / "twice.onnx")
    with Session(str(sample("lenet"))) as session:
        first = session.tile(TileSpec((8, 16, 32), form=form, sites=("*conv*",)), output=once, verify=False)
    with Session(once) as session:
        second = session.tile(TileSpec((4, 8, 8), form=form, sites=("*fc[12]*",)), output=twice, verify=False)
        third = session.tile(TileSpec((16, 16, 16), form=form), verify=False)
        tiled, sites = session.info().tiled, session.tiling()
    assert tiled is not None
    assert sites is not None
    assert (tiled.share, tiled.left) == (1.0, ())
    plans = (first.plan, second.plan, third.plan)
    assert tiled.products == sites.products == sum(plan.products for plan in plans)
    assert {(s.name, s.tile) for s in sites.sites} == {(s.name, p.tile) for p in plans for s in p.sites}
    with Session(twice) as session:
        tiled, sites = session.info().tiled, session.tiling()
    assert tiled is not None
    assert sites is not None
    assert tiled.products == sites.products == first.plan.products + second.plan.products
    assert [row.reason for row in tiled.left] == ["not chosen when the model was tiled"]
    assert [row.name for row in tiled.left] == ["/fc3/Gemm"]
