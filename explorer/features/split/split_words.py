"""Text output of `explorer split`, `pipeline` and `extract`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from operator import itemgetter

from explorer.base.units import bytes_text, count_text, many_text, rate_text, seconds_text
from explorer.facts import Info, OutputEvidence
from explorer.facts.split.part import Extraction
from explorer.facts.split.run import PipelineRun, StageRun
from explorer.facts.split.schedule import PipelineForecast, ScheduledWork
from explorer.facts.split.split import Split, StageCount, StepProof
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Role,
    Rows,
    Span,
    Table,
    table_of,
)
from explorer.report.present.compare.verify import evidence
from explorer.report.present.figures import (
    bar_text,
    build_port_table,
    count,
    plain,
    report_written,
    seconds,
    share,
    share_text,
    size,
)
from explorer.report.present.look.info import title
from explorer.report.terms import clauses

_GANTT_WIDTH = 64
"""Width of a schedule, in cells."""


def split(info: Info, fact: Split, *, proved: bool = True, plot: str = "") -> list[Block]:
    """Build the output of `explorer split`.

    Args:
        info: Information about the model.
        fact: Stages of the model.
        proved: Whether a proof was requested.
        plot: Path of the picture that was drawn, or '' if none was.
    """
    blocks = [*title(info.model), Line(), *split_blocks(fact)]
    if fact.verification is not None:
        blocks += [Line(), *proof_blocks(fact)]
    if fact.output:
        if not proved:
            blocks += [Line(), Paragraph("not compared with the full model", "warning")]
        files = f"{many_text(len(fact.stages), 'stage')} and stages.json"
        blocks += [Line(), *report_written(fact.output, files, seconds_text(fact.seconds))]
    elif fact.verification is not None:
        blocks += [Line(), Paragraph("no file written; --no-verify writes the stages anyway", "bad")]
    return [*blocks, *([Line(), *report_written(plot)] if plot else [])]


def split_blocks(fact: Split) -> list[Block]:
    """Build the tables of stages and cuts, the pipeline figures, and the table of alternatives."""
    blocks: list[Block] = [
        build_split_fields(fact),
        Line(),
        build_stage_table(fact),
        Line(),
        build_cut_table(fact),
    ]
    if any(stage.training is not None for stage in fact.stages):
        blocks += [Line(), build_training_table(fact)]
    if pipeline := pipeline_blocks(fact):
        blocks += [Line(), *pipeline]
    if fact.counts:
        blocks += [Line(), build_count_table(fact)]
    return [*blocks, *([Line()] if fact.notes else []), *(Paragraph(note) for note in fact.notes)]


def proof_blocks(fact: Split) -> list[Block]:
    """Report whether the stages compute the same as the whole model, and how that was tested."""
    assert fact.verification is not None
    blocks: list[Block] = [*evidence(fact.verification), Line()]
    module = fact.stages[0].file.endswith(".pt2")
    if fact.exact is not None:
        rounding_clause = describe_cut_rounding(fact.rounded)
        role: Role = "bad"
        text = "OUTPUTS DIFFER from the model's"
        if fact.exact:
            role, text = "passed", f"the model's outputs, bit for bit{rounding_clause}"
        elif module and all(output.passed for output in fact.outputs):
            role, text = "", "the model's outputs, but not bit for bit"
        conditions = "one thread" if module else "optimization off, one thread"
        blocks.append(Paragraph(f"run one after the other: {text} ({conditions})", role))
    if module:
        return [*blocks, *(_report_step(step) for step in fact.steps)]
    return [*blocks, *report_optimized_errors(fact.outputs, "them")]


def describe_cut_rounding(rounded: str) -> str:
    """Return a clause about rounding to the type `rounded` at the cuts, or '' if `rounded` is ''."""
    if not rounded:
        return ""
    return f", with its values at the cuts rounded to {rounded}: inside a graph the runtime keeps float32"


def report_optimized_errors(outputs: Sequence[OutputEvidence], subject: str) -> list[Block]:
    """Report output errors with the runtime's optimizations on, and name outputs that are not compared."""
    blocks: list[Block] = []
    skipped = [output.name for output in outputs if output.drawn]
    if skipped:
        blocks.append(
            Paragraph(f"not compared, because it depends on random numbers: {', '.join(skipped)}", "warning")
        )
    worst = max((o for o in outputs if not o.drawn), key=lambda output: output.max_abs or 0.0, default=None)
    if worst is not None:
        text = f"as the runtime optimizes {subject}: {worst.reason}"
        blocks.append(Paragraph(text, "" if all(output.passed for output in outputs) else "bad"))
    return blocks


def _report_step(step: StepProof) -> Paragraph:
    """Report a training step in processes, and the tensor that differs most from the whole model's."""
    tensors = (*step.outputs, *step.gradients)
    worst = max(tensors, key=lambda tensor: (not tensor.passed, tensor.relative_rms or 0.0))
    error = clauses(worst.reason)[0]
    result = f"of {many_text(len(step.gradients), 'gradient')}, the furthest: {worst.name}, {error}"
    if all(tensor.equal for tensor in tensors):
        result = f"outputs and {many_text(len(step.gradients), 'gradient')} equal the model's bit for bit"
    head = f"a training step by {step.schedule}, {step.micro_batches:,} micro-batches, a process a stage: "
    return Paragraph(f"{head}{result}", "passed" if all(tensor.passed for tensor in tensors) else "bad")


def build_split_fields(fact: Split) -> Fields:
    """Build the fields for the number, balance and traffic of the stages."""
    crossing = sum(cut.bytes for cut in fact.cuts)
    cost_names = {"memory": "weights and activations", "training": "memory of a training step"}
    largest = max(stage.cost for stage in fact.stages)
    rows = [
        Field("Stages", plain(len(fact.stages)), f"balanced by {cost_names.get(fact.by, fact.by)}", "stages"),
        Field("Largest", format_cost(largest, fact.unit), "", "largest"),
        Field("Balance", share(fact.balance, 1.0), "mean of the stages over the largest", "balance"),
        Field("Over the cuts", size(crossing), "a run", "cuts"),
    ]
    if fact.shared:
        more_text = f" and {len(fact.shared) - 2:,} more" if len(fact.shared) > 2 else ""
        rows.append(
            Field(
                "Shared",
                plain(len(fact.shared)),
                f"in several stages: {', '.join(fact.shared[:2])}{more_text}",
            )
        )
    return Fields(rows)


def format_cost(value: float, unit: str) -> Span:
    """Format the cost of a stage with its unit."""
    if unit == "s":
        return seconds(value)
    text = bytes_text(int(value)) if unit == "bytes" else f"{count_text(int(value))} {unit}"
    return Span(text, "figure", f"{int(value):,} {unit}", value)


def build_stage_table(fact: Split, *, with_layers: bool = True) -> Table:
    """Build a table with one row per stage. `with_layers` adds the names of its first and last layer."""
    stages, machines = fact.stages, fact.machines if len(fact.machines) > 1 else ()
    has_seconds = any(stage.seconds is not None for stage in stages)
    largest = max(stage.cost for stage in stages) or 1.0

    def format_share(index: int) -> Span:
        return Span(share_text(stages[index].cost, largest), value=stages[index].cost)

    ends: list[tuple[Column, Callable[[int], Cell]]] = [
        (Column("from", shrink=True), lambda index: stages[index].first),
        (Column("to", shrink=True, drop=1), lambda index: stages[index].last),
    ]
    runs_on = Column("machine", shrink=True, drop=6, role="quiet")
    return table_of(
        range(len(stages)),
        (
            (Column("stage", "right"), lambda index: plain(index + 1)),
            *(ends if with_layers else []),
            (Column("layers", "right", drop=5), lambda index: plain(stages[index].layers)),
            (Column("params", "right", drop=3), lambda index: count(stages[index].params)),
            (Column("MACs", "right"), lambda index: count(stages[index].macs)),
            (Column("weights", "right", drop=2), lambda index: size(stages[index].weight_bytes)),
            (Column("activations", "right", drop=4), lambda index: size(stages[index].activation_bytes)),
            (
                Column("time" * has_seconds, "right"),
                lambda index: seconds(stages[index].seconds) if has_seconds else "",
            ),
            (
                Column("", role="bar", drop=7),
                lambda index: Span(bar_text(stages[index].cost, largest), "bar"),
            ),
            (Column("of largest", "right"), format_share),
            *([(runs_on, machines.__getitem__)] if machines else []),
        ),
        what="stages",
    )


def build_cut_table(fact: Split) -> Table:
    """Build a table with one row per cut."""
    timed, cuts = any(cut.seconds is not None for cut in fact.cuts), fact.cuts

    def tensors(index: int) -> Span:
        names = [tensor.name for tensor in cuts[index].tensors]
        return Span(f"{len(names):,}: " * (len(names) > 1) + ", ".join(names), "quiet")

    return table_of(
        range(len(cuts)),
        (
            (Column("cut", "right"), lambda index: plain(index + 1)),
            (Column("before", shrink=True), lambda index: cuts[index].before),
            (Column("bytes", "right"), lambda index: size(cuts[index].bytes)),
            (Column("time" * timed, "right"), lambda index: seconds(cuts[index].seconds) if timed else ""),
            (Column("tensors", shrink=True, drop=1), tensors),
        ),
        what="cuts",
    )


def build_training_table(fact: Split) -> Table:
    """Build a table of the training memory with one row per stage."""
    steps = [stage.training for stage in fact.stages if stage.training is not None]
    return table_of(
        range(len(steps)),
        (
            (Column("stage", "right"), lambda index: plain(index + 1)),
            (Column("parameters", "right"), lambda index: size(steps[index].parameters)),
            (Column("gradients", "right", drop=2), lambda index: size(steps[index].gradients)),
            (Column("optimizer", "right", drop=3), lambda index: size(steps[index].optimizer)),
            (Column("kept a micro-batch", "right", drop=1), lambda index: size(steps[index].activations)),
            (Column("in flight", "right"), lambda index: plain(steps[index].in_flight)),
            (Column("training", "right"), lambda index: size(steps[index].total)),
        ),
        what="stages",
    )


def pipeline_blocks(fact: Split) -> list[Block]:
    """Build figures and schedules of the pipeline; empty if neither times nor MACs are known."""
    forecast = fact.forecast or fact.by_macs
    if forecast is None:
        return []
    stages, timed = len(fact.stages), fact.forecast is not None
    return [
        *pipeline_figures(fact),
        Line(),
        *draw_gantt(forecast.works, stages, timed=timed),
        Line(),
        *draw_gantt(forecast.steps, stages, timed=timed),
    ]


def pipeline_figures(fact: Split) -> list[Block]:
    """Build the fields for latency, throughput and bubble of the pipeline."""
    if fact.forecast is not None:
        return [Heading("Pipeline", "predicted"), Fields(_build_timed_fields(fact.forecast))]
    if fact.by_macs is not None:
        source = "times in proportion to MACs, because no machine is named"
        return [Heading("Pipeline", source), Fields(_build_untimed_fields(fact.by_macs))]
    return []


def _build_timed_fields(fact: PipelineForecast) -> list[Field]:
    batches_text = f"{fact.micro_batches:,} micro-batches"
    step = (
        f"{fact.schedule}, backward counted as twice forward; bubble {share_text(fact.training_bubble, 1.0)}"
    )
    return [
        Field("Latency", seconds(fact.latency), "of one micro-batch alone", "latency"),
        Field("Period", seconds(fact.period), "between two results: the slowest stage or link", "period"),
        Field(
            "Throughput", Span(rate_text(fact.throughput, "runs/s"), "figure"), f"over {batches_text}", "rate"
        ),
        Field("Bubble", share(fact.bubble, 1.0), "of the stages' time is waiting", "bubble"),
        Field("Training step", seconds(fact.training_seconds), step, "training"),
    ]


def _build_untimed_fields(fact: PipelineForecast) -> list[Field]:
    """Build the fields that need no times, because they only depend on the MACs of the stages."""
    ideal = fact.latency / fact.period if fact.period else 1.0
    batches_text = f"{fact.micro_batches:,} micro-batches"
    step = f"{fact.schedule}, backward counted as twice forward"
    return [
        Field(
            "Bubble",
            share(fact.bubble, 1.0),
            f"of the stages' time is waiting, over {batches_text}",
            "bubble",
        ),
        Field("  in training", share(fact.training_bubble, 1.0), step, "in training"),
        Field("Speed", Span(f"{ideal:.2f}x", "figure", value=ideal), "of one device, if all work", "speed"),
    ]


_FORWARD: tuple[Role, Role] = "figure", "formula"
"""Roles of forward work in a schedule: even micro-batches, odd micro-batches."""


def draw_gantt(
    works: Sequence[ScheduledWork], stages: int, cells: int = _GANTT_WIDTH, *, timed: bool = True
) -> list[Block]:
    """Draw a schedule with one line per stage.

    Forward work shows the last digit of the micro-batch number, backward work a letter.
    """
    if not works:
        return []
    end_time = max(work.end for work in works)
    works_by_stage: list[list[ScheduledWork]] = [[] for _ in range(stages)]
    for work in works:
        works_by_stage[work.stage].append(work)
    lines: list[Block] = []
    for index, stage_works in enumerate(works_by_stage):
        signs: list[str] = ["·"] * cells
        roles: list[Role] = ["quiet"] * cells
        for work in stage_works:
            first, last = (
                round(edge / end_time * cells) if end_time else 0 for edge in (work.start, work.end)
            )
            is_forward = work.work == "forward"
            digits = "0123456789" if is_forward else "abcdefghij"
            signs[first:last] = digits[work.micro_batch % 10] * (last - first)
            roles[first:last] = [_FORWARD[work.micro_batch % 2] if is_forward else "good"] * (last - first)
        runs = itertools.groupby(zip(signs, roles, strict=True), key=itemgetter(1))
        spans = [Span("".join(sign for sign, _ in run), role) for role, run in runs]
        lines.append(Line((Span(f"{index + 1:>5}  ", "quiet"), *spans)))
    has_backward = any(work.work == "backward" for work in works)
    words = ["forward 0-9, backward a-j"] * has_backward
    words += [f"{seconds_text(end_time)} from left to right"] * timed
    return [*lines, *([Line(Span(f"       {'; '.join(words)}", "quiet"))] if words else [])]


def build_count_table(fact: Split) -> Table:
    """Build a table of splits into other numbers of stages. It marks the cheapest split."""
    has_periods = any(row.period is not None for row in fact.counts)
    best = min(fact.counts, key=_sort_key)

    def marks(row: StageCount) -> Span:
        requested_text = "asked for" if row.stages == len(fact.stages) else ""
        text = ", ".join(filter(None, (requested_text, "least cost" if row is best else "")))
        return Span(text, "good" if row is best else "quiet")

    return table_of(
        fact.counts,
        (
            (Column("stages", "right"), lambda row: plain(row.stages)),
            (Column("largest", "right"), lambda row: format_cost(row.cost, fact.unit)),
            (Column("balance", "right"), lambda row: share(row.balance, 1.0)),
            (Column("over the cuts", "right"), lambda row: size(row.cut_bytes)),
            (Column("period" * has_periods, "right"), lambda row: seconds(row.period) if has_periods else ""),
            (Column(""), marks),
        ),
        what="numbers of stages",
    )


def _sort_key(row: StageCount) -> tuple[float, float, int]:
    """Return the sort key of a number of stages: the total machine time, then the bytes that cross the cuts.

    Each stage occupies its machine as long as the largest stage works.
    """
    return (row.period or row.cost) * row.stages, row.cut_bytes, row.stages


def extraction(source: str, fact: Extraction) -> list[Block]:
    """Build the output of `explorer extract`."""
    head = Line((Span("part of ", "quiet"), Span(source, "strong")))
    blocks = [head, *part_blocks(fact), Line()]
    if not fact.output:
        return [*blocks, Paragraph("no file written; --no-verify writes it anyway", "bad")]
    return [*blocks, *report_written(fact.output, seconds_text(fact.seconds))]


def part_blocks(fact: Extraction) -> list[Block]:
    """Describe a part: inputs, outputs and size, and whether it gives the same values as the whole model."""
    rows = [
        Field("Layers", plain(fact.layers), f"of {fact.layers_whole:,}: {fact.first} to {fact.last}"),
        Field("Parameters", count(fact.params)),
        Field("MACs", count(fact.macs)),
        Field("Weights", size(fact.weight_bytes)),
    ]
    blocks: list[Block] = [
        build_port_table(fact.inputs, fact.outputs),
        Line(),
        Fields(rows),
        Line(),
        *(Paragraph(note, "warning") for note in fact.notes),
    ]
    if fact.exact:
        conditions = "in PyTorch" if fact.runtime == "torch" else "optimization off, one thread"
        rounding_clause = describe_cut_rounding(fact.rounded)
        text = f"on the model's own values: the same numbers, bit for bit{rounding_clause} ({conditions})"
        blocks.append(Paragraph(text, "passed"))
    elif fact.exact is False:
        blocks.append(Paragraph("on the model's own values: NUMBERS DIFFER from the model's", "bad"))
    elif not fact.compared:
        blocks.append(Paragraph("not compared with the full model", "warning"))
    return [
        *blocks,
        *report_optimized_errors(fact.compared, "it"),
        *(Paragraph(text, "quiet") for text in fact.drawn),
    ]


_SHOWN_BATCHES = 16
"""Number of micro-batches in the schedule of `explorer pipeline`."""


def pipeline(folder: str, fact: PipelineRun) -> list[Block]:
    """Build the output of `explorer pipeline`."""
    batches_text = f"{fact.micro_batches:,} micro-batches" if fact.micro_batches > 1 else "1 micro-batch"
    on_workers = any(stage.worker for stage in fact.stages)
    kind = "on workers" if on_workers else "a process each"
    head = f"   {len(fact.stages):,} stages, {kind}, {many_text(fact.threads, 'thread')} in each"
    rows = [
        Field(
            "Throughput",
            Span(rate_text(fact.throughput, "runs/s"), "figure"),
            f"{batches_text} in {seconds_text(fact.seconds)}",
        ),
        Field(
            "  predicted",
            Span(rate_text(fact.predicted.throughput, "runs/s"), "figure"),
            f"{fact.error * 100:+.0f} % of the throughput, computed from stages timed alone",
        ),
        Field("Latency", seconds(fact.latency), "of one micro-batch alone, links included"),
        *(Field("Input", "", text) for text in fact.inputs),
    ]
    columns = (
        Column("stage", "right"),
        Column("file", shrink=True, paths=True),
        Column("alone", "right"),
        Column("to the next", "right"),
        Column("busy", "right"),
        Column("worker" if on_workers else "", shrink=True, drop=1),
    )

    def row(numbered: tuple[int, StageRun]) -> tuple[str | Span, ...]:
        index, stage = numbered
        last = index == len(fact.stages) - 1
        return (
            plain(index + 1),
            stage.file,
            seconds(stage.seconds),
            "" if last else seconds(stage.link_seconds),
            Span(share_text(stage.busy, 1.0), value=stage.busy),
            Span(stage.worker, "quiet"),
        )

    return [
        Line((Span(folder, "strong"), Span(head, "quiet"))),
        Line(),
        Fields(rows),
        Line(),
        Table(columns, Rows(row, tuple(enumerate(fact.stages))), what="stages"),
        Line(),
        *draw_gantt([work for work in fact.works if work.micro_batch < _SHOWN_BATCHES], len(fact.stages)),
        *(
            [Line(Span(f"the first {_SHOWN_BATCHES} of {batches_text}", "quiet"), 7)]
            if fact.micro_batches > _SHOWN_BATCHES
            else []
        ),
        *([Line()] if fact.notes else []),
        *(Paragraph(note, "warning") for note in fact.notes),
        *([Line(), *report_written(fact.output)] if fact.output else []),
    ]
