"""Text output of `explorer map`: the mappings of a model, level by level."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec.structs import replace

from explorer.base.units import many_text, runs_text, seconds_text, sizes_text
from explorer.facts import Info
from explorer.facts.cost import Hardware
from explorer.facts.mapping import MappedSite, MappingCost, MemoryMachine, ModelMapping
from explorer.features.mapping.nest_words import (
    bar_text,
    compute_occupancy,
    energy_text,
    format_bound,
    format_held,
    format_nest_row,
    format_share_of_bound,
    list_level_names,
    list_nest_rows,
)
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Span, Table, table_of
from explorer.report.present.figures import count, size
from explorer.report.present.look.info import title
from explorer.report.present.measure.machine_words import hardware_text
from explorer.report.present.row_groups import group_rows, list_first_names

_MAX_EXCLUSIONS = 3  # reasons for excluded tiles
_MAX_FRONT_ROWS = 8  # mappings of the Pareto front


def _add_outer_rate(machine: MemoryMachine) -> Hardware:
    """Return the rates of a machine. Its outermost memory gives the bytes a cycle that the machine lacks."""
    hardware, outermost = machine.hardware, machine.memories[0]
    return replace(hardware, bytes_per_cycle=hardware.bytes_per_cycle or outermost.bytes_per_cycle)


def model_mapping(info: Info, fact: ModelMapping) -> list[Block]:
    """Build the output of `explorer map`: totals, one row for each kind of site, and the largest site."""
    return [*title(info.model), *build_mapping_blocks(fact)]


def build_mapping_blocks(fact: ModelMapping) -> list[Block]:
    """Build the machine, the totals, one row for each kind of site, and the largest site."""
    largest = max(fact.sites, key=lambda site: site.cost.macs)
    return [
        Line((hardware_text(_add_outer_rate(fact.machine)),)),
        Line(),
        _build_totals(fact),
        Line(),
        *_build_site_table(fact),
        Line(),
        *_build_choice_note(fact),
        *build_site_blocks(fact, largest),
        *_build_window_table(largest),
        *_build_best_mappings(largest),
        *_build_formulas(largest.cost),
        *(_build_capacity(fact) if fact.capacity else ()),
        *(block for text in fact.assumptions for block in (Line(), Paragraph(text, "quiet"))),
    ]


def _build_choice_note(fact: ModelMapping) -> list[Block]:
    """Build the line that says which matmul of several the output shows."""
    if len(fact.sites) == 1:
        return []
    return [Line(Span("the matmul with the most MACs; --site '*NAME*' shows another", "quiet"))]


def _build_totals(fact: ModelMapping) -> Fields:
    excess = f"{fact.traffic / fact.compulsory:,.2f} x each byte once" if fact.compulsory else ""
    fields = [
        Field("Minimized", fact.objective, ""),
        Field("MACs", count(fact.macs), ""),
        Field("Traffic", size(fact.traffic), excess),
    ]
    if fact.cycles is not None:
        fields.append(Field("Cycles", count(fact.cycles), ""))
    if fact.seconds is not None:
        fields.append(Field("Time", seconds_text(fact.seconds), ""))
    if fact.pj is not None:
        fields.append(Field("Energy", energy_text(fact.pj), ""))
    return Fields(fields)


def _build_site_table(fact: ModelMapping) -> list[Block]:
    """Build a table with a row for each group of sites that differ only in their names."""
    groups = group_rows(fact.sites, _encode_without_name)

    def name(group: Sequence[MappedSite]) -> Cell:
        runs = runs_text(group[0].calls)
        text = list_first_names([site.title for site in group])
        return (Span(text), Span(f"  {runs}", "quiet")) if runs else text

    def apply_to_first(cell: Callable[[MappedSite], Cell]) -> Callable[[Sequence[MappedSite]], Cell]:
        return lambda group: cell(group[0])

    columns: list[tuple[Column, Callable[[MappedSite], Cell]]] = [
        (Column("M x K x N", "right", drop=3), lambda site: sizes_text(site.cost.mapping.size)),
        (Column("tile", "right"), lambda site: sizes_text(site.cost.mapping.levels[0].tile)),
        (Column("order", drop=2), lambda site: site.cost.mapping.levels[0].order),
        (Column("traffic", "right"), lambda site: size(site.cost.traffic)),
        (
            Column("x lower bound", "right", drop=1),
            lambda site: f"{site.cost.traffic / site.cost.lower_bound:,.2f}" if site.cost.lower_bound else "",
        ),
        (
            Column("cycles" if fact.cycles is not None else "", "right"),
            lambda site: count(site.cost.cycles) if site.cost.cycles is not None else "",
        ),
        (Column("limit", drop=4), lambda site: site.cost.bound),
        (Column("search", drop=5), _format_certainty),
    ]
    return [
        table_of(
            groups,
            [
                (Column("matmul", shrink=True), name),
                *((column, apply_to_first(cell)) for column, cell in columns),
            ],
            what="matmuls",
        )
    ]


def _encode_without_name(site: MappedSite) -> bytes:
    """Return the content of a row without the name of its site, to group equal rows."""
    cost = replace(site.cost, mapping=replace(site.cost.mapping, site=""))
    search = site.search and replace(site.search, best=(), front=(), seconds=0.0)
    return msgspec.json.encode(replace(site, name="", layer="", cost=cost, search=search))


def _format_certainty(site: MappedSite) -> Cell:
    if site.search is None:
        return Span("given", "quiet")
    if site.search.exact:
        return Span("optimum", "good")
    return Span(format_share_of_bound(site.search) or "best found", "warning")


# -- one site


def build_site_blocks(fact: ModelMapping, site: MappedSite) -> list[Block]:
    """Build the loops of a site, its memories, and the result of the search."""
    return [
        Line((Span(site.title, "strong"), f"  {_format_size(site.cost)}")),
        *([Paragraph(_describe_search(site), "quiet")] if site.search is not None else ()),
        *_build_loops(fact, site.cost),
        Line(),
        _build_memory_table(site.cost),
    ]


def _format_size(cost: MappingCost) -> str:
    mapping = cost.mapping
    batch = f" x {mapping.batch:,}" if mapping.batch > 1 else ""
    output = mapping.epilogue.output or mapping.accumulator
    return f"{sizes_text(mapping.size)}{batch}  {mapping.dtype} -> {output}"


def _describe_search(site: MappedSite) -> str:
    search = site.search
    if search is None:
        return ""
    left_out = [
        f"{many_text(number, 'tile')} excluded by {name}"
        if any(sign in name for sign in "%<>=")
        else f"{many_text(number, 'tile')} excluded, too large for the {name}"
        for name, number in search.left_out.items()
        if number
    ]
    kind = "the optimum" if search.exact else "best found"
    if not search.exact and search.bound:
        kind += f"; {format_bound(search)}"
    return "; ".join([f"{search.count:,} mappings compared: {kind}", *left_out[:_MAX_EXCLUSIONS]])


def _build_loops(fact: ModelMapping, cost: MappingCost) -> list[Block]:
    """Build the loops with more than one trip from the outermost in, each level below its memories."""
    lines: list[Block] = []
    indent = 0
    for row in list_nest_rows(
        cost.mapping, fact.machine.memories[0].name, list_level_names(fact.machine, cost)
    ):
        if row.kind == "loop" and row.number == 1:
            continue
        lines.append(Line(("  " * indent, *format_nest_row(row))))
        indent += row.kind == "loop" or row.level < 0  # the outermost memory, of level -1, has the margin
    return lines


def _build_memory_table(cost: MappingCost) -> Table:
    """Build a table with the used and moved bytes, the cycles and the energy of each memory."""
    has_cycles = any(memory.cycles is not None for memory in cost.memories)
    has_energy = any(memory.pj is not None for memory in cost.memories)
    rows: list[tuple[Cell, ...]] = []
    for memory in cost.memories:
        rows.append(
            (
                Span(memory.name, "kind"),
                Span(bar_text(compute_occupancy(memory)) if memory.size and memory.held else "", "bar"),
                Span(format_held(memory), "bad" if memory.missing else ""),
                size(memory.reads),
                size(memory.writes),
                count(memory.cycles) if memory.cycles is not None else "",
                energy_text(memory.pj) if memory.pj is not None else "",
            )
        )
    columns = (
        Column("memory"),
        Column("", drop=2),
        Column("held, all buffers"),
        Column("read", "right"),
        Column("written", "right"),
        Column("cycles" if has_cycles else "", "right"),
        Column("energy" if has_energy else "", "right", drop=1),
    )
    return Table(columns, rows)


def _build_window_table(site: MappedSite) -> list[Block]:
    """Build a table of the bytes of a convolution's input that each memory loads, gathered or not."""
    if not site.windows:
        return []
    columns = (
        Column("memory"),
        Column("gathered", "right"),
        Column("not gathered", "right"),
        Column("read from"),
        Column("", "right"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            Span(move.memory, "kind"),
            f"{move.gathered:,} bytes",
            "too many tiles" if move.loads is None else f"{move.loads:,} bytes",
            move.outside,
            "" if move.outside_reads is None else f"{move.outside_reads:,} bytes",
        )
        for move in site.windows
    ]
    head = "the input of the convolution, with gathered windows and without"
    return [Line(), Line(Span(head, "strong")), Table(columns, rows)]


def _build_best_mappings(site: MappedSite) -> list[Block]:
    """Build the best mappings of a site, and the Pareto front of the mappings whose cost was computed."""
    if site.search is None or len(site.search.best) < 2:
        return []
    front = [cost for cost in site.search.front if cost not in site.search.best]
    blocks: list[Block] = [
        Line(),
        Line(Span("the best mappings", "strong")),
        _build_cost_table(site.search.best),
    ]
    best = site.search.best[0]
    names = "energy and memory" if best.pj is not None else "traffic and memory"
    if best.cycles is not None:
        names = f"cycles, {names}"
    if not front:
        text = f"Pareto front of {names}: no other computed mapping is on it."
        return [*blocks, Line(), Paragraph(text, "quiet")]
    blocks += [
        Line(),
        Line(
            (
                Span(f"Pareto front of {names}", "strong"),
                Span(": no computed mapping is more than 1 % better in all of them", "quiet"),
            )
        ),
        _build_cost_table(_choose_evenly(front)),
    ]
    if len(front) > _MAX_FRONT_ROWS:
        blocks.append(Line(Span(f"and {len(front) - _MAX_FRONT_ROWS:,} more; --json has all", "quiet")))
    return blocks


def _choose_evenly(front: Sequence[MappingCost]) -> list[MappingCost]:
    """Choose at most `_MAX_FRONT_ROWS` mappings of a front, evenly from the fewest cycles to the most."""
    last, rows = len(front) - 1, _MAX_FRONT_ROWS - 1
    return [front[index * last // rows] for index in range(rows + 1)] if last > rows else list(front)


def _build_cost_table(costs: Sequence[MappingCost]) -> Table:
    """Build a table of mappings: tiles and orders from the outermost level to the innermost, and figures."""

    def tiles(cost: MappingCost) -> Cell:
        levels = cost.mapping.levels[:-1] or cost.mapping.levels
        return " > ".join(
            sizes_text(level.tile) + (f" whole {level.keep}" if level.keep else "") for level in levels
        )

    has_cycles = any(cost.cycles is not None for cost in costs)
    has_energy = any(cost.pj is not None for cost in costs)
    columns: list[tuple[Column, Callable[[MappingCost], Cell]]] = [
        (Column("tile"), tiles),
        (Column("orders", drop=2), lambda cost: " > ".join(level.order for level in cost.mapping.levels)),
        (
            Column("held on the chip", "right", drop=1),
            lambda cost: size(sum(memory.held for memory in cost.memories[1:])),
        ),
        (Column("traffic", "right"), lambda cost: size(cost.traffic)),
    ]
    if has_cycles:
        columns.append(
            (Column("cycles", "right"), lambda cost: count(cost.cycles) if cost.cycles is not None else "")
        )
    if has_energy:
        columns.append(
            (Column("energy", "right"), lambda cost: energy_text(cost.pj) if cost.pj is not None else "")
        )
    return table_of(costs, columns)


def _build_formulas(cost: MappingCost) -> list[Block]:
    """Build the formula of each figure of a site."""
    blocks: list[Block] = [Line(), Line(Span("formulas", "strong"))] if cost.formulas else []
    for formula in cost.formulas:
        value = f"{formula.value:,.15g}" + (f" {formula.unit}" if formula.unit else "")
        blocks += [
            Line((Span(f"{formula.name}  ", "quiet"), Span(value, "strong")), 2),
            Paragraph(f"{formula.rule}  =  {formula.filled}", "formula", 6),
        ]
    return blocks


def _build_capacity(fact: ModelMapping) -> list[Block]:
    rows: list[tuple[Cell, ...]] = [
        (
            size(point.size),
            size(point.traffic) if point.traffic is not None else Span("no tile fits", "warning"),
            size(point.lower_bound),
        )
        for point in fact.capacity
    ]
    head = Line(
        Span("least traffic by size of the first memory, with one tile size for each matmul", "strong")
    )
    columns = Column("memory", "right"), Column("traffic", "right"), Column("lower bound", "right")
    return [Line(), head, Table(columns, rows)]
