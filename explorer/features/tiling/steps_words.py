"""Text output of `explorer plan --steps` and of the tile view: the buffer contents at each step."""

from __future__ import annotations

from explorer.base.units import dims_text, exact_text
from explorer.facts import Info
from explorer.facts.cost import TileStep, TileSteps
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Paragraph, Rows, Span, Table
from explorer.report.present.figures import plain, share_text, size
from explorer.report.present.look.info import title


def steps(info: Info, fact: TileSteps) -> list[Block]:
    """Build the output of `explorer plan --steps`."""
    return [*title(info.model), Line(), *steps_blocks(fact)]


def steps_blocks(fact: TileSteps) -> list[Block]:
    """Build a table of the steps."""
    order = Span(f"   order {fact.order}, {fact.dataflow}: {exact_text(fact.count)} tile matmuls", "quiet")
    is_batched = any(step.batch for step in fact.steps)
    columns = (
        Column("step", "right"),
        *([Column("of batch", "right")] if is_batched else []),
        *(Column(axis, "right") for axis in "mkn"),
        *(Column(f"loads {name}", "right") for name in "ABC"),
        Column("stores C", "right"),
        Column("in the buffer", "right", drop=1),
        Column("moved so far", "right"),
        Column("of all", "right", drop=2),
    )

    def row(step: TileStep) -> tuple[Cell, ...]:
        return (
            exact_text(step.step),
            *([exact_text(step.batch)] if is_batched else []),
            *map(exact_text, (step.m, step.k, step.n)),
            *map(_format_moved, (*step.loads, step.stores)),
            size(step.a + step.b + step.c),
            size(step.traffic),
            share_text(step.traffic, fact.traffic),
        )

    blocks: list[Block] = [
        Line((Span(fact.site, "strong"), order)),
        Line(),
        Table(columns, Rows(row, fact.steps)),
        Line(),
        Line((Span("all steps move ", "quiet"), size(fact.traffic), Span(", as the plan counts", "quiet"))),
    ]
    if fact.dims:
        blocks += [Line(), Paragraph(f"For {dims_text(fact.dims)}.", "quiet")]
    return blocks


def _format_moved(amount: int) -> Cell:
    """Format a number of moved bytes; '-' for zero."""
    return size(amount) if amount else Span("-", "quiet")


def buffer_fields(step: TileStep) -> Fields:
    """Build the fields for the tiles in the buffer at a step, and whether each one was just loaded."""
    rows = [
        Field(name, size(size_in_buffer), Span("comes in", "warning") if is_loaded else Span("stays", "good"))
        for name, size_in_buffer, is_loaded in zip("AB", (step.a, step.b), step.loads, strict=False)
    ]
    sums_text = "comes back" if step.loads[2] else "begins at 0" if step.k == 0 else "stays"
    output_text = ", goes out" if step.stores else ""
    rows.append(
        Field(
            "C",
            size(step.c),
            Span(sums_text + output_text, "warning" if step.loads[2] or output_text else "good"),
        )
    )
    return Fields([*rows, Field("buffer", size(step.a + step.b + step.c))])


def traffic_fields(step: TileStep, total_traffic: int) -> Fields:
    """Build the fields for the bytes moved up to a step, and their share of the total."""
    return Fields(
        [
            Field("step", plain(step.step + 1)),
            Field("A read", size(step.a_bytes)),
            Field("B read", size(step.b_bytes)),
            Field("sums read", size(step.c_read_bytes)),
            Field("sums written", size(step.c_write_bytes)),
            Field("traffic", size(step.traffic), share_text(step.traffic, total_traffic)),
        ]
    )
