"""Text output of `explorer evaluate`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.base.units import many_text, printable, seconds_text
from explorer.facts.evaluate.evaluation import Evaluation, ModelScore
from explorer.report.blocks import Block, Cell, Column, Heading, Line, Paragraph, Span, Table
from explorer.report.present.figures import plain, share_text

_MAX_MATRIX_CLASSES = 10
"""Maximum number of classes for a matrix of all confusions."""
_MAX_MATRIX_WIDTH, _COLUMN_GAP = 54, 2
"""Maximum width of a matrix, and distance of its columns, in cells."""
_MAX_LISTED = 5
"""Maximum number of input names; a list of confusions has twice as many rows."""
_SCORE_COLUMNS = {
    "classification": ("accuracy", "top-5", "cross entropy"),
    "regression": ("squared error", "absolute error", "R2"),
    "agreement": (),
}


def evaluation(fact: Evaluation) -> list[Block]:
    """Build the output of `explorer evaluate`: a table of scores, then the confusions of each model."""
    task = f"{fact.task} of {_count_text(fact)}"
    blocks: list[Block] = [
        Line(
            (
                Span(printable(fact.data), "strong"),
                Span(f"   {many_text(fact.samples, 'sample')}, {task}", "quiet"),
            )
        ),
        Line(),
        Line((Span("inputs  ", "quiet"), _format_names(fact.inputs)), 2),
        *([Line((Span("labels  ", "quiet"), printable(fact.labels)), 2)] if fact.labels else []),
        Line(),
        score_table(fact),
    ]
    notes = [(model, note) for model in fact.models for note in model.notes]
    if notes:
        blocks += [Line(), *(Paragraph(f"{printable(m.source)}: {note}", "warning") for m, note in notes)]
    for model in fact.models:
        if model.undefined:
            text = f"{printable(model.source)}: {model.undefined:,} outputs are NaN or Inf"
            blocks += [Line(), Paragraph(text, "bad")]
    for model in fact.models:
        if model.confused:
            blocks += [Line(), *_build_confusions(model, fact)]
    return [*blocks, Line(), Line(Span(seconds_text(fact.seconds), "quiet"), 2)]


def _count_text(fact: Evaluation) -> str:
    if fact.task == "classification":
        return f"{fact.outputs:,} class{'es' if fact.outputs != 1 else ''}"
    return many_text(fact.outputs, "number")


def score_table(fact: Evaluation) -> Table:
    """Build a table with a row for each model: its scores, and its agreement with the first model."""
    columns = [Column("model", shrink=True, role="strong", paths=True)]
    # models with five classes or fewer have no top-5 accuracy
    agreements = [m.agreement.top5 for m in fact.models if m.agreement is not None]
    has_top5 = any(share is not None for share in (*agreements, *(m.top5 for m in fact.models)))
    names = [name for name in _SCORE_COLUMNS[fact.task] if name != "top-5" or has_top5]
    columns += [Column(name, "right", drop=8 * (name in ("top-5", "R2"))) for name in names]
    has_several = len(fact.models) > 1
    if has_several:
        columns += [Column("SNR dB", "right"), Column("cosine", "right", drop=7)]
        if fact.task != "regression":
            columns += [Column("same choice", "right", drop=2)]
            columns += [Column("in its top 5", "right", drop=9)] if has_top5 else []
    columns.append(Column("time", "right", drop=6))
    return Table(columns, [_build_row(model, fact, has_several, has_top5) for model in fact.models])


def _build_row(model: ModelScore, fact: Evaluation, has_several: bool, has_top5: bool) -> Sequence[Cell]:
    cells: list[Cell] = [printable(model.source)]
    if fact.task == "classification":
        cells += [
            _format_share(model.accuracy),
            *([_format_share(model.top5)] if has_top5 else []),
            _format_figure(model.loss),
        ]
    elif fact.task == "regression":
        cells += [_format_figure(model.loss), _format_figure(model.mean_absolute), _format_figure(model.r2)]
    if has_several:
        cells += _build_agreement(model, fact, has_top5)
    return [*cells, Span(seconds_text(model.seconds), "quiet", value=model.seconds)]


def _build_agreement(model: ModelScore, fact: Evaluation, has_top5: bool) -> list[Cell]:
    has_choices = fact.task != "regression"
    agreement = model.agreement
    if agreement is None:
        return [Span("reference", "quiet"), *([""] * (1 + has_choices * (1 + has_top5)))]
    cells: list[Cell] = [
        _format_decibels(agreement.snr_db),
        "-" if agreement.cosine is None else f"{agreement.cosine:.6f}",
    ]
    return (
        [*cells, _format_share(agreement.top1), *([_format_share(agreement.top5)] if has_top5 else [])]
        if has_choices
        else cells
    )


def _format_decibels(value: float | None) -> Span:
    """Format a signal-to-noise ratio; 'same' if it is infinite, 'no signal' if minus infinity."""
    if value is None:
        return Span("-", "quiet")
    if math.isinf(value):
        return Span("same", "good", value=value) if value > 0 else Span("no signal", "bad", value=value)
    return Span(f"{value:.1f}", "figure", f"{value!r}", value)


def _format_share(value: float | None) -> Span:
    return (
        Span("-", "quiet") if value is None else Span(share_text(value, 1.0), "figure", f"{value!r}", value)
    )


def _format_figure(value: float | None) -> Span:
    return Span("-", "quiet") if value is None else Span(f"{value:.4g}", "figure", f"{value!r}", value)


def _format_names(names: Sequence[str]) -> str:
    first_names = ", ".join(printable(name) for name in names[:_MAX_LISTED])
    return (
        first_names if len(names) <= _MAX_LISTED else f"{first_names} and {len(names) - _MAX_LISTED:,} more"
    )


def _build_confusions(model: ModelScore, fact: Evaluation) -> list[Block]:
    text = f"{model.confused:,} wrong predictions"
    if fact.outputs <= _MAX_MATRIX_CLASSES:
        return [
            Heading(printable(model.source), f"{text}; a column for each predicted class"),
            *_build_matrix(model, fact.outputs),
        ]
    rows = [(plain(c.label), plain(c.predicted), plain(c.count)) for c in model.confusions[: 2 * _MAX_LISTED]]
    columns = (Column("label", "right"), Column("taken for", "right"), Column("times", "right"))
    return [Heading(printable(model.source), text), Table(columns, rows)]


def _build_matrix(model: ModelScore, classes: int) -> list[Block]:
    """Build a matrix of confusions: labels down, predictions across. A wide matrix is split into parts."""
    counts = {(c.label, c.predicted): c.count for c in model.confusions}
    counts |= {(c.label, c.label): c.correct for c in model.classes}
    largest_counts = [
        max(counts.get((label, predicted), 0) for label in range(classes)) for predicted in range(classes)
    ]
    widths = [len(f"{largest_count:,}") + _COLUMN_GAP for largest_count in largest_counts]
    parts: list[list[int]] = [[]]
    for predicted, width in enumerate(widths):
        if len("label") + sum(widths[class_index] for class_index in parts[-1]) + width > _MAX_MATRIX_WIDTH:
            parts.append([])
        parts[-1].append(predicted)
    blocks: list[Block] = []
    for part in parts:
        columns = [Column("label", "right"), *(Column(f"{predicted}", "right") for predicted in part)]
        rows: list[list[Cell]] = [
            [
                plain(label),
                *(_format_cell(counts.get((label, predicted), 0), label == predicted) for predicted in part),
            ]
            for label in range(classes)
        ]
        blocks += [*([Line()] if blocks else []), Table(columns, rows)]
    return blocks


def _format_cell(count: int, is_correct: bool) -> Span:
    if not count:
        return Span("-", "quiet", value=0)
    return Span(f"{count:,}", "good" if is_correct else "figure", value=count)
