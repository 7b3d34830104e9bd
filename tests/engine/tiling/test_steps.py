"""Steps of a tiling: what is told of each is what a buffer that is played by hand holds and moves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer import Session, TileSpec
from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.engine.tiling.cost import compute_site_cost
from explorer.engine.tiling.cost.steps import tile_steps
from explorer.facts import SitePlan
from explorer.facts.cost import ORDERS


def site(
    sizes: tuple[int, int, int], tile: tuple[int, int, int], batch: int = 1, edges: str = "ragged"
) -> SitePlan:
    grid = tuple(-(-size // t) for size, t in zip(sizes, tile, strict=True))
    count = batch * grid[0] * grid[1] * grid[2]
    return SitePlan(
        "s", "MatMul", *sizes, grid, count, 0.0, "scan", edges, "out", "w", tile=tile, batch=batch
    )  # fmt: skip


def played(plan: SitePlan, order: str) -> Iterator[tuple[int, int, int, int]]:
    """Bytes of A, B, sums in and out until each step: tiles move through a buffer of one of each."""

    def size(loop: str, at: int) -> int:
        tile = dict(zip("mkn", plan.tile, strict=True))[loop]
        whole = {"m": plan.M, "k": plan.K, "n": plan.N}[loop]
        return tile if plan.edges == "padded" else min(tile, whole - at * tile)

    a = b = read = written = 0
    held: dict[str, tuple[int, ...] | None] = {"A": None, "B": None, "C": None}
    seen: set[tuple[int, ...]] = set()
    trips = dict(zip("mkn", plan.grid, strict=True))
    turns = [(g, *p) for g in range(plan.batch) for p in itertools.product(*(range(trips[x]) for x in order))]
    tiles = []
    for g, *place in turns:
        at = dict(zip(order, place, strict=True))
        tiles.append(
            (at, {"A": (g, at["m"], at["k"]), "B": (g, at["k"], at["n"]), "C": (g, at["m"], at["n"])})
        )
    for step, (at, wanted) in enumerate(tiles):
        if held["A"] != wanted["A"]:
            a += 4 * size("m", at["m"]) * size("k", at["k"])
        if held["B"] != wanted["B"]:
            b += 4 * size("k", at["k"]) * size("n", at["n"])
        c = 4 * size("m", at["m"]) * size("n", at["n"])
        if held["C"] != wanted["C"] and wanted["C"] in seen:
            read += c
        seen.add(wanted["C"])
        held.update(wanted)
        if step + 1 == len(tiles) or tiles[step + 1][1]["C"] != wanted["C"]:
            written += c
        yield a, b, read, written


@settings(deadline=None, max_examples=60)
@given(
    st.tuples(*[st.integers(1, 9)] * 3),
    st.tuples(*[st.integers(1, 4)] * 3),
    st.integers(1, 3),
    st.sampled_from(["ragged", "padded"]),
    st.sampled_from(list(ORDERS)),
)
def test_every_step_has_moved_what_a_buffer_played_by_hand_has(
    sizes: tuple[int, int, int], tile: tuple[int, int, int], batch: int, edges: str, order: str
) -> None:
    plan = site(sizes, tile, batch, edges)
    told = tile_steps(plan, order, 0, 10_000)
    assert told.count == len(told.steps) == plan.products
    by_hand = list(played(plan, order))
    assert [(s.a_bytes, s.b_bytes, s.c_read_bytes, s.c_write_bytes) for s in told.steps] == by_hand
    before = (0, 0, 0, 0)
    for step, now in zip(told.steps, by_hand, strict=True):
        assert (*step.loads, step.stores) == tuple(x - y for x, y in zip(now, before, strict=True))
        before = now


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int4"])
def test_the_last_step_has_moved_what_the_plan_counts(order: str, dtype: str) -> None:
    plan = replace(site((9216, 4095, 1000), (64, 48, 56), 3), dtype=dtype)
    cost = next(one for one in compute_site_cost(plan, order=order).orders if one.order == order)
    last = tile_steps(plan, order, plan.products - 1, 5)
    assert len(last.steps) == 1
    end = last.steps[0]
    assert (end.a_bytes, end.b_bytes) == (cost.a_bytes, cost.b_bytes)
    assert (end.c_read_bytes, end.c_write_bytes) == (cost.c_read_bytes, cost.c_write_bytes)
    assert end.traffic == last.traffic == cost.traffic


def test_a_step_that_is_not_there_is_refused() -> None:
    plan = site((8, 8, 8), (4, 4, 4))
    for first, count in ((8, 1), (-1, 1), (0, 0), (0, 10_001)):
        with pytest.raises(Misuse):
            tile_steps(plan, "best", first, count)
    with pytest.raises(Misuse, match="there is no loop order"):
        tile_steps(plan, "mmm")


def test_steps_of_a_matmul_of_open_sizes_say_for_which_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    model = "sample_models/bert_tiny.onnx"
    assert main(["plan", model, "--steps", "2", "--dim", "batch=1", "--json"]) == 0
    dims = json.loads(capsys.readouterr().out)["dims"]
    with Session(model, dims={"batch": 1}) as session:
        assert dims == session.plan(TileSpec(tile=(64, 64, 64))).dims
    assert main(["plan", model, "--steps", "2", "--dim", "batch=1"]) == 0
    told = capsys.readouterr().out
    assert f"For batch=1, sequence={dims['sequence']}." in told
    assert "bind them" not in told
    for more in (["--formulas"], ["--machine", "nosuch"]):
        assert main(["plan", model, "--steps", "2", *more]) == 2
        assert more[0] in capsys.readouterr().err
