"""Pipeline in text, as it ran, beside its forecast: `explorer pipeline`."""

from __future__ import annotations

from explorer.base.units import many_text, rate_text, seconds_text
from explorer.facts.split.run import PipelineRun, StageRun
from explorer.features.split.split_words import gantt
from explorer.report.blocks import Block, Column, Field, Fields, Line, Paragraph, Rows, Span, Table
from explorer.report.present.figures import plain, seconds, share_text, written

_DRAWN = 16
"""Micro-batches of which a picture shows who works when."""


def pipeline(folder: str, fact: PipelineRun) -> list[Block]:
    """The answer of `explorer pipeline`."""
    many = f"{fact.micro_batches:,} micro-batches" if fact.micro_batches > 1 else "1 micro-batch"
    far = any(one.worker for one in fact.stages)
    kind = "on workers" if far else "a process each"
    head = f"   {len(fact.stages):,} stages, {kind}, {many_text(fact.threads, 'thread')} in each"
    rows = [
        Field(
            "Throughput",
            Span(rate_text(fact.throughput, "runs/s"), "figure"),
            f"{many} in {seconds_text(fact.seconds)}",
        ),
        Field(
            "  predicted",
            Span(rate_text(fact.predicted.throughput, "runs/s"), "figure"),
            f"{fact.error * 100:+.0f} % of it, from the times of the stages alone",
        ),
        Field("Latency", seconds(fact.latency), "of one micro-batch alone, links included"),
        *(Field("Input", "", text) for text in fact.inputs),
    ]
    columns = (
        Column("stage", "right"),
        Column("file", shrink=True),
        Column("alone", "right"),
        Column("to the next", "right"),
        Column("busy", "right"),
        Column("worker" if far else "", shrink=True, drop=1),
    )

    def row(numbered: tuple[int, StageRun]) -> tuple[str | Span, ...]:
        at, one = numbered
        last = at == len(fact.stages) - 1
        return (
            plain(at + 1),
            one.file,
            seconds(one.seconds),
            "" if last else seconds(one.link_seconds),
            Span(share_text(one.busy, 1.0), value=one.busy),
            Span(one.worker, "quiet"),
        )

    return [
        Line((Span(folder, "strong"), Span(head, "quiet"))),
        Line(),
        Fields(rows),
        Line(),
        Table(columns, Rows(row, tuple(enumerate(fact.stages))), what="stages"),
        Line(),
        *gantt([one for one in fact.works if one.micro_batch < _DRAWN], len(fact.stages)),
        *([Line(Span(f"the first {_DRAWN} of {many}", "quiet"), 7)] if fact.micro_batches > _DRAWN else []),
        *([Line()] if fact.notes else []),
        *(Paragraph(note, "warning") for note in fact.notes),
        *([Line(), *written(fact.output)] if fact.output else []),
    ]
