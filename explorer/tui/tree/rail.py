"""Rail: a strip beside the layer tree that shows the edges between rows, as `git log` draws branches.

The trunk, in the first column, connects a row with the next row if that row reads its output. An edge that
passes other rows (a skip or residual connection) has its own lane beside the trunk, and joins the trunk at
its reader. A closed group has the edges of all layers in it. Folded constants have no line. No terminal is
needed to test the rail.
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
"""Maximum number of lanes. Edges that need another lane are drawn as a mark."""
_ABOVE, _STEP, _BELOW = 100, 50, 150
"""Rows above and below the view that are drawn ahead, and the step in rows after which they are drawn again.

Drawing takes about 6 us per row. An edge that starts further above has no lane.
"""
_MAX_EDGES = 8_000
"""Maximum number of edges that are examined for one drawing."""
_USUAL_LENGTH = 16
"""Usual maximum length of an edge, in layers: of a large closed group, only longer edges and the edges of the
last layers are examined."""

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_CELLS = " ╵╷│╴╯╮┤╶╰╭├─┴┬┼"
"""Box-drawing character by the bit mask of the sides that its lines touch."""
_BEYOND = "⋮"  # mark of edges for which no lane is left


class Rail:
    """The strip beside the rows of a tree.

    Args:
        edges: Edges between the layers of the model.
    """

    def __init__(self, edges: RowEdges) -> None:
        self.edges = edges
        self._followers = frozenset(edges.followers)
        between = enumerate(zip(edges.makers, edges.readers, strict=True))
        self._long_edges = [edge for edge, (maker, reader) in between if reader - maker > _USUAL_LENGTH]
        self._rows: Sequence[int] = ()
        self._drawn = (-1, -1)
        self._lines: dict[int, str] = {}
        self.width = 0

    def line(self, model: TreeModel, index: int, top: int) -> str:
        """Return the strip of row `index`, or '' without edges. `top` is the index of the first row in view.

        A sorted or filtered tree has no rail, because its rows are not in execution order.
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
        """Draw the strips of the rows from `start` (included) to `stop` (excluded)."""
        rows = model.rows[start:stop]
        nodes = [
            index
            for index, row in enumerate(rows)
            if not (model.is_expandable(row) and model.is_open(row))
            and not model.is_gathered(model.find_first_layer(row))
        ]
        skips, below = self._find_connections(model, [model.find_first_layer(rows[index]) for index in nodes])
        lanes, count = _assign_lanes(skips)
        self.width = 1 + min(count, LANES) if lanes else 0
        cells = [[0] * self.width for _ in rows] if lanes else []
        if lanes:
            for index in below:
                _draw_vertical(cells, nodes[index], nodes[index + 1], 0)
            for maker, ends, lane in lanes:
                _draw_edge(cells, nodes[maker], [nodes[end] for end in ends], lane)
        self._lines = {start + index: _strip_text(row) for index, row in enumerate(cells)}

    def _find_connections(
        self, model: TreeModel, first_layers: Sequence[int]
    ) -> tuple[dict[int, set[int]], set[int]]:
        """Find the skip connections, and the rows whose output the next row reads.

        Args:
            model: The tree.
            first_layers: First layer of each row that is not an open group.

        Returns:
            Readers by producer for edges that pass other rows, and the rows that the trunk connects to the
                next row. Both are indices into `first_layers`.
        """
        skips: dict[int, set[int]] = {}
        below: set[int] = set()
        edges, ordered = self.edges, self.edges.nodes
        gathered = model.is_gathered if model.has_gathered else None
        for index in range(1, len(first_layers)):
            first = first_layers[index]
            # most rows are layers with edges; for a group the first layer with edges must be searched
            if gathered is not None or first not in self._followers:
                node_index = bisect_left(ordered, first)
                first = ordered[node_index] if node_index < len(ordered) else -1
                if gathered is not None and node_index and gathered(ordered[node_index - 1]):
                    continue
            if first in self._followers and (
                index + 1 == len(first_layers) or first < first_layers[index + 1]
            ):
                below.add(index - 1)
        for edge in islice(self._find_crossing_edges(first_layers), _MAX_EDGES):
            producer, reader = edges.makers[edge], edges.readers[edge]
            if gathered is not None and (gathered(producer) or gathered(reader)):
                continue
            producer_row, reader_row = (
                bisect_right(first_layers, producer) - 1,
                bisect_right(first_layers, reader) - 1,
            )
            if reader_row == producer_row + 1:
                below.add(producer_row)
            elif reader_row > producer_row:
                skips.setdefault(producer_row, set()).add(reader_row)
        return skips, below

    def _find_crossing_edges(self, first_layers: Sequence[int]) -> Iterator[int]:
        """Yield the edges that may connect two rows. Edges within a large closed group are mostly skipped.

        Args:
            first_layers: First layer of each row.
        """
        makers, readers, long_edges = self.edges.makers, self.edges.readers, self._long_edges
        high = bisect_left(makers, first_layers[0]) if first_layers else 0
        # edges to layers below the last row are not drawn
        for first, stop in pairwise(first_layers):
            if high == len(makers) or makers[high] >= stop:
                continue
            low, high = high, bisect_left(makers, stop, high)
            near = low
            if stop - first > _USUAL_LENGTH:
                near = bisect_left(makers, stop - _USUAL_LENGTH, low, high)
                yield from long_edges[bisect_left(long_edges, low) : bisect_left(long_edges, near)]
            yield from [edge for edge in range(near, high) if readers[edge] >= stop]


def _assign_lanes(skips: dict[int, set[int]]) -> tuple[list[tuple[int, list[int], int]], int]:
    """Assign a lane to each producer. Returns tuples of producer, readers and lane, and the lane count."""
    lane_ends: list[int] = []
    assigned: list[tuple[int, list[int], int]] = []
    for maker in sorted(skips):
        ends = sorted(skips[maker])
        lane = next((lane_index for lane_index, end in enumerate(lane_ends) if end <= maker), len(lane_ends))
        if lane == len(lane_ends):
            lane_ends.append(0)
        lane_ends[lane] = ends[-1]
        assigned.append((maker, ends, lane))
    return assigned, len(lane_ends)


def _draw_vertical(cells: Sequence[list[int]], top: int, end: int, column: int) -> None:
    """Draw a vertical line from row `top` to row `end`."""
    cells[top][column] |= _DOWN
    for row in range(top + 1, end):
        cells[row][column] |= _UP | _DOWN
    cells[end][column] |= _UP


def _draw_edge(cells: Sequence[list[int]], top: int, ends: Sequence[int], lane: int) -> None:
    """Draw an edge: out of the trunk at `top`, down its lane, and into the trunk at each of `ends`."""
    if lane >= LANES:
        for row in range(top, ends[-1] + 1):
            cells[row][-1] = -1
        return
    _draw_vertical(cells, top, ends[-1], lane + 1)
    for row in (top, *ends):
        cells[row][0] |= _RIGHT
        for column in range(1, lane + 1):
            cells[row][column] = max(cells[row][column], 0) | _LEFT | _RIGHT
        cells[row][lane + 1] |= _LEFT


def _strip_text(cells: Iterable[int]) -> str:
    return "".join([_BEYOND if cell < 0 else _CELLS[cell] for cell in cells])
