"""List in the tile dialog: figures of a planned tiling, its sites, and the skipped matmuls.

Below the list, the dialog shows details of the row under the cursor. They are the formula of a figure, the
cost of a site, or the reason why a matmul is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts.cost import Hardware
from explorer.features.tiling import plan_words as words
from explorer.features.tiling.tile_words import (
    build_skipped_table,
    build_tiling_fields,
    explain_padding,
    matmuls,
    open_sizes,
)
from explorer.features.tiling.tile_words import headline as plan_headline
from explorer.report.blocks import Block, Field, Fields, Line, Paragraph, Span, Table
from explorer.report.present.accumulator import overflows, summarize_overflow
from explorer.report.present.figures import seconds
from explorer.tui.dialogs.dialogs import name_keys
from explorer.tui.text.drawing import draw, field_lines, row_line, title_line
from explorer.tui.text.lines import Line as ScreenLine
from explorer.tui.text.lines import cut_line

if TYPE_CHECKING:
    from explorer.facts import Plan, SitePlan, SkippedSite
    from explorer.facts.cost import PlanCost, SiteCost

_Blocks = Callable[[], Sequence[Block]]
_MAX_SITES = 500
"""Maximum number of sites, and of reasons, in the list."""
_HIDDEN_FIGURES = ("tiles", "macs", "products", "compute_cycles", "memory_cycles")
"""Keys of figures that the list hides, because they are in the headline or follow from other figures."""
_FIRST_FIGURES = ("utilisation", "cycles", "seconds", "untimed")
"""Keys of figures that come first, because a small list shows only a few."""


class CostRow(Struct, frozen=True):
    """A row: its line, the details about it, and the name of its site ('' if it has none)."""

    head: Callable[[int], ScreenLine]
    about: Callable[[int], list[ScreenLine]]
    site: str = ""


def headline(plan: Plan, width: int) -> ScreenLine:
    """State in one line how much is tiled."""
    return cut_line(draw([plan_headline(plan)], 999)[0][1:], width)


def cost_rows(
    plan: Plan, cost: PlanCost | None, example: SiteCost | None, missing: str = "choose a machine above"
) -> list[CostRow]:
    """Build the rows of a plan: figures, sites, and skipped matmuls.

    Args:
        plan: Plan to show.
        cost: Cost of the plan, or None to leave out the figures.
        example: Site with formulas that explain the figures, or None.
        missing: Advice for the case that no machine is known.
    """
    rows: list[CostRow] = []
    if plan.dims and plan.sites:
        sizes, graph = open_sizes(plan)
        padding = explain_padding(plan, f"to fix {plan.free[0]}, press Esc, then D" if plan.free else "")
        about: list[Block] = [
            Line((f"{sizes}: ", graph)),
            *([Paragraph(padding, "quiet")] if padding else []),
        ]
        # a list has one line for the remark; the details have the names
        brief = (
            graph if set(plan.dims) - set(plan.free) else Span("The tiled graph takes every size.", "quiet")
        )
        rows += _build_field_rows([(Field("Counted for", sizes, brief), lambda: about)])
    if plan.accumulator_bits and plan.sites:
        sums = {site.name: site.sums for site in plan.sites if site.sums}
        accumulator = Field("Accumulator", summarize_overflow(plan.accumulator_bits, sums))
        rows += _build_field_rows([(accumulator, lambda: overflows(plan.accumulator_bits, sums)[1:])])
    if cost is not None and plan.sites:
        cost = replace(cost, assumptions=tuple(map(name_keys, cost.assumptions)))
        rows += _build_figure_rows(cost, example, missing)
    if plan.sites:
        sites = plan.sites[:_MAX_SITES]
        table = matmuls(plan, [[site] for site in sites])
        details = [partial(_build_site, site, cost) for site in sites]
        names = [site.name for site in sites]
        rows += _build_table_rows(f"Matmuls: {len(plan.sites):,}", table, details, names)
    if plan.skipped:
        # the dialog has fields for what the reasons advise
        skipped = tuple(replace(skip, reason=name_keys(skip.reason)) for skip in plan.skipped)
        table, groups = build_skipped_table(replace(plan, skipped=skipped))
        # the details show the full reason
        table = replace(table, columns=[*table.columns[:-1], table.columns[-1]._replace(shrink=True)])
        reasons = [partial(_build_reasons, group) for group in groups[:_MAX_SITES]]
        rows += _build_table_rows(f"Left as they are: {len(plan.skipped):,}", table, reasons)
    return rows


def formula_page(site: SiteCost, width: int) -> list[ScreenLine]:
    """List every figure of a site with its formula, in symbols and in numbers."""
    return draw(words.detail(site), width - 1)


def _build_figure_rows(cost: PlanCost, example: SiteCost | None, missing: str) -> list[CostRow]:
    """Build the rows for the figures of the whole plan, its loop orders and systolic arrays."""

    def explain(*names: str) -> _Blocks:
        return partial(words.explain_total, cost, example, names)

    order = "" if example is None else example.order
    fields = {key: field for key, field in words.figure_fields(cost).items() if key not in _HIDDEN_FIGURES}
    if cost.total.seconds is None:
        why = missing if cost.hardware == Hardware() else words.explain_missing_time(cost)
        fields["untimed"] = Field("Time", seconds(None), why)
    keys = sorted(fields, key=lambda key: key not in _FIRST_FIGURES)
    formulas = {**words.FORMULAS, "traffic": (f"traffic {order}",)}
    rows = _build_field_rows([(fields[key], explain(*formulas.get(key, ()))) for key in keys])
    if len(cost.orders) > 1:
        head, table = words.build_order_table(cost)
        rows += _build_table_rows(head, table, [explain(f"traffic {row.order}") for row in cost.orders])
    if cost.systolic:
        parts = ("", ", with moving", ", in one go", ", as SCALE-Sim 3")
        details = [explain(*(f"{row.dataflow} array{part}" for part in parts)) for row in cost.systolic]
        rows += _build_table_rows(*words.systolic(cost), details)
    return rows


def _build_site(site: SitePlan, cost: PlanCost | None) -> list[Block]:
    """Describe the cost and the tiling of a site."""
    figures = [] if cost is None else words.site_figures(cost, site.name)
    return [Line(Span(site.title, "strong")), Fields([*figures, *build_tiling_fields(site)])]


def _build_reasons(group: Sequence[SkippedSite]) -> list[Block]:
    names = ", ".join(skip.name for skip in group[:6])
    more_text = f" and {len(group) - 6:,} more" if len(group) > 6 else ""
    return [Paragraph(group[0].reason, "warning"), Paragraph(names + more_text, "quiet")]


def _build_field_rows(fields: Sequence[tuple[Field, _Blocks]]) -> list[CostRow]:
    """Build a row for each figure."""
    block = Fields([field for field, _ in fields])

    def head(index: int, width: int) -> ScreenLine:
        return cut_line(field_lines(block, width)[1][index], width)

    return [
        CostRow(partial(head, index), partial(_draw_blocks, about)) for index, (_, about) in enumerate(fields)
    ]


def _build_table_rows(
    title: str | Line, table: Table, about: Sequence[_Blocks], sites: Sequence[str] = ()
) -> list[CostRow]:
    """Build rows for a table: its title, its column titles, and its rows."""
    head = title if isinstance(title, Line) else Line(Span(title, "strong"))

    return [
        CostRow(lambda width: draw([head], width)[0], lambda width: []),
        CostRow(lambda width: title_line(table, width), lambda width: []),
        *(
            CostRow(
                partial(row_line, table, index), partial(_draw_blocks, blocks), sites[index] if sites else ""
            )
            for index, blocks in enumerate(about)
        ),
    ]


def _draw_blocks(blocks: _Blocks, width: int) -> list[ScreenLine]:
    return draw(blocks(), width, beside=True)
