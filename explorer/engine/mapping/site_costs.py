"""Computes the cost of a plan whose sites run in the loops of their mappings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from explorer.engine.mapping.cost import compute_capacity_on_chip, compute_mapping_cost
from explorer.engine.tiling.cost import ONE_TILE, OVERLAP, SUMS_TRAVEL, compute_plan_cost, sum_order_costs
from explorer.facts import Plan
from explorer.facts.cost import ORDERS, OrderCost, PlanCost, SiteCost
from explorer.facts.mapping import Epilogue, MappingCost, MemoryMachine, SiteMapping
from explorer.settings.site_mappings import ARRAY

ORDER = "mapping"
"""Name of the order of a plan whose sites have the loops of a mapping."""


def compute_mapped_plan_cost(plan: Plan, machine: MemoryMachine, mappings: Sequence[SiteMapping]) -> PlanCost:
    """Computes the cost of each site of a plan in the loops of its mapping, and of all sites in sequence.

    Args:
        plan: Plan with the tiles of one level of the mappings.
        machine: Machine of the mappings.
        mappings: Mapping of each site, in the order of the plan.

    Raises:
        Misuse: A mapping does not match the machine.
    """
    base = compute_plan_cost(plan, machine.hardware)
    costs = [compute_mapping_cost(mapping, machine) for mapping in mappings]
    capacity = compute_capacity_on_chip(machine)
    sites = tuple(_build_site_cost(*pair, machine, capacity) for pair in zip(base.sites, costs, strict=True))
    run_counts = [site.calls or 0 for site in plan.sites]
    total = sum_order_costs(ORDER, [site.chosen for site in sites], run_counts, base.macs)
    lower_bound = sum(site.lower_bound * runs for site, runs in zip(sites, run_counts, strict=True))
    return replace(
        base,
        order=ORDER,
        sites=sites,
        lower_bound=lower_bound,
        ratio=total.traffic / lower_bound if lower_bound else 1.0,
        fits=all(cost.fits for cost in costs),
        total=total,
        orders=(total,),
        systolic=(),
        assumptions=(*_list_notes(machine, costs), *_list_valid_assumptions(base, mappings)),
    )


def _build_site_cost(
    site: SiteCost, cost: MappingCost, machine: MemoryMachine, capacity: int | None
) -> SiteCost:
    order = _build_order_cost(site, cost, machine)
    return replace(
        site,
        orders=(order,),
        order=order.order,
        fits=cost.fits,
        lower_bound=cost.lower_bound,
        bound_buffer=site.bound_buffer if capacity is None else capacity,
        ratio=cost.traffic / cost.lower_bound if cost.lower_bound else 1.0,
        systolic=(),
    )


def _build_order_cost(site: SiteCost, cost: MappingCost, machine: MemoryMachine) -> OrderCost:
    """Returns the traffic and time of a mapping at the outermost memory, as the cost of an order."""
    outer = machine.memories[0].name
    moves = [move for move in cost.moves if move.outside == outer]
    levels = cost.mapping.levels
    return OrderCost(
        order=" > ".join(level.order for level in levels),
        dataflow=ORDERS[levels[0].order],
        a_bytes=sum(move.outside_reads for move in moves if move.operand == "A"),
        b_bytes=sum(move.outside_reads for move in moves if move.operand == "B"),
        c_read_bytes=sum(move.outside_reads for move in moves if move.operand == "C"),
        c_write_bytes=sum(move.outside_writes for move in moves if move.operand == "C"),
        traffic=cost.traffic,
        intensity=2 * site.macs / cost.traffic if cost.traffic else None,
        compute_cycles=cost.array_cycles,
        memory_cycles=cost.memories[0].cycles,
        cycles=cost.cycles,
        bound="compute" if cost.bound == ARRAY else "memory" if cost.bound else "",
        seconds=cost.seconds,
    )


def _list_notes(machine: MemoryMachine, costs: Sequence[MappingCost]) -> Iterator[str]:
    name = machine.hardware.name
    yield f"Traffic, cycles and time are those of the mapping's loops on all memories of {name}."
    for cost in costs:
        for memory in cost.memories:
            if memory.missing:
                yield f"{cost.mapping.site} does not fit: {memory.name} needs {memory.missing:,} bytes more."


def _list_valid_assumptions(base: PlanCost, mappings: Sequence[SiteMapping]) -> Iterator[str]:
    """Yields the assumptions of a plan that are also valid for mappings."""
    replaced = {ONE_TILE, *OVERLAP.values()}
    if any(mapping.epilogue != Epilogue() for mapping in mappings):
        replaced.add(SUMS_TRAVEL)
    yield from (text for text in base.assumptions if text not in replaced)
