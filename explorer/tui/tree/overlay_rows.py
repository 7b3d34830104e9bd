"""Overlay on the screen: figures from outside laid over the rows, and a word on what matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.tui.text.lines import safe
from explorer.tui.tree.rows import METRICS, columns_of, metric_of
from explorer.tui.tree.table import chosen_columns

if TYPE_CHECKING:
    from explorer.facts.external.overlay import Overlay
    from explorer.tui.tree.model import TreeModel


def show_overlay(model: TreeModel, overlay: Overlay | None) -> None:
    """Lay figures from outside over the rows, with their columns in front of the other figures."""
    names = chosen_columns(model) if model.columns or overlay is not None else []
    before = columns_of(model)
    model.lay(overlay)
    columns = columns_of(model)
    names = [name for name in names if name in columns]
    fresh = () if overlay is None else [column.name for column in overlay.columns]
    news = next((name for name in fresh if name not in before), None)
    model.set_columns(in_front(model, names, fresh))
    if news is not None and (metric := metric_of(news, columns)) is not None:
        model.set_metric(metric)  # which has room before any other
    if model.metric.over and metric_of(model.metric.id, columns) is None:
        model.set_metric(METRICS[0])


def in_front(model: TreeModel, shown: Sequence[str], fresh: Sequence[str]) -> tuple[str, ...]:
    """Columns with those that are fresh in front of the other figures."""
    known = columns_of(model)
    at = next((at for at, name in enumerate(shown) if known[name].is_number), len(shown))
    return (*shown[:at], *(name for name in fresh if name not in shown), *shown[at:])


def overlay_text(overlay: Overlay) -> str:
    """What of the files is of this model, in a line: '3 of 4 rows matched: latency; no layer is nonsense'."""
    names = ", ".join(column.name for column in overlay.columns)
    text = f"{overlay.matched:,} of {overlay.rows:,} rows matched: {names}"
    if not overlay.unmatched:
        return text
    more = len(overlay.unmatched) - 1
    return f"{text}; no layer is {safe(overlay.unmatched[0])}" + f" (and {more:,} more)" * bool(more)
