"""Flame page: an icicle of a model in cells, its boxes in the colours of their families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len

from explorer.base.families import FAMILIES
from explorer.base.units import many_text
from explorer.facts import Layer
from explorer.report.flame_layout import FlameLabel, IcicleBox
from explorer.report.present.figures import share_text
from explorer.tui.text.lines import Line, Span, ending, fit, safe

FILL = "fill--"
"""Before the name of a family: the role of a box that is filled with its colour."""
CHOSEN = "chosen"
"""In place of a family: of the box under the cursor. The accent of other marks is too like some families."""
_TALLEST, _NARROW = 5, 3
"""Lines of a level at most, and cells from which on a box has a name."""


def heights(boxes: Sequence[IcicleBox], height: int) -> int:
    """Lines that a level takes."""
    levels = 1 + max((box.level for box in boxes), default=0)
    return max(1, min(_TALLEST, height // levels))


def flame_lines(
    boxes: Sequence[IcicleBox],
    labels: Sequence[FlameLabel],
    figures: Callable[[int], tuple[str, str]],
    chosen: int,
    height: int,
    letters: bool,
) -> list[Line]:
    """The boxes, a level below the other; the chosen one stands out.

    Args:
        boxes: As `icicle` lays them out.
        labels: Of each.
        figures: What a box takes, and its share of the top, in words.
        chosen: Which one is.
        height: In lines.
        letters: Colours are too few to fill boxes: their families have letters, and edges on both sides.
    """
    tall = heights(boxes, height)
    levels: list[list[int]] = [[] for _ in range(1 + max((box.level for box in boxes), default=0))]
    for at, box in enumerate(boxes):
        levels[box.level].append(at)
    lines: list[Line] = []
    for level in levels:
        for y in range(tall):
            line: list[Span] = []
            x = 0
            for at in level:
                box, label = boxes[at], labels[at]
                if box.start > x:
                    line.append((" " * (box.start - x), "text"))
                room = box.width - 1 - letters
                said = _said(y, label, figures(at), room, letters) if room > 0 else ""
                filled = FILL + (CHOSEN if at == chosen else label.family)
                role = filled if not letters else "mark" if at == chosen else label.family
                line.append((_cells(said, box.width, letters), role))
                x = box.start + box.width
            lines.append(tuple(line))
    return lines[:height]


def _said(y: int, label: FlameLabel, figures: tuple[str, str], room: int, letters: bool) -> str:
    """Line `y` of a box: its name, what it takes, which operator it is."""
    if y == 0:
        return _name(label, room, letters)
    return _whole(figures, room) if y == 1 else label.kind if y == 2 and room >= _NARROW else ""


def _whole(said: tuple[str, str], room: int) -> str:
    """A figure and a share, or the share alone: what there is room for."""
    figure, share = said
    if len(figure) + len(share) + 2 * bool(share) <= room:
        return f"{figure}  {share}".rstrip()
    return share if share and len(share) <= room else ""


def _name(label: FlameLabel, room: int, letters: bool) -> str:
    """What a box is called, behind the letter of its family; of a narrow one only that."""
    mark = FAMILIES[label.family].letter if letters and label.family != "other" else ""
    if room < _NARROW + 2 * bool(mark):
        return mark
    return f"{mark} {safe(label.name)}".lstrip()


def _cells(said: str, width: int, letters: bool) -> str:
    """A line of a box, behind its edge."""
    last = "▕" if letters and width > 1 else ""
    room = width - 1 - len(last)
    return f"▏{fit(said, room)}{last}" if room > 0 else f"▏{last}"[:width]


def chosen_line(
    name: str, kind: str, amount: tuple[str, float], parts: Sequence[tuple[str, float]], width: int
) -> Line:
    """The chosen box in a line: its name, its kind, what it takes, and its share of what is around it.

    `parts` are what it is a part of: a name, and what that takes.
    """
    said, value = amount
    shares = [f"{share_text(value, whole)} of {safe(part)}" for part, whole in parts if whole]
    said = " · ".join(filter(None, (safe(kind), said, *shares)))
    room = max(10, width - cell_len(said) - 4)
    name = ending(safe(name), room)
    return ((f" {name}", "strong"), ("  " + fit(said, max(0, width - cell_len(name) - 3)), "dim"))


def rows_text(box: IcicleBox, layers: Sequence[Layer]) -> str:
    """The rows that stand together in a box: the first, and how many more."""
    return f"{many_text(box.rows, 'row')} from {layers[box.first].path or '(unnamed)'}"
