"""Shows an overlay (figures from external files) in the layer tree, and describes how many rows matched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.tui.text.lines import escape_name
from explorer.tui.tree.rows import METRICS, find_metric, list_columns
from explorer.tui.tree.table import list_chosen_columns

if TYPE_CHECKING:
    from explorer.facts.external.overlay import Overlay
    from explorer.tui.tree.model import TreeModel


def show_overlay(model: TreeModel, overlay: Overlay | None) -> None:
    """Set the overlay of the model, and place its columns before the other figures."""
    names = list_chosen_columns(model) if model.columns or overlay is not None else []
    old_columns = list_columns(model)
    model.set_overlay(overlay)
    columns = list_columns(model)
    names = [name for name in names if name in columns]
    new_columns = () if overlay is None else [column.name for column in overlay.columns]
    first_new = next((name for name in new_columns if name not in old_columns), None)
    model.set_columns(insert_in_front(model, names, new_columns))
    if first_new is not None and (metric := find_metric(first_new, columns)) is not None:
        model.set_metric(metric)  # the metric's column is shown however narrow the table is
    if model.metric.aggregate and find_metric(model.metric.id, columns) is None:
        model.set_metric(METRICS[0])


def insert_in_front(model: TreeModel, shown: Sequence[str], new_columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns `shown`, with those in `new_columns` inserted before the first column of numbers."""
    columns = list_columns(model)
    index = next((index for index, name in enumerate(shown) if columns[name].is_number), len(shown))
    return (*shown[:index], *(name for name in new_columns if name not in shown), *shown[index:])


def overlay_text(overlay: Overlay) -> str:
    """Describe the matched rows in one line: '3 of 4 rows matched: latency; no layer is nonsense'."""
    names = ", ".join(column.name for column in overlay.columns)
    text = f"{overlay.matched:,} of {overlay.rows:,} rows matched: {names}"
    if not overlay.unmatched:
        return text
    others = len(overlay.unmatched) - 1
    more = f" (and {others:,} more)" if others else ""
    return f"{text}; no layer is {escape_name(overlay.unmatched[0])}{more}"
