"""Pages of the map view: the title, the nest, the memories, the costs and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text, count_text, many_text, sizes_text
from explorer.features.mapping.nest_words import (
    MEMORY_SEPARATOR,
    NestRow,
    build_cost_totals,
    build_fullest_fields,
    build_memory_cost_table,
    compute_occupancy,
    energy_text,
    format_held,
    format_nest_row,
    format_share_of_bound,
)
from explorer.report.blocks import Axis, Dot, Fields, Role, Scatter
from explorer.report.names import shorten_name
from explorer.report.present.figures import share_text
from explorer.report.scatter import draw_scatter
from explorer.tui.text.drawing import cell_line, draw
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    cut_line,
    draw_bar,
    escape_name,
    fit,
    flow_pieces,
    line_width,
    wrap,
)

if TYPE_CHECKING:
    from explorer.facts import SitePlan
    from explorer.facts.mapping import MachineMemory, MappingCost, MappingSearch, MemoryCost, MemoryMachine

_MIN_STEP_WIDTH = 40
"""Minimum width of the nest, in cells, for a comment with the step of each loop."""
_MIN_WIDE_INDENT = 56
"""Minimum width of the nest, in cells, for two cells of indentation per loop."""


def title_lines(
    sites: Sequence[SitePlan], index: int, machine: str, search: str, state: Span, width: int
) -> tuple[Line, ...]:
    """Draw the matmul in one line, and the machine and the search in another.

    Args:
        sites: Matmuls to page through.
        index: Index of the displayed matmul.
        machine: Name of the machine, or ''.
        search: Objective and constraints as text.
        state: Origin of the displayed mapping, such as 'the optimum', with its role.
        width: Width in cells.
    """
    site = sites[index]
    batch = f" x {site.batch:,}" if site.batch > 1 else ""
    place = f"  {index + 1:,} of {len(sites):,}" if len(sites) > 1 else ""
    size = f"  {sizes_text((site.M, site.K, site.N))}{batch}  {site.dtype}{place}"
    name = shorten_name(escape_name(site.title), max(8, width - len(size) - 6))
    second: Line = ((f" {escape_name(machine)}", "accent"), (f"  {search}  ", "text"), state)
    return (
        cut_line(((" Map ", "head"), (name, "strong"), (size, "dim")), width),
        cut_line(second, width) if machine else BLANK,
    )


def describe_state(search: MappingSearch | None, cost: MappingCost | None, place: int) -> Span:
    """Describe the displayed mapping in a few words.

    Args:
        search: Search for the displayed matmul, or None before it ends.
        cost: The displayed mapping, or None.
        place: Index of the mapping in the front of the search, or -1.
    """
    if cost is not None and not cost.fits:
        return "does not fit; b returns to the best", "bad"
    if search is None or cost is None:
        return "", "dim"
    if cost.mapping == search.best[0].mapping:
        count = f"of {count_text(search.count)} mappings"
        if search.exact:
            return f"the optimum {count}", "dim"
        share = format_share_of_bound(search)
        return f"best found {count}" + (f", {share} of the least" if share else ""), "dim"
    return "on the Pareto front" if place >= 0 else "edited; b returns to the best", "dim"


def draw_nest_row(rows: Sequence[NestRow], index: int, width: int) -> Line:
    """Draw a row of the loop nest. Loops with a single trip are dim."""
    row = rows[index]
    depth = sum(before.kind == "loop" and before.number > 1 for before in rows[:index])
    cells_per_loop = 2 if width >= _MIN_WIDE_INDENT else 1
    indent = " " * (1 + cells_per_loop * (depth + (row.level >= 0)))
    if row.kind == "memory":  # the tile stays visible
        other_cells = line_width(cell_line(format_nest_row(row)[1:]))
        row = row._replace(name=_cut_names(row.name, max(8, width - len(indent) - other_cells)))
    cell = format_nest_row(row, "  ")
    if row.kind == "loop" and (width < _MIN_STEP_WIDTH or row.number == 1):
        cell = cell[:1]
    line = cell_line(cell)
    if row.kind == "loop" and row.number == 1:
        line = tuple((text, "dim") for text, _ in line)
    return cut_line(((indent, "text"), *((escape_name(text), role) for text, role in line)), width)


def _cut_names(names: str, width: int) -> str:
    """Cut the names of the memories of a level to a width, each at its end."""
    if len(names) <= width:
        return names
    parts = names.split(MEMORY_SEPARATOR)
    room = width - len(parts) + 1
    if sum(map(len, parts)) > room:
        parts = [fit(part, max(room // len(parts), 3)).rstrip() for part in parts]
    return "+".join(parts)


def draw_machine_choices(names: Sequence[str], complaint: str, width: int) -> list[Line]:
    """List the machines with memories, and the key that chooses one.

    Args:
        names: Names of the machines with memories.
        complaint: Why the current machine cannot be used, or ''.
        width: Width in cells.
    """
    reason = escape_name(complaint) if complaint else "No machine with memories is chosen."
    lines = [BLANK, *wrap(((f" {reason}", "strong"),), width - 1, 1)]
    lines += [BLANK, ((" m", "key"), (" chooses one of:", "text"))]
    return [*lines, *(cut_line(((f"   {escape_name(name)}", "text"),), width) for name in names)]


def draw_memories(machine: MemoryMachine, cost: MappingCost, width: int, height: int) -> list[Line]:
    """Draw the memories on the chip with their occupancy: what one instance holds at the same time.

    Args:
        machine: The machine.
        cost: The mapping.
        width: Width in cells.
        height: Height in lines. With enough of it, the tiles of each operand are listed.
    """
    pairs = list(zip(machine.memories[1:], cost.memories[1:], strict=True))
    # a memory with its tiles takes up to five lines, and the gap below it one
    with_tiles = height >= 5 * len(pairs)
    with_gaps = height >= 6 * len(pairs)
    lines: list[Line] = []
    for memory, use in pairs:
        use_text = (
            format_held(use) if not use.missing else f"{bytes_text(use.held)} of {bytes_text(use.size)}"
        )
        cores = f" x {memory.cores:,}" if memory.cores > 1 else ""
        operands = "" if with_tiles else f"  {' '.join(memory.holds)}"
        name: Line = ((f" {escape_name(memory.name)}{cores}", "strong"), (operands, "dim"))
        gap = width - line_width(name) - len(use_text) - 1
        lines.append(cut_line((*name, (" " * max(gap, 1), "text"), (use_text, "number")), width))
        if use.size:
            share = compute_occupancy(use)
            text = "too large" if use.missing else share_text(share, 1)
            filled, track = draw_bar(share, width - 12)
            role = "bad" if use.missing else filled[1]
            lines.append(((" ", "text"), (filled[0], role), track, (fit(text, 10, right=True), role)))
        if use.missing:
            lines.append(cut_line(((f" {use.missing:,} bytes missing", "bad"),), width))
        if with_tiles:
            lines += flow_pieces(_format_tiles(memory, use), width)
        if with_gaps:
            lines.append(BLANK)
    return lines


def _format_tiles(memory: MachineMemory, use: MemoryCost) -> list[Line]:
    """Write the bytes of one tile of each operand, and the number of its buffers."""
    pieces: list[Line] = []
    for operand, size in use.tiles.items():
        buffers = getattr(memory.buffers, operand)
        if buffers:
            count = f" x {buffers}" if buffers > 1 else ""
            pieces.append(((f"{operand} {bytes_text(size)}{count}", "dim"),))
    return pieces


def draw_totals(
    cost: MappingCost, best: MappingCost | None, width: int, exact: bool, *, with_fullest: bool
) -> list[Line]:
    """Draw the totals of a mapping, side by side.

    Args:
        cost: The mapping.
        best: Mapping to compare with, or None.
        width: Width in cells.
        exact: Whether numbers are written out instead of rounded.
        with_fullest: Whether to add the memory that the tiles fill the most.
    """
    totals = build_cost_totals(cost, best)
    if with_fullest:
        totals = Fields([*totals.rows, *build_fullest_fields(cost)])
    return draw([totals], width, exact, beside=True)


def draw_figure_table(
    machine: MemoryMachine, cost: MappingCost, width: int, exact: bool, *, with_occupancies: bool
) -> list[Line]:
    """Draw where the cycles and the energy go. See `build_memory_cost_table` for the arguments."""
    return draw([build_memory_cost_table(machine, cost, with_occupancies=with_occupancies)], width, exact)


def draw_front(
    front: Sequence[MappingCost], at: int, current: MappingCost | None, width: int, height: int
) -> list[Line]:
    """Plot the Pareto front of a search: cycles, or traffic without cycles, over bytes of memory.

    Args:
        front: Mappings of the front.
        at: Index of the displayed mapping in the front, or -1.
        current: The displayed mapping, or None.
        width: Width in cells.
        height: Height in lines.
    """
    has_cycles = all(cost.cycles is not None for cost in front)

    def place(cost: MappingCost) -> tuple[float, float]:
        held_bytes = sum(memory.held for memory in cost.memories[1:])
        return float(held_bytes), float(
            cost.cycles if has_cycles and cost.cycles is not None else cost.traffic
        )

    if len(front) == 1 and (current is None or place(current) == place(front[0])):
        fewer = "takes fewer cycles" if has_cycles else "moves fewer bytes"
        words = f" The front has one mapping: no other {fewer}, or holds fewer bytes, by more than 1 %."
        return wrap([(words, "dim")], width, 1)
    dots = [Dot(place(cost), "●", "bar") for cost in front]
    if current is not None:
        dots.append(Dot(place(current), "◆", "warning"))
    legend: list[tuple[str, Role, str]] = [("●", "bar", "front"), ("◆", "warning", "shown")]
    vertical_axis = (
        Axis("cycles", lambda value: count_text(round(value)))
        if has_cycles
        else Axis("traffic", lambda value: bytes_text(round(value)))
    )
    horizontal_axis = Axis("bytes held", lambda value: bytes_text(round(value)))
    plot = Scatter("front", horizontal_axis, vertical_axis, dots, legend)
    lines = [cut_line(cell_line(spans), width) for spans in draw_scatter(plot, width, max(height - 2, 0))]
    position = f"{at + 1:,} of {len(front):,}" if at >= 0 else f"{many_text(len(front), 'mapping')}"
    energy = f", {energy_text(current.pj)}" if current is not None and current.pj is not None else ""
    keys = "  [ ] move along it" if len(front) > 1 else ""
    return [*lines, cut_line(((f" {position}{energy}", "text"), (keys, "dim")), width)]
