"""Texts about a loop nest and the memories of a mapping, shared by the text output and the screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from explorer.base.units import bytes_text, count_text, exact_text, sizes_text
from explorer.facts.mapping import MappingCost, MappingSearch, MemoryCost, MemoryMachine, SiteMapping
from explorer.report.blocks import Cell, Column, Field, Fields, Role, Span, Table
from explorer.report.present.figures import seconds, share_text, size
from explorer.settings.site_mappings import ARRAY

_BAR_WIDTH = 10
"""Width of a bar in a table, in cells."""


MEMORY_SEPARATOR = " + "
"""Text between the names of the memories of one level."""


class NestRow(NamedTuple):
    """A row of a printed nest.

    Attributes:
        kind: A memory with its tile, a loop, or cores that compute neighboring tiles at the same time.
        level: Index of the level that the row belongs to; -1 for the outermost memory.
        axis: Axis of a loop or of cores: 'm', 'k' or 'n'.
        number: Trips of a loop, or cores.
        step: Elements along the axis that one trip covers.
        name: Names of the memories of a level, or 'array'.
        tile: M, K and N of the tile that the memories hold, as text.
        keep: Operands that the level holds whole.
    """

    kind: Literal["memory", "loop", "cores"]
    level: int
    axis: str = ""
    number: int = 1
    step: int = 1
    name: str = ""
    tile: str = ""
    keep: str = ""


def list_level_names(machine: MemoryMachine, cost: MappingCost) -> list[tuple[str, ...]]:
    """List the names of the memories of each level, in the order of the machine; the last is the array."""
    order = [*(memory.name for memory in machine.memories), ARRAY]
    names: list[set[str]] = [set() for _ in cost.mapping.levels]
    for move in cost.moves:
        if move.operand in ("A", "B", "C"):
            names[move.level].add(move.memory)
    return [tuple(sorted(memory_names, key=order.index)) for memory_names in names]


def list_nest_rows(mapping: SiteMapping, outermost: str, names: Sequence[Sequence[str]]) -> list[NestRow]:
    """List the rows of a nest from the outermost memory to the array, including loops of a single trip.

    Args:
        mapping: The mapping.
        outermost: Name of the outermost memory.
        names: Names of the memories of each level; see `list_level_names`.
    """
    rows = [NestRow("memory", -1, name=outermost)]
    outer = mapping.size
    for index, level in enumerate(mapping.levels):
        for axis in level.order:
            position = "mkn".index(axis)
            step = level.tile[position] * level.split[position]
            rows.append(NestRow("loop", index, axis, -(-outer[position] // step), step))
        for axis, cores in zip("mkn", level.split, strict=True):
            if cores > 1:
                rows.append(NestRow("cores", index, axis, cores))
        name = MEMORY_SEPARATOR.join(names[index])
        rows.append(
            NestRow("memory", index, name=name, tile=sizes_text(level.tile), keep="".join(sorted(level.keep)))
        )
        outer = level.tile
    return rows


def format_nest_row(row: NestRow, gap: str = "   ") -> tuple[Span, ...]:
    """Format a row of a nest; `gap` separates a loop from its step."""
    if row.kind == "loop":
        return (
            Span(f"for {row.axis} in range({row.number:,})"),
            Span(f"{gap}# steps of {row.step:,}", "quiet"),
        )
    if row.kind == "cores":
        return (Span(f"on {row.number:,} cores along {row.axis}"),)
    keep = f", whole {row.keep}" if row.keep else ""
    return Span(row.name, "strong"), Span(f"  {row.tile}{keep}" if row.tile else "", "quiet")


def energy_text(pj: float) -> str:
    """Format an energy in picojoules: '45.2 uJ'."""
    for power, unit in ((12, "J"), (9, "mJ"), (6, "uJ"), (3, "nJ")):
        if pj >= 10**power:
            return f"{pj / 10**power:,.3g} {unit}"
    return f"{pj:,.3g} pJ"


def format_bound(search: MappingSearch) -> str:
    """Format the lower bound of all mappings, and the distance of the best mapping from it."""
    limit_text = {
        "cycles": f"{exact_text(round(search.bound))} cycles",
        "traffic": bytes_text(round(search.bound)),
        "energy": energy_text(search.bound),
        "edp": f"{search.bound:,.3g} pJ cycles",
    }[search.objective]
    share = format_share_of_bound(search)
    return f"no mapping goes below {limit_text}" + (f", so it is {share} of the least" if share else "")


def format_share_of_bound(search: MappingSearch) -> str:
    """Format the maximum distance of the best mapping from the optimum: 'within 1.25 x'; '' if unknown."""
    cost = search.best[0]
    figures = {"cycles": cost.cycles, "traffic": cost.traffic, "energy": cost.pj, "edp": cost.edp}
    value = figures[search.objective]
    if value is None or search.bound <= 0:
        return ""
    return f"within {math.ceil(value / search.bound * 100 - 1e-9) / 100:,.2f} x"


def format_held(memory: MemoryCost) -> str:
    """Format the used and the missing bytes of a memory: '184 KiB of 256 KiB'; '' for an unlimited memory."""
    held = f"{bytes_text(memory.held)} of {bytes_text(memory.size)}" if memory.size else ""
    return f"{held}, {exact_text(memory.missing)} bytes missing" if memory.missing else held


def compute_occupancy(memory: MemoryCost) -> float:
    """Compute the share of a memory that tiles fill: above 1 if they do not fit, 0 in an unlimited memory."""
    return memory.held / memory.size if memory.size else 0.0


def bar_text(share: float, cells: int = _BAR_WIDTH) -> str:
    """Draw a share from 0 to 1 as a bar. A share above 0 fills at least one cell."""
    filled = min(max(math.ceil(share * cells - 0.5), int(share > 0)), cells)
    return "█" * filled + "░" * (cells - filled)


def compute_arithmetic_pj(machine: MemoryMachine, cost: MappingCost) -> float | None:
    """Compute the energy of the multiply-accumulates in picojoules, or None if it is unknown."""
    return None if machine.mac_pj is None else machine.mac_pj * cost.macs


def build_cost_totals(cost: MappingCost, best: MappingCost | None) -> Fields:
    """Build the totals of a mapping.

    Args:
        cost: The mapping.
        best: Mapping to compare with, or None.
    """
    fields = []
    if not cost.fits:
        best = None  # a mapping that does not fit is not compared
    if cost.cycles is not None:
        remark = _compare_with_best(cost.cycles, None if best is None else best.cycles)
        fields.append(Field("Cycles", _format_count(cost.cycles, remark)))
    if cost.seconds is not None:
        fields.append(Field("Time", seconds(cost.seconds)))
    if cost.pj is not None:
        remark = _compare_with_best(cost.pj, None if best is None else best.pj)
        fields.append(Field("Energy", Span(f"{energy_text(cost.pj)}{remark}")))
    excess = f" {cost.traffic / cost.lower_bound:,.2f} x lower bound" if cost.lower_bound else ""
    traffic = size(cost.traffic)
    fields += [
        Field("Traffic", (traffic, Span(excess, "quiet"))),
        Field("Tile utilization", share_text(cost.utilization, 1), short="Utilization"),
    ]
    return Fields(fields)


def _compare_with_best(value: float, best: float | None) -> str:
    """Format a figure relative to the best mapping's: ' 1.25 x best'; '' if equal, or without `best`."""
    return f" {value / best:,.2f} x best" if best and value != best else ""


def _format_count(value: int, remark: str = "") -> Cell:
    return Span(count_text(value), "figure", exact_text(value), value), Span(remark, "quiet")


def build_fullest_fields(cost: MappingCost) -> list[Field]:
    """Build the field of the memory that the tiles fill the most; none without a memory of limited size."""
    limited = [memory for memory in cost.memories if memory.size]
    if not limited:
        return []
    fullest = max(limited, key=compute_occupancy)
    if fullest.missing:
        return [Field("Too large for", Span(f"{fullest.name}, {exact_text(fullest.missing)} bytes", "bad"))]
    return [Field("Fullest", f"{fullest.name} {share_text(compute_occupancy(fullest), 1)}")]


class _Part(NamedTuple):
    """A memory or the array, with its cycles and its energy."""

    name: str
    cycles: int | None
    pj: float | None
    memory: MemoryCost | None


def _list_parts(machine: MemoryMachine, cost: MappingCost) -> list[_Part]:
    parts = [_Part(memory.name, memory.cycles, memory.pj, memory) for memory in cost.memories]
    return [*parts, _Part(ARRAY, cost.array_cycles, compute_arithmetic_pj(machine, cost), None)]


def build_memory_cost_table(machine: MemoryMachine, cost: MappingCost, *, with_occupancies: bool) -> Table:
    """Build a table with the cycles, the energy and the bytes of each memory and of the array.

    Args:
        machine: The machine.
        cost: The mapping.
        with_occupancies: Whether the table shows the used share of each memory instead of the moved bytes.
    """
    parts = _list_parts(machine, cost)
    total = cost.cycles or max((part.cycles or 0 for part in parts), default=0)
    energy = sum(part.pj or 0 for part in parts)
    rows: list[tuple[Cell, ...]] = []
    for part in parts:
        role: Role = "warning" if part.name == cost.bound else "bar"
        limit = Span("  limit" if part.name == cost.bound else "", "warning")
        cells: list[Cell] = [(Span(part.name, "strong"), limit)]
        if with_occupancies:
            cells += list(_format_occupancy(part.memory))
        if cost.cycles is not None:
            has_share = part.cycles is not None and total > 0
            cells += [
                Span(bar_text((part.cycles or 0) / total) if has_share else "", role),
                _format_count(part.cycles) if part.cycles is not None else "",
                Span(share_text(part.cycles, total) if has_share else "", "quiet"),
            ]
        if cost.pj is not None:
            cells += [
                Span(bar_text((part.pj or 0) / energy) if energy else "", "bar"),
                energy_text(part.pj) if part.pj is not None else "",
            ]
        if not with_occupancies:
            cells += [size(part.memory.reads), size(part.memory.writes)] if part.memory is not None else []
        rows.append(tuple(cells))
    columns = [Column("memory")]
    if with_occupancies:
        columns += [Column(""), Column("held")]
    if cost.cycles is not None:
        columns += [Column("", drop=3), Column("cycles", "right"), Column("of all", "right", drop=1)]
    if cost.pj is not None:
        columns += [Column("", drop=4), Column("energy", "right")]
    if not with_occupancies:
        columns += [Column("read", "right", drop=5), Column("written", "right", drop=6)]
    return Table(columns, rows, indent=1)


def _format_occupancy(memory: MemoryCost | None) -> tuple[Cell, Cell]:
    if memory is None or not memory.size:
        return "", ""
    role: Role = "bad" if memory.missing else "bar"
    return (
        Span(bar_text(compute_occupancy(memory)), role),
        Span(share_text(compute_occupancy(memory), 1), "bad" if memory.missing else ""),
    )
