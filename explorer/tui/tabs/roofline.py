"""The Roofline tab: what bounds each layer on a machine, and how long the model takes at the least.

Without a measurement every layer lies on the roof: its place along it, left or right of the ridge, says
what bounds it. A layer without MACs has intensity 0 and no place on a logarithmic axis; it is in the list.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len

from explorer.report.blocks import Table
from explorer.report.present.look.roofline import LIMITS, by_time, figures, slowest, together
from explorer.tui.state.hardware import known_machine
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.drawing import ROLES, draw, row_line, title_line
from explorer.tui.text.lines import BLANK, Line, cut, ending, first_shown, fit, safe, wrap
from explorer.tui.text.plot import Cells, filled, framed, lines_of, log_ticks, put, spread

if TYPE_CHECKING:
    from explorer.facts.roofline import Roofline, RooflinePoint


class RooflineTab(PlotTab):
    """The layers under the roof of a machine."""

    id = "roofline"
    work = "placing the layers"

    def request(self) -> tuple[Any, ...] | None:
        """The machine, if one is known."""
        machine = known_machine(self.store)
        return None if machine is None else (machine,)

    def prepare(self, answer: Any) -> Any:
        """The points, the most expensive first."""
        return rank_points(answer)

    def paint(self) -> None:
        """The roof, and the layers below it."""
        shown, view = self.answer, self.view
        self.show_age()
        if shown is None:
            self.show_wait()
            if self.store.machine is None:
                name = self.store.hardware.name or "The machine" if self.store.hardware else ""
                view.show_page(lambda width: no_machine_page("m", width, name))
            return
        fresh = view.count != len(shown.points)
        view.show_plot(
            lambda at, width, height: roofline_page(shown, at, self._lit(at), width, height),
            len(shown.points),
            0 if fresh else view.cursor,
            lambda x, y, width, height: point_at(
                shown, view.cursor, self._lit(view.cursor), y, width, height
            ),
        )
        if fresh:
            self.follow()

    def _lit(self, at: int) -> list[int]:
        """All points of the group under the tree's cursor while the plot's cursor is on its first."""
        found = self._points(*self.tree.span) if self.tree.cursor_layers and self.answer is not None else []
        return found if found and found[0] == at else [at]

    def _points(self, first: int, last: int) -> list[int]:
        return points_of(self.answer.points, first, last)

    def step_of(self, first: int, last: int) -> int | None:
        """The first point of one of the layers."""
        return next(iter(self._points(first, last)), None)

    def layer_at(self, at: int) -> int | None:
        """The layer of a point."""
        layer: int | None = self.answer.points[at].layer if self.answer is not None else None
        return layer


class RankedPoints(Struct, frozen=True):
    """A roofline in the order in which it is shown.

    Attributes:
        points: The layers, those that take longest first, those of unknown time last.
        places: Of each the logarithm of its intensity in steps of the plot, None where it has none: a
            model of 20,000 layers has a few dozen.
        table: A row a point.
    """

    roofline: Roofline
    points: tuple[RooflinePoint, ...]
    places: tuple[int | None, ...]
    table: Table


_STEPS = 200
"""Places a decade: more than any terminal has dots."""


def rank_points(roofline: Roofline) -> RankedPoints:
    """Order the layers by time and place them, once."""
    points = by_time(roofline)
    places = (round(_STEPS * math.log10(p.intensity)) if p.intensity else None for p in points)
    return RankedPoints(roofline, tuple(points), tuple(places), slowest(roofline, points))


def points_of(points: Sequence[RooflinePoint], first: int, last: int) -> list[int]:
    """Where in `points` the layers `first` to `last` are."""
    return [i for i, p in enumerate(points) if first <= p.layer <= last]


def no_machine_page(key: str, width: int, name: str = "") -> list[Line]:
    """What stands here before a machine is known, or when the one that was chosen has no rates."""
    why = " What bounds each layer, computing or moving bytes, depends on the machine. "
    why += f"{safe(name)} has no clock: what it does in a second is not known. " if name else ""
    how = f"Press {key} to say what it can do at best, or to choose one of the configuration file."
    return [BLANK, *wrap(((why, "dim"), (how, "text")), width - 1, 1)]


def roofline_page(
    shown: RankedPoints, at: int, chosen: Collection[int], width: int, height: int
) -> list[Line]:
    """The machine, the bounds, the plot, and the layers by time.

    Args:
        shown: The figures.
        at: Where the cursor is among `shown.points`.
        chosen: Indices of all that the cursor stands for: the layers of a group.
        width: In cells.
        height: In cells; the list is cut to it and follows the cursor.
    """
    width -= 1
    if not shown.points:
        return [
            *draw([figures(shown.roofline)], width, beside=True),
            BLANK,
            ((" No layer takes time", "dim"),),
        ]
    at = max(0, min(at, len(shown.points) - 1))
    marked = set(chosen) | {at}
    lines, rows = _above(shown, width, height)
    lines += _plot(shown, at, marked, width, rows)
    room = _room(len(lines), height, len(chosen))
    if len(chosen) > 1:
        lines += draw([together(shown.roofline, [shown.points[i] for i in chosen])], width)[:1]
    return [*lines, *_list(shown, at, marked, width, room)]


def point_at(
    shown: RankedPoints, at: int, chosen: Collection[int], row: int, width: int, height: int
) -> int | None:
    """The layer in a row of the page that `roofline_page` makes of the same."""
    above, rows = _above(shown, width - 1, height)
    lines = len(above) + rows + _AROUND
    room = _room(lines, height, len(chosen))
    found = first_shown(at, room, len(shown.points)) + row - lines - (len(chosen) > 1) - 2
    return found if first_shown(at, room, len(shown.points)) <= found < len(shown.points) else None


_LOW = 30
"""Rows under which figures give way to the list."""
_AROUND = 3
"""Lines around the plot: its unit, and the axis with the words under it."""


def _above(shown: RankedPoints, width: int, height: int) -> tuple[list[Line], int]:
    """What stands above the plot, and the rows that it takes."""
    lines = draw([figures(shown.roofline, brief=height < _LOW)], width, beside=True)
    lines += [BLANK] if height > 18 else []
    # below are the heading of the list and what is chosen
    return lines, max(3, min(12, (height - len(lines) - _AROUND - 3) * 5 // 8))


def _room(lines: int, height: int, chosen: int) -> int:
    """Rows of the list under so many lines."""
    return max(3, height - lines - 2 - (chosen > 1))


class _Scale(Struct, frozen=True):
    """Where things are on the plot: logarithms of FLOPs a byte across, of FLOPs/s upwards."""

    ridge: float
    ceiling: float
    low: float
    high: float
    across: int
    rows: int

    @property
    def floor(self) -> float:
        """The lower end: the roof rises by as many decades as its slope is long."""
        return self.ceiling - (self.ridge - self.low)

    @property
    def top(self) -> float:
        """The upper end, above the roof, where names stand."""
        return self.ceiling + (self.ceiling - self.floor) * 0.25

    def column(self, x: float) -> int:
        """The column of the logarithm of an intensity."""
        return spread(x, self.low, self.high, self.across)

    def share(self, column: int) -> float:
        """The share of the height that the roof has over a column."""
        x = self.low + (self.high - self.low) * column / max(1, self.across - 1)
        return (min(self.ceiling, self.ceiling - (self.ridge - x)) - self.floor) / (self.top - self.floor)

    def row(self, y: float) -> int:
        """The row, from the top, of the logarithm of a rate."""
        return self.rows - 1 - spread(y, self.floor, self.top, self.rows)

    def roof(self, column: int) -> int:
        """The row of the roof over a column."""
        return self.rows - 1 - min(self.rows - 1, int(max(0.0, self.share(column)) * self.rows - 1e-9))


_SIZES = ((0.1, "●"), (0.01, "•"), (0.0, "·"))
"""From which share of the time on a place on the roof is drawn how large."""
_NAMED = 3
"""Places whose layer is named."""


def _plot(shown: RankedPoints, at: int, marked: Collection[int], width: int, rows: int) -> list[Line]:
    """The roof with every layer that has a place on it, by its share of the time; marked ones as diamonds."""
    ridge, peak = math.log10(shown.roofline.ridge), math.log10(2 * shown.roofline.machine.peak_macs)
    everywhere = [place / _STEPS for place in shown.places if place is not None] + [ridge]
    low = min(math.floor(min(everywhere) - 0.1), ridge - 1)
    high = max(math.ceil(max(everywhere) + 0.1), ridge + 0.7)
    scale = _Scale(ridge, peak, low, high, 1, rows)
    ticks = log_ticks(scale.floor, scale.top, max(2, rows // 2))
    unit = 3 * max(0, min(len(_PREFIXES) - 1, math.floor(max(ticks, default=0) / 3)))
    margin = max((len(_power(power - unit)) for power in ticks), default=0)
    scale = replace(scale, across=max(8, width - margin - 2))
    here = shown.places[at]
    roles = ["track"] * scale.across
    if here is not None:
        roles[scale.column(here / _STEPS)] = "accent"
    cells = filled([max(0.0, scale.share(x)) for x in range(scale.across)], rows, roles)
    _put_layers(cells, scale, shown, marked)
    if here is not None:
        x = scale.column(here / _STEPS)
        put(cells, x, scale.roof(x), "◆", "accent")
    labels = {scale.row(power): fit(_power(power - unit), margin, right=True) for power in reversed(ticks)}
    below = [(scale.column(power), _power(power)) for power in log_ticks(low, high, scale.across // 8)]
    said = f"{_PREFIXES[unit // 3]}FLOPs/s over FLOPs a byte"
    if here is None:  # 0 has no logarithm
        said = "this layer has no MACs" if shown.points[at].macs == 0 else "this layer is not known"
    sizes = "   ● from 10 %  • from 1 %  · less of the time"
    said += sizes * (len(said) + len(sizes) + margin + 2 <= width)
    head: Line = ((fit(" " * (margin + 2) + said, width), "dim"),)
    return [head, *framed(lines_of(cells), labels, below)]


_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def _put_layers(cells: Cells, scale: _Scale, shown: RankedPoints, marked: Collection[int]) -> None:
    """Draws every place of the roof once, those that take longest last, and names some of them."""
    found: dict[tuple[int, str], list[int]] = {}
    for i, place in enumerate(shown.places):
        if place is not None:
            found.setdefault((scale.column(place / _STEPS), shown.points[i].limit), []).append(i)
    places = sorted(found.items(), key=lambda one: sum(shown.points[i].share for i in one[1]))
    for (x, limit), layers in places:
        share = sum(shown.points[i].share for i in layers)
        sign = next(sign for least, sign in _SIZES if share >= least)
        chosen = any(i in marked for i in layers)
        put(cells, x, scale.roof(x), "◆" if chosen else sign, ROLES[LIMITS[limit]])
    for (x, _), layers in places[: -_NAMED - 1 : -1]:
        more = f" +{len(layers) - 1:,}" if len(layers) > 1 else ""
        _name_above(cells, x, scale.roof(x), ending(safe(shown.points[layers[0]].path), 24) + more)


def _name_above(cells: Cells, x: int, y: int, name: str) -> None:
    """Writes a name above a place, left of it or right, in the next row that is free there."""
    if cell_len(name) != len(name):
        return
    for row in range(y - 1, -1, -1):
        for first in (x - len(name) + 1, x):
            around = [at for at in range(first - 1, first + len(name) + 1) if 0 <= at < len(cells[row])]
            if 0 <= first <= len(cells[row]) - len(name) and all(cells[row][at][0] == " " for at in around):
                put(cells, first, row, name, "text")
                for between in range(row + 1, y):
                    put(cells, x, between, "│", "track")
                return
        if cells[row][x][0] != " ":
            return


def _power(power: int) -> str:
    """A power of ten beside an axis: '0.1', '1', '1,000'."""
    return f"{10.0**power:g}" if not 0 <= power < 7 else f"{10**power:,}"


def _list(shown: RankedPoints, at: int, marked: Collection[int], width: int, room: int) -> list[Line]:
    """A window on the layers by time, around the cursor."""
    points = shown.points
    lines: list[Line] = [cut(((f" {at + 1:,} of {len(points):,} by time", "head"),), width)]
    lines.append(title_line(shown.table, width))
    start = first_shown(at, room, len(points))
    for i in range(start, min(start + room, len(points))):
        mark = (" ◆ " if i in marked else "   ", "accent" if i == at else ROLES[LIMITS[points[i].limit]])
        lines.append(row_line(shown.table, i, width, mark=mark, here=i == at))
    return lines
