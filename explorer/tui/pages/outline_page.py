"""Pages of what is not analysed: rows of a header, the header itself, and a range of many layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from explorer.base.units import bytes_text
from explorer.report.blocks import Block, Field, Fields, Heading, Paragraph, Span
from explorer.report.blocks import Line as TextLine
from explorer.report.present.figures import count, size
from explorer.report.present.look.info import tensors_blocks
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import METRICS

if TYPE_CHECKING:
    from explorer.process.preview import ModelHeader


def outline_page(model: TreeModel, row: int, width: int, exact: bool, failure: str = "") -> list[Line]:
    """A row of a header, or a run of rows that are alike: what is known before the analysis, or without."""
    layer, many = model.layers[model.first(row)], len(model.members(row)) > 1
    blocks: list[Block] = [
        TextLine(Span(layer.path or "(unnamed)", "strong")),
        *([TextLine(Span(layer.kind, "formula"))] if layer.kind else []),
        *([_many(model, row)] if many else []),
        *(_without(failure) if failure else [Paragraph(layer.reason, "quiet", 0)]),
        TextLine(),
        _sums(model, row, is_stored=True),
        *tensors_blocks("Tensors", layer.weights),
    ]
    return draw(blocks, width - 1, exact)


def range_page(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """A range of the children of something that has very many: what they cost together."""
    members = model.members(row)
    ends = (model.layers[members[0]].path, "…", model.layers[members[-1]].path)
    named = [TextLine(Span(path or "(unnamed)", "strong")) for path in ends]
    return draw([*named, _many(model, row), TextLine(), _sums(model, row)], width - 1, exact)


def run_lines(model: TreeModel, row: int, width: int, exact: bool) -> list[Line]:
    """What all blocks of a run cost together; the page they stand on is that of one."""
    title = Heading(f"All {len(model.members(row)):,} together")
    return draw([title, _sums(model, row)], width, exact)


def failed_page(failure: str) -> Callable[[int], list[Line]]:
    """Why there is nothing, and what may be done; empty while the model may still come."""
    more = Paragraph("o tries again, O opens another model.", "quiet", 0)
    blocks: list[Block] = [Paragraph(failure, "bad", 0), TextLine(), more] if failure else []
    return lambda width: draw(blocks, width - 1)


def _without(failure: str) -> list[Block]:
    """Why this is all that there is."""
    said = "The model could not be opened; this is what its header says."
    return [Paragraph(failure, "bad", 0), Paragraph(said, "quiet", 0)]


def header_page(header: ModelHeader, width: int, failure: str = "") -> list[Line]:
    """What the header says of the model, and why there is no more, if it could not be opened."""
    rows = [
        Field("format", Span(header.format)),
        Field("file", bytes_text(header.file_bytes)),
        *(Field(key, Span(text)) for key, text in header.facts),
    ]
    wait: list[Block] = [Paragraph("the analysis is on its way", "quiet")]
    return draw([Fields(rows), TextLine(), *(_without(failure) if failure else wait)], width - 1)


def _many(model: TreeModel, row: int) -> TextLine:
    count = len(model.members(row))
    text = f"first of {count:,} that are built alike"
    if model.is_constants(row):
        text = f"{model.layers_in(row):,} constants and shape arithmetic; the row opens, . shows all"
    elif model.is_range(row):
        text = f"{count:,} of very many side by side; the row opens"
    return TextLine(Span(text, "formula"))


def _sums(model: TreeModel, row: int, *, is_stored: bool = False) -> Fields:
    rows: list[Field] = []
    for metric in METRICS[1:3] if is_stored else METRICS:
        value, sign = model.figure(row, metric)
        whole = None if value is None else int(value)
        figure = (size if metric.unit == "bytes" else count)(whole, f"{sign} " if sign else "")
        rows.append(Field(metric.title, figure))
    return Fields(rows)
