"""Page of the sweep screen: table of tilings, plot of the Pareto front, and facts about one tiling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from string import ascii_uppercase
from typing import Any

from explorer.base.units import bytes_text, count_text
from explorer.facts.sweep import SweepRow
from explorer.features.sweep.sweep_words import FRONT, SweepColumn, select_columns, tile_text, tiling_blocks
from explorer.report.scatter import widen_bounds
from explorer.tui.text.drawing import cell_line, draw
from explorer.tui.text.lines import Line, Span, escape_name, fit, line_text
from explorer.tui.text.plot import build_lines, draw_axes, draw_columns, map_to_axis, put_text

Axes = tuple[str, str]  # figures on the horizontal and the vertical axis
Tiling = tuple[Any, str]
"""Key of a tiling: its tile and its treatment of edges."""
TilePlace = tuple[int, int]  # column and line in the plot

AXES: tuple[Axes, ...] = (
    ("buffer", "cycles"),
    ("buffer", "traffic"),
    ("traffic", "cycles"),
    ("products", "cycles"),
    ("products", "traffic"),
)
"""Pairs of figures to plot: horizontal axis, vertical axis."""
_TITLES = {"products": "tile matmuls"}


_SORTED_BY: Mapping[str, tuple[str, int]] = {
    "tile": ("asked", 12),
    "edges": ("asked", 7),
    "form": ("asked", 8),
    "groups": ("asked", 6),
    "tile matmuls": ("products", 13),
    "utilization": ("utilisation", 12),
    "padding": ("padded", 8),
    "traffic": ("traffic", 12),
    "buffer": ("buffer", 12),
    "cycles": ("cycles", 10),
    "time": ("time", 9),
    "proof": ("error", 17),
    "worst error": ("error", 11),
}
"""Figure that sorts by a column, and width of the column in cells. New rows must not move columns."""


def columns_for(rows: Sequence[SweepRow], width: int) -> tuple[SweepColumn, ...]:
    """Return the columns that are not empty and fit in `width` cells."""
    visible = select_columns(rows)[:-1]
    while _count_cells(visible) > width and any(column.drop for column, _ in visible):
        visible.remove(max(visible, key=lambda column: column[0].drop))
    return tuple(visible)


def table_width(rows: Sequence[SweepRow]) -> int:
    """Return the width of all columns, in cells."""
    return _count_cells(select_columns(rows)[:-1])


def _count_cells(columns: Sequence[SweepColumn]) -> int:
    return sum(_SORTED_BY[column.title][1] + 1 for column, _ in columns) + _MARKS


_MARKS = 5
"""Width of the mark of a row in cells: the letter of the user's mark, and the Pareto front with its label."""


def label_front(rows: Sequence[SweepRow]) -> dict[Tiling, str]:
    """Return the labels of the tilings on the Pareto front: A to Z, then AA, the smallest buffer first."""

    def figures(row: SweepRow) -> list[float]:
        values = (getattr(row, name) for name in ("buffer", "cycles", "traffic"))
        return [math.inf if value is None else value for value in values]

    front = sorted((row for row in rows if row.pareto), key=figures)
    return {(row.tile, row.edges): _letter_number(index) for index, row in enumerate(front)}


def _letter_number(index: int) -> str:
    """Return the letters of a number, as in a spreadsheet: A for 0, Z for 25, AA for 26."""
    first, last = divmod(index, len(ascii_uppercase))
    return f"{_letter_number(first - 1) if first else ''}{ascii_uppercase[last]}"


def sweep_head(columns: Sequence[SweepColumn], sorted_figure: str, reverse: bool) -> Line:
    """Build the line of column titles; the title of the sorted column is highlighted."""
    spans: list[Span] = [(" " * _MARKS, "text")]
    for column, _ in columns:
        sort, cells = _SORTED_BY[column.title]
        is_sorted = sort == sorted_figure != "asked"
        title = f"{column.title}{('▴' if reverse else '▾') if is_sorted else ''}"
        spans.append((fit(title, cells, right=column.align == "right") + " ", "head" if is_sorted else "dim"))
    return tuple(spans)


def sweep_line(
    row: SweepRow, columns: Sequence[SweepColumn], width: int, letter: str = " ", label: str = ""
) -> Line:
    """Build the line of a tiling, after the letter of its mark; a tiling without figures shows the reason.

    `label` is the label of a tiling on the Pareto front.
    """
    text = fit(f"{letter}{FRONT if row.pareto else ' '}{label}", _MARKS)
    mark: Span = (text, "good" if row.pareto else "accent")
    if row.error:
        cells = _SORTED_BY["tile"][1]
        reason = fit(escape_name(row.error), max(1, width - _MARKS - 1 - cells))
        return (mark, (fit(tile_text(row), cells) + " ", "dim"), (reason, "warn"))
    spans: list[Span] = [mark]
    for column, cell in columns:
        line = cell_line(cell(row), column.role or ("figure" if column.align == "right" else ""))
        text = fit(line_text(line), _SORTED_BY[column.title][1], right=column.align == "right")
        spans.append((text + " ", line[0][1] if line else "dim"))
    return tuple(spans)


def sweep_facts(row: SweepRow, width: int) -> list[Line]:
    """Build the facts about a tiling that its row does not show."""
    return draw(tiling_blocks(row), width - 1, beside=True)


# the plot


def axes_of(rows: Sequence[SweepRow]) -> tuple[Axes, ...]:
    """Return the pairs of axes for which some row has figures, or the first pair if there are none."""
    pairs = [axes for axes in AXES if any(_find_point(row, axes) for row in rows)]
    return tuple(pairs) or AXES[:1]


def _find_point(row: SweepRow, axes: Axes) -> tuple[float, float] | None:
    """Return the coordinates of a tiling as decimal logarithms, or None without figures."""
    horizontal, vertical = (getattr(row, name) for name in axes)
    if not horizontal or not vertical or row.error:
        return None
    return math.log10(horizontal), math.log10(vertical)


class ParetoPlot:
    """Plot of tilings as dots, with their Pareto front as labeled diamonds, on two logarithmic axes.

    The front is that of the table: it may count a figure without an axis. Each column of the plot is filled
    up to the lowest front point at or left of it. The layout is computed once; moving the cursor changes only
    the highlighted dot.

    Args:
        rows: Tilings to plot.
        axes: Pair of figures from `AXES`.
    """

    def __init__(self, rows: Sequence[SweepRow], axes: Axes) -> None:
        self.axes = axes
        self._labels = label_front(rows)
        self._points = {
            (row.tile, row.edges): (point, row.pareto)
            for row in rows
            if (point := _find_point(row, axes)) is not None
        }
        points = [point for point, _ in self._points.values()]
        self._bounds = [widen_bounds([point[axis] for point in points]) for axis in (0, 1)] if points else []
        self._dots: tuple[tuple[int, int], set[TilePlace], list[TilePlace]] | None = None

    def lines(self, current: SweepRow | None, width: int, height: int) -> list[Line]:
        """Draw the plot in `width` by `height` cells. A small area shows only the title."""
        title = " {1} over {0}".format(*(_TITLES.get(name, name) for name in self.axes))
        if not self._points or height < 5 or width < 24:
            return [((fit(f"{title}: no figures to plot" if not self._points else "", width), "dim"),)]
        texts = [bytes_text if name in ("buffer", "traffic") else count_text for name in self.axes]
        labels = [[texts[axis](round(10.0**end)) for end in self._bounds[axis]] for axis in (0, 1)]
        margin = max(map(len, labels[1]))
        rows, plot_width = height - 3, max(8, width - margin - 3)
        other_spots, front = self._find_cells(plot_width, rows)
        current_point = None if current is None else self._points.get((current.tile, current.edges))
        cells = draw_columns(self._fill_columns(plot_width, rows), rows, ["bar"] * plot_width)
        for x, y in other_spots:
            put_text(cells, x, y, "·", "text")
        for x, y in front:
            put_text(cells, x, y, FRONT, "good")
        for (x, y), label in self._place_labels(plot_width, rows, front).items():
            put_text(cells, x, y, label, "good")
        if current_point is not None:
            point, is_front = current_point
            put_text(cells, *self._locate(point, plot_width, rows), FRONT if is_front else "●", "accent")
        ends = {0: labels[1][1], rows - 1: labels[1][0]}
        return [
            ((_build_title(title, width), "dim"),),
            *draw_axes(
                build_lines(cells),
                {row: fit(text, margin, right=True) for row, text in ends.items()},
                [(0, labels[0][0]), (plot_width - 1, labels[0][1])],
            ),
        ]

    def _fill_columns(self, plot_width: int, rows: int) -> list[float]:
        """Return the filled height of each column, from 0 to 1."""
        low, high = self._bounds[1]
        lowest = [math.inf] * plot_width
        for (x, y), is_front in self._points.values():
            if is_front:
                column = map_to_axis(x, *self._bounds[0], plot_width)
                lowest[column] = min(lowest[column], (map_to_axis(y, low, high, rows) + 0.5) / rows)
        return [0.0 if height == math.inf else height for height in accumulate(lowest, min)]

    def _locate(self, point: tuple[float, float], plot_width: int, rows: int) -> TilePlace:
        return map_to_axis(point[0], *self._bounds[0], plot_width), rows - 1 - map_to_axis(
            point[1], *self._bounds[1], rows
        )

    def _place_labels(self, plot_width: int, rows: int, front: Sequence[TilePlace]) -> dict[TilePlace, str]:
        """Return the place of each label: right of its point, or else left, above or below it.

        A label without a free place is left out.
        """
        used_cells = set(front)
        places: dict[TilePlace, str] = {}
        for tiling, label in self._labels.items():
            if tiling not in self._points:
                continue
            x, y = self._locate(self._points[tiling][0], plot_width, rows)
            for start, line in ((x + 1, y), (x - len(label), y), (x, y - 1), (x, y + 1)):
                cells = {(start + offset, line) for offset in range(len(label))}
                is_inside = 0 <= start <= plot_width - len(label) and 0 <= line < rows
                if is_inside and not cells & used_cells:
                    places[start, line] = label
                    used_cells |= cells
                    break
        return places

    def _find_cells(self, plot_width: int, rows: int) -> tuple[set[TilePlace], list[TilePlace]]:
        """Return the distinct cells of the points off the front, and of the front from left to right."""
        if self._dots is None or self._dots[0] != (plot_width, rows):
            points = self._points.values()
            dots = [(self._locate(point, plot_width, rows), is_front) for point, is_front in points]
            front = sorted({place for place, is_front in dots if is_front})
            self._dots = (plot_width, rows), {place for place, is_front in dots if not is_front}, front
        return self._dots[1:]


def _build_title(title: str, width: int) -> str:
    """Build the title of the plot with the longest legend that fits."""
    legends = (
        f"   {FRONT} Pareto front, as in the table   · others",
        f"   {FRONT} Pareto front   · others",
        "",
    )
    return fit(
        next(title + legend for legend in legends if len(title + legend) <= width or not legend), width
    )
