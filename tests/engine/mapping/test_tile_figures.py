"""The figures of many tiles at a time are those of `compute_mapping_cost`, tile by tile."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.mapping.cost import compute_mapping_cost
from explorer.engine.mapping.nest import Triple
from explorer.engine.mapping.tile_figures import TileFigures, Tiles
from explorer.facts.cost import Hardware
from explorer.facts.mapping import (
    Buffers,
    Epilogue,
    LoopOrder,
    MachineMemory,
    MemoryMachine,
    NestLevel,
    SiteMapping,
)

ORDERS: tuple[LoopOrder, ...] = ("mkn", "mnk", "kmn", "knm", "nmk", "nkm")
HOLDERS = (("ABC",), ("AB", "C"), ("A", "B", "C"), ("AB",), ("C",), ("B",), ("AC",), ("A", "C"))

counts = st.integers(1, 3)
rates = st.sampled_from([None, 1.0, 2.4, 7.0])


@st.composite
def machines(draw: st.DrawFn, sizes: st.SearchStrategy[int | None]) -> MemoryMachine:
    """A machine with a memory outside, one level of memories, and an array of any kind."""
    outer = MachineMemory(
        "DRAM",
        bytes_per_cycle=draw(rates),
        read_bytes_per_cycle=draw(rates),
        write_bytes_per_cycle=draw(rates),
        read_pj=50,
        write_pj=60,
        read_word={"A": 2},
    )
    memories = [
        MachineMemory(
            f"buffer of {holds}",
            size=draw(sizes),
            holds=holds,
            buffers=Buffers(draw(counts), draw(counts), draw(counts), draw(st.integers(0, 2))),
            bytes_per_cycle=draw(rates),
            read_pj=3,
            write_pj=4,
        )
        for holds in draw(st.sampled_from(HOLDERS))
    ]
    array = draw(st.sampled_from([None, (2, 3)]))
    return MemoryMachine(
        Hardware("npu", array=array, macs_per_cycle=draw(st.sampled_from([1.0, 4.0, 37.0]))),
        (outer, *memories),
        unit=draw(st.tuples(counts, counts, counts)),
        overlap="ideal" if array is None else draw(st.sampled_from(["ideal", "none", "double"])),
        mac_pj=1,
        first_read=draw(st.booleans()),
        registers=draw(st.sampled_from([True, True, False])),
    )


EPILOGUES = (
    Epilogue(),
    Epilogue(("bias", "Relu", "Add", "QuantizeLinear"), "int8", bias_bytes=4, residual_bytes=4),
)


def sites(largest: int) -> st.SearchStrategy[SiteMapping]:
    """A small product of bytes or floats, with or without an epilogue."""
    return st.builds(
        lambda size, batch, dtype, epilogue: SiteMapping(
            "site",
            size,
            (),
            batch=batch,
            dtype=dtype,
            accumulator="int32" if dtype == "int8" else "float32",
            epilogue=epilogue,
        ),
        st.tuples(*(st.integers(1, largest),) * 3),
        st.integers(1, 3),
        st.sampled_from(["int8", "float32"]),
        st.sampled_from(EPILOGUES),
    )


def all_tiles(size: Triple, unit: Triple) -> list[Triple]:
    """Lists every tile in multiples of the unit, cut at the edges."""
    axes = [
        sorted({min(tile, length) for tile in range(each, length + each, each)})
        for length, each in zip(size, unit, strict=True)
    ]
    return [(m, k, n) for m, k, n in itertools.product(*axes)]


def with_levels(
    site: SiteMapping, machine: MemoryMachine, tile: Triple, orders: tuple[LoopOrder, LoopOrder], keep: str
) -> SiteMapping:
    """Returns the mapping with a tile and its orders."""
    levels = NestLevel(orders[0], tile, keep=keep), NestLevel(orders[1], machine.unit)
    return SiteMapping(
        site.site,
        site.size,
        levels,
        batch=site.batch,
        dtype=site.dtype,
        accumulator=site.accumulator,
        epilogue=site.epilogue,
    )


def check(site: SiteMapping, machine: MemoryMachine, orders: tuple[LoopOrder, LoopOrder]) -> None:
    """Compares the figures of every tile with its cost."""
    tiles = all_tiles(site.size, machine.unit)[:40]
    m, k, n = (np.array(axis, dtype=np.int64) for axis in zip(*tiles, strict=True))
    held = "".join(memory.holds for memory in machine.memories[1:])
    for keep in ("", *held):
        figures = TileFigures(site, machine, Tiles((m, k, n), keep))
        pair = figures.compute(*orders, with_cycles=True)
        bound = figures.compute(orders[0], None, with_cycles=True)
        for index, tile in enumerate(tiles):
            cost = compute_mapping_cost(with_levels(site, machine, tile, orders, keep), machine)
            case = tile, keep
            inner = sum(m.outside_reads + m.outside_writes for m in cost.moves if m.memory == "array")
            epilogue = sum(m.outside_reads for m in cost.moves if m.operand in ("bias", "residual"))
            inner -= epilogue if "C" not in held else 0
            assert pair.traffic[index] == cost.traffic, case
            assert pair.inner[index] == inner, case
            assert pair.pj[index] == pytest.approx(cost.pj, rel=1e-12), case
            assert cost.cycles is not None
            assert cost.cycles - pair.cycles[index] in (0, 1), case
            for ours, theirs in zip(bound, (cost.traffic, inner, cost.pj, cost.cycles), strict=True):
                assert ours[index] <= theirs * (1 + 1e-12), case


@settings(max_examples=40, deadline=None)
@given(machines(st.none()), sites(9), st.sampled_from(ORDERS), st.sampled_from(ORDERS))
def test_drawn_tiles(machine: MemoryMachine, site: SiteMapping, outer: LoopOrder, inner: LoopOrder) -> None:
    check(site, machine, (outer, inner))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(machines(st.none()), sites(23), st.sampled_from(ORDERS), st.sampled_from(ORDERS))
def test_many_drawn_tiles(
    machine: MemoryMachine, site: SiteMapping, outer: LoopOrder, inner: LoopOrder
) -> None:
    check(site, machine, (outer, inner))
