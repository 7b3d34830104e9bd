"""Pages of what is not analysed: rows of a header, the header itself, and a range of many layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.pages.tensors import tensor_lines
from explorer.tui.text.lines import BLANK, Line, bytes_figure, count_figure, field, head, safe, wrap
from explorer.tui.tree.model import METRICS, TreeModel

if TYPE_CHECKING:
    from explorer.facts import Totals
    from explorer.process.preview import ModelHeader

__all__ = ["header_page", "outline_page", "preview_totals", "range_page", "run_lines"]


def preview_totals(model: TreeModel) -> Totals:
    """What is known of a whole model from its rows alone."""
    from explorer.facts import stored_totals  # 5 ms, not before the first paint

    tops = list(model.children(None))
    params, weights = (sum(model.figure(row, metric)[0] or 0 for row in tops) for metric in METRICS[1:3])
    return stored_totals(params, None, weights)


def outline_page(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """A row of a header, or a run of rows that are alike: what is known before the analysis."""
    layer, members = model.layers[model.first(row)], model.members(row)
    width -= 1
    lines = list(wrap(((" ", "text"), (safe(layer.path) or "(unnamed)", "strong")), width, 1))
    if layer.kind:
        lines.extend(wrap(((" ", "text"), (safe(layer.kind), "accent")), width, 1))
    if len(members) > 1:
        lines.extend(wrap(((" ", "text"), (_many(model, row), "accent")), width, 1))
    lines.extend(wrap(((" ", "text"), (safe(layer.reason), "dim")), width, 1))
    lines += [BLANK, *_sums(model, row, width, exact, stored=True)]
    if layer.weights:
        lines += [BLANK, head(" Tensors"), *tensor_lines(layer.weights, width)]
    return lines


def range_page(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """A range of the children of something that has very many: what they cost together."""
    members = model.members(row)
    first, last = model.layers[members[0]], model.layers[members[-1]]
    width -= 1
    lines: list[Line] = []
    for path in (first.path, "…", last.path):
        lines.extend(wrap(((" ", "text"), (safe(path) or "(unnamed)", "strong")), width, 1))
    lines.extend(wrap(((" ", "text"), (_many(model, row), "accent")), width, 1))
    return [*lines, BLANK, *_sums(model, row, width, exact, stored=False)]


def run_lines(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """What all blocks of a run cost together; the page they stand on is that of one."""
    title = head(f" All {len(model.members(row)):,} together")
    return [title, *_sums(model, row, width, exact, stored=False)]


def header_page(header: ModelHeader, width: int) -> list[Line]:
    """What the header says of the model."""
    width -= 1
    lines = list(field(" format", ((safe(header.format), "text"),), width))
    lines.extend(field(" file", ((units.bytes_text(header.file_bytes), "number"),), width))
    for key, text in header.facts:
        lines.extend(field(f" {safe(key)}", ((safe(text), "text"),), width))
    return [*lines, BLANK, *wrap(((" the analysis is on its way", "dim"),), width, 1)]


def _many(model: TreeModel, row: int) -> str:
    count = len(model.members(row))
    if model.is_range(row):
        return f"{count:,} of very many side by side; the row opens"
    return f"first of {count:,} that are built alike"


def _sums(model: TreeModel, row: int, width: int, exact: bool, *, stored: bool) -> list[Line]:
    lines: list[Line] = []
    for metric in METRICS[1:3] if stored else METRICS:
        value, bound = model.figure(row, metric)
        said = (bytes_figure if metric.in_bytes else count_figure)(value, exact)
        role = "warn" if value is None or bound else "number" if value else "dim"
        lines.extend(field(f" {metric.title}", ((f"{bound} {said}".strip(), role),), width))
    return lines
