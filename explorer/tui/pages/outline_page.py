"""Pages without an analysis: rows of a header, the header itself, and ranges of many layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text
from explorer.report.blocks import Block, Field, Fields, Heading, Paragraph, Span
from explorer.report.blocks import Line as TextLine
from explorer.report.present.figures import count, size
from explorer.report.present.look.info import build_tensor_blocks
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import METRICS

if TYPE_CHECKING:
    from explorer.process.preview import ModelHeader


def outline_page(model: TreeModel, row: int, width: int, exact: bool, failure: str = "") -> list[Line]:
    """Draw a row of a header, or a run of identical rows, before the analysis or after it failed."""
    layer, has_many_layers = model.layers[model.find_first_layer(row)], len(model.members(row)) > 1
    blocks: list[Block] = [
        TextLine(Span(layer.path or "(unnamed)", "strong")),
        *([TextLine(Span(layer.kind, "formula"))] if layer.kind else []),
        *([_count_members(model, row)] if has_many_layers else []),
        *(_explain_failure(failure) if failure else [Paragraph(layer.reason, "quiet", 0)]),
        TextLine(),
        _build_totals(model, row, is_stored=True),
        *build_tensor_blocks("Tensors", layer.weights),
    ]
    return draw(blocks, width - 1, exact)


def range_page(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """Draw a range of layers, or the constants of a group, with their total costs."""
    members = model.members(row)
    ends = (model.layers[members[0]].path, "…", model.layers[members[-1]].path)
    path_lines = [TextLine(Span(path or "(unnamed)", "strong")) for path in ends]
    return draw(
        [*path_lines, _count_members(model, row), TextLine(), _build_totals(model, row)], width - 1, exact
    )


def run_lines(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """Draw the total costs of all blocks of a run, to be shown on the page of one block."""
    title = Heading(f"All {len(model.members(row)):,} together")
    return draw([title, _build_totals(model, row)], width, exact)


def failed_page(failure: str) -> Callable[[int], list[Line]]:
    """Return a page with the reason why the model could not be opened, and the next keys; empty for ''."""
    hint = Paragraph("o tries again, O opens another model.", "quiet", 0)
    blocks: list[Block] = [Paragraph(failure, "bad", 0), TextLine(), hint] if failure else []
    return lambda width: draw(blocks, width - 1)


def _explain_failure(failure: str) -> list[Block]:
    """Return blocks that explain why only the header is shown."""
    note = "The model could not be opened. This is its header."
    return [Paragraph(failure, "bad", 0), Paragraph(note, "quiet", 0)]


def header_page(header: ModelHeader, width: int, failure: str = "") -> list[Line]:
    """Draw the contents of the header, and the `failure` if the model could not be opened."""
    rows = [
        Field("format", Span(header.format)),
        *([Field("file", bytes_text(header.file_bytes))] if header.file_bytes else []),
        *(Field(key, Span(text)) for key, text in header.facts),
    ]
    waiting_note: list[Block] = [Paragraph("the model is being analyzed", "quiet")]
    return draw(
        [Fields(rows), TextLine(), *(_explain_failure(failure) if failure else waiting_note)], width - 1
    )


def _count_members(model: TreeModel, row: int) -> TextLine:
    count = len(model.members(row))
    text = f"first of {count:,} that are built alike"
    if model.is_constants(row):
        text = f"{model.count_layers(row):,} constants and shape arithmetic; Enter opens the row, . shows all"
    elif model.is_range(row):
        text = f"{count:,} of very many layers side by side; Enter opens the row"
    return TextLine(Span(text, "formula"))


def _build_totals(model: TreeModel, row: int, *, is_stored: bool = False) -> Fields:
    rows: list[Field] = []
    for metric in METRICS[1:3] if is_stored else METRICS:
        value, sign = model.figure(row, metric)
        integer = None if value is None else int(value)
        figure = (size if metric.unit == "bytes" else count)(integer, f"{sign} " if sign else "")
        rows.append(Field(metric.title, figure))
    return Fields(rows)
