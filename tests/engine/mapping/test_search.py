"""The search finds what trying every mapping finds, and published figures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from explorer.base.errors import Misuse
from explorer.engine.mapping.constraints import parse_constraints
from explorer.engine.mapping.cost import compute_mapping_cost
from explorer.engine.mapping.search import ORDERS, search_mappings
from explorer.facts.cost import Hardware
from explorer.facts.mapping import Buffers, MachineMemory, MappingCost, MemoryMachine, Objective, SiteMapping
from explorer.settings.memories import find_memory_machine
from tests.engine.mapping.test_tile_figures import all_tiles, machines, sites, with_levels


def machine(size: int | None, unit: int, buffers: int = 1, **memory: float) -> MemoryMachine:
    tiles = Buffers(buffers, buffers, buffers)
    return MemoryMachine(
        Hardware("npu", macs_per_cycle=4096),
        (MachineMemory("DRAM", bytes_per_cycle=64), MachineMemory("buffer", size=size, buffers=tiles)),
        unit=(unit,) * 3,
    )


def site(*size: int) -> SiteMapping:
    return SiteMapping("site", size, (), dtype="int8", accumulator="int32")


def figure(cost: MappingCost, objective: Objective) -> float:
    value = {"cycles": cost.cycles, "energy": cost.pj, "traffic": cost.traffic, "edp": cost.edp}[objective]
    assert value is not None
    return value


def check_search(size: SiteMapping, npu: MemoryMachine, limits: str = "") -> None:
    """Compares the search with the cost of every tile, order and whole operand, for every objective."""
    tiles = all_tiles(size.size, npu.unit)
    constraints = parse_constraints(limits)
    if limits.startswith("m<="):
        tiles = [tile for tile in tiles if tile[0] <= constraints.limits[0][2]]
    held = "".join(memory.holds for memory in npu.memories[1:])
    costs = [
        compute_mapping_cost(with_levels(size, npu, tile, (outer, inner), keep), npu)
        for tile in tiles
        for outer, inner, keep in itertools.product(constraints.orders or ORDERS, ORDERS, ("", *held))
    ]
    costs = [cost for cost in costs if cost.fits]
    for objective in get_args(Objective):
        if not costs:
            with pytest.raises(Misuse):
                search_mappings(size, npu, objective, constraints)
            continue
        result = search_mappings(size, npu, objective, constraints, with_front=True)
        check_front(result.front, costs)
        best = min(figure(cost, objective) for cost in costs)
        assert figure(result.best[0], objective) == pytest.approx(best, rel=1e-12)
        assert result.exact
        assert result.bound == pytest.approx(best, rel=1e-12)
        assert result.count == len(costs)
        figures = sorted(figure(cost, objective) for cost in costs)
        for rank, cost in enumerate(result.best):
            assert figure(cost, objective) >= figures[rank] * (1 - 1e-12)


def check_front(front: Sequence[MappingCost], costs: Sequence[MappingCost]) -> None:
    """Compares a Pareto front with every mapping: all are reached within 1 %, none undercuts the front."""

    def figures(cost: MappingCost) -> tuple[float, ...]:
        held = sum(memory.held for memory in cost.memories[1:])
        return cost.cycles or 0, cost.traffic if cost.pj is None else cost.pj, held

    points = [figures(cost) for cost in front]
    assert points == sorted(points)
    for cost in costs:
        other = figures(cost)
        reached = [[a <= b * 1.01 + 1e-9 for a, b in zip(point, other, strict=True)] for point in points]
        assert any(map(all, reached)), other
        # a little less in every figure is the 1 % of the front
        undercut = [[a * 1.0101 < b for a, b in zip(other, point, strict=True)] for point in points]
        assert not any(map(all, undercut)), other


SPACES = (
    machines(st.sampled_from([None, 30, 60, 120, 400])),
    sites(5),
    st.sampled_from(["", "", "m<=2", "order=knm"]),
)


@settings(max_examples=6, deadline=None)
@given(*SPACES)
def test_search_finds_what_trying_everything_finds(
    npu: MemoryMachine, size: SiteMapping, limits: str
) -> None:
    assume(len(all_tiles(size.size, npu.unit)) <= 8)
    check_search(size, npu, limits)


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(*SPACES)
def test_search_finds_what_trying_everything_finds_in_larger_spaces(
    npu: MemoryMachine, size: SiteMapping, limits: str
) -> None:
    assume(len(all_tiles(size.size, npu.unit)) <= 30)
    check_search(size, npu, limits)


PRESETS_WITH_ONE_LEVEL = ("tpu-v1", "gemmini", "edge-npu", "aie-ml", "h100-sm", "eyeriss")


@pytest.mark.parametrize("name", PRESETS_WITH_ONE_LEVEL)
def test_presets_are_searched_to_the_end(name: str) -> None:
    preset = find_memory_machine(name)
    for size, batch in (((12544, 147, 64), 1), ((784, 9, 1), 96)):
        product = SiteMapping("site", size, (), batch=batch, dtype="int8", accumulator="int32")
        assert search_mappings(product, preset, "cycles").exact, size


def test_a_space_that_is_too_large_has_a_bound() -> None:
    result = search_mappings(site(4096, 64, 4096), machine(256 << 10, 4), "cycles")
    assert not result.exact
    cycles = result.best[0].cycles
    assert cycles is not None
    assert 4096 * 64 * 4096 / 4096 <= result.bound < cycles


def test_constraints_hold() -> None:
    result = search_mappings(
        site(512, 768, 3072), machine(128 << 10, 64), "traffic", parse_constraints("n%128 k<=64 order=knm")
    )
    assert result.exact
    for cost in result.best:
        level = cost.mapping.levels[0]
        assert level.order == "knm"
        assert level.tile[2] % 128 == 0
        assert level.tile[1] <= 64
    assert result.left_out["n%128"] > 0


@pytest.mark.parametrize("objective", ["traffic", "cycles"])
def test_no_mapping_of_the_search_is_better_than_the_best_one_in_every_figure(objective: Objective) -> None:
    # many tiles of these sizes have the same traffic, in different cycles and bytes of memory
    npu = MemoryMachine(
        Hardware("npu", macs_per_cycle=256),
        (
            MachineMemory("DRAM", bytes_per_cycle=16),
            MachineMemory("scratchpad", size=256 << 10, holds="AB", buffers=Buffers(2, 2, 2)),
            MachineMemory("accumulator", size=64 << 10, holds="C"),
        ),
        unit=(16,) * 3,
    )
    size = SiteMapping("site", (100, 300, 200), (), dtype="float32", accumulator="float32")
    result = search_mappings(size, npu, objective, with_front=True)
    assert len(result.front) > 1

    def figures(cost: MappingCost) -> tuple[float, ...]:
        held = sum(memory.held for memory in cost.memories[1:])
        return cost.traffic, cost.cycles or 0, cost.pj or 0, held

    best = figures(result.best[0])
    for cost in (*result.best, *result.front):
        other = figures(cost)
        assert other == best or any(a > b for a, b in zip(other, best, strict=True)), (other, best)
