"""Computes lower bounds of the objective over all mappings of a site, for any tiles and orders."""

from __future__ import annotations

import itertools
import math
from typing import Any, Literal

from msgspec.structs import replace

from explorer.engine.mapping.cost import (
    compute_capacity_on_chip,
    compute_traffic_bound,
    get_operand_bits,
    group_memories,
)
from explorer.engine.mapping.nest import OPERAND_AXES, Operand
from explorer.engine.mapping.tile_figures import compute_transfer_time
from explorer.engine.tiling.cost import dimensions
from explorer.facts.mapping import MachineMemory, MemoryMachine, Objective, SiteMapping

ROUNDING = 1e-12
"""Relative error of figures that are sums of floats."""

_NO_SEPARATE_RATES: Any = {"read_bytes_per_cycle": None, "write_bytes_per_cycle": None}
"""Rates that the bound of the cycles ignores, because the bound of the traffic adds reads and writes."""


def compute_objective_bound(mapping: SiteMapping, machine: MemoryMachine, objective: Objective) -> float:
    """Computes a lower bound of the objective over all mappings, or 0 if none is known.

    Args:
        mapping: Site with its size, number types and epilogue. Its levels are ignored.
        machine: The machine.
        objective: Figure that a search minimizes.
    """
    if objective == "traffic":
        return float(compute_traffic_bound(mapping, compute_capacity_on_chip(machine)))
    if objective == "cycles":
        return _bound_cycles(mapping, machine)
    energy = _bound_energy(mapping, machine)
    return energy if objective == "energy" else energy * _bound_cycles(mapping, machine)


def _bound_cycles(mapping: SiteMapping, machine: MemoryMachine) -> float:
    """Returns the larger of the cycles of all MACs at the full rate and the cycles of the least traffic."""
    rate = machine.rates.get(mapping.dtype) or machine.hardware.macs_per_cycle
    if rate is None:
        return 0.0
    traffic = compute_traffic_bound(mapping, compute_capacity_on_chip(machine))
    cores = math.prod(memory.cores for memory in machine.memories)
    array_cycles = mapping.batch * math.prod(mapping.size) / (rate * cores)
    transfer_cycles = float(
        compute_transfer_time(replace(machine.memories[0], **_NO_SEPARATE_RATES), traffic, 0)[0]
    )
    return float(max(math.ceil(array_cycles * (1 - ROUNDING)), math.ceil(transfer_cycles * (1 - ROUNDING))))


def _bound_energy(mapping: SiteMapping, machine: MemoryMachine) -> float:
    """Computes the energy of the multiply-accumulates and of the accesses that every mapping needs.

    Each memory that holds an operand receives the whole operand at least once and sends it on at least once.
    Sums leave each memory at least once. The outermost memory also moves at least the bound of the traffic.
    The accesses for the array have a bound of their own: see `_bound_array_energy`.
    """
    outermost, groups = machine.memories[0], group_memories(machine)[1:]
    outermost_energy = inner_energy = 0.0
    holders: dict[Operand, MachineMemory] = dict.fromkeys(OPERAND_AXES, outermost)
    for memory in (memory for group in groups for memory in group):
        for operand in OPERAND_AXES:
            if operand not in memory.holds:
                continue
            size = _count_least_bytes(mapping, operand)
            source_energy = _compute_access_energy(
                holders[operand], operand, size, "write" if operand == "C" else "read"
            )
            target_energy = _compute_access_energy(
                memory, operand, size, "read" if operand == "C" else "write"
            )
            outermost_energy += source_energy * (holders[operand] is outermost)
            inner_energy += source_energy * (holders[operand] is not outermost) + target_energy
            holders[operand] = memory
    if all(memory is not outermost for memory in holders.values()):
        cheapest = min(
            *(_compute_access_energy(outermost, operand, 1, "read") for operand in OPERAND_AXES),
            _compute_access_energy(outermost, "C", 1, "write"),
        )
        traffic = compute_traffic_bound(mapping, compute_capacity_on_chip(machine))
        outermost_energy = max(outermost_energy, traffic * cheapest)
    epilogue, (m, _, n) = mapping.epilogue, mapping.size
    epilogue_bytes = mapping.batch * n * (epilogue.bias_bytes + m * epilogue.residual_bytes)
    arithmetic = mapping.batch * math.prod(mapping.size) * (machine.mac_pj or 0)
    fused_energy = _compute_access_energy(outermost, "C", epilogue_bytes, "read")
    array_energy = _bound_array_energy(mapping, machine, holders)
    return (arithmetic + outermost_energy + inner_energy + fused_energy + array_energy) * (1 - ROUNDING)


def _bound_array_energy(
    mapping: SiteMapping, machine: MemoryMachine, holders: dict[Operand, MachineMemory]
) -> float:
    """Computes the energy with which the innermost memories give operands to the array and take its sums.

    Two products that an array computes one after the other differ along M, K or N, so at least two of the
    three operands change. Without registers, all three are moved for each product. An access may serve every
    array inside the memory.

    Args:
        mapping: The site.
        machine: The machine.
        holders: Innermost memory that holds each operand.
    """
    element_energies = {}
    for operand, memory in holders.items():
        inside = machine.memories[machine.memories.index(memory) + 1 :]
        shared = math.prod(inner_memory.cores for inner_memory in inside)
        bits = _get_least_bits(mapping, operand)
        direction: Literal["read", "write"] = "write" if operand == "C" else "read"
        element_energies[operand] = _compute_access_energy(memory, operand, bits / 8, direction) / shared
    parts = []
    for size, unit in zip(mapping.size, machine.unit, strict=True):
        count, remainder = divmod(size, unit)
        parts.append([(unit, count)] * bool(count) + [(remainder, 1)] * bool(remainder))
    total = 0.0
    for pieces in itertools.product(*parts):
        lengths = [length for length, _ in pieces]
        energies = [
            element_energies[operand] * lengths[rows] * lengths[columns]
            for operand, (rows, columns) in OPERAND_AXES.items()
        ]
        kept_energy = max(energies) if machine.registers else 0.0
        total += math.prod(count for _, count in pieces) * (sum(energies) - kept_energy)
    once_energy = sum(
        element_energies[operand] * mapping.size[rows] * mapping.size[columns]
        for operand, (rows, columns) in OPERAND_AXES.items()
    )
    return mapping.batch * max(total, once_energy)


def _get_least_bits(mapping: SiteMapping, operand: Operand) -> int:
    """Returns the bits of an element of an operand; for C, the fewer of a sum's and an output's bits."""
    bits = get_operand_bits(mapping, operand)
    return bits if operand != "C" else min(bits, dimensions.get_type_bits(mapping.output, mapping.site))


def _count_least_bytes(mapping: SiteMapping, operand: Operand) -> int:
    """Computes the bytes of an operand moved once."""
    rows, columns = (mapping.size[axis] for axis in OPERAND_AXES[operand])
    return mapping.batch * dimensions.count_packed_bytes(rows * columns, _get_least_bits(mapping, operand))


def _compute_access_energy(
    memory: MachineMemory, operand: Operand, size: float, direction: Literal["read", "write"]
) -> float:
    """Computes the picojoules of reads or writes of bytes; 0 if the energy of an access is unknown."""
    words = memory.read_word if direction == "read" else memory.write_word
    pj = memory.read_pj if direction == "read" else memory.write_pj
    return size / words.get(operand, words.get("C", 1)) * (pj or 0)
