"""Values of tensors on the page of a layer: stored weights, and activations from a run.

One or two tensors show all figures and a histogram. With more tensors, each one shows a few lines, so that
the layers of a group can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.units import count_text
from explorer.features.values.weights_words import (
    build_unseen_table,
    figures,
    list_equal_tensors,
    spark,
    tensor_line,
)
from explorer.report.blocks import Block, Heading, Paragraph
from explorer.report.blocks import Line as TextLine
from explorer.report.blocks import Span as TextSpan
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import BLANK, Line
from explorer.tui.text.plot import draw_area, draw_axes

if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.facts.values import Activations, Histogram, TensorStats, Weights
    from explorer.tui.tabs.layer import LayerParts

_MAX_FULL_TENSORS = 2
"""Maximum number of tensors that show all figures."""
_HISTOGRAM_LINES = 4
"""Height of a histogram, in lines."""


def layer_lines(page: LayerParts) -> list[Callable[[int], list[Line]]]:
    """Return the values of a layer's weights and outputs that were already read."""
    answers, exact, brief = page.store.on_demand, page.store.exact, page.brief
    parts: list[Callable[[int], list[Line]]] = []
    if (weights := answers.weights.get(page.path)) is not None:
        parts.append(lambda width: weight_lines(*weights, width, exact, brief=brief))
    if (activations := answers.activations.get(page.path)) is not None:
        parts.append(lambda width: activation_lines(*activations, width, exact, brief=brief))
    return parts


def weight_lines(weights: Weights, total: int, width: int, exact: bool, *, brief: bool = False) -> list[Line]:
    """Build the statistics of a layer's weights.

    `total` counts all tensors of the layer. `brief` shows two lines for each tensor.
    """
    heading = _build_heading("Values of the weights", len(weights.tensors), total, "tensors", weights.notes)
    lines = [*draw(heading, width), *_draw_statistics(weights.tensors, width, exact, brief)]
    return lines + draw(list_equal_tensors(weights), width)


def activation_lines(
    activations: Activations, total: int, width: int, exact: bool, *, brief: bool = False
) -> list[Line]:
    """Build the statistics of a layer's outputs in a run.

    `total` counts the layers inside the layer. `brief` shows two lines for each tensor.
    """
    layer_count = len({stats.layer for stats in activations.tensors})
    heading = _build_heading("Values of the activations", layer_count, total, "layers", activations.notes)
    lines = [*draw(heading, width), *_draw_statistics(activations.tensors, width, exact, brief)]
    notes_below: list[Block] = [Paragraph(text, "quiet") for text in activations.inputs]
    return lines + draw([*notes_below, *build_unseen_table(activations)], width)


def _build_heading(title: str, count: int, total: int, noun: str, notes: Sequence[str]) -> list[Block]:
    share = f"{count:,} of {total:,} {noun}" if 0 < count < total else ""
    return [Heading(title, share), *(Paragraph(note, "warning") for note in notes)]


def _draw_statistics(tensors: Sequence[TensorStats], width: int, exact: bool, brief: bool) -> list[Line]:
    if not tensors:
        return draw([Paragraph("no values", "quiet")], width)
    brief = brief or len(tensors) > _MAX_FULL_TENSORS
    lines: list[Line] = []
    for i, stats in enumerate(tensors):
        lines += [BLANK] if i and not brief else []
        head: list[Block] = [tensor_line(stats)]
        if brief and (bar := spark(stats.histogram, min(32, width // 3))):
            head.append(TextLine(TextSpan(bar, "bar")))
        lines += draw([*head, *figures(stats, brief=brief)], width, exact, beside=True)
        if not brief and stats.histogram is not None and any(stats.histogram.counts):
            lines += histogram_lines(stats.histogram, width)
    return lines


def histogram_lines(histogram: Histogram, width: int) -> list[Line]:
    """Draw a histogram over the range of the values; the count of the tallest bar is labeled."""
    counts = histogram.counts
    top = count_text(max(counts))
    columns = max(8, min(width - len(top) - 3, len(counts)))
    low, high = (f"{edge:.4g}" for edge in (histogram.edges[0], histogram.edges[-1]))
    rows = draw_area(counts, columns, _HISTOGRAM_LINES)
    return draw_axes(rows, {0: " " + top}, [(0, low), (columns - 1, high)])
