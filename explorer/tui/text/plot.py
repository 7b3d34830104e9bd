"""Plots made of text, for the pages: curves and columns filled in eighths of a cell, signs set over them.

No library draws columns in eighths with roles: plotext and textual-plot take 80-90 ms to import, draw in
quarters or braille, and choose colours themselves; plotille draws lines of dots; Textual's sparkline has
neither axes nor a cursor. Only what changed changes cells, so a cursor that moves over a plot costs the two
columns it left and entered.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len

from explorer.tui.text.lines import Line, Span, fit, joined, middle, safe

EIGHTHS = " ▁▂▃▄▅▆▇█"

Cells = list[list[Span]]
"""A picture while it is drawn: rows from the top, of spans of one character."""


@lru_cache(8)
def column_values(values: tuple[float, ...], width: int) -> tuple[float, ...]:
    """What each of so many columns shows: the largest of the values that share it."""
    count = len(values)
    return tuple([max(values[x * count // width : -(-(x + 1) * count // width)]) for x in range(width)])


def columns_of(index: int, count: int, width: int) -> range:
    """The columns in which `area` shows value `index` of `count`."""
    first = min(index * width // count, width - 1)
    return range(first, max(first + 1, min(width, -(-(index + 1) * width // count))))


def filled(heights: Sequence[float], height: int, roles: Sequence[str], floor: float = 0.0) -> Cells:
    """Columns in eighths of a cell.

    Args:
        heights: Of each column, from 0 to 1. One that is not 0 shows an eighth at least.
        height: In cells.
        roles: Of each column.
        floor: The share of the height that something below them takes, drawn as a dotted band.
    """
    below = round(8 * height * floor)
    cells: Cells = [[(" ", "text") for _ in heights] for _ in range(height)]
    for x, (share, role) in enumerate(zip(heights, roles, strict=True)):
        top = below + max(round(8 * height * share), 1 if share > 0 else 0)
        for y in range(height):
            eighths = min(8, max(0, top - 8 * y))
            if 8 * y + 4 < below:
                cells[height - 1 - y][x] = ("░", "track")
            elif eighths:
                cells[height - 1 - y][x] = (EIGHTHS[eighths], role)
    return cells


def put(cells: Cells, x: int, y: int, text: str, role: str) -> None:
    """Writes a text over a picture, as far as it is in it."""
    for at, char in enumerate(text, x):
        if 0 <= y < len(cells) and 0 <= at < len(cells[y]):
            cells[y][at] = (char, role)


def lines_of(cells: Cells) -> list[Line]:
    """A picture as lines."""
    return [joined(row) for row in cells]


def area(values: Sequence[float], width: int, height: int) -> list[Line]:
    """A filled curve; where several values share a column the largest shows.

    Args:
        values: From left to right; not below 0. The largest reaches the top.
        width: In cells.
        height: In cells.
    """
    if not values or width <= 0 or height <= 0:
        return [()] * max(0, height)
    top = max(values) or 1
    shares = [max(0.0, value) / top for value in column_values(tuple(values), width)]
    return lines_of(filled(shares, height, ["bar"] * width))


def part_names(paths: Sequence[str], width: int) -> list[tuple[int, str]]:
    """Where the parts of a model begin among its steps, and what they are called: words under an axis.

    The modules are those of the greatest depth at which most of the axis has names that fit; where no depth
    has such, names are cut to what they have.

    Args:
        paths: Of the steps, with dots or slashes between the modules.
        width: Columns of the axis.
    """
    pieces = [re.split(r"[./]", safe(path).strip("/")) for path in paths]
    return _names_of_parts(pieces, width) or _names_of_parts(pieces, width, least=_CUT)


def _names_of_parts(pieces: Sequence[Sequence[str]], width: int, *, least: int = 0) -> list[tuple[int, str]]:
    """Those names; of `least` cells or more they may be cut, of 0 never."""
    best: list[tuple[int, str]] = []
    for depth in range(4):
        begins = [
            at
            for at, names in enumerate(pieces)
            if not at or names[: depth + 1] != pieces[at - 1][: depth + 1]
        ]
        parts, covered = [], 0
        for at, end in zip(begins, [*begins[1:], len(pieces)], strict=True):
            names, first, last = pieces[at], at * width // len(pieces), end * width // len(pieces)
            name = _told(names[: depth + 1])
            if 0 < least < last - first:
                name = middle(name, last - first - 1)
            if len(names) > min(depth, 1) and 0 < len(name) == cell_len(name) < last - first:
                parts.append((first, name))
                covered += last - first
        if depth and (covered < _TOLD * width or len({name for _, name in parts}) < len(parts)):
            break
        best = parts if covered > (1 - _TOLD) * width else []
    return best


_CUT = 6
"""Cells that a name that is cut has at least."""
_TOLD = 0.6
"""The share of an axis that has names below which the modules around them are told; none tell too little."""


def _told(names: Sequence[str]) -> str:
    """The last of some modules, with the one around it where it has a number only."""
    return ".".join(names[-2:]) if names[-1].isdigit() else names[-1]


def framed(
    rows: Sequence[Line],
    labels: dict[int, str],
    below: Sequence[tuple[int, str]],
    *,
    mark: int | None = None,
    begin: bool = False,
) -> list[Line]:
    """A plot with its axes.

    Args:
        rows: The plot, from the top.
        labels: Row to what stands left of it.
        below: Column of the plot to what stands under the axis there, from left to right; the first wins
            where two do not fit beside each other.
        mark: A column that is pointed at on the axis.
        begin: The words begin under their columns, in place of their middles.
    """
    margin = max((len(label) for label in labels.values()), default=0)
    width = max((sum(len(piece) for piece, _ in row) for row in rows), default=0)
    lines: list[Line] = []
    for y, row in enumerate(rows):
        label, tick = labels.get(y, ""), "┤" if y in labels else "│"
        lines.append(((f"{fit(label, margin, right=True)} ", "dim"), (tick, "track"), *row))
    ticks = {x for x, _ in below if 0 <= x < width}
    line = "".join("┴" if x in ticks else "─" for x in range(width))
    axis: list[Span] = [(" " * (margin + 1), "dim"), ("└" + line, "track")]
    if mark is not None and 0 <= mark < width:
        axis[1:] = [("└" + line[:mark], "track"), ("▲", "accent"), (line[mark + 1 :], "track")]
    lines.append(tuple(axis))
    under = " " * (margin + 2)
    for x, word in below:
        # under its column, but neither beyond the plot nor before its begin
        at = margin + 2 + max(0, min(x - (0 if begin else (len(word) - 1) // 2), width - len(word)))
        if at > len(under) or len(under) == margin + 2 <= at:
            under += " " * (at - len(under)) + word
    lines.append(((under, "dim"),))
    return lines


def spread(at: float, low: float, high: float, dots: int) -> int:
    """The dot of `at` on an axis from `low` to `high`."""
    return max(0, min(dots - 1, round((at - low) / (high - low) * (dots - 1))))


def log_ticks(low: float, high: float, most: int) -> list[int]:
    """Powers of ten between two logarithms, at most `most`, evenly apart."""
    whole = list(range(math.ceil(low), math.floor(high) + 1))
    return whole[:: max(1, -(-len(whole) // max(1, most)))]


def power_text(power: int) -> str:
    """A power of ten beside an axis: '0.1', '1', '1,000'."""
    return f"{10.0**power:g}" if not 0 <= power < 7 else f"{10**power:,}"
