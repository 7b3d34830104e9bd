"""Rail: a strip beside the layer tree that shows what feeds what, as `git log` draws branches.

The trunk runs where a row reads what the row before it makes. What passes over rows (a skip, a residual)
runs beside it in a lane of its own and joins where it is read. A closed group stands for all that is in it.
What is folded away as a constant has no line.
No terminal is needed to test it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.facts.graph.edges import RowEdges
    from explorer.tui.tree.model import TreeModel

LANES = 4
"""Lanes that are drawn; what runs in one beyond is a mark."""
_ABOVE, _STEP, _BELOW = 100, 50, 150
"""Rows above and below those in view that are drawn with them, anew every few rows: each costs 6 us; what
begins further above has no lane."""
_MOST = 8_000
"""Edges among those rows that are looked at."""
_REACH = 16
"""Rows that most edges lead over at most: only longer ones leave a closed group before its last rows."""

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
        self.edges = edges
        self._followers = frozenset(edges.followers)
        between = enumerate(zip(edges.makers, edges.readers, strict=True))
        self._far = [at for at, (maker, reader) in between if reader - maker > _REACH]
        self._rows: Sequence[int] = ()
        self._drawn = (-1, -1)
        self._lines: dict[int, str] = {}
        self.width = 0

    def line(self, model: TreeModel, index: int, top: int) -> str:
        """The strip of row `index` where `top` is the first row in view; '' where there is nothing to show.

        Rows that are sorted, or of which some are filtered out, are in no order that a strip could follow.
        """
        if model.by_cost or model.matches is not None or not self.edges.makers:
            return ""
        start = max(0, top // _STEP * _STEP - _ABOVE)
        drawn = (len(model.rows), start)
        if model.rows is not self._rows or drawn != self._drawn:
            self._rows, self._drawn = model.rows, drawn
            self._draw(model, start, start + _ABOVE + _STEP + _BELOW)
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
        edges, ordered = self.edges, self.edges.nodes
        gathered = model.is_gathered if model.has_gathered else None
        for place in range(1, len(begins)):
            first = begins[place]
            # most rows are layers that make or read something: what a group begins with is looked for
            if gathered is not None or first not in self._followers:
                at = bisect_left(ordered, first)
                first = ordered[at] if at < len(ordered) else -1
                if gathered is not None and at and gathered(ordered[at - 1]):
                    continue
            if first in self._followers and (place + 1 == len(begins) or first < begins[place + 1]):
                below.add(place - 1)
        for at in islice(self._leaving(begins), _MOST):
            maker, reader = edges.makers[at], edges.readers[at]
            if gathered is not None and (gathered(maker) or gathered(reader)):
                continue
            maker_row, reader_row = bisect_right(begins, maker) - 1, bisect_right(begins, reader) - 1
            if reader_row == maker_row + 1:
                below.add(maker_row)
            elif reader_row > maker_row:
                skips.setdefault(maker_row, set()).add(reader_row)
        return skips, below

    def _leaving(self, begins: Sequence[int]) -> Iterator[int]:
        """The edges that may lead from one row to another: of those within a large closed group few are seen.

        Args:
            begins: The first layer of every row.
        """
        makers, readers, far = self.edges.makers, self.edges.readers, self._far
        high = bisect_left(makers, begins[0]) if begins else 0
        # nothing is drawn below the last row
        for begin, stop in pairwise(begins):
            if high == len(makers) or makers[high] >= stop:
                continue
            low, high = high, bisect_left(makers, stop, high)
            near = low
            if stop - begin > _REACH:
                near = bisect_left(makers, stop - _REACH, low, high)
                yield from far[bisect_left(far, low) : bisect_left(far, near)]
            yield from [at for at in range(near, high) if readers[at] >= stop]


def _lanes(skips: dict[int, set[int]]) -> tuple[list[tuple[int, list[int], int]], int]:
    """A lane for each maker, from it to its last reader; how many there are beside each other at most."""
    busy: list[int] = []
    runs: list[tuple[int, list[int], int]] = []
    for maker in sorted(skips):
        ends = sorted(skips[maker])
        lane = next((at for at, until in enumerate(busy) if until <= maker), len(busy))
        if lane == len(busy):
            busy.append(0)
        busy[lane] = ends[-1]
        runs.append((maker, ends, lane))
    return runs, len(busy)


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
