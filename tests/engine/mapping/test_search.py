"""The search finds what trying every mapping finds, and published figures."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.mapping.constraints import parse_constraints
from explorer.engine.mapping.cost import mapping_cost
from explorer.engine.mapping.search import ORDERS, search_mappings
from explorer.facts.cost import Hardware
from explorer.facts.mapping import (
    Buffers,
    MachineMemory,
    MappingCost,
    MemoryMachine,
    NestLevel,
    Objective,
    SiteMapping,
)


def machine(size: int | None, unit: int, buffers: int = 1, **memory: float) -> MemoryMachine:
    tiles = Buffers(buffers, buffers, buffers)
    return MemoryMachine(
        Hardware("npu", macs_per_cycle=4096),
        (MachineMemory("DRAM", bytes_per_cycle=64), MachineMemory("buffer", size=size, buffers=tiles)),
        unit=(unit,) * 3,
    )


def site(*size: int) -> SiteMapping:
    return SiteMapping("site", size, (), dtype="int8", accumulator="int32")


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(*(st.integers(1, 9),) * 3),
    st.integers(1, 3),
    st.integers(12, 120),
    st.sampled_from(["traffic", "energy"]),
    st.sampled_from(["ABC", "ABC", "AB", "C", "BC"]),
    st.booleans(),
)
def test_search_finds_what_trying_everything_finds(
    size: tuple[int, int, int], unit: int, memory: int, objective: str, holds: str, first_read: bool
) -> None:
    npu = MemoryMachine(
        Hardware("npu", macs_per_cycle=1),
        (
            MachineMemory("DRAM", read_pj=50, write_pj=60),
            MachineMemory("buffer", size=memory, holds=holds, read_pj=3, write_pj=4),
        ),
        unit=(unit,) * 3,
        mac_pj=1,
        first_read=first_read,
    )
    best = None
    axes = [sorted({min(count * unit, length) for count in range(1, length + 1)}) for length in size]
    for tile in itertools.product(*axes):
        for outer, inner, keep in itertools.product(ORDERS, ORDERS, ("", *holds)):
            levels = NestLevel(outer, tile, keep=keep), NestLevel(inner, (unit,) * 3)
            cost = mapping_cost(SiteMapping("site", size, levels, dtype="int8", accumulator="int32"), npu)
            figure = cost.traffic if objective == "traffic" else cost.pj
            if cost.fits and (best is None or figure < best):
                best = figure
        if len(axes[0]) * len(axes[1]) * len(axes[2]) > 60:
            return
    if best is None:
        return
    result = search_mappings(site(*size), npu, objective)
    found = result.best[0].traffic if objective == "traffic" else result.best[0].pj
    assert result.exact is (objective == "traffic")
    if result.exact:
        assert found == pytest.approx(best, rel=1e-12)
    else:
        assert found >= best * (1 - 1e-12)


def test_constraints_hold() -> None:
    result = search_mappings(
        site(512, 768, 3072), machine(128 << 10, 64), "traffic", parse_constraints("n%128 k<=64 order=knm")
    )
    assert not result.exact
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
    result = search_mappings(size, npu, objective)

    def figures(cost: MappingCost) -> tuple[float, ...]:
        held = sum(memory.held for memory in cost.memories[1:])
        return cost.traffic, cost.cycles or 0, cost.pj or 0, held

    best = figures(result.best[0])
    for cost in (*result.best, *result.front):
        other = figures(cost)
        assert other == best or any(a > b for a, b in zip(other, best, strict=True)), (other, best)
