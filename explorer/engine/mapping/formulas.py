"""Lists the formulas of the cost of a mapping, in words and with the numbers of a site.

The formulas repeat what `cost` computes, so that a reader can check each figure by hand. Tiles of unequal
sizes and cores have no short formula: the text then says that the count is summed over all tiles.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from explorer.engine.mapping.cost import (
    build_nest,
    compute_capacity_on_chip,
    compute_pipeline_parts,
    count_array_slots,
    get_operand_bits,
    group_memories,
)
from explorer.engine.mapping.nest import AXES, OPERAND_AXES, Nest, Operand
from explorer.engine.tiling.cost import dimensions
from explorer.facts.cost import Formula
from explorer.facts.mapping import LevelMoves, MachineMemory, MappingCost, MemoryCost, MemoryMachine


def add_formulas(cost: MappingCost, machine: MemoryMachine) -> MappingCost:
    """Adds the formulas of all figures to the cost of a mapping."""
    return replace(cost, formulas=tuple(_list_formulas(cost, machine)))


def _list_formulas(cost: MappingCost, machine: MemoryMachine) -> Iterator[Formula]:
    nest = build_nest(cost.mapping, machine)
    yield from _list_trip_formulas(nest)
    mapping = cost.mapping
    numbers = _format_product(mapping.batch, *mapping.size)
    rule = "batch x M x K x N" if not mapping.macs else "the operator's own, without zeros of packed groups"
    yield Formula("MACs", rule, numbers if not mapping.macs else f"{cost.macs:,}", cost.macs)
    slots = count_array_slots(mapping, machine)
    rule = "MACs / (products of the array x M x K x N of its unit)"
    yield Formula("utilization", rule, f"{cost.macs:,} / {slots:,}", cost.utilization, "share")
    for move in cost.moves:
        yield from _list_move_formulas(cost, move, nest, machine)
    for memory, use in zip(machine.memories, cost.memories, strict=True):
        yield from _list_memory_formulas(cost, machine, memory, use)
    outer = cost.memories[0]
    numbers = f"{outer.reads:,} + {outer.writes:,}"
    yield Formula("traffic", f"read + written at {outer.name}", numbers, cost.traffic, "bytes")
    yield _build_bound_formula(cost, machine)
    yield from _list_time_formulas(cost, machine)
    if cost.pj is not None and machine.mac_pj is not None:
        parts = [f"{math.prod(mapping.size) * mapping.batch:,} x {_format_number(machine.mac_pj)}"]
        parts += [_format_number(use.pj or 0) for use in cost.memories]
        yield Formula("energy", "products x mac_pj + energy of each memory", " + ".join(parts), cost.pj, "pJ")


def _format_product(*factors: int) -> str:
    return " x ".join(f"{factor:,}" for factor in factors if factor != 1) or "1"


def _format_number(amount: float) -> str:
    return f"{amount:,.15g}"


def _count_trips(nest: Nest, level: int, axis: int) -> int:
    outer = nest.size[axis] if level == 0 else nest.levels[level - 1].tile[axis]
    step = nest.levels[level]
    return -(-outer // (step.tile[axis] * step.split[axis]))


def _list_trip_formulas(nest: Nest) -> Iterator[Formula]:
    for number, level in enumerate(nest.levels):
        for axis, letter in enumerate(AXES):
            trips = _count_trips(nest, number, axis)
            if trips == 1:
                continue
            outer = nest.size[axis] if number == 0 else nest.levels[number - 1].tile[axis]
            rule = f"ceil({letter.upper()} outside / (its tile x cores))"
            numbers = f"ceil({outer:,} / ({level.tile[axis]:,} x {level.split[axis]:,}))"
            yield Formula(f"trips of {letter} at level {number + 1}", rule, numbers, trips)


def _list_reload_trips(nest: Nest, operand: Operand, level: int) -> list[int]:
    """Lists the trips of the loops that load an operand again, if all tiles are full."""
    if operand in nest.levels[level].keep:
        return []
    loops = [
        (AXES.index(axis), trips)
        for number in range(level + 1)
        for axis in nest.levels[number].order
        if (trips := _count_trips(nest, number, AXES.index(axis))) > 1
    ]
    operand_loops = [index for index, (axis, _) in enumerate(loops) if axis in OPERAND_AXES[operand]]
    if operand_loops:
        return [trips for axis, trips in loops[: operand_loops[-1]] if axis not in OPERAND_AXES[operand]]
    return []


_SUMMED = "summed over full and partial tiles, all cores"


def _list_move_formulas(
    cost: MappingCost, move: LevelMoves, nest: Nest, machine: MemoryMachine
) -> Iterator[Formula]:
    """Yields the formulas of the bytes that an operand moves at a level."""
    if move.operand not in OPERAND_AXES:
        name = f"{move.operand} into {move.memory}"
        yield Formula(name, "read when a tile of sums is finished", f"{move.loads:,}", move.loads, "bytes")
        return
    operand: Operand = move.operand
    mapping = cost.mapping
    rows, columns = (mapping.size[axis] for axis in OPERAND_AXES[operand])
    bits = get_operand_bits(mapping, operand)
    operand_bytes = mapping.batch * dimensions.count_packed_bytes(rows * columns, bits)
    reloads = _list_reload_trips(nest, operand, move.level)
    visits = math.prod(reloads)
    letters = "".join(AXES[axis] for axis in OPERAND_AXES[operand]).upper()
    name = f"{operand} into {move.memory}"
    size = f"{_format_product(mapping.batch, rows, columns)} x {bits} / 8"
    if operand != "C":
        rule, numbers = f"bytes of {operand} ({letters[0]} x {letters[1]}) x trips that load it again", size
        numbers += "".join(f" x {trips:,}" for trips in reloads)
        if operand_bytes * visits != move.loads:
            rule, numbers = f"bytes of {operand}, {_SUMMED}", f"{move.loads:,}"
        yield Formula(name, rule, numbers, move.loads, "bytes")
        if move.outside_reads != move.loads:
            rule = "the same, but a tile that several cores need is read once"
            name = f"{operand} read from {move.outside}"
            yield Formula(name, rule, f"{move.outside_reads:,}", move.outside_reads, "bytes")
        return
    rule, numbers = "bytes of C x (visits of a sum - 1)", f"{size} x ({_format_product(*reloads)} - 1)"
    if machine.first_read or operand_bytes * (visits - 1) != move.loads:
        rule, numbers = f"bytes of C that are visited again, {_SUMMED}", f"{move.loads:,}"
    yield Formula(name, rule, numbers, move.loads, "bytes")
    rule, numbers = "bytes of C x visits of a sum", f"{size} x {_format_product(*reloads)}"
    if operand_bytes * visits != move.stores:
        rule = f"bytes of C at each visit, the last in the output's type, {_SUMMED}"
        numbers = f"{move.stores:,}"
    yield Formula(f"C out of {move.memory}", rule, numbers, move.stores, "bytes")


def _list_memory_formulas(
    cost: MappingCost, machine: MemoryMachine, memory: MachineMemory, use: MemoryCost
) -> Iterator[Formula]:
    """Yields the formulas of a memory: bytes held, cycles and energy."""
    if use.tiles:
        way = memory.size // memory.ways if memory.ways and memory.size is not None else 0
        terms = [(getattr(memory.buffers, operand), size) for operand, size in use.tiles.items()]
        numbers = " + ".join(
            f"ceil({count} x {size:,} / {way:,}) x {way:,}" if way else f"{count} x {size:,}"
            for count, size in terms
            if count
        )
        rule = "buffers x bytes of a tile, for " + ", ".join(use.tiles) + (" in whole ways" if way else "")
        yield Formula(f"held in {use.name}", rule, numbers, use.held, "bytes")
    has_cores = any(math.prod(level.split) > 1 for level in cost.mapping.levels)
    if use.cycles is not None:
        rates = [
            (f"{use.reads + use.writes:,}", memory.bytes_per_cycle),
            (f"{use.reads:,}", memory.read_bytes_per_cycle),
            (f"{use.writes:,}", memory.write_bytes_per_cycle),
        ]
        parts = [f"ceil({amount} / {_format_number(rate)})" for amount, rate in rates if rate is not None]
        rule, numbers = "bytes / bytes per cycle, read and written", _find_largest(parts)
        if has_cores:
            rule, numbers = "bytes / bytes per cycle of the instance with the most bytes", f"{use.cycles:,}"
        yield Formula(f"cycles of {use.name}", rule, numbers, use.cycles, "cycles")
    if use.pj is not None:
        yield Formula(
            f"energy of {use.name}",
            "accesses x energy of an access, read and written",
            _list_energy_numbers(cost, memory),
            use.pj,
            "pJ",
        )


def _list_energy_numbers(cost: MappingCost, memory: MachineMemory) -> str:
    terms = []
    for move in cost.moves:
        is_inner = move.memory == memory.name and move.operand in OPERAND_AXES
        reads = (move.outside == memory.name) * move.outside_reads + is_inner * move.stores
        writes = (move.outside == memory.name) * move.outside_writes + is_inner * move.loads
        for amount, words, pj in (
            (reads, memory.read_word, memory.read_pj),
            (writes, memory.write_word, memory.write_pj),
        ):
            word = _get_word_bytes(words, move.operand)
            if amount and pj is not None:
                terms.append(f"{amount:,} / {word} x {_format_number(pj)}")
    return " + ".join(terms) or "0"


def _get_word_bytes(words: Mapping[Any, int], operand: str) -> int:
    return words.get(operand, words.get("C", 1))


def _find_largest(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})"


def _build_bound_formula(cost: MappingCost, machine: MemoryMachine) -> Formula:
    mapping, capacity = cost.mapping, compute_capacity_on_chip(machine)
    if capacity is None:
        numbers = f"{cost.compulsory:,}"
        return Formula("lower bound", "both operands and the output once", numbers, cost.lower_bound, "bytes")
    width = min(
        *(get_operand_bits(mapping, operand) for operand in OPERAND_AXES),
        dimensions.get_type_bits(mapping.output, ""),
    )
    m, k, n = mapping.size
    numbers = f"{_format_product(mapping.batch, 2, m, n, k)} / sqrt({capacity * 8 // width:,}) x {width} / 8"
    rule = "max(both operands and the output once, 2 M N K / sqrt(S)), S elements on the chip"
    return Formula("lower bound", rule, f"max({cost.compulsory:,}, {numbers})", cost.lower_bound, "bytes")


def _list_time_formulas(cost: MappingCost, machine: MemoryMachine) -> Iterator[Formula]:
    if cost.array_cycles is None:
        return
    rate = machine.rates.get(cost.mapping.dtype) or machine.hardware.macs_per_cycle
    if machine.overlap == "ideal" or machine.hardware.array is None:
        cores = math.prod(memory.cores for memory in machine.memories)
        slots = count_array_slots(cost.mapping, machine) // cores
        rule = "products of the array x M x K x N of its unit / MACs per cycle, the core with the most work"
        numbers = f"ceil({slots:,} / {_format_number(rate or 1)})"
    else:
        rule, numbers = "fill, stream and drain of each stationary tile, summed", f"{cost.array_cycles:,}"
    yield Formula("array cycles", rule, numbers, cost.array_cycles, "cycles")
    if cost.cycles is None:
        return
    parts = compute_pipeline_parts(cost.mapping, machine)
    terms = [
        f"{cost.array_cycles:,}",
        *(f"{use.cycles:,}" for use in cost.memories if use.cycles is not None),
    ]
    if parts is not None and len(group_memories(machine)) > 1:
        first, steps, last = (str(part).replace("/", " / ") for part in parts)
        pipeline = f"ceil({cost.mapping.batch:,} x ({first} + {steps} + {last}))"
        rule = "max(first load + longer of computing and moving for each tile + last store, array, memories)"
        yield Formula("cycles", rule, _find_largest([pipeline, *terms]), cost.cycles, "cycles")
    else:
        yield Formula("cycles", "max(array, memories)", _find_largest(terms), cost.cycles, "cycles")
    if cost.seconds is not None and machine.hardware.clock is not None:
        numbers = f"{cost.cycles:,} / {_format_number(machine.hardware.clock)}"
        yield Formula("time", "cycles / clock", numbers, cost.seconds, "seconds")
