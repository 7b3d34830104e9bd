"""Compact graph page: one line for each box, and the edges as rails on the left.

The boxes are in execution order. The stem is the edge from a box to the box in the next line. All other edges
of a box share one rail, which runs from the box to its last reader:

      ┌ conv1
    ╭─┼ maxpool
    │ ├ conv2
    │ ├ relu
    ╰▸┼ add
      └ fc
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from rich.cells import cell_len

from explorer.base.families import FAMILIES
from explorer.facts.graph.drawing import GraphBox, GraphDrawing
from explorer.features.graph.graph_labels import (
    format_shape,
    heading,
    list_box_lines,
    notes,
    shorten_box_names,
)
from explorer.features.graph.graph_page import CORNERS, MARK, WORK, E, N, S, W
from explorer.tui.text.lines import Line, Span, escape_name, fit, line_text, line_width, merge_spans

MAX_RAILS = 40
"""Maximum number of rails side by side. Edges without a rail are counted."""
_RAIL_WIDTH = 2
"""Width of a rail with its gap, in cells."""
_MARKS_WIDTH = 5
"""Width of the stem, the letter of the family, and the sign, with their gaps, in cells."""
_MIN_NAME, _MAX_KIND, _MAX_FIGURE, _MAX_SHAPE = 16, 24, 24, 24
"""Minimum width of the name and maximum widths of the other columns, in cells."""
_ROUNDED = str.maketrans("┌└", "╭╰")


class EdgeRail(Struct, frozen=True):
    """The edges of a box that do not lead to the next line.

    Attributes:
        source: Line of the box.
        readers: Lines of the boxes that read from it.
        lane: Column of the rail, counted from the stem. Rails that share no line may have the same lane.
        lit: Whether one of the edges is on the highlighted path.
    """

    source: int
    readers: frozenset[int]
    lane: int
    lit: bool

    @property
    def ends(self) -> tuple[int, int]:
        """First and last line of the rail."""
        return min(self.source, *self.readers), max(self.source, *self.readers)


class RailPage:
    """A drawing with one line for each box.

    Args:
        drawing: Graph to draw.
        marks: Rows of the marked layers.
        max_rails: Maximum number of rails side by side.

    Attributes:
        rails: The rails, the shortest first.
        missing: Number of edges without a rail.
    """

    def __init__(self, drawing: GraphDrawing, marks: Sequence[int] = (), max_rails: int = MAX_RAILS) -> None:
        self.drawing, self._marks, self.max_rails = drawing, marks, max_rails
        # whether the stem below a line is on the highlighted path, by line
        self._stems = {edge.source: edge.lit for edge in drawing.edges if edge.target == edge.source + 1}
        self.rails, self.missing = _lay_rails(drawing, max_rails)
        self._lanes = 1 + max((rail.lane for rail in self.rails), default=-1)
        shapes: dict[int, str] = {}
        for edge in drawing.edges:
            shapes.setdefault(edge.source, format_shape(edge.tensor))
        self._rows = [
            (escape_name(box.name), *_describe(box), shapes.get(index, ""))
            for index, box in enumerate(drawing.boxes)
        ]
        # width of the longest text in each column: name, kind, figure, shape
        self._natural = [max((cell_len(row[column]) for row in self._rows), default=0) for column in range(4)]
        self._short_names: tuple[int, Sequence[str]] = (-1, ())

    def lines(self, chosen_box: int | None, top: int, width: int, height: int) -> list[Line]:
        """Return the lines from `top`, at most `width` cells wide, with the chosen box highlighted."""
        widths = self._choose_widths(width)
        stop = min(top + height, len(self._rows))
        lines = []
        for index in range(top, stop):
            line = self._draw_line(index, widths, width)
            if index == chosen_box:
                line = ((fit(line_text(line), width), "mark"),)
            lines.append(line)
        return lines

    def find_producer(self, line: int) -> int | None:
        """Return the line of the nearest box whose rail leads to `line`, or None."""
        sources = [rail.source for rail in self.rails if line in rail.readers]
        return min(sources, key=lambda source: abs(line - source), default=None)

    def find_reader(self, line: int) -> int | None:
        """Return the line of the farthest box to which the rail of `line` leads, or None."""
        readers = [reader for rail in self.rails if rail.source == line for reader in rail.readers]
        return max(readers, key=lambda reader: abs(line - reader), default=None)

    def _choose_widths(self, width: int) -> tuple[int, int, int, int]:
        """Return the widths of name, kind, figure and shape; 0 leaves out a column, the shape first."""
        name, kind, figure, shape = self._natural
        room = width - self._lanes * _RAIL_WIDTH - _MARKS_WIDTH
        widths = [min(kind, _MAX_KIND), min(figure, _MAX_FIGURE), min(shape, _MAX_SHAPE)]
        for column in (2, 1, 0):
            needed = sum(cells + 2 for cells in widths if cells)
            if needed + min(name, _MIN_NAME if column == 0 else name) > room:
                widths[column] = 0
        remaining = room - sum(cells + 2 for cells in widths if cells)
        return max(1, min(name, remaining)), widths[0], widths[1], widths[2]

    def _draw_line(self, index: int, widths: Sequence[int], width: int) -> Line:
        box, (_, kind, figure, shape) = self.drawing.boxes[index], self._rows[index]
        is_faint = self.drawing.route is not None and not box.lit
        family_role = "track" if is_faint else "accent" if box.lit else box.family
        is_work = box.role in WORK
        letter = FAMILIES[box.family].letter if is_work else ""
        sign = MARK if box.row in self._marks and is_work else "▸" if box.unfolds else " "
        name_role = "track" if is_faint else "strong" if is_work else "dim"
        text_role = "track" if is_faint else "text"
        spans = [
            *self._draw_rails(index),
            (f" {letter or ' '}", family_role if is_work else "dim"),
            (sign, "accent"),
        ]
        spans.append((fit(self._shorten_names(widths[0])[index], widths[0]), name_role))
        for text, cells, role, is_right in (
            (kind, widths[1], family_role if is_work else "dim", False),
            (figure, widths[2], text_role, True),
            (shape, widths[3], "track" if is_faint else "dim", False),
        ):
            if cells:
                spans.append((f"  {fit(text, cells, right=is_right)}", role))
        line = merge_spans(spans)
        return line if line_width(line) <= width else merge_spans([(fit(line_text(line), width), text_role)])

    def _shorten_names(self, room: int) -> Sequence[str]:
        """Return the names of all boxes in `room` cells, cached until the room changes."""
        if self._short_names[0] != room:
            boxes = self.drawing.boxes
            self._short_names = room, shorten_box_names(boxes, [room] * len(boxes))
        return self._short_names[1]

    def _draw_rails(self, index: int) -> list[Span]:
        """Draw the rails and the stem of a line, from left to right."""
        crossing = {rail.lane: rail for rail in self.rails if rail.ends[0] <= index <= rail.ends[1]}
        joining = {lane for lane, rail in crossing.items() if index == rail.source or index in rail.readers}
        farthest = max(joining, default=-1)
        is_lit = any(crossing[lane].lit for lane in joining)
        is_read = any(index in crossing[lane].readers for lane in joining)
        spans: list[Span] = []
        for lane in range(self._lanes - 1, -1, -1):
            rail = crossing.get(lane)
            if rail is None:
                text, lit = "─" if lane < farthest else " ", is_lit
            else:
                low, high = rail.ends
                sides = N * (index > low) | S * (index < high) | E * (lane in joining)
                text, lit = CORNERS[sides].translate(_ROUNDED), rail.lit
            gap = " " if lane > farthest else "▸" if lane == 0 and is_read else "─"
            spans += [(text, "accent" if lit else "dim"), (gap, "accent" if is_lit else "dim")]
        above, below = self._stems.get(index - 1), self._stems.get(index)
        sides = N * (above is not None) | S * (below is not None) | W * (farthest >= 0) | E
        role = "accent" if above or below or is_lit else "dim"
        return [*spans, (CORNERS[sides], role)]


def _describe(box: GraphBox) -> tuple[str, str]:
    """Return two texts: the kind of a box, and its tiles, MACs or number of layers ('' if none)."""
    texts = list_box_lines(box, "family", "")
    return texts[1], texts[2] if len(texts) > 2 else ""


def _lay_rails(drawing: GraphDrawing, max_rails: int) -> tuple[list[EdgeRail], int]:
    """Give each box with distant readers a rail: short rails next to the stem, no two on one line of a lane.

    Returns:
        The rails, and the number of edges without a rail.
    """
    readers: dict[int, set[int]] = {}
    lit: set[int] = set()
    for edge in drawing.edges:
        if edge.target != edge.source + 1:
            readers.setdefault(edge.source, set()).add(edge.target)
            lit |= {edge.source} if edge.lit else set()

    def measure(source: int) -> int:
        return max(source, *readers[source]) - min(source, *readers[source])

    rails: list[EdgeRail] = []
    used_lines: list[int] = []
    missing = 0
    for source in sorted(readers, key=measure):
        rail = EdgeRail(source, frozenset(readers[source]), 0, source in lit)
        low, high = rail.ends
        lines = ((1 << (high - low + 1)) - 1) << low  # bit set of the lines that the rail occupies
        lane = next((lane for lane, used in enumerate(used_lines) if not used & lines), len(used_lines))
        if lane >= max_rails:
            missing += len(rail.readers)
            continue
        if lane == len(used_lines):
            used_lines.append(0)
        used_lines[lane] |= lines
        rails.append(EdgeRail(source, rail.readers, lane, rail.lit))
    return rails, missing


def draw_compact(drawing: GraphDrawing) -> Iterator[str]:
    """Draw the whole graph as text with one line for each box; yield one line at a time."""
    page = RailPage(drawing)
    missing = [describe_missing_edges(page.missing)] if page.missing else []
    yield from (f"{line}\n" for line in (heading(drawing), *notes(drawing), *missing, ""))
    for line in page.lines(None, 0, _TEXT_WIDTH, len(drawing.boxes)):
        yield f"{line_text(line).rstrip()}\n"


def describe_missing_edges(edges: int) -> str:
    """Say how many edges have no rail."""
    return f"{edges:,} edge{'s' * (edges != 1)} not drawn: too many side by side"


_TEXT_WIDTH = 240
"""Width of the text output, in cells."""
