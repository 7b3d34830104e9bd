"""Text of an evaluation of models on a data file: `explorer evaluate`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.base.units import many_text, printable, seconds_text
from explorer.facts.evaluate.evaluation import Evaluation, ModelScore
from explorer.report.blocks import Block, Cell, Column, Heading, Line, Paragraph, Span, Table
from explorer.report.present.figures import plain, share_text

_MATRIX = 10
"""Largest number of classes with a matrix of all confusions."""
_NARROW, _GAP = 54, 2
"""Width in cells of a matrix on the narrowest terminal; cells between two columns."""
_FEW = 5
_OF_TASK = {
    "classification": ("accuracy", "top-5", "cross entropy"),
    "regression": ("squared error", "absolute error", "R2"),
    "agreement": (),
}


def evaluation(fact: Evaluation) -> list[Block]:
    """The answer of `explorer evaluate`: a table of scores, then the confusions of each model."""
    task = f"{fact.task} of {_counted(fact)}"
    blocks: list[Block] = [
        Line(
            (
                Span(printable(fact.data), "strong"),
                Span(f"   {many_text(fact.samples, 'sample')}, {task}", "quiet"),
            )
        ),
        Line(),
        Line((Span("inputs  ", "quiet"), _names(fact.inputs)), 2),
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
            blocks += [Line(), *_confusions(model, fact)]
    return [*blocks, Line(), Line(Span(seconds_text(fact.seconds), "quiet"), 2)]


def _counted(fact: Evaluation) -> str:
    if fact.task == "classification":
        return f"{fact.outputs:,} class{'es' if fact.outputs != 1 else ''}"
    return many_text(fact.outputs, "number")


def score_table(fact: Evaluation) -> Table:
    """A row for each model: its scores, and its agreement with the first model."""
    columns = [Column("model", shrink=True, role="strong")]
    # with five classes or fewer there is no top-5
    agreements = [m.agreement.top5 for m in fact.models if m.agreement is not None]
    five = any(share is not None for share in (*agreements, *(m.top5 for m in fact.models)))
    names = [name for name in _OF_TASK[fact.task] if name != "top-5" or five]
    columns += [Column(name, "right", drop=8 * (name in ("top-5", "R2"))) for name in names]
    several = len(fact.models) > 1
    if several:
        columns += [Column("SNR dB", "right"), Column("cosine", "right", drop=7)]
        if fact.task != "regression":
            columns += [Column("same choice", "right", drop=2)]
            columns += [Column("in its five", "right", drop=9)] if five else []
    columns.append(Column("time", "right", drop=6))
    return Table(columns, [_row(model, fact, several, five) for model in fact.models])


def _row(model: ModelScore, fact: Evaluation, several: bool, five: bool) -> Sequence[Cell]:
    cells: list[Cell] = [printable(model.source)]
    if fact.task == "classification":
        cells += [_share(model.accuracy), *([_share(model.top5)] if five else []), _figure(model.loss)]
    elif fact.task == "regression":
        cells += [_figure(model.loss), _figure(model.mean_absolute), _figure(model.r2)]
    if several:
        cells += _beside(model, fact, five)
    return [*cells, Span(seconds_text(model.seconds), "quiet", value=model.seconds)]


def _beside(model: ModelScore, fact: Evaluation, five: bool) -> list[Cell]:
    has_choices = fact.task != "regression"
    agreement = model.agreement
    if agreement is None:
        return [Span("the first", "quiet"), *([""] * (1 + has_choices * (1 + five)))]
    cells: list[Cell] = [
        _decibels(agreement.snr_db),
        "-" if agreement.cosine is None else f"{agreement.cosine:.6f}",
    ]
    return (
        [*cells, _share(agreement.top1), *([_share(agreement.top5)] if five else [])]
        if has_choices
        else cells
    )


def _decibels(value: float | None) -> Span:
    """A signal to noise ratio; 'same' without noise."""
    if value is None:
        return Span("-", "quiet")
    if math.isinf(value):
        return Span("same", "good", value=value) if value > 0 else Span("no signal", "bad", value=value)
    return Span(f"{value:.1f}", "figure", f"{value!r}", value)


def _share(value: float | None) -> Span:
    return (
        Span("-", "quiet") if value is None else Span(share_text(value, 1.0), "figure", f"{value!r}", value)
    )


def _figure(value: float | None) -> Span:
    return Span("-", "quiet") if value is None else Span(f"{value:.4g}", "figure", f"{value!r}", value)


def _names(names: Sequence[str]) -> str:
    first_names = ", ".join(printable(name) for name in names[:_FEW])
    return first_names if len(names) <= _FEW else f"{first_names} and {len(names) - _FEW:,} more"


def _confusions(model: ModelScore, fact: Evaluation) -> list[Block]:
    text = f"{model.confused:,} labels missed"
    if fact.outputs <= _MATRIX:
        return [
            Heading(printable(model.source), f"{text}; what they were taken for"),
            *_matrix(model, fact.outputs),
        ]
    rows = [(plain(c.label), plain(c.predicted), plain(c.count)) for c in model.confusions[: 2 * _FEW]]
    columns = (Column("label", "right"), Column("taken for", "right"), Column("times", "right"))
    return [Heading(printable(model.source), text), Table(columns, rows)]


def _matrix(model: ModelScore, classes: int) -> list[Block]:
    """Labels downward, predictions to the right; a wide matrix in several parts."""
    counts = {(c.label, c.predicted): c.count for c in model.confusions}
    counts |= {(c.label, c.label): c.correct for c in model.classes}
    most = [max(counts.get((label, at), 0) for label in range(classes)) for at in range(classes)]
    widths = [len(f"{many:,}") + _GAP for many in most]
    parts: list[list[int]] = [[]]
    for at, width in enumerate(widths):
        if len("label") + sum(widths[of] for of in parts[-1]) + width > _NARROW:
            parts.append([])
        parts[-1].append(at)
    blocks: list[Block] = []
    for part in parts:
        columns = [Column("label", "right"), *(Column(f"{at}", "right") for at in part)]
        rows: list[list[Cell]] = [
            [plain(label), *(_cell(counts.get((label, at), 0), label == at) for at in part)]
            for label in range(classes)
        ]
        blocks += [*([Line()] if blocks else []), Table(columns, rows)]
    return blocks


def _cell(count: int, right: bool) -> Span:
    if not count:
        return Span("-", "quiet", value=0)
    return Span(f"{count:,}", "good" if right else "figure", value=count)
