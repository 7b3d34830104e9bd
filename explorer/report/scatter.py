"""Scatter of dots in cells: what a terminal and a pane show of two figures of many things."""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.report.blocks import Role, Scatter, Span

HEIGHT = 16
"""Lines that one takes where nothing else says how high it is."""
_LEAST = 24, 6
"""Cells under which there is only its title."""


def scatter_lines(block: Scatter, width: int, height: int = HEIGHT) -> list[tuple[Span, ...]]:
    """A title, the dots between two axes with their ends written out, and what the marks mean.

    Args:
        block: The dots; of those that share a cell the last one shows.
        width: In cells.
        height: In lines; the axes, title and legend are among them.
    """
    title = Span(f" {block.upwards.name}", "strong"), Span(f" over {block.across.name}", "quiet")
    if not block.dots or width < _LEAST[0] or height < _LEAST[1]:
        return [title]
    axes = block.across, block.upwards
    places = [
        [_logarithm(dot.at[axis]) if axes[axis].logarithmic else dot.at[axis] for dot in block.dots]
        for axis in (0, 1)
    ]
    bounds = [bounds_of(values) for values in places]
    ends = [[axes[axis].text(value) for value in _ends(block, axis)] for axis in (0, 1)]
    margin = max(map(len, ends[1]))
    rows, columns = height - 4, width - margin - 3
    cells: list[list[Span]] = [[Span(" ")] * columns for _ in range(rows)]
    for dot, x, y in zip(block.dots, *places, strict=True):
        cells[rows - 1 - _cell(y, bounds[1], rows)][_cell(x, bounds[0], columns)] = Span(dot.mark, dot.role)
    lines: list[tuple[Span, ...]] = [title]
    labels = {0: ends[1][1], rows - 1: ends[1][0]}
    for at, row in enumerate(cells):
        label = labels.get(at, "").rjust(margin)
        lines.append((Span(f" {label} {'┤' if at in labels else '│'}", "quiet"), *_joined(row)))
    below = f"{ends[0][0]}{ends[0][1].rjust(columns - len(ends[0][0]))}"
    lines.append((Span(f" {' ' * margin} └{'─' * columns}", "quiet"),))
    lines.append((Span(f" {' ' * margin}  {below}", "quiet"),))
    return [*lines, _legend(block.legend, width)]


def _legend(legend: Sequence[tuple[str, Role, str]], width: int) -> tuple[Span, ...]:
    """What the marks mean, as many of them as there is room for."""
    spans: list[Span] = []
    room = width
    for mark, role, text in legend:
        room -= len(mark) + len(text) + 4
        if room >= 0:
            spans += [Span(f"  {mark} ", role), Span(text, "quiet")]
    return tuple(spans)


def _joined(row: Sequence[Span]) -> list[Span]:
    """Cells of one role after another as one span."""
    spans: list[Span] = []
    for cell in row:
        if spans and spans[-1].role == cell.role:
            spans[-1] = Span(spans[-1].text + cell.text, cell.role)
        else:
            spans.append(cell)
    return spans


def _ends(block: Scatter, axis: int) -> tuple[float, float]:
    values = [dot.at[axis] for dot in block.dots]
    return min(values), max(values)


def _logarithm(value: float) -> float:
    return math.log10(max(value, 1.0))


def bounds_of(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis; never the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _cell(at: float, bounds: tuple[float, float], cells: int) -> int:
    return max(0, min(cells - 1, round((at - bounds[0]) / (bounds[1] - bounds[0]) * (cells - 1))))
