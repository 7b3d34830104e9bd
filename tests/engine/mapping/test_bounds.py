"""No mapping goes below the bound of an objective, and the search says so of what it did not compare."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.mapping.bounds import compute_objective_bound
from explorer.engine.mapping.cost import compute_mapping_cost, group_memories
from explorer.engine.mapping.nest import Triple
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
from tests.engine.mapping.test_tile_figures import all_tiles, sites

energies = st.sampled_from([0.5, 3.0, 50.0])
rates = st.sampled_from([None, 1.0, 6.4])


@st.composite
def deep_machines(draw: st.DrawFn, levels: st.SearchStrategy[int]) -> MemoryMachine:
    """A machine with several levels of memories, some of them several times, and energies of all accesses."""
    memories = []
    for index in range(draw(levels) + 1):
        word = draw(st.sampled_from([{}, {"A": 2, "B": 1, "C": 4}]))
        memories.append(
            MachineMemory(
                f"memory {index}",
                size=draw(st.sampled_from([None, 40, 200])) if index else None,
                holds=draw(st.sampled_from(["ABC", "ABC", "AB", "C", "A"])) if index else "ABC",
                buffers=Buffers(draw(st.integers(1, 2)), 1, 1, draw(st.integers(0, 1))),
                bytes_per_cycle=draw(rates),
                read_pj=draw(energies),
                write_pj=draw(energies),
                read_word=word,
                write_word=word,
                cores=draw(st.sampled_from([1, 1, 2])) if index else 1,
                inside=index > 0,
            )
        )
    return MemoryMachine(
        Hardware("deep", macs_per_cycle=draw(st.sampled_from([1.0, 5.0]))),
        tuple(memories),
        unit=draw(st.tuples(*(st.integers(1, 2),) * 3)),
        mac_pj=draw(energies),
        first_read=draw(st.booleans()),
        registers=draw(st.sampled_from([True, True, False])),
    )


def with_all_levels(site: SiteMapping, levels: Sequence[NestLevel]) -> SiteMapping:
    return replace(site, levels=tuple(levels))


def list_splits(cores: int) -> list[Triple]:
    """Lists the ways to use all cores, or one."""
    splits = itertools.product(range(1, cores + 1), repeat=3)
    return [(m, k, n) for m, k, n in splits if m * k * n in (1, cores)]


def list_mappings(site: SiteMapping, machine: MemoryMachine) -> Iterator[SiteMapping]:
    """Yields every mapping of a site: all tiles, splits among cores, orders and whole operands."""
    groups = group_memories(machine)[1:]

    def extend(outer: Triple, levels: tuple[NestLevel, ...]) -> Iterator[tuple[NestLevel, ...]]:
        if len(levels) == len(groups):
            yield from ((*levels, NestLevel(order, machine.unit)) for order in ORDERS)
            return
        group = groups[len(levels)]
        splits = list_splits(group[0].cores)
        held = "".join(memory.holds for memory in group)
        for tile, order, split in itertools.product(all_tiles(outer, machine.unit), ORDERS, splits):
            for keep in ("", *held) if not levels and math.prod(split) == 1 else ("",):
                yield from extend(tile, (*levels, NestLevel(order, tile, split, keep)))

    for levels in extend(site.size, ()):
        yield with_all_levels(site, levels)


def figure(cost: MappingCost, objective: Objective) -> float:
    value = {"cycles": cost.cycles, "energy": cost.pj, "traffic": cost.traffic, "edp": cost.edp}[objective]
    assert value is not None
    return value


def check(site: SiteMapping, machine: MemoryMachine, mappings: Iterable[SiteMapping]) -> None:
    """Compares the bounds with the figures of mappings that fit, and with what the search says."""
    objectives: tuple[Objective, ...] = get_args(Objective)
    bounds = {name: compute_objective_bound(site, machine, name) for name in objectives}
    best = dict.fromkeys(objectives, math.inf)
    for mapping in mappings:
        try:
            cost = compute_mapping_cost(mapping, machine)
        except Misuse:
            continue  # K among cores at two levels, or an epilogue after sums of several cores
        if cost.fits:
            best = {name: min(value, figure(cost, name)) for name, value in best.items()}
    for name, bound in bounds.items():
        assert 0 < bound <= best[name] * (1 + 1e-12), name
        try:
            search = search_mappings(site, machine, name)
        except Misuse:
            continue  # no tile fits, or an epilogue as above
        assert bound * (1 - 1e-12) <= search.bound <= figure(search.best[0], name) * (1 + 1e-12), name
        assert search.bound <= best[name] * (1 + 1e-12), name


@st.composite
def drawn_mappings(
    draw: st.DrawFn, site: SiteMapping, machine: MemoryMachine, count: int
) -> list[SiteMapping]:
    """Some mappings of a site, of all those that `list_mappings` yields."""
    seed = draw(st.integers(0, 1 << 32))
    random = Random(seed)
    mappings = []
    for _ in range(count):
        levels: list[NestLevel] = []
        outer: Triple = site.size
        for group in group_memories(machine)[1:]:
            outer = random.choice(all_tiles(outer, machine.unit))
            split = random.choice(list_splits(group[0].cores))
            held = "".join(memory.holds for memory in group)
            keep = random.choice(("", *held)) if not levels and math.prod(split) == 1 else ""
            levels.append(NestLevel(random.choice(ORDERS), outer, split, keep))
        levels.append(NestLevel(random.choice(ORDERS), machine.unit))
        mappings.append(with_all_levels(site, levels))
    return mappings


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), sites(3), deep_machines(st.just(1)))
def test_no_mapping_goes_below_the_bounds(
    data: st.DataObject, site: SiteMapping, machine: MemoryMachine
) -> None:
    check(site, machine, data.draw(drawn_mappings(site, machine, 30)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), sites(5), deep_machines(st.integers(1, 3)))
def test_no_mapping_for_deep_machines_goes_below_the_bounds(
    data: st.DataObject, site: SiteMapping, machine: MemoryMachine
) -> None:
    check(site, machine, data.draw(drawn_mappings(site, machine, 30)))


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(sites(2), deep_machines(st.integers(1, 2)))
def test_every_mapping_of_small_products_stays_above_the_bounds(
    site: SiteMapping, machine: MemoryMachine
) -> None:
    check(site, machine, itertools.islice(list_mappings(site, machine), 40_000))


def test_the_bound_of_the_energy_is_close() -> None:
    # ZigZag's gemm_l1_l3: the best mapping of two memories needs hardly more than the bound
    words: Any = {"A": 64, "B": 64, "C": 256}
    memories = (
        MachineMemory("L3", read_pj=16000, write_pj=24000, read_word=words, write_word=words),
        MachineMemory("L1", size=32 << 10, read_pj=118, write_pj=141.6, read_word=words, write_word=words),
    )
    machine = MemoryMachine(Hardware("z", macs_per_cycle=512), memories, unit=(8, 8, 8), mac_pj=1.79)
    product = SiteMapping("gemm", (128, 128, 128), (), dtype="int8", accumulator="int32")
    best = search_mappings(product, machine, "energy").best[0].pj
    assert best is not None
    assert 0.99 * best <= compute_objective_bound(product, machine, "energy") <= best
