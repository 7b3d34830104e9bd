"""Figures of models, states or tilings beside each other: what is best in each row is said in words.

`explorer compare`, `history --beside`, `sweep --beside`, and the table behind marked rows of the screen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from explorer.base.units import percent_text
from explorer.base.verdicts import VERDICTS
from explorer.facts.comparison import FigureRow, FigureTable, FigureValue
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.compare.verify import TONES
from explorer.report.present.figures import count, plain, seconds, share_text, size

BEST = "best"
"""The word that marks what no other beats."""
_AT_A_TIME = 5
"""Models beside each other in one table; of more the first stands in each."""
_PERCENT = 10.0
"""Times the first from which on a change is no percentage any more."""

_LABELS: Mapping[str, str] = {
    "params": "Parameters",
    "weight_bytes": "Weight bytes",
    "macs": "MACs",
    "elementwise_ops": "Elementwise",
    "activation_bytes_sum": "Activations, sum",
    "activation_bytes_peak": "Activations, peak",
    "bytes_read": "Bytes read",
    "weight_bytes_read": "  weights",
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
    "buffer": "Buffer",
    "cycles": "Cycles of tiles",
    "tile_seconds": "Time of tiles",
    "verdict_kind": "Proof",
    "worst_error": "Largest error",
}
"""What each of `TABLE_FIGURES` is called."""

_BRIEF: Mapping[str, str] = {
    "Parameters": "params",
    "Weight bytes": "weights",
    "Elementwise": "elemwise",
    "Activations, sum": "act. sum",
    "Activations, peak": "act. peak",
    "Bytes read": "reads",
    "  activations": "  activ.",
    "Bytes written": "writes",
    "Key-value cache": "KV cache",
    "Least time": "least t.",
    "MACs on tiles": "on tiles",
    "Tile matmuls": "tiles",
    "Tile utilization": "tile use",
    "Traffic of tiles": "traffic",
    "Cycles of tiles": "cycles",
    "Time of tiles": "tile time",
    "Largest error": "error",
}
"""The same where there is little room, as the table of a diff has them."""

_TEXTS: Mapping[str, Callable[[Any, str], Span]] = {
    "count": count,
    "whole": lambda value, sign: plain(value),
    "bytes": size,
    "seconds": seconds,
    "share": lambda value, sign: Span(share_text(value, 1), value=value),
    "number": lambda value, sign: Span(f"{value:.3g}", value=value),
    "verdict": lambda value, sign: Span(VERDICTS[value], TONES[value]),
}


def figures(fact: FigureTable, per: int = _AT_A_TIME) -> list[Block]:
    """The table, with a word on what it is for and on what cannot be ranked.

    Args:
        fact: The figures.
        per: Models in one table; of more there are several tables, with the first in each.
    """
    return [*figure_tables(fact, per), Line(), *table_notes(fact)]


def table_notes(fact: FigureTable) -> list[Block]:
    """What one has to know to read the table."""
    unranked = [row for row in fact.rows if row.unranked]
    notes = [f"'{BEST}': no other has less (of utilization: more); changes are from {fact.names[0]}."]
    notes += [f"Times and cycles are for {fact.machine}."] if fact.machine else []
    notes += [f"{note[0].upper()}{note[1:]}." for note in fact.notes]
    for why in dict.fromkeys(row.unranked for row in unranked):
        labels = [_LABELS[row.name].strip() for row in unranked if row.unranked == why]
        notes.append(f"No best of {'; '.join(labels).lower()}: {why}.")
    return [Paragraph(note, "quiet") for note in notes]


def figure_tables(
    fact: FigureTable, per: int = _AT_A_TIME, above: Sequence[tuple[Cell, ...]] = ()
) -> list[Block]:
    """The rows under the names of the models, each with its change from the first.

    Args:
        fact: The figures.
        per: See `figures`.
        above: Rows above them: a label, and a cell for each model.
    """
    others, step = range(1, len(fact.names)), max(1, per - 1)
    blocks: list[Block] = []
    for start in range(0, len(others), step):
        places = (0, *others[start : start + step])
        columns = [Column("", shrink=True, role="quiet", brief=_BRIEF)]
        for at in places:
            named = Column(fact.names[at], "right", shrink=True, whole=True)
            columns += [named, *[Column("change")] * bool(at)]
        rows: list[Sequence[Cell]] = []
        for label, *cells in above:
            rows.append([label, *(cell for at in places for cell in (cells[at], "")[: 1 + bool(at)])])
        for row in fact.rows:
            rows.append([_LABELS[row.name], *(cell for at in places for cell in _cells(row, at))])
        blocks += [*([Line()] if blocks else []), Table(columns, rows)]
    return blocks


def _cells(row: FigureRow, at: int) -> Sequence[Cell]:
    """A figure behind the word that it is the best, and how far it is from the first."""
    one = row.values[at]
    figure = Span("-", "quiet") if one is None else _figure(row, one)
    cell: Cell = (Span(f"{BEST} ", "good"), figure) if at in row.best else figure
    return (cell, Span(_change(row, at), "quiet")) if at else (cell,)


def _figure(row: FigureRow, one: FigureValue) -> Span:
    return Span("?", "warning") if one.value is None else _TEXTS[row.unit](one.value, one.sign)


def _change(row: FigureRow, at: int) -> str:
    """How far a figure is from the first one's: '=', '+12.5 %', 'x 24.0'."""
    ratio, figure = row.ratios[at], row.values[at]
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
