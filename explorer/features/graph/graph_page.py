"""Graph page: draws a laid-out graph with characters, and moves from box to box along its edges.

The engine has already placed the boxes and the points of the edges. This module draws lines, corners and
arrows once for each drawing, and returns the part that fits in a pane.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from explorer.base.families import FAMILIES
from explorer.facts.graph.drawing import GraphBox, GraphDrawing, GraphEdge
from explorer.features.graph.graph_labels import (
    format_figure,
    format_shape,
    heading,
    list_box_lines,
    notes,
    shorten_box_names,
    shorten_label,
)
from explorer.report.names import shorten_name
from explorer.tui.text.lines import Line, escape_name, fit, line_text, line_width, merge_spans

_MAX_WIDTH, _MAX_HEIGHT, _MIN_WIDTH = 24, 20, 4
"""Maximum width, maximum height and minimum width of the overview map, in cells without its frame."""
_MIN_SIZE = (48, 10)
"""Minimum width and height, in cells, of a pane that shows the overview map."""
_HALVES = " ▀▄█"
"""Map characters by fill: empty, upper half, lower half, full."""


class View(NamedTuple):
    """The part of a drawing that a pane shows, in cells."""

    left: int
    top: int
    width: int
    height: int


def draw_overview(lines: Sequence[Line], drawing: GraphDrawing, chosen_box: int, view: View) -> list[Line]:
    """Draw the overview map over a corner of the pane.

    There is no map if the whole drawing is visible or the pane is too small.
    """
    fits_view = drawing.width <= view.width and drawing.height <= view.height
    if fits_view or view.width < _MIN_SIZE[0] or view.height < _MIN_SIZE[1]:
        return [*lines]
    map_rows = _draw_map(drawing, chosen_box, view)
    width, height = len(map_rows[0]), len(map_rows)
    box = drawing.boxes[chosen_box]
    x, y = view.width - width, 0
    if box.x + box.width > view.left + x and box.y < view.top + height:
        y = view.height - height  # keep the chosen box visible
    return [
        (*_cut_or_pad(line, x), *merge_spans(map_rows[row_index - y]))
        if y <= row_index < y + height
        else line
        for row_index, line in enumerate(lines)
    ]


def _draw_map(drawing: GraphDrawing, chosen_box: int, view: View) -> list[list[tuple[str, str]]]:
    """Draw the framed overview map as rows of cells."""
    max_size = min(_MAX_WIDTH, view.width // 4), min(_MAX_HEIGHT, view.height // 2) - 2
    scale = max(drawing.width / max_size[0], drawing.height / max_size[1])  # half a cell is about square
    width = min(max_size[0], max(_MIN_WIDTH, round(drawing.width / scale)))
    height = min(max_size[1], max(2, round(drawing.height / scale)))
    cell_width, cell_height = drawing.width / width, drawing.height / (2 * height)

    def cells(box: GraphBox | View) -> tuple[Sequence[int], Sequence[int]]:
        """Return the columns and the half rows of the map that a box or a view covers."""
        left, top = (box.x, box.y) if isinstance(box, GraphBox) else (box.left, box.top)
        right = min(left + box.width, drawing.width) - 1
        bottom = min(top + box.height, drawing.height) - 1
        return (
            range(max(0, int(left / cell_width)), min(width - 1, int(right / cell_width)) + 1),
            range(max(0, int(top / cell_height)), min(2 * height - 1, int(bottom / cell_height)) + 1),
        )

    filled: dict[tuple[int, int], bool] = {}  # whether the box in a half cell is on the highlighted path
    for box in drawing.boxes:
        columns, rows = cells(box)
        # keep gaps of half a cell visible, and at least one cell for every box
        rows = [y for y in rows if box.y <= (y + 0.5) * cell_height < box.y + box.height] or rows[:1]
        columns = [x for x in columns if box.x <= (x + 0.5) * cell_width < box.x + box.width] or columns[:1]
        for spot in ((x, y) for x in columns for y in rows):
            filled[spot] = filled.get(spot, False) or box.lit
    columns, rows = cells(view)
    chosen_columns, chosen_rows = cells(drawing.boxes[chosen_box])
    map_rows = [[("╭", "dim"), *[("─", "dim")] * width, ("╮", "dim")]]
    for y in range(height):
        line = [("│", "dim")]
        for x in range(width):
            halves = [(x, 2 * y) in filled, (x, 2 * y + 1) in filled]
            is_lit = any(filled.get((x, 2 * y + half)) for half in (0, 1))
            in_view = x in columns and (2 * y in rows or 2 * y + 1 in rows)
            is_chosen = x in chosen_columns and (2 * y in chosen_rows or 2 * y + 1 in chosen_rows)
            role = "mark" if is_chosen else "accent" if is_lit else "dim" if in_view else "track"
            char = _HALVES[halves[0] + 2 * halves[1]]
            line.append(("◆" if is_chosen else char if char != " " or not in_view else "·", role))
        map_rows.append([*line, ("│", "dim")])
    return [*map_rows, [("╰", "dim"), *[("─", "dim")] * width, ("╯", "dim")]]


def _cut_or_pad(line: Line, width: int) -> Line:
    """Cut or pad a line to `width` cells; half of a wide character becomes a space."""
    spans: list[tuple[str, str]] = []
    remaining = width
    for text, role in line:
        size = cell_len(text)
        if size >= remaining:
            spans.append((set_cell_size(text, remaining), role))
            return tuple(spans)
        spans.append((text, role))
        remaining -= size
    return (*spans, (" " * remaining, "text"))


N, E, S, W = 1, 2, 4, 8
CORNERS = dict(enumerate(" ╵╶└╷│┌├╴┘─┴┐┤┬┼"))
"""Line characters. The index is the sum of the sides (`N`, `E`, `S`, `W`) where lines leave the cell."""
_HEAVY = dict(enumerate(" ╹╺┗╻┃┏┣╸┛━┻┓┫┳╋"))
"""Heavy line characters, for highlighted paths."""
_LIT = str.maketrans("┌─┐│└┘╘═╛", "┏━┓┃┗┛┗━┛")
"""Replaces the frame characters of a box by heavy ones, for a box on the highlighted path."""
MARK = "◆"
"""Sign of a layer that the user marked as an end of a path."""
WORK = frozenset({"layer", "group", "part"})
"""Roles of the boxes that compute; the other boxes are inputs, outputs and neighbors outside the group."""
_MARKED = frozenset({"layer", "group"})
"""Roles of the boxes that can be marked."""


class GraphCanvas:
    """A drawing as characters with roles; empty cells are not stored.

    Args:
        drawing: Graph to draw.
        marks: Rows of the marked layers.

    Attributes:
        width: Width of the drawing with its edge labels, in cells.
    """

    def __init__(self, drawing: GraphDrawing, marks: Sequence[int] = ()) -> None:
        self.drawing, self._marks = drawing, marks
        self._rows: dict[int, dict[int, tuple[str, str]]] = {}
        lit = [edge for edge in drawing.edges if edge.lit]
        for edges, corners, role in ((drawing.edges, CORNERS, "dim"), (lit, _HEAVY, "accent")):
            lines: dict[tuple[int, int], int] = {}
            for edge in edges:
                _route(edge, lines)
            for (x, y), sides in lines.items():
                self._write_text(x, y, corners[sides], role)
        self._label(drawing.edges)
        for edge in (*drawing.edges, *lit):
            if edge.points:
                x, y = edge.points[-1]
                self._write_text(x, y, "▲" if edge.back else "▼", "accent" if edge.lit else "dim")
        names = shorten_box_names(drawing.boxes, [box.width - 2 for box in drawing.boxes])
        for box, name in zip(drawing.boxes, names, strict=True):
            self._draw(box, name)
        self.width = max((column + 1 for row in self._rows.values() for column in row), default=0)

    def lines(self, chosen_box: int | None, left: int, top: int, width: int, height: int) -> list[Line]:
        """Return the part with the top left cell (`left`, `top`); the chosen box is highlighted."""
        box = None if chosen_box is None else self.drawing.boxes[chosen_box]
        return [self._draw_line(y, box, left, width) for y in range(top, top + height)]

    def _draw_line(self, y: int, box: GraphBox | None, left: int, width: int) -> Line:
        row = self._rows.get(y, {})
        chosen_columns = range(0)
        if box is not None and box.y <= y < box.y + box.height:
            chosen_columns = range(box.x, box.x + box.width)
        spans: list[tuple[str, str]] = []
        for x in range(left, left + width):
            char, role = row.get(x, (" ", "text"))
            if (not char and x == left) or (x == left + width - 1 and cell_len(char) > 1):
                char = " "  # half of a wide character
            if x in chosen_columns:
                role = "mark"
            spans.append((char, role))
        return merge_spans(spans)

    def _write_text(self, x: int, y: int, text: str, role: str) -> None:
        row = self._rows.setdefault(y, {})
        for char in text:
            cells = cell_len(char)
            if not cells and x - 1 in row:  # combining accent
                row[x - 1] = row[x - 1][0] + char, role
            for offset in range(cells):  # the second cell of a wide character is empty
                row[x + offset] = "" if offset else char, role
            x += cells

    def _draw(self, box: GraphBox, name: str) -> None:
        """Draw a box: square corners if it computes, a double bottom line if it can be opened."""
        inner, role = box.width - 2, box.family if box.role in WORK else "dim"
        is_faint = self.drawing.route is not None and not box.lit
        if box.lit or is_faint:
            role = "accent" if box.lit else "track"
        letter = FAMILIES[box.family].letter if box.role in WORK else ""
        mark = MARK if box.role in _MARKED and box.row in self._marks else ""
        corners = "┌┐" if box.role in WORK else "╭╮"
        bottom = "╘╛═" if box.unfolds else "└┘─" if box.role in WORK else "╰╯─"
        top = f"{corners[0]}{letter}{'─' * (inner - len(letter + mark))}{mark}{corners[1]}"
        sides, bottom_line = f"│{' ' * inner}│", bottom[0] + bottom[2] * inner + bottom[1]
        if box.lit:
            top, sides, bottom_line = (text.translate(_LIT) for text in (top, sides, bottom_line))
        self._write_text(box.x, box.y, top, role)
        self._write_text(box.x, box.y + box.height - 1, bottom_line, role)
        labels = [name, *(shorten_label(line, inner) for line in list_box_lines(box, "family", name)[1:])]
        labels = [line if cell_len(line) <= inner else fit(line, inner) for line in labels[: box.height - 2]]
        name_role = "dim" if is_faint else "strong"
        text_role = "text" if box.role in WORK and not is_faint else "dim"
        for line_index in range(1, box.height - 1):
            self._write_text(box.x, box.y + line_index, sides, role)
            if line_index <= len(labels):
                label = labels[line_index - 1]
                x = box.x + 1 + (inner - cell_len(label)) // 2
                self._write_text(x, box.y + line_index, label, name_role if line_index == 1 else text_role)

    def _label(self, edges: Sequence[GraphEdge]) -> None:
        """Write tensor shapes next to edges if there is room; equal shapes from one box are written once."""
        labeled: set[tuple[int, str]] = set()
        for edge in edges:
            text = format_shape(edge.tensor, edge.tensors)
            if not edge.points or (edge.source, text) in labeled:
                continue
            labeled.add((edge.source, text))
            x, y = edge.points[0]
            row = self._rows.get(y, {})
            if not any(column in row for column in range(x + 1, x + 3 + len(text))):
                self._write_text(x + 2, y, text, "dim")


def _route(edge: GraphEdge, lines: dict[tuple[int, int], int]) -> None:
    """Add the cells of an edge to `lines`, each with the sides where the edge leaves the cell."""
    points = edge.points[::-1] if edge.back else edge.points
    last = len(points) - 2
    for index, ((x, y), (to_x, to_y)) in enumerate(pairwise(points)):
        # turn in the gap between ranks; the last point is above its box, the others are inside their rank
        turn = to_y if x == to_x else max(y, to_y - (1 if index == last else 2))
        corners = [(x, y), (x, turn), (to_x, turn), (to_x, to_y)]
        for (a, b), (c, d) in pairwise(corners):
            step = ((c > a) - (c < a), (d > b) - (d < b))
            exit_side, entry_side = {(1, 0): (E, W), (-1, 0): (W, E), (0, 1): (S, N), (0, -1): (N, S)}.get(
                step, (0, 0)
            )
            while (a, b) != (c, d):
                lines[a, b] = lines.get((a, b), 0) | exit_side
                a, b = a + step[0], b + step[1]
                lines[a, b] = lines.get((a, b), 0) | entry_side


def draw_plain(drawing: GraphDrawing) -> Iterator[str]:
    """Draw the whole graph as text; yield one line at a time."""
    yield from (f"{line}\n" for line in (heading(drawing), *notes(drawing), ""))
    canvas = GraphCanvas(drawing)
    for line in canvas.lines(None, 0, 0, canvas.width, drawing.height):
        yield f"{line_text(line).rstrip()}\n"


def find_neighbor(drawing: GraphDrawing, start: int, direction: str) -> int | None:
    """Return the index of the box that an arrow key leads to, or None.

    Up and down follow the straightest edge; left and right stay in the same rank. From a box on a highlighted
    path, up and down stay on the path.
    """
    box = drawing.boxes[start]
    if direction in ("left", "right"):
        step = 1 if direction == "right" else -1
        return next(
            (
                i
                for i, b in enumerate(drawing.boxes)
                if b.rank == box.rank and b.order == _find_next_order(drawing, start, step)
            ),
            None,
        )
    ends = [
        (edge.target, edge.source)[direction == "up"]
        for edge in drawing.edges
        if (edge.lit or not box.lit) and (edge.source, edge.target)[direction == "up"] == start
    ]
    middle = box.x + box.width / 2

    def distance(index: int) -> tuple[float, float]:
        target_box = drawing.boxes[index]
        return abs(target_box.rank - box.rank), abs(target_box.x + target_box.width / 2 - middle)

    return min(ends, key=distance, default=None)


def _find_next_order(drawing: GraphDrawing, index: int, step: int) -> int | None:
    """Return the order of the next box in the same rank; edges that pass between boxes are skipped."""
    box = drawing.boxes[index]
    orders = [b.order for b in drawing.boxes if b.rank == box.rank and (b.order - box.order) * step > 0]
    return min(orders, key=lambda order: abs(order - box.order), default=None)


def title_lines(drawing: GraphDrawing, steps: int | None, width: int) -> tuple[Line, ...]:
    """Build the two title lines: the drawn group or layer, and the notes."""
    lead = f"{steps} step{'s' * (steps > 1)} around " if steps is not None else ""
    name = shorten_name(escape_name(drawing.path) or "the whole model", max(8, width - 8 - len(lead)))
    note_text = "; ".join(notes(drawing))
    style = "accent" if drawing.route is not None else "dim"
    count_text = f" {len(drawing.boxes):,} boxes"
    first: Line = ((" Graph ", "head"), (lead + name, "strong"))
    legend = _write_legend(drawing, width - line_width(first) - 3)
    gap = max(0, width - line_width(first) - cell_len(legend) - 1)
    return (
        (*first, (" " * gap, "text"), (legend, "dim")),
        (
            (count_text, "dim"),
            (fit(f"; {note_text}" if note_text else "", max(0, width - len(count_text))), style),
        ),
    )


FAMILY_LABELS = {"movement": "data movement"}
"""Names of families in the legend, where the family's own name is not clear."""
SIGNS = (
    *((family.letter, f"in a corner: {FAMILY_LABELS.get(name, name)}") for name, family in FAMILIES.items()),
    ("╘══╛", "a box with layers inside: + unfolds it"),
    ("╭──╮", "an input, an output, or a layer outside of the group"),
    (MARK, "a marked end of a path"),
    ("┏━━┓", "a box on the path between the marks"),
)
"""Signs of the drawing with their meanings, for the help."""


def _write_legend(drawing: GraphDrawing, width: int) -> str:
    """Explain the letters and the double lines of a drawing in one line, or refer to the help."""
    work_boxes = [box for box in drawing.boxes if box.role in WORK]
    used = {box.family for box in work_boxes}
    pieces = ["══ + unfolds"] * any(box.unfolds for box in work_boxes)
    pieces += [
        f"{family.letter} {FAMILY_LABELS.get(name, name)}"
        for name, family in FAMILIES.items()
        if name in used
    ]
    candidates = [" · ".join(pieces), "? explains letters and lines", "letters: ?"] if pieces else []
    return next((text for text in candidates if cell_len(text) <= width), "")


def describe_box(box: GraphBox, width: int) -> Line:
    """Describe the chosen box in one line."""
    figures: Mapping[str, int | None] = box.figures
    figure_texts = [
        format_figure(name, figures[name]) for name in ("macs", "params", "activations") if figures.get(name)
    ]
    summary = " · ".join([escape_name(box.kind_text), *([box.tiles] if box.tiles else []), *figure_texts])
    room = max(10, width - len(summary) - 4)
    path = shorten_name(escape_name(box.path), room)
    return ((f" {path}", "strong"), ("  " + fit(summary, max(0, width - len(path) - 3)), "dim"))


GRAPH_FOOTER = (
    ("↑↓", "along the edges"),
    ("c", "compact"),
    ("+ -", "unfold, fold"),
    ("Enter", "to the tree"),
    ("m f", "mark two, follow"),
    ("1-4", "around it"),
    ("/", "find"),
    ("a", "details"),
    ("0", "whole model"),
    ("i o", "into, out"),
    ("Esc", "back"),
)
"""Key line of the graph view, the most used keys first."""
COMPACT_FOOTER = (("↑↓", "line"), ("← →", "along a rail"), ("c", "boxes"), *GRAPH_FOOTER[2:])
"""Key line of the compact form."""
