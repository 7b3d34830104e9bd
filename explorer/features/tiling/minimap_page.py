"""Minimap: a drawing that is larger than its pane, in a corner of it, with the part that is in view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from explorer.facts.graph.drawing import GraphBox, GraphDrawing
from explorer.tui.text.lines import Line, joined

_WIDEST, _HIGHEST, _NARROWEST = 24, 20, 4
_LEAST = (48, 10)
"""Width and height of a pane that has room for a map."""
_HALVES = " ▀▄█"
"""A cell by which of its halves hold something."""


class View(NamedTuple):
    """The part of a drawing that a pane shows."""

    left: int
    top: int
    width: int
    height: int


def overlaid(lines: Sequence[Line], drawing: GraphDrawing, chosen: int, view: View) -> list[Line]:
    """The lines of a pane with the map over them; without one where all is in view, or there is no room."""
    fits = drawing.width <= view.width and drawing.height <= view.height
    if fits or view.width < _LEAST[0] or view.height < _LEAST[1]:
        return [*lines]
    made = _map(drawing, chosen, view)
    width, height = len(made[0]), len(made)
    box = drawing.boxes[chosen]
    x, y = view.width - width, 0
    if box.x + box.width > view.left + x and box.y < view.top + height:
        y = view.height - height  # not over the chosen box
    return [
        (*_cut(line, x), *joined(made[at - y])) if y <= at < y + height else line
        for at, line in enumerate(lines)
    ]


def _map(drawing: GraphDrawing, chosen: int, view: View) -> list[list[tuple[str, str]]]:
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
        # a gap of half a cell is a gap, and no box is lost
        rows = [y for y in rows if box.y <= (y + 0.5) * down < box.y + box.height] or rows[:1]
        columns = [x for x in columns if box.x <= (x + 0.5) * across < box.x + box.width] or columns[:1]
        for spot in ((x, y) for x in columns for y in rows):
            filled[spot] = filled.get(spot, False) or box.lit
    columns, rows = cells(view)
    here, there = cells(drawing.boxes[chosen])
    found = [[("╭", "dim"), *[("─", "dim")] * width, ("╮", "dim")]]
    for y in range(height):
        line = [("│", "dim")]
        for x in range(width):
            halves = [(x, 2 * y) in filled, (x, 2 * y + 1) in filled]
            lit = any(filled.get((x, 2 * y + half)) for half in (0, 1))
            seen = x in columns and (2 * y in rows or 2 * y + 1 in rows)
            at = x in here and (2 * y in there or 2 * y + 1 in there)
            role = "mark" if at else "accent" if lit else "dim" if seen else "track"
            char = _HALVES[halves[0] + 2 * halves[1]]
            line.append(("◆" if at else char if char != " " or not seen else "·", role))
        found.append([*line, ("│", "dim")])
    return [*found, [("╰", "dim"), *[("─", "dim")] * width, ("╯", "dim")]]


def _cut(line: Line, width: int) -> Line:
    """The first cells of a line; half of a wide character is a blank."""
    found: list[tuple[str, str]] = []
    left = width
    for piece, role in line:
        size = cell_len(piece)
        if size >= left:
            found.append((set_cell_size(piece, left), role))
            return tuple(found)
        found.append((piece, role))
        left -= size
    return (*found, (" " * left, "text"))
