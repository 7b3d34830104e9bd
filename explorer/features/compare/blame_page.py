"""Growth of the error from layer to layer, and the layer that begins it: a plot, and a list by a cursor."""

from __future__ import annotations

import math

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts.blame import Blame, Probe
from explorer.features.compare.blame_words import STATES, claim, decades, probe_figures, values
from explorer.report.blocks import Field, Fields, Table
from explorer.tui.text.drawing import ROLES, row_line, side_by_side, title_line
from explorer.tui.text.lines import BLANK, Line, cut, first_shown, fit, safe, wrap
from explorer.tui.text.plot import column_values, columns_of, filled, framed, lines_of, log_ticks, put, spread

_NONE = -math.inf
_AROUND = 3
"""Lines around the plot: what the dots are, and the axis with the words under it."""

_LOW = 14
"""Rows under which every line counts."""

_LARGEST = 0.35
"""Decades above the largest error, so that its mark stands clear of the edge."""


class Growth(Struct, frozen=True):
    """A search for blame in the form in which it is shown.

    Attributes:
        errors, noise: Logarithms of the relative error and of the original's own, minus infinity for none.
        guilty: Positions of the layers that introduce error, or of those that number types explain.
        table: A row a value.
    """

    fact: Blame
    errors: tuple[float, ...]
    noise: tuple[float, ...]
    guilty: tuple[int, ...]
    table: Table


def growth_of(fact: Blame) -> Growth:
    """Take the logarithms, once."""
    found = [i for i, p in enumerate(fact.probes) if p.state == "introduced"]
    found = found or [i for i, p in enumerate(fact.probes) if p.state == "coarser"]
    errors, noise = (
        tuple(_log(getattr(probe, name)) for probe in fact.probes) for name in ("relative", "noise")
    )
    # which one begins it is a mark here
    table = values(replace(fact, first=None), range(len(fact.probes)))
    return Growth(fact, errors, noise, tuple(found), table)


def _log(value: float | None) -> float:
    return math.log10(value) if value and math.isfinite(value) else _NONE


def blame_head(fact: Blame, width: int) -> tuple[Line, ...]:
    """Which two, and the answer in a few words."""
    # a state of a session is called after the model that it was made of
    names = f" {safe(fact.before)} → {safe(fact.after.removeprefix(f'{fact.before}, '))}"
    said = f" {claim(fact).capitalize()}"
    return ((fit(names, width), "strong"),), ((fit(said, width), "good" if fact.same else "bad"),)


def growth_page(shown: Growth, at: int, width: int, height: int) -> list[Line]:
    """The verdict, the plot and the values around the cursor.

    Args:
        shown: The figures.
        at: Where the cursor is among the values.
        width: In cells.
        height: In cells; the list is cut to it and follows the cursor.
    """
    width -= 1
    fact = shown.fact
    if not fact.probes:
        return _verdict(fact, width, 20)
    at = max(0, min(at, len(fact.probes) - 1))
    lines, rows = _above(shown, width, height)
    lines += _plot(shown, at, width, rows)
    lines += _about(shown, at, width, 1 if height < _LOW else 2)
    return [*lines, *_list(shown, at, width, _room(len(lines), height))]


def probe_at(shown: Growth, at: int, row: int, width: int, height: int) -> int | None:
    """The value in a row of the page that `growth_page` makes of the same."""
    count = len(shown.fact.probes)
    above, rows = _above(shown, width - 1, height)
    before = len(above) + rows + _AROUND + (1 if height < _LOW else 2)
    room = _room(before, height)
    found = first_shown(at, room, count) + row - before - 1
    return found if row > before and found < min(count, first_shown(at, room, count) + room) else None


def _above(shown: Growth, width: int, height: int) -> tuple[list[Line], int]:
    """What stands above the plot, and the rows that it takes."""
    lines = _verdict(shown.fact, width, 1 if height < _LOW else 2 if height < 18 else 4)
    if height > 20:
        lines.append(BLANK)
    # below are what the cursor is on, the heading of the list, and three rows of it
    room = height - len(lines) - _AROUND - 4 - (1 if height < _LOW else 2)
    return lines, max(2, min(14, room * 5 // 8))


def _verdict(fact: Blame, width: int, most: int) -> list[Line]:
    lines = wrap(((f" {safe(fact.verdict)}", "text"),), width, 1)
    if len(lines) > most:
        last = "".join(piece for piece, _ in lines[most - 1])
        lines = [*lines[: most - 1], ((fit(last + " …", width), "text"),)]
    return lines


def _plot(shown: Growth, at: int, width: int, rows: int) -> list[Line]:
    """The error from left to right, the original's own noise over it; what introduces error as a mark."""
    probes, count = shown.fact.probes, len(shown.fact.probes)
    known = decades([*(p.relative for p in probes), *(p.noise for p in probes)]) or (-8, 0)
    low, high = known[0], known[1] + _LARGEST
    ticks = log_ticks(low, high, max(2, rows // 2))
    margin = max(len(f"1e{power}") for power in (*ticks, low))
    across = max(8, width - margin - 2)
    here = columns_of(at, count, across)

    def row(value: float) -> int:
        return rows - 1 - spread(value, low, high, rows)

    guilty = "bad" if shown.fact.kind in ("fault", "spread") else "warn"
    roles = ["bar"] * across
    for index in shown.guilty:
        for x in columns_of(index, count, across):
            roles[x] = guilty
    for x in here:
        roles[x] = "accent"
    errors = column_values(shown.errors, across)
    cells = filled([max(0.0, (value - low) / (high - low)) for value in errors], rows, roles)
    for x, value in enumerate(column_values(shown.noise, across)):
        if value > _NONE:
            put(cells, x, row(value), "•", "dim")
    for index in shown.guilty:
        if (size := _mark(probes[index])) > _NONE:
            put(cells, _middle(columns_of(index, count, across)), row(max(low, size)), "●", guilty)
    largest = max(errors)
    if largest > _NONE:
        put(cells, errors.index(largest), max(0, row(largest) - 1), "▼", "warn")
    put(cells, _middle(here), row(max(low, shown.errors[at])), "◆", "accent")
    labels = {row(power): f"1e{power}" for power in reversed(ticks)}
    below = [(0, "first"), (across - 1, "last")]
    if shown.guilty:
        first = shown.guilty[0]
        below.insert(1, (_middle(columns_of(first, count, across)), f"node {probes[first].step:,}"))
    said = _legend(margin, guilty if shown.guilty else "", 10**largest)
    return [cut(said, width), *framed(lines_of(cells), labels, below, mark=_middle(here))]


def _middle(columns: range) -> int:
    return columns[len(columns) // 2]


def _legend(margin: int, guilty: str, largest: float) -> Line:
    """What is drawn how; the role `guilty` is that of the marks, '' where there are none."""
    return (
        (" " * (margin + 2) + "█ ", "bar"),
        ("error / value", "dim"),
        (f"  ▼ largest {largest:.1e}" if largest else "", "warn"),
        ("  ● introduced" if guilty else "", guilty),
        ("  • the original's noise", "dim"),
    )


def _mark(probe: Probe) -> float:
    return max(_log(probe.relative), _log(probe.introduced))


def _about(shown: Growth, at: int, width: int, most: int) -> list[Line]:
    """Figures of the value under the cursor, in `most` lines."""
    probes = shown.fact.probes
    which = Field("value", f"{at + 1:,} of {len(probes):,}")
    lines = side_by_side(Fields([which, *probe_figures(probes[at]).rows]), width)[:most]
    return [*lines, *[()] * (most - len(lines))]


def _room(lines: int, height: int) -> int:
    """Rows of the list under so many lines."""
    return max(3, height - lines - 1)


def _list(shown: Growth, at: int, width: int, room: int) -> list[Line]:
    """A window on the values in execution order, around the cursor."""
    probes = shown.fact.probes
    lines = [title_line(shown.table, width)]
    start = first_shown(at, room, len(probes))
    for i in range(start, min(start + room, len(probes))):
        role = "accent" if i == at else ROLES[STATES[probes[i].state][1]]
        mark = (" ◆ " if i == at else " ● " if i in shown.guilty else "   ", role)
        lines.append(row_line(shown.table, i, width, mark=mark, here=i == at))
    return lines
