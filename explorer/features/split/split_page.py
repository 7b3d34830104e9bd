"""Text of the Split screen besides the layer tree: title, stages, pipeline schedule and cuts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text, many_text, rate_text
from explorer.features.split.split_words import (
    build_count_table,
    build_cut_table,
    build_stage_table,
    build_training_table,
    draw_gantt,
    pipeline_figures,
)
from explorer.report.blocks import Heading
from explorer.report.blocks import Line as Row
from explorer.report.present.figures import share_text
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line, cut_line, escape_name

if TYPE_CHECKING:
    from explorer.facts.split.draft import SplitDraft
    from explorer.facts.split.split import Split
    from explorer.report.blocks import Block

_GANTT_MARGIN, _MAX_GANTT_WIDTH = 9, 128
"""Cells for the labels left of a schedule, and the maximum width of a schedule in cells."""
_COST_NAMES = {"macs": "MACs", "training": "training memory"}


def draw_title(
    source: str, draft: SplitDraft | None, width: int, *, moved: bool, exact: bool
) -> tuple[Line, ...]:
    """Build the two title lines: model and balanced cost, then a summary.

    `moved` is whether the user moved cuts away from the best places. `exact` writes numbers out.
    """
    head = (" Split  ", "strong"), (escape_name(os.path.basename(source)), "text")
    if draft is None:
        return head, ()
    fact = draft.split
    count = f"   {many_text(len(fact.stages), 'stage')} by {_COST_NAMES.get(fact.by, fact.by)}", "dim"
    moved_note = " · cuts moved" if moved else "", "warn"
    return cut_line((*head, count, moved_note), width), cut_line(_summarize(fact, width, exact), width)


def _summarize(fact: Split, width: int, exact: bool) -> Line:
    """Summarize balance, traffic, pipeline bubble and throughput in one line."""
    crossing = sum(crossed.bytes for crossed in fact.cuts)
    spans: list[tuple[str, str]] = [
        (" balance ", "dim"),
        (share_text(fact.balance, 1.0), "number"),
        ("  cuts ", "dim"),
        (f"{crossing:,} B" if exact else bytes_text(crossing), "number"),
    ]
    forecast = fact.forecast or fact.by_macs
    if forecast is not None:
        spans += [("  bubble ", "dim"), (share_text(forecast.bubble, 1.0), "number")]
    if fact.forecast is not None:
        spans += [("  throughput ", "dim"), (rate_text(fact.forecast.throughput, "runs/s"), "number")]
    elif forecast is not None:
        spans.append((f"  {'times in proportion to' if width >= 80 else 'by'} MACs", "dim"))
    return tuple(spans)


def draw_figures(fact: Split, width: int, *, roomy: bool, exact: bool) -> Sequence[Line]:
    """Build the tables of stages, pipeline, cuts and alternatives; `roomy` adds blank lines between them."""
    forecast, timed = fact.forecast or fact.by_macs, fact.forecast is not None
    gap = [Row()] * roomy
    blocks: list[Block] = [build_stage_table(fact, with_layers=False)]
    if forecast is not None:
        cells, stage_count = max(16, min(width - _GANTT_MARGIN, _MAX_GANTT_WIDTH)), len(fact.stages)
        blocks += [*gap, *draw_gantt(forecast.works, stage_count, cells, timed=timed), *gap]
        blocks += [
            *pipeline_figures(fact),
            *gap,
            *draw_gantt(forecast.steps, stage_count, cells, timed=timed),
        ]
    blocks += [*gap, Heading("Cuts"), build_cut_table(fact)]
    if any(stage.training is not None for stage in fact.stages):
        blocks += [*gap, Heading("Training step"), build_training_table(fact)]
    if fact.counts:
        blocks += [*gap, Heading("Other numbers of stages"), build_count_table(fact)]
    return draw([*blocks, *gap, *(Row(note) for note in fact.notes)], width - 1, exact)
