"""Graph page: draws the engine's layout in cells, and finds the way from box to box along its edges.

Boxes and points have their places already; what is done here is lines, corners and arrows, once for a
drawing, and the part of it that a pane has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from explorer.base.families import FAMILIES
from explorer.facts.graph.drawing import GraphBox, GraphDrawing, GraphEdge
from explorer.features.graph.graph_labels import box_lines, cut, figure_text, heading, notes, tensor_text
from explorer.tui.text.lines import Line, ending, fit, joined, line_text, safe

_WIDEST, _HIGHEST, _NARROWEST = 24, 20, 4
_LEAST = (48, 10)
"""Least width and height of a pane that shows the map."""
_HALVES = " ▀▄█"
"""Characters of a cell: empty, upper half, lower half, full."""


class View(NamedTuple):
    """The part of a drawing that a pane shows."""

    left: int
    top: int
    width: int
    height: int


def overlaid(lines: Sequence[Line], drawing: GraphDrawing, chosen_box: int, view: View) -> list[Line]:
    """The lines of a pane with the map in a corner, unless all is in view or there is no room."""
    fits = drawing.width <= view.width and drawing.height <= view.height
    if fits or view.width < _LEAST[0] or view.height < _LEAST[1]:
        return [*lines]
    map_rows = _map(drawing, chosen_box, view)
    width, height = len(map_rows[0]), len(map_rows)
    box = drawing.boxes[chosen_box]
    x, y = view.width - width, 0
    if box.x + box.width > view.left + x and box.y < view.top + height:
        y = view.height - height  # not over the chosen box
    return [
        (*_cut(line, x), *joined(map_rows[at - y])) if y <= at < y + height else line
        for at, line in enumerate(lines)
    ]


def _map(drawing: GraphDrawing, chosen_box: int, view: View) -> list[list[tuple[str, str]]]:
    """The map in a frame, in cells."""
    most = min(_WIDEST, view.width // 4), min(_HIGHEST, view.height // 2) - 2
    scale = max(drawing.width / most[0], drawing.height / most[1])  # a cell is twice as high as wide
    width = min(most[0], max(_NARROWEST, round(drawing.width / scale)))
    height = min(most[1], max(2, round(drawing.height / scale)))
    across, down = drawing.width / width, drawing.height / (2 * height)

    def cells(box: GraphBox | View) -> tuple[Sequence[int], Sequence[int]]:
        left, top = (box.x, box.y) if isinstance(box, GraphBox) else (box.left, box.top)
        right = min(left + box.width, drawing.width) - 1
        bottom = min(top + box.height, drawing.height) - 1
        return (
            range(max(0, int(left / across)), min(width - 1, int(right / across)) + 1),
            range(max(0, int(top / down)), min(2 * height - 1, int(bottom / down)) + 1),
        )

    filled: dict[tuple[int, int], bool] = {}
    for box in drawing.boxes:
        columns, rows = cells(box)
        # a gap of half a cell stays visible, and every box keeps at least one cell
        rows = [y for y in rows if box.y <= (y + 0.5) * down < box.y + box.height] or rows[:1]
        columns = [x for x in columns if box.x <= (x + 0.5) * across < box.x + box.width] or columns[:1]
        for spot in ((x, y) for x in columns for y in rows):
            filled[spot] = filled.get(spot, False) or box.lit
    columns, rows = cells(view)
    here, there = cells(drawing.boxes[chosen_box])
    map_rows = [[("╭", "dim"), *[("─", "dim")] * width, ("╮", "dim")]]
    for y in range(height):
        line = [("│", "dim")]
        for x in range(width):
            halves = [(x, 2 * y) in filled, (x, 2 * y + 1) in filled]
            lit = any(filled.get((x, 2 * y + half)) for half in (0, 1))
            in_view = x in columns and (2 * y in rows or 2 * y + 1 in rows)
            at = x in here and (2 * y in there or 2 * y + 1 in there)
            role = "mark" if at else "accent" if lit else "dim" if in_view else "track"
            char = _HALVES[halves[0] + 2 * halves[1]]
            line.append(("◆" if at else char if char != " " or not in_view else "·", role))
        map_rows.append([*line, ("│", "dim")])
    return [*map_rows, [("╰", "dim"), *[("─", "dim")] * width, ("╯", "dim")]]


def _cut(line: Line, width: int) -> Line:
    """The line cut or padded to a width; half of a wide character becomes a blank."""
    spans: list[tuple[str, str]] = []
    remaining = width
    for piece, role in line:
        size = cell_len(piece)
        if size >= remaining:
            spans.append((set_cell_size(piece, remaining), role))
            return tuple(spans)
        spans.append((piece, role))
        remaining -= size
    return (*spans, (" " * remaining, "text"))


_N, _E, _S, _W = 1, 2, 4, 8
_CORNERS = dict(enumerate(" ╵╶└╷│┌├╴┘─┴┐┤┬┼"))
"""Line characters, by the sum of the sides by which lines leave the cell."""
_HEAVY = dict(enumerate(" ╹╺┗╻┃┏┣╸┛━┻┓┫┳╋"))
"""The same for a path that is followed."""
_LIT = str.maketrans("┌─┐│└┘╘═╛", "┏━┓┃┗┛┗━┛")
_MARK = "◆"
_WORK = frozenset({"layer", "group", "part"})
_MARKED = frozenset({"layer", "group"})


class GraphCanvas:
    """A drawing in characters, each with a role; empty cells are not stored.

    Args:
        drawing: What is drawn.
        marks: Rows of the layers that are marked.

    Attributes:
        width: Cells up to the right end of the drawing, labels of edges included.
    """

    def __init__(self, drawing: GraphDrawing, marks: Sequence[int] = ()) -> None:
        self.drawing, self._marks = drawing, marks
        self._rows: dict[int, dict[int, tuple[str, str]]] = {}
        lit = [edge for edge in drawing.edges if edge.lit]
        for edges, corners, role in ((drawing.edges, _CORNERS, "dim"), (lit, _HEAVY, "accent")):
            lines: dict[tuple[int, int], int] = {}
            for edge in edges:
                _route(edge, lines)
            for (x, y), sides in lines.items():
                self._set(x, y, corners[sides], role)
        self._label(drawing.edges)
        for edge in (*drawing.edges, *lit):
            if edge.points:
                x, y = edge.points[-1]
                self._set(x, y, "▲" if edge.back else "▼", "accent" if edge.lit else "dim")
        for box in drawing.boxes:
            self._draw(box)
        self.width = max((at + 1 for row in self._rows.values() for at in row), default=0)

    def lines(self, chosen: int | None, left: int, top: int, width: int, height: int) -> list[Line]:
        """The part from (left, top) on; the chosen box stands out."""
        box = None if chosen is None else self.drawing.boxes[chosen]
        return [self._line(y, box, left, width) for y in range(top, top + height)]

    def _line(self, y: int, box: GraphBox | None, left: int, width: int) -> Line:
        row = self._rows.get(y, {})
        marked = range(0)
        if box is not None and box.y <= y < box.y + box.height:
            marked = range(box.x, box.x + box.width)
        spans: list[tuple[str, str]] = []
        for x in range(left, left + width):
            char, role = row.get(x, (" ", "text"))
            if (not char and x == left) or (x == left + width - 1 and cell_len(char) > 1):
                char = " "  # half of a wide one
            if x in marked:
                role = "mark"
            spans.append((char, role))
        return joined(spans)

    def _set(self, x: int, y: int, text: str, role: str) -> None:
        row = self._rows.setdefault(y, {})
        for char in text:
            cells = cell_len(char)
            if not cells and x - 1 in row:  # an accent of the character before
                row[x - 1] = row[x - 1][0] + char, role
            for at in range(cells):  # a wide one has nothing in its second cell
                row[x + at] = "" if at else char, role
            x += cells

    def _draw(self, box: GraphBox) -> None:
        """Draws a box: rounded if it is no layer, with a double bottom if it can be unfolded."""
        wide, role = box.width - 2, box.family if box.role in _WORK else "dim"
        faint = self.drawing.route is not None and not box.lit
        if box.lit or faint:
            role = "accent" if box.lit else "track"
        letter = FAMILIES[box.family].letter if box.role in _WORK else ""
        mark = _MARK if box.role in _MARKED and box.row in self._marks else ""
        corners = "┌┐" if box.role in _WORK else "╭╮"
        bottom = "╘╛═" if box.unfolds else "└┘─" if box.role in _WORK else "╰╯─"
        top = f"{corners[0]}{letter}{'─' * (wide - len(letter + mark))}{mark}{corners[1]}"
        sides, low = f"│{' ' * wide}│", bottom[0] + bottom[2] * wide + bottom[1]
        if box.lit:
            top, sides, low = top.translate(_LIT), sides.translate(_LIT), low.translate(_LIT)
        self._set(box.x, box.y, top, role)
        self._set(box.x, box.y + box.height - 1, low, role)
        labels = [cut(line, wide) for line in box_lines(box, "family")][: box.height - 2]
        labels = [line if cell_len(line) <= wide else fit(line, wide) for line in labels]
        for at in range(1, box.height - 1):
            self._set(box.x, box.y + at, sides, role)
            if at <= len(labels):
                style = "dim" if faint else "strong" if at == 1 else "text" if box.role in _WORK else "dim"
                self._set(
                    box.x + 1 + (wide - cell_len(labels[at - 1])) // 2, box.y + at, labels[at - 1], style
                )

    def _label(self, edges: Sequence[GraphEdge]) -> None:
        """Writes the shapes beside edges where there is room; equal shapes of one box once."""
        labeled: set[tuple[int, str]] = set()
        for edge in edges:
            text = tensor_text(edge.tensor, edge.tensors)
            if not edge.points or (edge.source, text) in labeled:
                continue
            labeled.add((edge.source, text))
            x, y = edge.points[0]
            row = self._rows.get(y, {})
            if not any(at in row for at in range(x + 1, x + 3 + len(text))):
                self._set(x + 2, y, text, "dim")


def _route(edge: GraphEdge, lines: dict[tuple[int, int], int]) -> None:
    """Adds the cells of an edge, each with the sides by which the edge leaves it."""
    points = edge.points[::-1] if edge.back else edge.points
    last = len(points) - 2
    for at, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        # turn in the middle of the gap; the last point lies above its box, the others in their rank
        turn = to_y if x == to_x else max(y, to_y - (1 if at == last else 2))
        corners = [(x, y), (x, turn), (to_x, turn), (to_x, to_y)]
        for (a, b), (c, d) in pairwise(corners):
            step = ((c > a) - (c < a), (d > b) - (d < b))
            way, back = {(1, 0): (_E, _W), (-1, 0): (_W, _E), (0, 1): (_S, _N), (0, -1): (_N, _S)}.get(
                step, (0, 0)
            )
            while (a, b) != (c, d):
                lines[a, b] = lines.get((a, b), 0) | way
                a, b = a + step[0], b + step[1]
                lines[a, b] = lines.get((a, b), 0) | back


def plain(drawing: GraphDrawing) -> Iterator[str]:
    """The drawing as a text, a line at a time."""
    yield from (f"{line}\n" for line in (heading(drawing), *notes(drawing), ""))
    canvas = GraphCanvas(drawing)
    for line in canvas.lines(None, 0, 0, canvas.width, drawing.height):
        yield f"{line_text(line).rstrip()}\n"


def neighbour(drawing: GraphDrawing, at: int, way: str) -> int | None:
    """The box that an arrow key leads to: up and down along the straightest edge, sideways in its rank.

    From a box on a followed path, up and down stay on the path.
    """
    box = drawing.boxes[at]
    if way in ("left", "right"):
        step = 1 if way == "right" else -1
        return next(
            (
                i
                for i, b in enumerate(drawing.boxes)
                if b.rank == box.rank and b.order == _order_beside(drawing, at, step)
            ),
            None,
        )
    ends = [
        (edge.target, edge.source)[way == "up"]
        for edge in drawing.edges
        if (edge.lit or not box.lit) and (edge.source, edge.target)[way == "up"] == at
    ]
    middle = box.x + box.width / 2

    def far(index: int) -> tuple[float, float]:
        there = drawing.boxes[index]
        return abs(there.rank - box.rank), abs(there.x + there.width / 2 - middle)

    return min(ends, key=far, default=None)


def _order_beside(drawing: GraphDrawing, at: int, step: int) -> int | None:
    """The order of the next box in the same rank, past edges in between."""
    box = drawing.boxes[at]
    orders = [b.order for b in drawing.boxes if b.rank == box.rank and (b.order - box.order) * step > 0]
    return min(orders, key=lambda order: abs(order - box.order), default=None)


def title_lines(drawing: GraphDrawing, steps: int | None, width: int) -> tuple[Line, ...]:
    """The two title lines: the group or layer drawn, and the notes."""
    name = safe(drawing.path) or "the whole model"
    if steps is not None:
        name = f"{steps} step{'s' * (steps > 1)} around {name}"
    note_text = "; ".join(notes(drawing))
    style = "accent" if drawing.route is not None else "dim"
    many = f" {len(drawing.boxes):,} boxes"
    return (
        ((" Graph ", "head"), (ending(name, max(8, width - 8)), "strong")),
        ((many, "dim"), (fit(f"; {note_text}" if note_text else "", max(0, width - len(many))), style)),
    )


def box_line(box: GraphBox, width: int) -> Line:
    """The chosen box in a line."""
    figures: Mapping[str, int | None] = box.figures
    figure_texts = [
        figure_text(name, figures[name]) for name in ("macs", "params", "activations") if figures.get(name)
    ]
    summary = " · ".join([safe(box.kind_text), *([box.tiles] if box.tiles else []), *figure_texts])
    room = max(10, width - len(summary) - 4)
    path = ending(safe(box.path), room)
    return ((f" {path}", "strong"), ("  " + fit(summary, max(0, width - len(path) - 3)), "dim"))


GRAPH_FOOTER = (
    ("↑↓", "along the edges"),
    ("+ -", "unfold, fold"),
    ("Enter", "to the tree"),
    ("m f", "mark two, follow"),
    ("1-4", "around it"),
    ("/", "find"),
    ("a", "about it"),
    ("0", "whole model"),
    ("i o", "into, out"),
    ("Esc", "back"),
)
"""Keys of the graph view, the most used first."""
