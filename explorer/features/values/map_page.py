"""Text around a heat map: the visible part, the number under the cursor, the figures of the tensor."""

from __future__ import annotations

from explorer.base.units import shape_text
from explorer.facts.values import HeatMap
from explorer.features.values.tensor_words import channel_table, number, outlier_table
from explorer.features.values.values_page import histogram_lines
from explorer.features.values.weights_words import figures
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line, cut_line, escape_name, heading_line


def title_lines(fact: HeatMap, index: int, count: int, width: int) -> tuple[Line, Line]:
    """Build the title (tensor, visible part, number among `count` tensors) and a line with the notes."""
    place = _format_place(fact, *(f"{a}:{b}" for a, b in (fact.rows, fact.columns)))
    type_text = f" {fact.tensor.dtype} {shape_text(fact.tensor.shape)}"
    position = f"  {index + 1} of {count}" if count > 1 else ""
    position += "  right: before" if fact.before is not None else ""
    spans = (
        (f" {escape_name(fact.tensor.name)}", "strong"),
        (type_text, "dim"),
        (f"  [{place}]", "accent"),
        (position, "dim"),
    )
    return cut_line(spans, width), cut_line(((f" {'; '.join(map(escape_name, fact.notes))}", "warn"),), width)


def _format_place(fact: HeatMap, *matrix: str) -> str:
    """Format indices on the axes of the tensor: none for a scalar, one for a vector."""
    indices = (*map(str, fact.place), *matrix)
    shape = fact.tensor.shape
    return ", ".join(indices if shape is None else indices[len(indices) - len(shape) :])


def cell_span(span: tuple[int, int], cell: int, cells: int) -> tuple[int, int]:
    """Return the range of indices of an axis that a cell of the map covers."""
    first, stop = span
    size = stop - first
    return first + -(-cell * size // cells), first + -(-(cell + 1) * size // cells)


def cursor_line(fact: HeatMap, row: int, column: int, largest: float, width: int) -> Line:
    """Build the line with the number under the cursor, its indices, and the scale of the colors."""
    if not fact.cells:
        return (("  no numbers", "dim"),)
    spans = [cell_span(fact.rows, row, fact.heights), cell_span(fact.columns, column, fact.widths)]
    place = _format_place(fact, *(str(a) if b - a == 1 else f"{a}:{b}" for a, b in spans))
    words: list[tuple[str, str]] = [(f" [{place}]  ", "dim"), (_format_cell(fact, row, column), "number")]
    earlier = fact.before
    if earlier is not None:
        words += [("  before ", "dim"), (_format_cell(earlier, row, column), "number")]
    words += _format_code(fact, row * fact.widths + column)
    if any(b - a > 1 for a, b in spans):
        words.append(("  the largest of them", "dim"))
    words.append((f"   strongest color ±{number(largest)}", "dim"))
    return cut_line(words, width)


def _format_code(fact: HeatMap, index: int) -> list[tuple[str, str]]:
    """Format the stored code of a quantized number with its scale and zero point."""
    if fact.codes is None or fact.scales is None:
        return []
    extras = (("zero point", fact.zero_points), ("offset", fact.offsets))
    labeled = [
        ("scale", fact.scales[index]),
        *((word, values[index]) for word, values in extras if values and values[index]),
    ]
    text = "".join(f", {word} {number(value)}" for word, value in labeled)
    return [("  code ", "dim"), (str(fact.codes[index]), "number"), (text, "dim")]


def _format_cell(fact: HeatMap, row: int, column: int) -> str:
    value = fact.cells[row * fact.widths + column]
    return "NaN or Inf" if value is None else number(value)


def build_figure_lines(fact: HeatMap, width: int) -> list[Line]:
    """Build the figures of the whole tensor: range, spread, histogram, outliers, widest channels."""
    lines = [*_draw_figures(fact, width)]
    if fact.before is not None and fact.before.stats is not None:
        lines += [BLANK, heading_line("Before"), *_draw_figures(fact.before, width)]
    return lines


def _draw_figures(fact: HeatMap, width: int) -> list[Line]:
    stats = fact.stats
    if stats is None:
        return []
    lines = draw(figures(stats, brief=True), width, beside=True)
    if stats.histogram is not None and any(stats.histogram.counts):
        lines += histogram_lines(stats.histogram, width)
    return lines + draw([*outlier_table(fact.outliers), *channel_table(fact)], width)
