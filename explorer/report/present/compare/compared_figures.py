"""Tables that compare figures of models, states or tilings, and mark the best in each row.

Used by `explorer compare`, `history --beside`, `sweep --beside`, and the Figures screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.base.units import percent_text, sentence_text
from explorer.base.verdicts import VERDICTS
from explorer.facts.comparison import FigureRow, FigureTable, FigureValue
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.compare.verify import TONES
from explorer.report.present.figures import count, plain, seconds, share_text, size

BEST = "best"
"""Mark of a figure that no other one beats."""
_AT_A_TIME = 5
"""Default number of models per table. Further tables repeat the first model."""
_PERCENT = 10.0
"""Ratio to the first model from which a change is written as a factor instead of a percentage."""

_LABELS: Mapping[str, str] = {
    "params": "Parameters",
    "weight_bytes": "Weight bytes",
    "macs": "MACs",
    "elementwise_ops": "Elementwise",
    "activation_bytes_sum": "Activations, sum",
    "activation_bytes_peak": "Activations, peak",
    "bytes_read": "Bytes read",
    "weight_bytes_read": "  stored tensors",
    "activation_bytes_read": "  activations",
    "bytes_written": "Bytes written",
    "kv_cache_bytes": "Key-value cache",
    "nodes": "Nodes",
    "coverage": "Coverage",
    "least_seconds": "Least time",
    "tiled_macs": "MACs on tiles",
    "products": "Tile matmuls",
    "utilisation": "Tile utilization",
    "padded_share": "Padding",
    "traffic": "Traffic of tiles",
    "buffer": "Buffer needed",
    "cycles": "Cycles of tiles",
    "tile_seconds": "Time of tiles",
    "verdict_kind": "Proof",
    "worst_error": "Largest error",
}
"""Label of each figure in `TABLE_FIGURES`."""

_BRIEF: Mapping[str, str] = {
    "Parameters": "params",
    "Weight bytes": "weights",
    "Elementwise": "elemwise",
    "Activations, sum": "act. sum",
    "Activations, peak": "act. peak",
    "Bytes read": "reads",
    "  stored tensors": "  stored",
    "  activations": "  activ.",
    "Bytes written": "writes",
    "Key-value cache": "KV cache",
    "Least time": "least t.",
    "MACs on tiles": "on tiles",
    "Tile matmuls": "tiles",
    "Tile utilization": "tile use",
    "Traffic of tiles": "traffic",
    "Buffer needed": "buffer",
    "Cycles of tiles": "cycles",
    "Time of tiles": "tile time",
    "Largest error": "error",
}
"""Short label by label, for narrow tables."""

_TEXTS: Mapping[str, Callable[[Any, str], Span]] = {
    "count": count,
    "whole": lambda value, sign: plain(value),
    "bytes": size,
    "seconds": seconds,
    "share": lambda value, sign: Span(share_text(value, 1), value=value),
    "number": lambda value, sign: Span(f"{value:.3g}", value=value),
    "verdict": lambda value, sign: Span(VERDICTS[value], TONES[value]),
}


def build_figure_blocks(fact: FigureTable, per: int = _AT_A_TIME) -> list[Block]:
    """Return the tables, followed by notes.

    Args:
        fact: Figures to compare.
        per: Maximum number of models per table. Further tables repeat the first model.
    """
    return [*build_figure_tables(fact, per), Line(), *list_table_notes(fact)]


def list_table_notes(fact: FigureTable) -> list[Block]:
    """Return notes that explain the table and the figures without a ranking."""
    unranked = [row for row in fact.rows if row.unranked]
    best = (
        f"'{BEST}': no other has a smaller figure (utilization: a larger one). "
        if any(row.best for row in fact.rows)
        else ""
    )
    notes = [f"{best}Changes are from {fact.names[0]}."]
    notes += [f"Times and cycles are for {fact.machine}."] if fact.machine else []
    notes += map(sentence_text, fact.notes)
    for reason in dict.fromkeys(row.unranked for row in unranked):
        labels = [_LABELS[row.name].strip() for row in unranked if row.unranked == reason]
        notes.append(f"No model is marked as the best in these rows, because {reason}: {'; '.join(labels)}.")
    return [Paragraph(note, "quiet") for note in notes]


def build_figure_tables(
    fact: FigureTable, per: int = _AT_A_TIME, above: Sequence[tuple[Cell, ...]] = ()
) -> list[Block]:
    """Return tables with one row per figure, and each model's change from the first one.

    Args:
        fact: Figures to compare.
        per: Maximum number of models per table; see `build_figure_blocks`.
        above: Rows at the top: a label, and one cell per model.
    """
    other_indices, step = range(1, len(fact.names)), max(1, per - 1)
    blocks: list[Block] = []
    for start in range(0, len(other_indices), step):
        places = (0, *other_indices[start : start + step])
        columns = [Column("", shrink=True, role="quiet", brief=_BRIEF)]
        for index in places:
            model_column = Column(fact.names[index], "right", shrink=True, keeps_figures=True)
            columns += [model_column, *[Column("change")] * bool(index)]
        rows: list[Sequence[Cell]] = []
        for label, *cells in above:
            rows.append(
                [label, *(cell for index in places for cell in (cells[index], "")[: 1 + bool(index)])]
            )
        for row in fact.rows:
            rows.append([_LABELS[row.name], *(cell for index in places for cell in _build_cells(row, index))])
        blocks += [*([Line()] if blocks else []), Table(columns, rows)]
    return blocks


def _build_cells(row: FigureRow, index: int) -> Sequence[Cell]:
    """Return a figure, marked if it is the best, and its change from the first model."""
    figure_value = row.values[index]
    figure = Span("-", "quiet") if figure_value is None else _format_figure(row, figure_value)
    cell: Cell = (Span(f"{BEST} ", "good"), figure) if index in row.best else figure
    return (cell, Span(_format_change(row, index), "quiet")) if index else (cell,)


def _format_figure(row: FigureRow, figure_value: FigureValue) -> Span:
    return (
        Span("?", "warning")
        if figure_value.value is None
        else _TEXTS[row.unit](figure_value.value, figure_value.sign)
    )


def _format_change(row: FigureRow, index: int) -> str:
    """Format the change from the first model: '=', '+12.5 %', '<+0.1 %', 'x 24.0', or '' if unknown."""
    ratio, figure = row.ratios[index], row.values[index]
    if figure is not None and figure.value is not None and not figure.sign and figure == row.values[0]:
        return "="
    if ratio is None:
        return ""
    if ratio >= _PERCENT:
        return f"x {ratio:,.1f}"
    change = abs(ratio - 1)
    text = f"{change:.0%}".replace("%", " %") if change >= 1 else percent_text(change, 1)
    sign = "+" if ratio > 1 else "-"
    return f"{sign}{text}" if text != "0.0 %" else f"<{sign}0.1 %"
