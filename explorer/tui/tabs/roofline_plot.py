"""Roofline plot in terminal cells: the attainable rate of each layer, and the measured rates of a profile.

A line connects each measured rate with the rate that was predicted for it.
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
from explorer.report.names import shorten_name
from explorer.report.present.look.roofline_words import LIMITS
from explorer.tui.text.drawing import ROLES
from explorer.tui.text.lines import Line, escape_name, fit
from explorer.tui.text.plot import (
    Cells,
    build_lines,
    draw_axes,
    draw_columns,
    log_ticks,
    map_to_axis,
    power_text,
    put_text,
)

if TYPE_CHECKING:
    from explorer.facts.roofline import Roofline, RooflinePoint

STEPS_PER_DECADE = 200
"""Resolution of the intensity axis in steps per decade, finer than any terminal."""


class RankedPoints(Struct, frozen=True):
    """A roofline in display order.

    Attributes:
        roofline: Answer of the engine.
        points: Layers sorted by time, slowest first; layers of unknown time come last.
        intensity_steps: Base-10 logarithm of the intensity of each layer in steps of 1 / `STEPS_PER_DECADE`,
            or None for intensity 0. Rounding reduces 20,000 layers to a few dozen positions.
        table: Table with one row per point.
        profile: Profile of the model, or None if it was not profiled.
        measured: Layers with a measured rate, slowest last.
    """

    roofline: Roofline
    points: tuple[RooflinePoint, ...]
    intensity_steps: tuple[int | None, ...]
    table: Table
    profile: Profile | None = None
    measured: tuple[MeasuredPoint, ...] = ()


class _Scale(Struct, frozen=True):
    """Maps rates and intensities to cells of the plot. All logarithms have base 10.

    Attributes:
        ridge: Logarithm of the intensity at the ridge, in FLOPs per byte.
        ceiling: Logarithm of the peak rate, in FLOPs per second.
        low, high: Logarithms of the intensities at the ends of the horizontal axis.
        column_count: Width of the plot in cells.
        rows: Height of the plot in rows.
        slowest, fastest: Logarithms of the rates that the vertical axis must include.
    """

    ridge: float
    ceiling: float
    low: float
    high: float
    column_count: int
    rows: int
    slowest: float
    fastest: float

    @property
    def floor(self) -> float:
        """Logarithm of the rate at the lower end. The roof rises by one decade per decade of intensity."""
        return min(self.ceiling - (self.ridge - self.low), self.slowest - 0.2)  # a margin in decades

    @property
    def top(self) -> float:
        """Logarithm of the rate at the upper end, with room for names above the roof."""
        return max(self.ceiling + (self.ceiling - self.floor) * 0.25, self.fastest + 0.2)  # in decades

    def column(self, x: float) -> int:
        """Return the column of the logarithm of an intensity."""
        return map_to_axis(x, self.low, self.high, self.column_count)

    def share(self, column: int) -> float:
        """Return the height of the roof in a column, as a share of the plot's height."""
        x = self.low + (self.high - self.low) * column / max(1, self.column_count - 1)
        return (min(self.ceiling, self.ceiling - (self.ridge - x)) - self.floor) / (self.top - self.floor)

    def row(self, y: float) -> int:
        """Return the row, counted from the top, of the logarithm of a rate."""
        return self.rows - 1 - map_to_axis(y, self.floor, self.top, self.rows)

    def roof(self, column: int) -> int:
        """Return the row of the roof in a column."""
        return self.rows - 1 - min(self.rows - 1, int(max(0.0, self.share(column)) * self.rows - 1e-9))


_SIZES = ((0.1, "●"), (0.01, "•"), (0.0, "·"))
"""Minimum share of the total time, and the marker from this share on."""
_MAX_NAMES = 3
"""Maximum number of positions that are labeled with the name of a layer."""


def draw_roof_plot(
    ranked: RankedPoints, cursor: int, marked: Collection[int], width: int, rows: int
) -> list[Line]:
    """Draw the roof and the layers on it, sized by their share of the time. Marked layers are diamonds.

    Measured rates are drawn below the roof, each with a line to its predicted rate, or to the roof.
    """
    ridge, peak = math.log10(ranked.roofline.ridge), math.log10(2 * ranked.roofline.machine.peak_macs)
    intensities = [step / STEPS_PER_DECADE for step in ranked.intensity_steps if step is not None] + [ridge]
    intensities += [math.log10(point.intensity) for point in ranked.measured]
    rates = [math.log10(point.flops) for point in ranked.measured]
    rates += [math.log10(point.predicted_flops) for point in ranked.measured if point.predicted_flops]
    low = min(math.floor(min(intensities) - 0.1), ridge - 1)  # margins in decades
    high = max(math.ceil(max(intensities) + 0.1), ridge + 0.7)
    scale = _Scale(ridge, peak, low, high, 1, rows, min(rates, default=peak), max(rates, default=peak))
    ticks = log_ticks(scale.floor, scale.top, max(2, rows // 2))
    unit = 3 * max(0, min(len(_PREFIXES) - 1, math.floor(max(ticks, default=0) / 3)))
    margin = max((len(power_text(power - unit)) for power in ticks), default=0)
    scale = replace(scale, column_count=max(8, width - margin - 2))
    cursor_step = ranked.intensity_steps[cursor]
    roles = ["track"] * scale.column_count
    if cursor_step is not None:
        roles[scale.column(cursor_step / STEPS_PER_DECADE)] = "accent"
    cells = draw_columns([max(0.0, scale.share(x)) for x in range(scale.column_count)], rows, roles)
    groups = _put_layers(cells, scale, ranked, marked)
    _put_measured(cells, scale, ranked.measured, {ranked.points[i].layer for i in marked})
    _put_names(cells, scale, ranked, groups)
    if cursor_step is not None:
        x = scale.column(cursor_step / STEPS_PER_DECADE)
        put_text(cells, x, scale.roof(x), "◆", "accent")
    labels = {
        scale.row(power): fit(power_text(power - unit), margin, right=True) for power in reversed(ticks)
    }
    below = [
        (scale.column(power), power_text(power)) for power in log_ticks(low, high, scale.column_count // 8)
    ]
    caption = f"{_PREFIXES[unit // 3]}FLOPs/s over FLOPs a byte"
    if all(ranked.intensity_steps[index] is None for index in marked):  # 0 has no logarithm
        has_no_macs = all(ranked.points[index].macs == 0 for index in marked)
        words = "this layer has no MACs", "the MACs of this layer are not known"
        if len(marked) > 1:
            words = "these layers have no MACs", "the MACs of these layers are not known"
        caption = words[0] if has_no_macs else words[1]
    predicted = ", × predicted" * any(point.predicted_flops for point in ranked.measured)
    for note in ("   below the roof: measured", "   below: measured"):
        note_text = f"{note * bool(ranked.measured)}{predicted}"
        if len(caption) + len(note_text) + margin + 2 <= width:
            caption += note_text
            break
    sizes = "   ● from 10 %  • from 1 %  · less of the time"
    caption += sizes * (len(caption) + len(sizes) + margin + 2 <= width)
    head: Line = ((fit(" " * (margin + 2) + caption, width), "dim"),)
    return [head, *draw_axes(build_lines(cells), labels, below)]


_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


_LayerGroups = Sequence[tuple[int, Sequence[int]]]
"""Pairs of a column and the indices of the points there, slowest last."""


def _put_layers(cells: Cells, scale: _Scale, ranked: RankedPoints, marked: Collection[int]) -> _LayerGroups:
    """Draw each position on the roof once, the slowest last. Returns the positions in this order."""
    layers_at: dict[tuple[int, str], list[int]] = {}
    for i, step in enumerate(ranked.intensity_steps):
        if step is not None:
            layers_at.setdefault((scale.column(step / STEPS_PER_DECADE), ranked.points[i].limit), []).append(
                i
            )
    groups = sorted(layers_at.items(), key=lambda group: sum(ranked.points[i].share for i in group[1]))
    for (x, limit), layers in groups:
        share = sum(ranked.points[i].share for i in layers)
        sign = next(sign for min_share, sign in _SIZES if share >= min_share)
        is_marked = any(i in marked for i in layers)
        put_text(cells, x, scale.roof(x), "◆" if is_marked else sign, ROLES[LIMITS[limit]])
    return [(x, layers) for (x, _), layers in groups]


def _put_names(cells: Cells, scale: _Scale, ranked: RankedPoints, groups: _LayerGroups) -> None:
    """Label the slowest positions with layer names, where there is room."""
    for x, layers in groups[: -_MAX_NAMES - 1 : -1]:
        suffix = f", {len(layers) - 1:,} more" if len(layers) > 1 else ""
        _write_name_above(
            cells, x, scale.roof(x), shorten_name(escape_name(ranked.points[layers[0]].path), 24) + suffix
        )


def _put_measured(
    cells: Cells, scale: _Scale, measured: Sequence[MeasuredPoint], marked_layers: Collection[int]
) -> None:
    """Draw the measured rates, sized by their share of the run, and the lines to the predicted rates."""
    drawn_points = [
        (scale.column(math.log10(point.intensity)), scale.row(math.log10(point.flops)), point)
        for point in measured
    ]
    for x, y, point in drawn_points:
        predicted = point.predicted_flops
        target_row = scale.row(math.log10(predicted)) if predicted else scale.roof(x)
        role = "accent" if point.layer in marked_layers else "dim"
        if point.share >= _SIZES[1][0] or point.layer in marked_layers:
            for row_between in range(min(y, target_row) + 1, max(y, target_row)):
                put_text(cells, x, row_between, "│", role)
        if predicted and target_row != y:
            put_text(cells, x, target_row, "×", role)
    for x, y, point in [*drawn_points, *(drawn for drawn in drawn_points if drawn[2].layer in marked_layers)]:
        sign = next(sign for min_share, sign in _SIZES if point.share >= min_share)
        is_marked = point.layer in marked_layers
        put_text(cells, x, y, "◆" if is_marked else sign, "accent" if is_marked else "strong")


def _write_name_above(cells: Cells, x: int, y: int, name: str) -> None:
    """Write a name above a position, left or right of it, in the first free row."""
    if cell_len(name) != len(name):
        return
    for row in range(y - 1, -1, -1):
        for first in (x - len(name) + 1, x):
            nearby_columns = [
                column for column in range(first - 1, first + len(name) + 1) if 0 <= column < len(cells[row])
            ]
            if 0 <= first <= len(cells[row]) - len(name) and all(
                cells[row][column][0] == " " for column in nearby_columns
            ):
                put_text(cells, first, row, name, "text")
                for row_between in range(row + 1, y):
                    put_text(cells, x, row_between, "│", "track")
                return
        if cells[row][x][0] != " ":
            return
