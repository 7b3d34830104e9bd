"""Roof plot: layers under the roof of a machine, in cells: where each may be at best, and where those that
were timed are, with a line to what was predicted for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from rich.cells import cell_len

from explorer.facts.profile.points import MeasuredPoint
from explorer.facts.profile.profile import Profile
from explorer.report.blocks import Table
from explorer.report.present.look.roofline_words import LIMITS
from explorer.tui.text.drawing import ROLES
from explorer.tui.text.lines import Line, ending, fit, safe
from explorer.tui.text.plot import Cells, filled, framed, lines_of, log_ticks, power_text, put, spread

if TYPE_CHECKING:
    from explorer.facts.roofline import Roofline, RooflinePoint

STEPS = 200
"""Places a decade: more than any terminal has dots."""


class RankedPoints(Struct, frozen=True):
    """A roofline in the order in which it is shown.

    Attributes:
        points: The layers, those that take longest first, those of unknown time last.
        places: Of each the logarithm of its intensity in steps of the plot, None where it has none: a
            model of 20,000 layers has a few dozen.
        table: A row a point.
        profile: Of the model on show, once it was timed.
        measured: Its layers that have a place, those that take most last.
    """

    roofline: Roofline
    points: tuple[RooflinePoint, ...]
    places: tuple[int | None, ...]
    table: Table
    profile: Profile | None = None
    measured: tuple[MeasuredPoint, ...] = ()


class _Scale(Struct, frozen=True):
    """Where things are on the plot: logarithms of FLOPs a byte across, of FLOPs/s upwards.

    `slowest` and `fastest` are the rates that must have a place, too.
    """

    ridge: float
    ceiling: float
    low: float
    high: float
    across: int
    rows: int
    slowest: float
    fastest: float

    @property
    def floor(self) -> float:
        """The lower end: the roof rises by as many decades as its slope is long."""
        return min(self.ceiling - (self.ridge - self.low), self.slowest - 0.2)

    @property
    def top(self) -> float:
        """The upper end, above the roof, where names stand."""
        return max(self.ceiling + (self.ceiling - self.floor) * 0.25, self.fastest + 0.2)

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


def roof_plot(ranked: RankedPoints, at: int, marked: Collection[int], width: int, rows: int) -> list[Line]:
    """The roof with every layer that has a place on it, by its share of the time; marked ones as diamonds.

    What was measured lies under it, with a line to what was predicted, or to the roof.
    """
    ridge, peak = math.log10(ranked.roofline.ridge), math.log10(2 * ranked.roofline.machine.peak_macs)
    everywhere = [place / STEPS for place in ranked.places if place is not None] + [ridge]
    everywhere += [math.log10(point.intensity) for point in ranked.measured]
    rates = [math.log10(point.flops) for point in ranked.measured]
    rates += [math.log10(point.predicted_flops) for point in ranked.measured if point.predicted_flops]
    low = min(math.floor(min(everywhere) - 0.1), ridge - 1)
    high = max(math.ceil(max(everywhere) + 0.1), ridge + 0.7)
    scale = _Scale(ridge, peak, low, high, 1, rows, min(rates, default=peak), max(rates, default=peak))
    ticks = log_ticks(scale.floor, scale.top, max(2, rows // 2))
    unit = 3 * max(0, min(len(_PREFIXES) - 1, math.floor(max(ticks, default=0) / 3)))
    margin = max((len(power_text(power - unit)) for power in ticks), default=0)
    scale = replace(scale, across=max(8, width - margin - 2))
    here = ranked.places[at]
    roles = ["track"] * scale.across
    if here is not None:
        roles[scale.column(here / STEPS)] = "accent"
    cells = filled([max(0.0, scale.share(x)) for x in range(scale.across)], rows, roles)
    places = _put_layers(cells, scale, ranked, marked)
    _put_measured(cells, scale, ranked.measured, {ranked.points[i].layer for i in marked})
    _put_names(cells, scale, ranked, places)
    if here is not None:
        x = scale.column(here / STEPS)
        put(cells, x, scale.roof(x), "◆", "accent")
    labels = {
        scale.row(power): fit(power_text(power - unit), margin, right=True) for power in reversed(ticks)
    }
    below = [(scale.column(power), power_text(power)) for power in log_ticks(low, high, scale.across // 8)]
    caption = f"{_PREFIXES[unit // 3]}FLOPs/s over FLOPs a byte"
    if here is None:  # 0 has no logarithm
        caption = "this layer has no MACs" if ranked.points[at].macs == 0 else "this layer is not known"
    predicted = ", × predicted" * any(point.predicted_flops for point in ranked.measured)
    for below_roof in ("   below the roof: measured", "   below: measured"):
        piece = f"{below_roof * bool(ranked.measured)}{predicted}"
        if len(caption) + len(piece) + margin + 2 <= width:
            caption += piece
            break
    sizes = "   ● from 10 %  • from 1 %  · less of the time"
    caption += sizes * (len(caption) + len(sizes) + margin + 2 <= width)
    head: Line = ((fit(" " * (margin + 2) + caption, width), "dim"),)
    return [head, *framed(lines_of(cells), labels, below)]


_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


_Places = Sequence[tuple[int, Sequence[int]]]
"""Columns, and which of the points stand over each, those that take longest last."""


def _put_layers(cells: Cells, scale: _Scale, ranked: RankedPoints, marked: Collection[int]) -> _Places:
    """Draws every place of the roof once, those that take longest last."""
    layers_at: dict[tuple[int, str], list[int]] = {}
    for i, place in enumerate(ranked.places):
        if place is not None:
            layers_at.setdefault((scale.column(place / STEPS), ranked.points[i].limit), []).append(i)
    places = sorted(
        layers_at.items(), key=lambda item_layers: sum(ranked.points[i].share for i in item_layers[1])
    )
    for (x, limit), layers in places:
        share = sum(ranked.points[i].share for i in layers)
        sign = next(sign for least, sign in _SIZES if share >= least)
        is_marked = any(i in marked for i in layers)
        put(cells, x, scale.roof(x), "◆" if is_marked else sign, ROLES[LIMITS[limit]])
    return [(x, layers) for (x, _), layers in places]


def _put_names(cells: Cells, scale: _Scale, shown: RankedPoints, places: _Places) -> None:
    """Names the places that take longest, where there is room."""
    for x, layers in places[: -_NAMED - 1 : -1]:
        more = f" +{len(layers) - 1:,}" if len(layers) > 1 else ""
        _name_above(cells, x, scale.roof(x), ending(safe(shown.points[layers[0]].path), 24) + more)


def _put_measured(
    cells: Cells, scale: _Scale, measured: Sequence[MeasuredPoint], marked_layers: Collection[int]
) -> None:
    """Draws what was measured, by its share of the run, above the lines from there to what was predicted."""
    places = [
        (scale.column(math.log10(point.intensity)), scale.row(math.log10(point.flops)), point)
        for point in measured
    ]
    for x, y, point in places:
        predicted = point.predicted_flops
        goal = scale.row(math.log10(predicted)) if predicted else scale.roof(x)
        role = "accent" if point.layer in marked_layers else "dim"
        if point.share >= _SIZES[1][0] or point.layer in marked_layers:
            for between in range(min(y, goal) + 1, max(y, goal)):
                put(cells, x, between, "│", role)
        if predicted and goal != y:
            put(cells, x, goal, "×", role)
    for x, y, point in [*places, *(place for place in places if place[2].layer in marked_layers)]:
        sign = next(sign for least, sign in _SIZES if point.share >= least)
        here = point.layer in marked_layers
        put(cells, x, y, "◆" if here else sign, "accent" if here else "strong")


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
