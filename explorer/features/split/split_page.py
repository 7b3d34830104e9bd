"""The figures of a split beside its tree: its title, its stages, its pipeline and its cuts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text, many_text, rate_text
from explorer.features.split.split_words import (
    count_table,
    cut_table,
    gantt,
    pipeline_figures,
    stage_table,
    training_table,
)
from explorer.report.blocks import Heading
from explorer.report.blocks import Line as Row
from explorer.report.present.figures import share_text
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line, cut, safe

if TYPE_CHECKING:
    from explorer.facts.split.draft import SplitDraft
    from explorer.facts.split.split import Split
    from explorer.report.blocks import Block

_GANTT, _MOST = 9, 128
"""Cells around a schedule, and of it at most."""
_WORDS = {"macs": "MACs", "training": "training memory"}


def title_lines(
    source: str, draft: SplitDraft | None, width: int, *, moved: bool, exact: bool
) -> tuple[Line, ...]:
    """Two lines of title: model and measure, then a summary; `moved`: the cuts are not the best ones."""
    head = (" Split  ", "strong"), (safe(os.path.basename(source)), "text")
    if draft is None:
        return head, ()
    fact = draft.split
    count = f"   {many_text(len(fact.stages), 'stage')} by {_WORDS.get(fact.by, fact.by)}", "dim"
    more = " · cuts moved" if moved else "", "warn"
    return cut((*head, count, more), width), cut(_summary(fact, exact), width)


def _summary(fact: Split, exact: bool) -> Line:
    """Balance, traffic, bubble and throughput in one line."""
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
        spans.append(("  as if time went with MACs", "dim"))
    return tuple(spans)


def figure_lines(fact: Split, width: int, *, roomy: bool, exact: bool) -> Sequence[Line]:
    """Stages, pipeline, cuts and other numbers of stages; `roomy` puts blank lines between them."""
    forecast, timed = fact.forecast or fact.by_macs, fact.forecast is not None
    gap = [Row()] * roomy
    blocks: list[Block] = [stage_table(fact, named=False)]
    if forecast is not None:
        cells, many = max(16, min(width - _GANTT, _MOST)), len(fact.stages)
        blocks += [*gap, *gantt(forecast.works, many, cells, timed=timed), *gap]
        blocks += [*pipeline_figures(fact), *gap, *gantt(forecast.steps, many, cells, timed=timed)]
    blocks += [*gap, Heading("Cuts"), cut_table(fact)]
    if any(stage.training is not None for stage in fact.stages):
        blocks += [*gap, Heading("Training step"), training_table(fact)]
    if fact.counts:
        blocks += [*gap, Heading("Other numbers of stages"), count_table(fact)]
    return draw([*blocks, *gap, *(Row(note) for note in fact.notes)], width - 1, exact)
