"""Rail: a strip beside the layer tree that shows what feeds what, as `git log` draws branches.

The trunk runs where a row reads what the row before it makes. What passes over rows (a skip, a residual)
runs beside it in a lane of its own and joins where it is read. A closed group stands for all that is in it.
What is folded away as a constant has no line.
No terminal is needed to test it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.facts.graph.edges import RowEdges
    from explorer.tui.tree.model import TreeModel

LANES = 4
"""Lanes that are drawn; what runs in one beyond is a mark."""
_NEAR = 200
"""Rows beyond those in view that are drawn with them; what begins further above has no lane."""
_MOST = 8_000
"""Edges among those rows that are looked at."""

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_CELLS = " ╵╷│╴╯╮┤╶╰╭├─┴┬┼"
"""A cell by the sides at which lines leave it."""
_BEYOND = "⋮"


class Rail:
    """The strip of the rows of a tree.

    Args:
        edges: Of the model.
    """

    def __init__(self, edges: RowEdges) -> None:
        self._edges = edges
        self._followers = frozenset(edges.followers)
        self._rows: Sequence[int] = ()
        self._drawn = (-1, -1)
        self._lines: dict[int, str] = {}
        self.width = 0

    def line(self, model: TreeModel, index: int, top: int) -> str:
        """The strip of row `index` where `top` is the first row in view; '' where there is nothing to show.

        Rows that are sorted, or of which some are filtered out, are in no order that a strip could follow.
        """
        if model.by_cost or model.matches is not None or not self._edges.makers:
            return ""
        start = max(0, (top // _NEAR - 1) * _NEAR)
        drawn = (len(model.rows), start)
        if model.rows is not self._rows or drawn != self._drawn:
            self._rows, self._drawn = model.rows, drawn
            self._draw(model, start, start + 4 * _NEAR)
        return self._lines.get(index, " " * self.width)

    def _draw(self, model: TreeModel, start: int, stop: int) -> None:
        """Work out the strip of the rows from `start` to before `stop`."""
        rows = model.rows[start:stop]
        nodes = [
            at
            for at, row in enumerate(rows)
            if not (model.expandable(row) and model.is_open(row)) and not model.is_gathered(model.first(row))
        ]
        skips, below = self._joined(model, [model.first(rows[at]) for at in nodes])
        lanes, count = _lanes(skips)
        self.width = 1 + min(count, LANES) if lanes else 0
        cells = [[0] * self.width for _ in rows] if lanes else []
        if lanes:
            for at in below:
                _down(cells, nodes[at], nodes[at + 1], 0)
            for maker, ends, lane in lanes:
                _lane(cells, nodes[maker], [nodes[end] for end in ends], lane)
        self._lines = {start + at: _said(row) for at, row in enumerate(cells)}

    def _joined(self, model: TreeModel, begins: Sequence[int]) -> tuple[dict[int, set[int]], set[int]]:
        """Which rows' values skip others, and after which rows comes one that reads what they make.

        Args:
            model: The tree.
            begins: The first layer of every row that is no open group.
        """
        skips: dict[int, set[int]] = {}
        below: set[int] = set()
        edges, ordered = self._edges, self._edges.nodes
        for place in range(1, len(begins)):
            at = bisect_left(ordered, begins[place])
            first = ordered[at] if at < len(ordered) else -1
            if at and model.is_gathered(ordered[at - 1]):
                continue
            if first in self._followers and (place + 1 == len(begins) or first < begins[place + 1]):
                below.add(place - 1)
        low = bisect_left(edges.makers, begins[0]) if begins else 0
        high = min(low + _MOST, len(edges.makers))
        for maker, reader in zip(edges.makers[low:high], edges.readers[low:high], strict=True):
            if model.is_gathered(maker) or model.is_gathered(reader):
                continue
            one, other = bisect_right(begins, maker) - 1, bisect_right(begins, reader) - 1
            if other == one + 1:
                below.add(one)
            elif other > one:
                skips.setdefault(one, set()).add(other)
        return skips, below


def _lanes(skips: dict[int, set[int]]) -> tuple[list[tuple[int, list[int], int]], int]:
    """A lane for each maker, from it to its last reader; how many there are beside each other at most."""
    busy: list[int] = []
    found: list[tuple[int, list[int], int]] = []
    for maker in sorted(skips):
        ends = sorted(skips[maker])
        lane = next((at for at, until in enumerate(busy) if until <= maker), len(busy))
        if lane == len(busy):
            busy.append(0)
        busy[lane] = ends[-1]
        found.append((maker, ends, lane))
    return found, len(busy)


def _down(cells: Sequence[list[int]], top: int, end: int, column: int) -> None:
    """From a row to another below it."""
    cells[top][column] |= _DOWN
    for row in range(top + 1, end):
        cells[row][column] |= _UP | _DOWN
    cells[end][column] |= _UP


def _lane(cells: Sequence[list[int]], top: int, ends: Sequence[int], lane: int) -> None:
    """Out of the trunk at `top`, down its lane, and into the trunk at each of `ends`."""
    if lane >= LANES:
        for row in range(top, ends[-1] + 1):
            cells[row][-1] = -1
        return
    _down(cells, top, ends[-1], lane + 1)
    for row in (top, *ends):
        cells[row][0] |= _RIGHT
        for column in range(1, lane + 1):
            cells[row][column] = max(cells[row][column], 0) | _LEFT | _RIGHT
        cells[row][lane + 1] |= _LEFT


def _said(cells: Iterable[int]) -> str:
    return "".join([_BEYOND if cell < 0 else _CELLS[cell] for cell in cells])
