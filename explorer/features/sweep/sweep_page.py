"""Tilings beside each other, as lines: the table, the front as a plot, what is known of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from explorer.base.units import bytes_text, count_text
from explorer.facts.sweep import SweepRow
from explorer.features.sweep.sweep_words import FRONT, SweepColumn, shown_columns, tile_text, tiling_blocks
from explorer.report.scatter import bounds_of
from explorer.tui.text.drawing import cell_line, draw
from explorer.tui.text.lines import Line, Span, fit, line_text, safe
from explorer.tui.text.plot import filled, framed, lines_of, put, spread

Axes = tuple[str, str]
TilePlace = tuple[int, int]

AXES: tuple[Axes, ...] = (
    ("buffer", "cycles"),
    ("buffer", "traffic"),
    ("traffic", "cycles"),
    ("products", "cycles"),
    ("products", "traffic"),
)
"""Pairs of figures to plot: across, and upwards."""
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
"""What sorts by a column, and its cells: rows come while others are shown, and no column is to move."""


def columns_for(rows: Sequence[SweepRow], width: int) -> tuple[SweepColumn, ...]:
    """The columns that tell something, as many as fit into `width` cells."""
    shown = shown_columns(rows)[:-1]
    while _cells(shown) > width and any(column.drop for column, _ in shown):
        shown.remove(max(shown, key=lambda one: one[0].drop))
    return tuple(shown)


def table_width(rows: Sequence[SweepRow]) -> int:
    """The cells that all columns would take."""
    return _cells(shown_columns(rows)[:-1])


def _cells(columns: Sequence[SweepColumn]) -> int:
    return sum(_SORTED_BY[column.title][1] + 1 for column, _ in columns) + 3


def sweep_head(columns: Sequence[SweepColumn], by: str, reverse: bool) -> Line:
    """The columns' titles, that by which the rows are sorted lit."""
    spans: list[Span] = [("   ", "text")]
    for column, _ in columns:
        sort, cells = _SORTED_BY[column.title]
        lit = sort == by != "asked"
        title = f"{column.title}{('▴' if reverse else '▾') if lit else ''}"
        spans.append((fit(title, cells, right=column.align == "right") + " ", "head" if lit else "dim"))
    return tuple(spans)


def sweep_line(row: SweepRow, columns: Sequence[SweepColumn], width: int, letter: str = " ") -> Line:
    """A tiling in one line behind the letter of its mark; of one without figures the reason."""
    mark: Span = (f"{letter}{FRONT} ", "good") if row.pareto else (f"{letter}  ", "accent")
    if row.error:
        cells = _SORTED_BY["tile"][1]
        reason = fit(safe(row.error), max(1, width - 4 - cells))
        return (mark, (fit(tile_text(row), cells) + " ", "dim"), (reason, "warn"))
    spans: list[Span] = [mark]
    for column, cell in columns:
        line = cell_line(cell(row), column.role or ("figure" if column.align == "right" else ""))
        text = fit(line_text(line), _SORTED_BY[column.title][1], right=column.align == "right")
        spans.append((text + " ", line[0][1] if line else "dim"))
    return tuple(spans)


def sweep_facts(row: SweepRow, width: int) -> list[Line]:
    """What is known of one tiling, beside what its row says."""
    return draw(tiling_blocks(row), width - 1, beside=True)


# the plot


def axes_of(rows: Sequence[SweepRow]) -> tuple[Axes, ...]:
    """The pairs of figures that are known of some rows; the first of all where none is."""
    pairs = [axes for axes in AXES if any(_point(row, axes) for row in rows)]
    return tuple(pairs) or AXES[:1]


def _point(row: SweepRow, axes: Axes) -> tuple[float, float] | None:
    """Where a tiling is, in logarithms; None for one without figures."""
    across, upwards = (getattr(row, name) for name in axes)
    if not across or not upwards or row.error:
        return None
    return math.log10(across), math.log10(upwards)


class ParetoPlot:
    """Every tiling as a dot, the Pareto front as diamonds, the chosen one lit; both axes logarithmic.

    The front is that of the two axes: a tiling may be on that of the table by a third. A column is filled up
    to the least that is had with no more of what is across.

    Made once for its rows: a cursor that moves asks for nothing but its own place.

    Args:
        rows: The tilings.
        axes: A pair of `AXES`.
    """

    def __init__(self, rows: Sequence[SweepRow], axes: Axes) -> None:
        self.axes = axes
        points = {(row.tile, row.edges): (row, p) for row in rows if (p := _point(row, axes)) is not None}
        best = _best(point for row, point in points.values() if row.verified is not False)
        self._points = {
            mark: (point, row.verified is not False and point in best)
            for mark, (row, point) in points.items()
        }
        places = [point for point, _ in self._points.values()]
        self._bounds = [bounds_of([place[axis] for place in places]) for axis in (0, 1)] if places else []
        self._dots: tuple[tuple[int, int], set[TilePlace], list[TilePlace]] | None = None

    def lines(self, current: SweepRow | None, width: int, height: int) -> list[Line]:
        """The plot in so many cells; where it has no room, its title."""
        title = " {1} over {0}".format(*(_TITLES.get(name, name) for name in self.axes))
        if not self._points or height < 5 or width < 24:
            return [((fit(f"{title}: nothing to plot" if not self._points else "", width), "dim"),)]
        texts = [bytes_text if name in ("buffer", "traffic") else count_text for name in self.axes]
        labels = [[texts[axis](round(10.0**end)) for end in self._bounds[axis]] for axis in (0, 1)]
        margin = max(map(len, labels[1]))
        rows, across = height - 3, max(8, width - margin - 3)
        others, front = self._spots(across, rows)
        current_point = None if current is None else self._points.get((current.tile, current.edges))
        cells = filled(self._least(across, rows), rows, ["bar"] * across)
        for x, y in others:
            put(cells, x, y, "·", "text")
        for x, y in front:
            put(cells, x, y, FRONT, "good")
        if current_point is not None:
            point, best = current_point
            put(cells, *self._dot(point, across, rows), FRONT if best else "●", "accent")
        ends = {0: labels[1][1], rows - 1: labels[1][0]}
        return [
            ((_head(title, width), "dim"),),
            *framed(
                lines_of(cells),
                {row: fit(text, margin, right=True) for row, text in ends.items()},
                [(0, labels[0][0]), (across - 1, labels[0][1])],
            ),
        ]

    def _least(self, across: int, rows: int) -> list[float]:
        """How high each column is filled: to the middle of the cell of the lowest point not right of it."""
        low, high = self._bounds[1]
        lowest = [math.inf] * across
        for (x, y), best in self._points.values():
            if best:
                at = spread(x, *self._bounds[0], across)
                lowest[at] = min(lowest[at], (spread(y, low, high, rows) + 0.5) / rows)
        return [0.0 if height == math.inf else height for height in accumulate(lowest, min)]

    def _dot(self, point: tuple[float, float], across: int, rows: int) -> TilePlace:
        return spread(point[0], *self._bounds[0], across), rows - 1 - spread(point[1], *self._bounds[1], rows)

    def _spots(self, across: int, rows: int) -> tuple[set[TilePlace], list[TilePlace]]:
        """Where the others are, and the front from left to right; each place once."""
        if self._dots is None or self._dots[0] != (across, rows):
            dots = [(self._dot(point, across, rows), best) for point, best in self._points.values()]
            front = sorted({place for place, best in dots if best})
            self._dots = (across, rows), {place for place, best in dots if not best}, front
        return self._dots[1:]


def _best(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """The points of which no other is at most as far in both directions."""
    best: set[tuple[float, float]] = set()
    lowest = math.inf
    for across, upwards in sorted(set(points)):
        if upwards < lowest:
            best.add((across, upwards))
            lowest = upwards
    return best


def _head(title: str, width: int) -> str:
    """What stands above the plot, as long as there is room for."""
    legends = (f"   {FRONT} Pareto front of these two   · others", f"   {FRONT} Pareto front   · others", "")
    return fit(next(title + one for one in legends if len(title + one) <= width or not one), width)
