"""Scatter plots in terminal cells."""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.report.blocks import Dot, Role, Scatter, Span

HEIGHT = 16
"""Default height of a scatter plot in lines."""
_MIN_SIZE = 24, 6
"""Minimum width and height in cells; a smaller plot, or one without dots, consists only of its title."""


def draw_scatter(block: Scatter, width: int, height: int = HEIGHT) -> list[tuple[Span, ...]]:
    """Draw a title, the dots between two labeled axes, and a legend.

    Args:
        block: The scatter plot. If several dots share a cell, the last one is visible. A label is drawn
            beside its dot if the cells there are free.
        width: Width in cells.
        height: Height in lines, including axes, title and legend.
    """
    title = Span(f" {block.upwards.name}", "strong"), Span(f" over {block.across.name}", "quiet")
    if not block.dots or width < _MIN_SIZE[0] or height < _MIN_SIZE[1]:
        return [title]
    axes = block.across, block.upwards
    coordinates = [
        [_compute_logarithm(dot.at[axis]) if axes[axis].logarithmic else dot.at[axis] for dot in block.dots]
        for axis in (0, 1)
    ]
    bounds = [widen_bounds(values) for values in coordinates]
    ends = [[axes[axis].text(value) for value in _find_range(block, axis)] for axis in (0, 1)]
    margin = max(map(len, ends[1]))
    rows, columns = height - 4, width - margin - 3
    cells: list[list[Span]] = [[Span(" ")] * columns for _ in range(rows)]
    places = [
        (rows - 1 - _find_cell(y, bounds[1], rows), _find_cell(x, bounds[0], columns))
        for x, y in zip(*coordinates, strict=True)
    ]
    for dot, (line, column) in zip(block.dots, places, strict=True):
        cells[line][column] = Span(dot.mark, dot.role)
    for dot, (line, column) in zip(block.dots, places, strict=True):
        _write_label(cells[line], column, dot)
    lines: list[tuple[Span, ...]] = [title]
    labels = {0: ends[1][1], rows - 1: ends[1][0]}
    for index, row in enumerate(cells):
        label = labels.get(index, "").rjust(margin)
        lines.append((Span(f" {label} {'┤' if index in labels else '│'}", "quiet"), *_merge_cells(row)))
    below = f"{ends[0][0]}{ends[0][1].rjust(columns - len(ends[0][0]))}"
    lines.append((Span(f" {' ' * margin} └{'─' * columns}", "quiet"),))
    lines.append((Span(f" {' ' * margin}  {below}", "quiet"),))
    return [*lines, _draw_legend(block.legend, width)]


def _write_label(cells: list[Span], column: int, dot: Dot) -> None:
    """Write the label of a dot right of it, or else left of it, if the cells there are free."""
    size = len(dot.label)
    for start in (column + 1, column - size):
        label_cells = cells[max(start, 0) : start + size]
        if size and start >= 0 and len(label_cells) == size and all(cell.text == " " for cell in label_cells):
            cells[start : start + size] = [Span(char, dot.role) for char in dot.label]
            return


def _draw_legend(legend: Sequence[tuple[str, Role, str]], width: int) -> tuple[Span, ...]:
    """Draw the meanings of the marks, as many as fit."""
    spans: list[Span] = []
    remaining_width = width
    for mark, role, text in legend:
        remaining_width -= len(mark) + len(text) + 4
        if remaining_width >= 0:
            spans += [Span(f"  {mark} ", role), Span(text, "quiet")]
    return tuple(spans)


def _merge_cells(row: Sequence[Span]) -> list[Span]:
    """Merge neighboring cells with the same role into one span."""
    spans: list[Span] = []
    for cell in row:
        if spans and spans[-1].role == cell.role:
            spans[-1] = Span(spans[-1].text + cell.text, cell.role)
        else:
            spans.append(cell)
    return spans


def _find_range(block: Scatter, axis: int) -> tuple[float, float]:
    values = [dot.at[axis] for dot in block.dots]
    return min(values), max(values)


def _compute_logarithm(value: float) -> float:
    """Return the decimal logarithm of a value. Values below 1 are drawn at 1, because 0 has no logarithm."""
    return math.log10(max(value, 1.0))


def widen_bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: the smallest and largest value, or half a unit around a single value."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _find_cell(value: float, bounds: tuple[float, float], cells: int) -> int:
    return max(0, min(cells - 1, round((value - bounds[0]) / (bounds[1] - bounds[0]) * (cells - 1))))
