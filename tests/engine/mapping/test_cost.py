"""The pipeline of a mapping moves the bytes that the closed form counts."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer.engine.mapping.cost import compute_mapping_cost, find_epilogue_level
from explorer.engine.mapping.nest import Nest
from explorer.facts.cost import Hardware
from explorer.facts.mapping import Epilogue, MachineMemory, MemoryMachine, NestLevel, SiteMapping
from tests.engine.mapping.nests import nests


def machine_of(nest: Nest, *, first_read: bool) -> MemoryMachine:
    """Builds a machine for a nest whose array is so fast that only the outermost memory takes time."""
    memories = [MachineMemory("outer", bytes_per_cycle=1)]
    for index, (level, holds) in enumerate(zip(nest.levels[:-1], nest.holds[:-1], strict=True)):
        cores = math.prod(level.split)
        memories.append(MachineMemory(f"level{index}", holds=holds, cores=cores, inside=True))
    hardware = Hardware("drawn", macs_per_cycle=1e15)
    return MemoryMachine(hardware, tuple(memories), first_read=first_read, registers=nest.has_registers)


@settings(max_examples=60, deadline=None)
@given(nests(max_size=8, registers=False), st.booleans())
def test_a_pipeline_moves_what_the_closed_form_counts(nest: Nest, first_read: bool) -> None:
    array = nest.levels[-1]
    nest = nest._replace(levels=(*nest.levels[:-1], NestLevel(array.order, array.tile)))
    machine = machine_of(nest, first_read=first_read)
    mapping = SiteMapping("site", nest.size, nest.levels, batch=2, dtype="int8", accumulator="int32")
    if find_epilogue_level(nest) >= 0:
        epilogue = Epilogue(("Add", "QuantizeLinear"), "int8", bias_bytes=4, residual_bytes=1)
        mapping = replace(mapping, epilogue=epilogue)
    cost = compute_mapping_cost(mapping, machine)
    # nothing has a second buffer, so every byte waits for the one before
    assert cost.cycles is not None
    assert cost.cycles >= cost.traffic
    if all(math.prod(level.split) == 1 for level in nest.levels):
        assert cost.cycles <= cost.traffic + 1


def test_a_slow_number_type_stretches_each_streamed_row() -> None:
    levels = (NestLevel("mnk", (64, 64, 64)),)
    mapping = SiteMapping("site", (64, 64, 64), levels, dtype="float32")
    machine = MemoryMachine(
        Hardware("array", array=(64, 64), macs_per_cycle=4096),
        (MachineMemory("memory"),),
        unit=(64, 64, 64),
        overlap="none",
    )
    whole = compute_mapping_cost(mapping, machine).array_cycles
    half = compute_mapping_cost(mapping, replace(machine, rates={"float32": 2048})).array_cycles
    assert (whole, half) == (2 * 64 + 64 + 64 - 2, 2 * 64 + 64 + 128 - 2)


def test_an_outermost_memory_that_is_too_small_is_named() -> None:
    levels = (NestLevel("mnk", (8, 8, 8)),)
    mapping = SiteMapping("site", (64, 64, 64), levels)
    machine = MemoryMachine(
        Hardware("small", macs_per_cycle=1), (MachineMemory("SRAM", size=40_000),), (8, 8, 8)
    )
    cost = compute_mapping_cost(mapping, machine)
    assert not cost.fits
    assert cost.memories[0].missing == 3 * 64 * 64 * 4 - 40_000
