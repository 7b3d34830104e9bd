"""Text of `explorer check`: a table of limit, value and change for each model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.base.units import percent_text, printable, sentence_text
from explorer.facts import to_json
from explorer.facts.check import BudgetRow, Check, CheckVerdict, ModelCheck
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Role, Span, Table
from explorer.report.present.figures import count, plain, report_written, seconds, share_text, size

LABELS: Mapping[str, str] = {
    "macs": "MACs",
    "params": "parameters",
    "weight_bytes": "weight bytes",
    "activation_bytes_peak": "activations, peak",
    "seconds": "time of a run",
    "least_seconds": "least time",
    "coverage": "coverage",
    "unknown_layers": "unknown layers",
}
"""Label of each figure that a budget limits."""

_VERDICTS: Mapping[CheckVerdict, tuple[str, Role]] = {
    "met": ("ok", "good"),
    "missed": ("missed", "bad"),
    "unknown": ("unknown", "warning"),
}
"""Text and role of each verdict."""


def check(fact: Check) -> list[Block]:
    """Build the output of `explorer check`: a table for each model, and the verdict."""
    blocks: list[Block] = []
    for model in fact.models:
        blocks += [*_build_model(model), Line()] if model.budgets else []
    if fact.updated:
        blocks += report_written(printable(fact.baseline))
    rows = [row for model in fact.models for row in model.budgets]
    if rows:
        role = _VERDICTS[fact.verdict][1]
        blocks.append(Paragraph(summarize(rows), "passed" if role == "good" else role, 0))
    return blocks


def summarize(rows: Sequence[BudgetRow]) -> str:
    """Return the verdict of budgets as one sentence."""
    counts = {kind: sum(row.verdict == kind for row in rows) for kind in _VERDICTS}
    number = f"{len(rows):,} budget{'s' * (len(rows) != 1)}"
    if counts["met"] == len(rows):
        return f"{number} {'is' if len(rows) == 1 else 'are'} met"
    parts = [f"{counts[kind]:,} {kind}" for kind in ("missed", "unknown") if counts[kind]]
    return f"of {number}, {' and '.join(parts)}"


def _build_model(model: ModelCheck) -> Iterator[Block]:
    """Yield the table of a model's budgets, a sentence for each budget that is not met, and the notes."""
    yield Line(Span(printable(model.model), "strong"))
    columns = (
        Column("budget", shrink=True),
        Column("limit", "right"),
        Column("value", "right"),
        Column("baseline", "right", drop=1),
        Column("change", "right"),
        Column(""),
    )
    yield Table(columns, [_build_row(row) for row in model.budgets])
    for row in model.budgets:
        if row.verdict != "met":
            yield Paragraph(describe(row), _VERDICTS[row.verdict][1])
    for note in model.notes:
        yield Paragraph(sentence_text(note), "quiet")


def describe(row: BudgetRow) -> str:
    """Describe a budget that is missed or unknown: 'MACs: 4.30 G is over the limit of 4.10 G'."""
    label = LABELS[row.figure]
    if row.name == "no_new_unknown":
        return printable(f"{label}: {row.reason}")
    cells = (_format_value(row), _format_limit(row))
    value, limit = (_join_spans(cell) for cell in cells)
    if value == limit:  # the difference is lost in rounding
        value, limit = (_join_spans(cell, exact=True) for cell in cells)
    if row.verdict == "missed":
        return printable(f"{label}: {value} is {row.reason} of {limit}")
    return printable(f"{label}: {value}, limit {limit}: {row.reason}")


def _join_spans(cell: Cell, *, exact: bool = False) -> str:
    spans = cell if isinstance(cell, tuple) and not isinstance(cell, Span) else (cell,)
    return "".join(span if isinstance(span, str) else (exact and span.exact) or span.text for span in spans)


def _build_row(row: BudgetRow) -> tuple[Cell, ...]:
    text, role = _VERDICTS[row.verdict]
    before: Cell = "" if row.before is None else _format(row.unit, row.before, row.before_sign)
    return (
        LABELS[row.figure],
        _format_limit(row),
        _format_value(row),
        before,
        _format_change(row.change),
        Span(text, role),
    )


def _format_value(row: BudgetRow) -> Span:
    return _format(row.unit, row.value, row.sign)


def _format_limit(row: BudgetRow) -> Cell:
    """Format a limit as a number, with the change that the user wrote."""
    if row.bound is None:
        return row.limit
    limit = _format(row.unit, row.bound)
    is_change = row.limit[:1] in ("+", "-")
    return (limit, Span(f" ({row.limit})", "quiet")) if is_change else limit


def _format(unit: str, value: float | None, sign: str = "") -> Span:
    if value is None:
        return Span("?", "warning")
    if unit == "count":
        return count(int(value), sign)
    if unit == "bytes":
        return size(int(value), sign)
    if unit == "seconds":
        return seconds(value, sign)
    return plain(int(value), sign) if unit == "whole" else Span(share_text(value, 1), value=value)


def _format_change(change: float | None) -> Span:
    """Format a growth: '+4.1 %', '=' for none, '' if it is unknown."""
    if change is None:
        return Span("")
    if not change:
        return Span("=", "quiet", value=0.0)
    text = percent_text(abs(change), 1)
    sign = "+" if change > 0 else "-"
    return Span(f"{sign}{text}" if text != "0.0 %" else f"<{sign}0.1 %", "quiet", value=change)


def list_rows(fact: Check) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of `--csv`: one for each budget of each model."""
    for model in fact.models:
        for row in model.budgets:
            yield {"model": model.model, **to_json(row)}
