"""Stages of a model, what crosses between them, and what the pipeline does: `explorer split`."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import bytes_text, count_text, many_text, rate_text, seconds_text
from explorer.facts import Info
from explorer.facts.split.schedule import PipelineForecast, ScheduledWork
from explorer.facts.split.split import Split, Stage, StageCount, StageCut
from explorer.report.blocks import Block, Column, Field, Fields, Heading, Line, Paragraph, Rows, Span, Table
from explorer.report.present.compare.verify import evidence
from explorer.report.present.figures import count, plain, seconds, share, share_text, size
from explorer.report.present.look.info import title

_WIDE = 64
"""Cells of a schedule."""


def split(about: Info, fact: Split, *, proved: bool = True) -> list[Block]:
    """The answer of `explorer split`.

    Args:
        about: The model.
        fact: Its stages.
        proved: Whether a proof was asked for.
    """
    blocks = [*title(about.model), Line(), *split_blocks(fact)]
    if fact.verification is not None:
        blocks += [Line(), *proof_blocks(fact)]
    if fact.output:
        took = f"   {many_text(len(fact.stages), 'stage')} and stages.json, {seconds_text(fact.seconds)}"
        if not proved:
            blocks += [Line(), Paragraph("not compared with the whole", "warning")]
        blocks += [
            Line(),
            Line((Span("written  ", "quiet"), Span(fact.output, "strong"), Span(took, "quiet"))),
        ]
    elif fact.verification is not None:
        blocks += [Line(), Paragraph("nothing was written; --no-verify writes the stages as they are", "bad")]
    return blocks


def split_blocks(fact: Split) -> list[Block]:
    """Stages, cuts, the pipeline, other numbers of stages."""
    blocks: list[Block] = [figures(fact), Line(), stage_table(fact), Line(), cut_table(fact)]
    if any(one.training is not None for one in fact.stages):
        blocks += [Line(), _training_table(fact)]
    if fact.forecast is not None:
        blocks += [Line(), *forecast_blocks(fact.forecast, len(fact.stages))]
    if fact.counts:
        blocks += [Line(), count_table(fact)]
    return [*blocks, *([Line()] if fact.notes else []), *(Paragraph(note) for note in fact.notes)]


def proof_blocks(fact: Split) -> list[Block]:
    """How the stages were shown to be the whole."""
    assert fact.verification is not None
    blocks: list[Block] = [*evidence(fact.verification), Line()]
    if fact.exact is not None:
        said = (
            ("run one after the other: bit for bit the whole's outputs", "passed")
            if fact.exact
            else ("run one after the other: OTHER OUTPUTS than the whole's", "bad")
        )
        blocks.append(Paragraph(f"{said[0]} (optimisation off, one thread)", said[1]))  # type: ignore[arg-type]
    worst = max(fact.outputs, key=lambda one: one.max_abs or 0.0, default=None)
    if worst is not None:
        text = f"as the runtime optimises them: {worst.reason}"
        blocks.append(Paragraph(text, "" if all(one.passed for one in fact.outputs) else "bad"))
    return blocks


def figures(fact: Split) -> Fields:
    """How even the stages are, and how much crosses."""
    crossing = sum(one.bytes for one in fact.cuts)
    words = {"memory": "weights and activations", "training": "memory of a training step"}
    largest = max(one.cost for one in fact.stages)
    rows = [
        Field("Stages", plain(len(fact.stages)), f"balanced by {words.get(fact.by, fact.by)}", "stages"),
        Field("Largest", cost(largest, fact.unit), "", "largest"),
        Field("Balance", share(fact.balance, 1.0), "mean of the stages over the largest", "balance"),
        Field("Over the cuts", size(crossing), "a run", "cuts"),
    ]
    if fact.shared:
        more = f" and {len(fact.shared) - 2:,} more" if len(fact.shared) > 2 else ""
        rows.append(
            Field("Shared", plain(len(fact.shared)), f"in several stages: {', '.join(fact.shared[:2])}{more}")
        )
    return Fields(rows)


def cost(value: float, unit: str) -> Span:
    """What was balanced, in its unit."""
    if unit == "s":
        return seconds(value)
    text = bytes_text(int(value)) if unit == "bytes" else f"{count_text(int(value))} {unit}"
    return Span(text, "figure", f"{int(value):,} {unit}", value)


def stage_table(fact: Split) -> Table:
    """A row a stage."""
    timed = any(one.seconds is not None for one in fact.stages)
    machines = fact.machines if len(fact.machines) > 1 else ()
    largest = max(one.cost for one in fact.stages) or 1.0
    columns = (
        Column("stage", "right"),
        Column("from", shrink=True),
        Column("to", shrink=True, drop=1),
        Column("layers", "right", drop=4),
        Column("params", "right", drop=3),
        Column("MACs", "right"),
        Column("weights", "right", drop=2),
        Column("activations", "right", drop=5),
        Column("time" if timed else "", "right"),
        Column("of largest", "right"),
        Column("machine" if machines else "", shrink=True, drop=6),
    )

    def row(numbered: tuple[int, Stage]) -> tuple[str | Span, ...]:
        at, one = numbered
        return (
            plain(at + 1),
            one.first,
            one.last,
            plain(one.layers),
            count(one.params),
            count(one.macs),
            size(one.weight_bytes),
            size(one.activation_bytes),
            seconds(one.seconds) if timed else "",
            Span(share_text(one.cost, largest), value=one.cost),
            Span(machines[at], "quiet") if machines else "",
        )

    return Table(columns, Rows(row, tuple(enumerate(fact.stages))), what="stages")


def cut_table(fact: Split) -> Table:
    """A row a cut."""
    timed = any(one.seconds is not None for one in fact.cuts)
    columns = (
        Column("cut", "right"),
        Column("before", shrink=True),
        Column("bytes", "right"),
        Column("time" if timed else "", "right"),
        Column("tensors", shrink=True, drop=1),
    )

    def row(numbered: tuple[int, StageCut]) -> tuple[str | Span, ...]:
        at, one = numbered
        names = ", ".join(tensor.name for tensor in one.tensors)
        return (
            plain(at + 1),
            one.before,
            size(one.bytes),
            seconds(one.seconds) if timed else "",
            Span(f"{len(one.tensors):,}: {names}" if len(one.tensors) > 1 else names, "quiet"),
        )

    return Table(columns, Rows(row, tuple(enumerate(fact.cuts))), what="cuts")


def _training_table(fact: Split) -> Table:
    columns = (
        Column("stage", "right"),
        Column("parameters", "right"),
        Column("gradients", "right", drop=2),
        Column("optimizer", "right", drop=3),
        Column("kept a micro-batch", "right", drop=1),
        Column("in flight", "right"),
        Column("training", "right"),
    )

    def row(numbered: tuple[int, Stage]) -> tuple[str | Span, ...]:
        at, one = numbered[0], numbered[1].training
        assert one is not None
        kept = (size(one.parameters), size(one.gradients), size(one.optimizer), size(one.activations))
        return (plain(at + 1), *kept, plain(one.in_flight), size(one.total))

    return Table(columns, Rows(row, tuple(enumerate(fact.stages))), what="stages")


def forecast_blocks(fact: PipelineForecast, stages: int) -> list[Block]:
    """What the pipeline does, and who works when."""
    many = f"{fact.micro_batches:,} micro-batches"
    rows = [
        Field("Latency", seconds(fact.latency), "of one micro-batch alone", "latency"),
        Field(
            "Period", seconds(fact.period), "between two results, the longest of stages and links", "period"
        ),
        Field("Throughput", Span(rate_text(fact.throughput, "runs/s"), "figure"), f"over {many}", "rate"),
        Field("Bubble", share(fact.bubble, 1.0), "of the stages' time is waiting", "bubble"),
        Field(
            "Training step",
            seconds(fact.training_seconds),
            f"{fact.schedule}, backward twice forward; bubble {share_text(fact.training_bubble, 1.0)}",
            "training",
        ),
    ]
    return [
        Heading("Pipeline", "predicted"),
        Fields(rows),
        Line(),
        *gantt(fact.works, stages),
        Line(),
        *gantt(fact.steps, stages),
    ]


def gantt(works: Sequence[ScheduledWork], stages: int) -> list[Block]:
    """Who works when: a line a stage; the last digit of a micro-batch, backward as a letter."""
    if not works:
        return []
    until = max(one.end for one in works)
    of_stage: list[list[ScheduledWork]] = [[] for _ in range(stages)]
    for one in works:
        of_stage[one.stage].append(one)
    lines: list[Block] = []
    for at, mine in enumerate(of_stage):
        cells = ["·"] * _WIDE
        for one in mine:
            first, last = (round(edge / until * _WIDE) if until else 0 for edge in (one.start, one.end))
            sign = "0123456789" if one.work == "forward" else "abcdefghij"
            cells[first:last] = sign[one.micro_batch % 10] * (last - first)
        lines.append(Line((Span(f"{at + 1:>5}  ", "quiet"), Span("".join(cells), "kind"))))
    backward = any(one.work == "backward" for one in works)
    said = (
        f"{'digits forward, letters backward; ' if backward else ''}{seconds_text(until)} from left to right"
    )
    return [*lines, Line(Span(f"       {said}", "quiet"))]


def count_table(fact: Split) -> Table:
    """Other numbers of stages; the one with the shortest period, or the best balance, is marked."""
    timed = any(one.period is not None for one in fact.counts)
    best = min(fact.counts, key=_rank)
    columns = (
        Column("stages", "right"),
        Column("largest", "right"),
        Column("balance", "right"),
        Column("over the cuts", "right"),
        Column("period" if timed else "", "right"),
        Column(""),
    )

    def row(one: StageCount) -> tuple[str | Span, ...]:
        here = "asked for" if one.stages == len(fact.stages) else ""
        marks = ", ".join(filter(None, (here, "least cost" if one is best else "")))
        return (
            plain(one.stages),
            cost(one.cost, fact.unit),
            share(one.balance, 1.0),
            size(one.cut_bytes),
            seconds(one.period) if timed else "",
            Span(marks, "good" if one is best else "quiet"),
        )

    return Table(columns, Rows(row, fact.counts), what="numbers of stages")


def _rank(one: StageCount) -> tuple[float, float, int]:
    """Cost of all stages together: each is held for as long as the largest works."""
    return (one.period or one.cost) * one.stages, one.cut_bytes, one.stages
