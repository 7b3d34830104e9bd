"""Text output of `explorer plan`: the cost of a planned tiling.

A site is a matrix product of the model that can be tiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from explorer.base.units import (
    bytes_text,
    edges_text,
    exact_text,
    percent_text,
    runs_text,
    seconds_text,
    sizes_text,
)
from explorer.facts import Info
from explorer.facts.cost import ORDERS, Formula, Hardware, OrderCost, OrderTotal, PlanCost, SiteCost
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Line,
    Paragraph,
    Role,
    Span,
    Table,
    table_of,
)
from explorer.report.present.figures import (
    bytes_field,
    count,
    count_field,
    seconds,
    share_text,
    size,
    utilization,
)
from explorer.report.present.look.info import title
from explorer.report.present.measure.machine_words import hardware_text
from explorer.report.present.row_groups import group_rows, list_first_names
from explorer.report.terms import field_terms

_MAX_FORMULAS = 200
"""Maximum number of sites with formulas."""

_BOUND_ROLES: Mapping[str, Role] = {"compute": "good", "memory": "warning", "": "quiet"}
"""Role of a cell by the resource that limits the time; '' if the limit is unknown."""


def plan_cost(info: Info, fact: PlanCost) -> list[Block]:
    """Build the output of `explorer plan`: totals, loop orders, sites, formulas and assumptions."""
    return [
        *title(info.model),
        *cost_blocks(fact),
        *([] if info.model.is_graph else [Paragraph(_NAMES, "quiet")]),
        *([Paragraph(why, "warning")] if (why := explain_missing_time(fact)) else []),
    ]


def cost_blocks(fact: PlanCost) -> list[Block]:
    """Build the blocks for machine, totals, loop orders, sites, formulas and assumptions."""
    machine = fact.hardware
    detailed = [site for site in fact.sites if site.formulas]
    return [
        *([Line((hardware_text(machine), Span(f"   {machine.origin}", "quiet")))] if machine.origin else []),
        Line(),
        figures(fact),
        *((Line(), *build_order_table(fact)) if len(fact.sites) > 1 and len(fact.orders) > 1 else ()),
        Line(),
        *_build_site_table(fact),
        *((Line(), *systolic(fact), Paragraph(_DRAINED, "quiet")) if fact.systolic else ()),
        *(block for site in detailed[:_MAX_FORMULAS] for block in (Line(), *detail(site))),
        Line(),
        *_build_assumptions(fact),
    ]


def _build_assumptions(fact: PlanCost) -> list[Block]:
    return [Paragraph(field_terms(text), "quiet") for text in fact.assumptions]


_NAMES = (
    "Names of matmuls are those of the ONNX graph that `explorer tile` writes, not of the module's layers."
)
_FIGURES_OF_RUNS = (
    "A matmul with runs is in a loop or function: its row has the figures of one run, and the totals count"
    " all runs."
)
_NO_MACHINE = (
    "No cycles without a machine: add --machine NAME (`explorer machines` lists the names) or"
    " --machine FILE.toml."
)


def explain_missing_time(fact: PlanCost) -> str:
    """Explain why cycles or time are missing; '' if both are known."""
    machine = fact.hardware
    if machine == Hardware():
        return _NO_MACHINE
    machine_text = f"the machine {machine.name}" if machine.name else "the machine"
    if fact.total.cycles is None and fact.total.seconds is None:
        keys = ("macs_per_cycle", "bytes_per_cycle")
        missing = " and ".join(key for key in keys if getattr(machine, key) is None)
        return f"No cycles: add {missing} to {machine_text}."
    return f"No time: add clock to {machine_text}." if fact.total.seconds is None else ""


FORMULAS: Mapping[str, tuple[str, ...]] = {
    "macs": ("MACs",),
    "products": ("products",),
    "utilisation": ("utilisation",),
    "padding": ("padded share",),
    "unshared": ("traffic without reuse",),
    "traffic": ("traffic",),
    "lower_bound": ("lower bound", "distance from it"),
    "intensity": ("intensity",),
    "buffer": ("buffer",),
    "buffer_double": ("buffer, double",),
    "compute_cycles": ("compute cycles",),
    "memory_cycles": ("memory cycles",),
    "cycles": ("cycles",),
    "seconds": ("time",),
}
"""Names of the formulas of each figure, by its key in `figure_fields`. 'traffic' means 'traffic ORDER'."""


_ROOFLINE = "roofline"
"""Remark that cycles and time are the roofline's, not those of a systolic array."""


_ORDER_TEXTS = {"best": "each matmul's best order", "mapping": "the loops of the mapping"}


def figures(fact: PlanCost) -> Fields:
    """Build the fields with the totals of all sites over all their calls."""
    return Fields([*figure_fields(fact).values()])


def figure_fields(fact: PlanCost) -> Mapping[str, Field]:
    """Build the fields with the totals of all sites, by a key such as 'cycles'."""
    machine, total, sign = fact.hardware, fact.total, fact.sign  # sign: '<= ' before an upper bound
    tiles = {site.tile for site in fact.sites}
    edges = {site.edges for site in fact.sites}
    unknown = sum(site.calls is None for site in fact.sites)
    is_known = unknown < len(fact.sites)
    unknown_note = f"without {unknown:,} whose number of runs is unknown" if unknown else ""
    sizes = ", ".join(sizes_text(tile) for tile in sorted(tiles)[:3]) + (
        f" and {len(tiles) - 3:,} more" if len(tiles) > 3 else ""
    )
    share = f"{share_text(fact.macs, fact.macs_total)} of the model's" if fact.macs_total else ""
    order_text = _ORDER_TEXTS.get(fact.order) or f"loop order {fact.order}"
    fit_text = _fit_span(fact)
    fields: dict[str, Field] = {
        "tiles": Field(
            "Tiles",
            sizes,
            f"{' and '.join(edges_text(mode, brief=False) for mode in sorted(edges))} at the edges",
        ),
        "macs": count_field("MACs on tiles", fact.macs if is_known else None, sign, share or unknown_note),
        "products": count_field("Tile matmuls", fact.products if is_known else None, sign, unknown_note),
        "utilisation": Field("Tile utilization", utilization(fact.utilisation), "of the tiles' arithmetic"),
        "padding": Field(
            "Padding overhead",
            Span(percent_text(fact.padded_share, 1), "warning" if fact.padded_share else ""),
            "of operands and outputs",
        ),
        "unshared": bytes_field(
            "Traffic without reuse", fact.traffic_without_reuse, sign, "every tile matmul fetches all"
        ),
        "traffic": bytes_field("Traffic", total.traffic, sign, order_text),
        "lower_bound": bytes_field(
            "Lower bound", fact.lower_bound, sign, f"traffic is {fact.ratio:,.2f} x that"
        ),
        "intensity": Field(
            "Arithmetic intensity", _format_intensity(total.intensity), "FLOPs per byte of traffic"
        ),
        "buffer": bytes_field("Buffer", fact.buffer, "", "" if machine.double_buffered else fit_text),
        "buffer_double": bytes_field(
            "Buffer, double", fact.buffer_double, "", fit_text if machine.double_buffered else ""
        ),
    }
    if total.compute_cycles is not None:
        fields["compute_cycles"] = count_field("Cycles, computing", total.compute_cycles, sign)
    if total.memory_cycles is not None:
        fields["memory_cycles"] = count_field("Cycles, moving", total.memory_cycles, sign)
    if total.cycles is not None:
        fields["cycles"] = count_field("Cycles", total.cycles, sign, _bound_text(total, fact))
    if total.seconds is not None:
        remark = _name_model(fact) if total.cycles is not None else _bound_text(total, fact)
        fields["seconds"] = Field("Time", seconds(total.seconds, sign), remark)
    return fields


def _fit_span(fact: PlanCost) -> Span:
    """State whether the needed buffer, single or double, fits in the machine's buffer."""
    machine = fact.hardware
    if fact.fits is None or machine.buffer is None:
        return Span("")
    if fact.fits:
        return Span(f"fits in {bytes_text(machine.buffer)}")
    needed = fact.buffer_double if machine.double_buffered else fact.buffer
    excess = f"{bytes_text(needed - machine.buffer)} too much"
    return Span(f"does not fit in {bytes_text(machine.buffer)}, {excess}", "bad")


def _name_model(fact: PlanCost) -> str:
    return "pipeline" if fact.order == "mapping" else _ROOFLINE


def _bound_text(total: OrderTotal, fact: PlanCost) -> str:
    if total.memory_bound is None:
        return _name_model(fact)
    return f"{_name_model(fact)}: memory bounds {total.memory_bound:,} of {len(fact.sites):,} matmuls"


def _format_intensity(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def build_order_table(fact: PlanCost) -> tuple[Line, Table]:
    """Build a table of the traffic of all sites with a row for each loop order."""
    least = min(total.traffic for total in fact.orders)
    rows: list[tuple[Cell, ...]] = [
        (
            Span(total.order, "strong" if total.order == fact.order else ""),
            Span(ORDERS.get(total.order, "each matmul's own"), "quiet"),
            size(total.traffic, fact.sign)._replace(role="good" if total.traffic == least else ""),
            f"{total.traffic / least:,.2f} x" if least else "",
            _format_intensity(total.intensity),
            _format_cycles(total.cycles, fact.sign),
            _format_time(total.seconds, fact.sign),
        )
        for total in fact.orders
    ]
    columns = (
        Column("order"),
        Column("stationary", drop=1),
        Column("traffic", "right"),
        Column("x the best", "right", drop=2),
        Column("FLOPs/byte", "right", drop=3),
        *_time_columns(fact),
    )
    head = Line(Span("all matmuls in one loop order, outermost loop first", "strong"))
    return head, Table(columns, rows)


def _time_columns(fact: PlanCost) -> tuple[Column, ...]:
    return (
        Column("cycles" if fact.total.cycles is not None else "", "right"),
        Column("time" if fact.total.seconds is not None else "", "right"),
    )


def _build_site_table(fact: PlanCost) -> list[Block]:
    groups = group_rows(fact.sites, lambda site: replace(site, name="", layer="", formulas=()))
    notes: list[Block] = []
    if len(groups) < len(fact.sites):
        row_note = f"{len(fact.sites):,} matmuls: equal matmuls share a row, whose figures are those of one"
        notes = [Paragraph(f"{row_note}; --json lists all.", "quiet")]
    if any(site.calls != 1 for site in fact.sites):
        notes.append(Paragraph(_FIGURES_OF_RUNS, "quiet"))

    def name(group: Sequence[SiteCost]) -> Cell:
        site, names = group[0], list_first_names([site.title for site in group])
        sign = "<= " if site.at_most and site.calls else ""
        runs = f"{sign}{runs_text(site.calls) or ('1 run' if sign else '')}"
        row_note = (f"x {site.batch:,}" if site.batch > 1 else "", runs)
        remark = ", ".join(filter(None, row_note))
        return (Span(names), Span(f"  {remark}", "quiet")) if remark else names

    def apply_to_first(cell: Callable[[SiteCost], Cell]) -> Callable[[Sequence[SiteCost]], Cell]:
        return lambda group: cell(group[0])

    columns = [(column, apply_to_first(cell)) for column, cell in _list_columns(fact)]
    return [*notes, table_of(groups, [(Column("matmul", shrink=True), name), *columns], what="matmuls")]


def site_figures(fact: PlanCost, name: str) -> list[Field]:
    """Build the fields with the cost of one site."""
    site = next(site for site in fact.sites if site.name == name)
    return [Field(column.title, cell(site)) for column, cell in _list_columns(fact)[6:] if column.title]


def _list_columns(fact: PlanCost) -> Sequence[tuple[Column, Callable[[SiteCost], Cell]]]:
    """Return the columns of the site table: six for the sizes and the tiles, then the cost."""
    cycles, time = _time_columns(fact)
    return (
        (Column("M", "right", drop=5), lambda site: exact_text(site.M)),
        (Column("K", "right", drop=5), lambda site: exact_text(site.K)),
        (Column("N", "right", drop=5), lambda site: exact_text(site.N)),
        (Column("tile matmuls", "right", drop=3), lambda site: exact_text(site.products)),
        (Column("utilization", "right", drop=2), lambda site: percent_text(site.utilisation, 1)),
        (Column("padding", "right", drop=7), lambda site: percent_text(site.padded_share, 1)),
        (Column("order"), lambda site: site.order),
        (Column("no reuse", "right", drop=6), lambda site: size(site.traffic_without_reuse)),
        (Column("traffic", "right"), lambda site: size(site.chosen.traffic)),
        (Column("x lower bound", "right", drop=1), lambda site: f"{site.ratio:,.2f}"),
        (Column("FLOPs/byte", "right", drop=8), lambda site: _format_intensity(site.chosen.intensity)),
        (
            Column("buffer", "right", drop=4),
            lambda site: size(site.buffer)._replace(role="bad" if site.fits is False else ""),
        ),
        (cycles, lambda site: _format_cycles(site.chosen.cycles)),
        (time, lambda site: _format_time(site.chosen.seconds)),
        (
            Column("limit" if fact.total.memory_bound is not None else "", drop=9),
            lambda site: Span(site.chosen.bound, _BOUND_ROLES[site.chosen.bound]),
        ),
    )


def _format_cycles(value: int | None, sign: str = "") -> Span:
    return Span("") if value is None else count(value, sign)


def _format_time(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{sign}{seconds_text(value)}"


def systolic(fact: PlanCost) -> tuple[Line, Table]:
    """Build a table of the cycles of a systolic array with a row for each dataflow."""
    machine, rows = fact.hardware, fact.systolic
    size = "" if machine.array is None else f"{machine.array[0]} x {machine.array[1]}"
    has_time = any(row.total is not None for row in rows)
    table = table_of(
        rows,
        (
            (Column("dataflow"), lambda row: row.dataflow),
            (Column("tile by tile", "right"), lambda row: _format_cycles(row.cycles, fact.sign)),
            (
                Column("with moving" if has_time else "", "right"),
                lambda row: _format_cycles(row.total, fact.sign),
            ),
            (
                Column("time" if has_time and machine.clock is not None else "", "right"),
                lambda row: _format_time(row.seconds, fact.sign),
            ),
            (
                Column("in one go", "right", drop=1),
                lambda row: _format_cycles(row.whole, fact.sign)._replace(role="quiet"),
            ),
            (
                Column("as SCALE-Sim 3", "right", drop=2),
                lambda row: _format_cycles(row.scalesim, fact.sign)._replace(role="quiet"),
            ),
        ),
    )
    return Line(Span(f"cycles of a systolic array, {size}", "strong")), table


_DRAINED = (
    "An array of R rows and C columns takes 2 R + C + T - 2 cycles for each load; T is the length of the axis"
    " that streams through it. This includes R cycles that fill or drain the array. SCALE-Sim 3 does not"
    " count the draining of outputs that stay in the array: its number is R + C + T - 2."
)


def detail(site: SiteCost) -> list[Block]:
    """Describe one site: the traffic of each loop order, and the formula of every figure."""
    return [
        Line(Span(site.title, "strong")),
        _build_order_table(site),
        Line(),
        *(block for formula in site.formulas for block in _build_formula(formula)),
    ]


def _build_order_table(site: SiteCost) -> Table:
    """Build a table of the loop orders of a site. A narrow table drops the parts of the traffic."""
    has_time, has_bound = site.chosen.cycles is not None, bool(site.chosen.bound)
    columns: list[tuple[Column, Callable[[OrderCost], Cell]]] = [
        (Column("order"), lambda order: Span(order.order, "strong" if order.order == site.order else "")),
        (Column("stationary", drop=5), lambda order: Span(order.dataflow, "quiet")),
        (Column("reads of A", "right", drop=1), lambda order: size(order.a_bytes)),
        (Column("of B", "right", drop=2), lambda order: size(order.b_bytes)),
        (Column("of C", "right", drop=3), lambda order: size(order.c_read_bytes)),
        (Column("writes of C", "right", drop=4), lambda order: size(order.c_write_bytes)),
        (Column("traffic", "right"), lambda order: size(order.traffic)._replace(role="strong")),
        (Column("FLOPs/byte", "right", drop=6), lambda order: _format_intensity(order.intensity)),
        (Column("cycles", "right"), lambda order: _format_cycles(order.cycles)),
        (Column("limit", drop=7), lambda order: Span(order.bound, _BOUND_ROLES[order.bound])),
    ]
    # without a machine, cycles (column 9) and the limit (column 10) are unknown
    return table_of(site.orders, columns[: 10 if has_bound else 9 if has_time else 8])


def _build_formula(formula: Formula) -> list[Block]:
    return [
        Line((Span(f"{field_terms(formula.name)}  ", "quiet"), Span(_format_value(formula), "strong")), 2),
        Paragraph(f"{field_terms(formula.rule)}  =  {formula.filled}", "formula", 6),
    ]


def explain_total(fact: PlanCost, example: SiteCost | None, names: Sequence[str]) -> list[Block]:
    """Build the formulas of a total over all sites, or the assumptions if it has no formula.

    Args:
        fact: Cost of the plan.
        example: One of the sites, with formulas, or None.
        names: Names of the figure's formulas.
    """
    formulas_by_name = {} if example is None else {formula.name: formula for formula in example.formulas}
    formulas = [formulas_by_name[name] for name in names if name in formulas_by_name]
    if example is None or not formulas:
        return _build_assumptions(fact)
    if len(fact.sites) == 1 and fact.sites[0].calls == 1:
        return [block for formula in formulas for block in _build_formula(formula)]
    # the figure is a total over all sites, so the numbers of one site would not match it
    rules = [
        Line(
            (Span(f"{field_terms(formula.name)} = ", "quiet"), Span(_total_formula(formula, fact), "formula"))
        )
        for formula in formulas
    ]
    example_note = (
        Span("f shows the formulas with the numbers of ", "quiet"),
        example.name,
        Span(", the largest matmul", "quiet"),
    )
    return [*rules, Line(example_note)]


_RATIOS = {
    "utilisation": "MACs of all matmuls / (number of all tile matmuls x TM TK TN)",
    "padded share": "padding of all matmuls / all their bytes with it",
    "intensity": "FLOPs of all matmuls / all their traffic",
    "distance from it": "traffic of all matmuls / all their lower bounds",
}
"""Formulas of the totals that are not sums over the sites."""


def _total_formula(formula: Formula, fact: PlanCost) -> str:
    """Convert the formula of one site into the formula of the total over all sites."""
    if formula.name.startswith("buffer"):
        return f"the most that a matmul needs, of {field_terms(formula.rule)}"
    matmuls_text = f"{len(fact.sites):,} matmul{'s' * (len(fact.sites) != 1)}"
    return _RATIOS.get(formula.name) or f"sum over {matmuls_text}, every call: {field_terms(formula.rule)}"


def _format_value(formula: Formula) -> str:
    """Format the value of a formula with its unit: '303,038,464 B', '1.6 %', '4.7 ms'."""
    value = formula.value
    if formula.unit == "share":
        return percent_text(value, 1)
    if formula.unit == "seconds":
        return seconds_text(value)
    if formula.unit in ("bytes", "cycles", ""):
        return exact_text(int(value)) + {"bytes": " B", "cycles": " cycles", "": ""}[formula.unit]
    return f"{value:,.3f}" + (" x" if formula.unit == "times" else "")
