"""Plots made of text (braille), for the pages: dots by plotille, colours and axes by roles as everywhere.

plotille draws on a canvas of braille dots and knows nothing of colours here: each part of a picture is a
canvas of its own with a role, and the parts are laid over each other. Only a part that changed changes
cells, so a cursor that moves over a plot costs the two columns it left and entered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from explorer.tui.text.lines import Line, Span, fit

if TYPE_CHECKING:
    from plotille import Canvas

Part = tuple[str, Callable[["Canvas"], None]]
"""A role, and what draws on a canvas whose units are dots, the origin in the lower left corner."""

_EMPTY = 0x2800


def _dots(width: int, height: int, draw: Callable[[Canvas], None]) -> list[str]:
    from plotille import Canvas  # 10 ms that the first paint need not wait for

    canvas = Canvas(width, height, 0, 0, 2 * width, 4 * height)
    draw(canvas)
    return str(canvas.plot(linesep="\n")).split("\n")


def overlay(width: int, height: int, parts: Sequence[Part]) -> list[Line]:
    """Parts over each other; a cell shows the dots of all, in the role of the last that has any there."""
    codes = [[0] * width for _ in range(height)]
    roles = [["text"] * width for _ in range(height)]
    for role, draw in parts:
        for y, row in enumerate(_dots(width, height, draw)):
            for x, cell in enumerate(row):
                code = ord(cell) - _EMPTY
                if code:
                    # dots join dots; a marker is a character of its own and covers what lies under it
                    below = codes[y][x]
                    codes[y][x] = below | code if 0 <= below < 256 and 0 <= code < 256 else code
                    roles[y][x] = role
    pictures = ((chr(code + _EMPTY) if code else " " for code in row) for row in codes)
    return [_joined(zip(row, names, strict=True)) for row, names in zip(pictures, roles, strict=True)]


def _joined(cells: Iterable[Span]) -> Line:
    """Cells of one role after another as one span."""
    spans: list[list[str]] = []
    for piece, role in cells:
        if spans and spans[-1][1] == role:
            spans[-1][0] += piece
        else:
            spans.append([piece, role])
    return tuple((piece, role) for piece, role in spans)


@lru_cache(8)
def _filled(values: tuple[float, ...], width: int, height: int, top: float) -> tuple[str, ...]:
    dots = 2 * width

    def draw(canvas: Canvas) -> None:
        for x in range(dots):
            first = x * len(values) // dots
            last = max(first + 1, -(-(x + 1) * len(values) // dots))
            value = max(values[first:last])
            if value > 0 and top > 0:
                canvas.line(x, 0, x, max(1, round(4 * height * min(1.0, value / top))) - 1)

    return tuple(row.replace(chr(_EMPTY), " ") for row in _dots(width, height, draw))


def columns_of(index: int, count: int, width: int) -> range:
    """The columns in which `area` shows value `index` of `count`."""
    first = index * 2 * width // count // 2
    last = (((index + 1) * 2 * width - 1) // count) // 2
    return range(min(first, width - 1), min(max(first, last), width - 1) + 1)


def area(
    values: Sequence[float], width: int, height: int, *, lit: Sequence[tuple[int, str]] = ()
) -> list[Line]:
    """A filled curve; where several values share a column the largest shows.

    Args:
        values: From left to right; not below 0. The largest reaches the top.
        width: In cells.
        height: In cells.
        lit: Values with a role of their own, by index; later ones win.
    """
    if not values or width <= 0 or height <= 0:
        return [()] * max(0, height)
    roles = ["bar"] * width
    for index, name in lit:
        for x in columns_of(index, len(values), width):
            roles[x] = name
    rows = _filled(tuple(values), width, height, max(values))
    return [_joined(zip(row, roles, strict=True)) for row in rows]


def framed(rows: Sequence[Line], labels: dict[int, str], below: Sequence[tuple[int, str]]) -> list[Line]:
    """A plot with its axes.

    Args:
        rows: The plot, from the top.
        labels: Row to what stands left of it.
        below: Column of the plot to what stands under the axis there, from left to right; the first wins
            where two do not fit beside each other.
    """
    margin = max((len(label) for label in labels.values()), default=0)
    width = max((sum(len(piece) for piece, _ in row) for row in rows), default=0)
    lines: list[Line] = []
    for y, row in enumerate(rows):
        label, tick = labels.get(y, ""), "┤" if y in labels else "│"
        lines.append(((f"{fit(label, margin, right=True)} ", "dim"), (tick, "track"), *row))
    ticks = {x for x, _ in below if 0 <= x < width}
    line = "".join("┴" if x in ticks else "─" for x in range(width))
    lines.append(((" " * (margin + 1), "dim"), ("└" + line, "track")))
    under = " " * (margin + 2)
    for x, word in below:
        # under its column, but neither beyond the plot nor before its begin
        at = margin + 2 + max(0, min(x - (len(word) - 1) // 2, width - len(word)))
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
