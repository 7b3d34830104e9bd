"""Cost of a planned tiling as rows of a list: figures, sites, and what stays untiled.

Each row has lines of its own about it, which stand below the list while the cursor is on it: of a figure its
formula, in letters and with the numbers of a site, of a site what it costs, of what is left the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts.cost import Hardware
from explorer.features.tiling import plan_words as words
from explorer.features.tiling.tile_words import headline as plan_headline
from explorer.features.tiling.tile_words import how_tiled, left_out, matmuls, open_sizes
from explorer.report.blocks import Block, Field, Fields, Line, Paragraph, Span, Table
from explorer.report.present.accumulator import in_a_line, overflows
from explorer.report.present.figures import seconds
from explorer.tui.text.drawing import draw, field_lines, row_line, title_line
from explorer.tui.text.lines import Line as ScreenLine
from explorer.tui.text.lines import cut

if TYPE_CHECKING:
    from explorer.facts import Plan, SitePlan, SkippedSite
    from explorer.facts.cost import PlanCost, SiteCost

_Blocks = Callable[[], Sequence[Block]]
_MOST = 500
"""Most sites, and most reasons, in the list."""
_ABOVE = ("tiles", "macs", "products", "compute_cycles", "memory_cycles")
"""Figures that the list leaves out: they stand above it, or follow from others."""
_FIRST = ("utilisation", "cycles", "seconds", "untimed")
"""Figures that come first, since a low list has room for few."""


class CostRow(Struct, frozen=True):
    """A row: its line, the text about it, and the name of its site, '' for none."""

    head: Callable[[int], ScreenLine]
    about: Callable[[int], list[ScreenLine]]
    site: str = ""


def headline(plan: Plan, width: int) -> ScreenLine:
    """How much is tiled, in one line."""
    return cut(draw([plan_headline(plan)], 999)[0][1:], width)


def cost_rows(
    plan: Plan, cost: PlanCost | None, example: SiteCost | None, missing: str = "choose a machine above"
) -> list[CostRow]:
    """The rows of a plan: figures, sites, and skipped layers.

    Args:
        plan: What would be done.
        cost: What that costs; None leaves the figures out.
        example: One of its sites with formulas, to show how figures come about.
        missing: What to do where no machine is known.
    """
    rows: list[CostRow] = []
    if plan.dims and plan.sites:
        sizes, graph = open_sizes(plan)
        rows += _fields([(Field("Counted for", sizes, graph), lambda: [Line((f"{sizes}: ", graph))])])
    if plan.accumulator_bits and plan.sites:
        sums = {site.name: site.sums for site in plan.sites if site.sums}
        accumulator = Field("Accumulator", in_a_line(plan.accumulator_bits, sums))
        rows += _fields([(accumulator, lambda: overflows(plan.accumulator_bits, sums)[1:])])
    if cost is not None and plan.sites:
        rows += _figures(cost, example, missing)
    if plan.sites:
        sites = plan.sites[:_MOST]
        table = matmuls(plan, [[site] for site in sites])
        about = [partial(_about, site, cost) for site in sites]
        names = [site.name for site in sites]
        rows += _table(f"Matmuls: {len(plan.sites):,}", table, about, names)
    if plan.skipped:
        table, groups = left_out(plan)
        # the reason stands in full below the list
        table = replace(table, columns=[*table.columns[:-1], table.columns[-1]._replace(shrink=True)])
        reasons = [partial(_why, group) for group in groups[:_MOST]]
        rows += _table(f"Left as they are: {len(plan.skipped):,}", table, reasons)
    return rows


def formula_page(site: SiteCost, width: int) -> list[ScreenLine]:
    """Every figure of a site with its formula, with symbols and with numbers."""
    return draw(words.detail(site), width - 1)


def _figures(cost: PlanCost, example: SiteCost | None, missing: str) -> list[CostRow]:
    """The figures of the whole plan, its loop orders and arrays."""

    def origin(*names: str) -> _Blocks:
        return partial(words.origin, cost, example, names)

    order = "" if example is None else example.order
    fields = {key: field for key, field in words.figure_fields(cost).items() if key not in _ABOVE}
    if cost.total.seconds is None:
        why = missing if cost.hardware == Hardware() else words.untimed(cost)
        fields["untimed"] = Field("Time", seconds(None), why)
    keys = sorted(fields, key=lambda key: key not in _FIRST)
    formulas = {**words.FORMULAS, "traffic": (f"traffic {order}",)}
    rows = _fields([(fields[key], origin(*formulas.get(key, ()))) for key in keys])
    head, table = words.by_order(cost)
    rows += _table(head, table, [origin(f"traffic {row.order}") for row in cost.orders])
    if cost.systolic:
        parts = ("", ", with moving", ", in one go", ", as SCALE-Sim 3")
        about = [origin(*(f"{row.dataflow} array{part}" for part in parts)) for row in cost.systolic]
        rows += _table(*words.systolic(cost), about)
    return rows


def _about(site: SitePlan, cost: PlanCost | None) -> list[Block]:
    """What a matmul costs, and how it is cut."""
    figures = [] if cost is None else words.site_figures(cost, site.name)
    return [Line(Span(site.name, "strong")), Fields([*figures, *how_tiled(site)])]


def _why(group: Sequence[SkippedSite]) -> list[Block]:
    names = ", ".join(skip.name for skip in group[:6])
    more = f" and {len(group) - 6:,} more" if len(group) > 6 else ""
    return [Paragraph(group[0].reason, "warning"), Paragraph(names + more, "quiet")]


def _fields(fields: Sequence[tuple[Field, _Blocks]]) -> list[CostRow]:
    """A row a figure."""
    block = Fields([field for field, _ in fields])

    def head(at: int, width: int) -> ScreenLine:
        return cut(field_lines(block, width)[1][at], width)

    return [CostRow(partial(head, at), partial(_drawn, about)) for at, (_, about) in enumerate(fields)]


def _table(
    title: str | Line, table: Table, about: Sequence[_Blocks], sites: Sequence[str] = ()
) -> list[CostRow]:
    """The title of a table, its columns' titles, and its rows."""
    head = title if isinstance(title, Line) else Line(Span(title, "strong"))

    return [
        CostRow(lambda width: draw([head], width)[0], lambda width: []),
        CostRow(lambda width: title_line(table, width), lambda width: []),
        *(
            CostRow(partial(row_line, table, at), partial(_drawn, blocks), sites[at] if sites else "")
            for at, blocks in enumerate(about)
        ),
    ]


def _drawn(blocks: _Blocks, width: int) -> list[ScreenLine]:
    return draw(blocks(), width, beside=True)
