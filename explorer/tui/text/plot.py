"""Plots made of text: curves and columns in eighths of a cell, with marks and axes.

No library draws columns in eighths of a cell with roles. plotext and textual-plot take 80 to 90 ms to import,
draw in quarters or braille, and choose colors themselves. plotille draws lines of dots. Textual's sparkline
has neither axes nor a cursor. Here a moving cursor changes only the two columns that it leaves and enters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache

from rich.cells import cell_len

from explorer.report.names import shorten_name
from explorer.tui.text.lines import Line, Span, escape_name, fit, merge_spans

EIGHTHS = " ▁▂▃▄▅▆▇█"  # cells filled from below by 0 to 8 eighths

Cells = list[list[Span]]
"""A picture as rows from the top; each row is a list of spans of one character."""


@lru_cache(8)
def column_values(values: tuple[float, ...], width: int) -> tuple[float, ...]:
    """Return the value of each column: the maximum of the values that share it."""
    count = len(values)
    return tuple([max(values[x * count // width : -(-(x + 1) * count // width)]) for x in range(width)])


def find_columns(index: int, count: int, width: int) -> range:
    """Return the columns that show value `index` of `count` values."""
    first = min(index * width // count, width - 1)
    return range(first, max(first + 1, min(width, -(-(index + 1) * width // count))))


def draw_columns(heights: Sequence[float], height: int, roles: Sequence[str], floor: float = 0.0) -> Cells:
    """Draw columns in eighths of a cell.

    Args:
        heights: Height of each column from 0 to 1. A height above 0 shows at least one eighth.
        height: Height of the picture in cells.
        roles: Role of each column.
        floor: Share of the height below the columns, drawn as a dotted band.
    """
    floor_eighths = round(8 * height * floor)
    cells: Cells = [[(" ", "text") for _ in heights] for _ in range(height)]
    for x, (share, role) in enumerate(zip(heights, roles, strict=True)):
        top = floor_eighths + max(round(8 * height * share), 1 if share > 0 else 0)
        for y in range(height):
            eighths = min(8, max(0, top - 8 * y))
            if 8 * y + 4 < floor_eighths:
                cells[height - 1 - y][x] = ("░", "track")
            elif eighths:
                cells[height - 1 - y][x] = (EIGHTHS[eighths], role)
    return cells


def put_text(cells: Cells, x: int, y: int, text: str, role: str) -> None:
    """Write a text into a picture, clipped at its edges."""
    for column, char in enumerate(text, x):
        if 0 <= y < len(cells) and 0 <= column < len(cells[y]):
            cells[y][column] = (char, role)


def build_lines(cells: Cells) -> list[Line]:
    """Convert a picture to lines."""
    return [merge_spans(row) for row in cells]


def draw_area(values: Sequence[float], width: int, height: int) -> list[Line]:
    """Draw a filled curve. Each column shows the maximum of its values.

    Args:
        values: Values from left to right, not negative. The maximum reaches the top.
        width: Width in cells.
        height: Height in cells.
    """
    if not values or width <= 0 or height <= 0:
        return [()] * max(0, height)
    top = max(values) or 1
    shares = [max(0.0, value) / top for value in column_values(tuple(values), width)]
    return build_lines(draw_columns(shares, height, ["bar"] * width))


def part_names(paths: Sequence[str], width: int) -> list[tuple[int, str]]:
    """Choose the labels of an axis of steps: the names of the modules, and the columns where they start.

    The labels are of the deepest level of modules at which labels that fit cover most of the axis. If there
    is no such level, labels are cut.

    Args:
        paths: Paths of the steps, with dots or slashes between the modules.
        width: Width of the axis in columns.
    """
    module_names = [re.split(r"[./]", escape_name(path).strip("/")) for path in paths]
    return _choose_labels(module_names, width) or _choose_labels(module_names, width, least=_MIN_CUT_LABEL)


def _choose_labels(pieces: Sequence[Sequence[str]], width: int, *, least: int = 0) -> list[tuple[int, str]]:
    """Return columns and labels as in `part_names`. With `least` > 0, labels may be cut to `least` cells."""
    best: list[tuple[int, str]] = []
    for depth in range(4):  # deeper levels have too many modules for an axis
        starts = [
            step
            for step, names in enumerate(pieces)
            if not step or names[: depth + 1] != pieces[step - 1][: depth + 1]
        ]
        parts, covered = [], 0
        level_names = {_shorten_module(pieces[step][: depth + 1]) for step in starts}
        for step, end in zip(starts, [*starts[1:], len(pieces)], strict=True):
            names, first, last = pieces[step], step * width // len(pieces), end * width // len(pieces)
            name = _shorten_module(names[: depth + 1])
            if 0 < least < last - first:
                name = shorten_name(name, last - first - 1, level_names)
            if len(names) > min(depth, 1) and 0 < len(name) == cell_len(name) < last - first:
                parts.append((first, name))
                covered += last - first
        if depth and (covered < _MIN_LABELED * width or len({name for _, name in parts}) < len(parts)):
            break
        best = parts if covered > (1 - _MIN_LABELED) * width else []
    return best


_MIN_CUT_LABEL = 6
"""Minimum cells of a cut label."""
_MIN_LABELED = 0.6
"""Minimum share of the axis that labels of a deeper level must cover to be used."""


def _shorten_module(names: Sequence[str]) -> str:
    """Return the last of nested module names, preceded by its parent's name if it is a number."""
    return ".".join(names[-2:]) if names[-1].isdigit() else names[-1]


def draw_axes(
    rows: Sequence[Line],
    labels: dict[int, str],
    below: Sequence[tuple[int, str]],
    *,
    mark: int | None = None,
    begin: bool = False,
) -> list[Line]:
    """Draw axes around a plot.

    Args:
        rows: Lines of the plot, from the top.
        labels: Labels on the left by row.
        below: Columns and labels below the axis, from left to right. If two labels overlap, the first is
            drawn.
        mark: Column to mark on the axis, or None.
        begin: Whether labels start at their columns instead of being centered on them.
    """
    margin = max((len(label) for label in labels.values()), default=0)
    width = max((sum(len(text) for text, _ in row) for row in rows), default=0)
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
    label_line = " " * (margin + 2)
    for x, word in below:
        # the label must stay within the plot
        start = margin + 2 + max(0, min(x - (0 if begin else (len(word) - 1) // 2), width - len(word)))
        if start > len(label_line) or len(label_line) == margin + 2 <= start:
            label_line += " " * (start - len(label_line)) + word
    lines.append(((label_line, "dim"),))
    return lines


def map_to_axis(value: float, low: float, high: float, dots: int) -> int:
    """Return the position of `value` on an axis from `low` to `high` with `dots` positions."""
    return max(0, min(dots - 1, round((value - low) / (high - low) * (dots - 1))))


def log_ticks(low: float, high: float, max_count: int) -> list[int]:
    """Return at most `max_count` evenly spaced powers of ten between two logarithms."""
    powers = list(range(math.ceil(low), math.floor(high) + 1))
    return powers[:: max(1, -(-len(powers) // max(1, max_count)))]


def power_text(power: int) -> str:
    """Format a power of ten for an axis: '0.1', '1', '1,000'."""
    return f"{10.0**power:g}" if not 0 <= power < 7 else f"{10**power:,}"
