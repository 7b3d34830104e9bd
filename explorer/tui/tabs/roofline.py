"""The Roofline tab: the limit of each layer on a machine, and the minimum time of the model.

Each layer is plotted on the roof, at its attainable rate: left of the ridge memory bounds it, right of the
ridge compute. A layer without MACs has intensity 0, which a logarithmic axis cannot show, so it is only in
the list. With a profile, the measured rate of each layer is plotted, too, usually below the roof.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from explorer.facts.profile.points import build_measured_points
from explorer.report.present.look.roofline_words import (
    LIMITS,
    build_layer_table,
    describe_total,
    figures,
    sort_by_time,
)
from explorer.tui.state.hardware import find_machine
from explorer.tui.tabs.roofline_plot import STEPS_PER_DECADE, RankedPoints, draw_roof_plot
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.drawing import ROLES, draw, row_line, title_line
from explorer.tui.text.lines import BLANK, Line, cut_line, escape_name, find_first_visible, wrap

if TYPE_CHECKING:
    from explorer.facts.profile.profile import Profile
    from explorer.facts.roofline import Roofline, RooflinePoint


class RooflineTab(PlotTab):
    """Plots the layers under the roof of a machine."""

    id = "roofline"
    work = "placing the layers"

    def request(self) -> tuple[Any, ...] | None:
        """Return the machine as the argument of the engine, or None if none is known."""
        machine = find_machine(self.store)
        return None if machine is None else (machine,)

    def prepare(self, answer: Any) -> Any:
        """Rank the points of the engine's answer by time."""
        return rank_points(answer, self.store.profile)

    def paint(self) -> None:
        """Show the roof and the list of layers."""
        ranked, view = self._add_measured(self.answer), self.view
        self.show_age()
        if ranked is None:
            self.show_wait()
            if self.store.machine is None:
                name = self.store.hardware.name or "The machine" if self.store.hardware else ""
                view.show_page(lambda width: draw_missing_machine("m", width, name))
            return
        is_new = view.count != len(ranked.points)
        view.show_plot(
            lambda cursor, width, height: draw_roofline_page(
                ranked, cursor, self._find_marked_points(cursor), width, height
            ),
            len(ranked.points),
            0 if is_new else view.cursor,
            lambda x, y, width, height: find_point_at(
                ranked, view.cursor, self._find_marked_points(view.cursor), y, width, height
            ),
        )
        if is_new:
            self.follow()

    def _add_measured(self, answer: RankedPoints | None) -> RankedPoints | None:
        """Add the points of the current profile to the ranked points."""
        profile = self.store.profile
        if answer is None or answer.profile is profile:
            return answer
        ranked, cache = rank_points(answer.roofline, profile), self.store.on_demand
        if self.id in cache.answers:  # an outdated answer is not stored
            cache.answers[self.id] = ranked
        return ranked

    def _find_marked_points(self, index: int) -> list[int]:
        """Return all points of the layers under the tree's cursor if `index` is the first, else [`index`]."""
        points = (
            self._find_indices(*self.tree.span) if self.tree.cursor_layers and self.answer is not None else []
        )
        return points if points and points[0] == index else [index]

    def _find_indices(self, first: int, last: int) -> list[int]:
        return find_points(self.answer.points, first, last)

    def step_of(self, first: int, last: int) -> int | None:
        """Return the first point of the layers `first` to `last`, or None."""
        return next(iter(self._find_indices(first, last)), None)

    def layer_at(self, index: int) -> int | None:
        """Return the layer of a point."""
        layer: int | None = self.answer.points[index].layer if self.answer is not None else None
        return layer


def rank_points(roofline: Roofline, profile: Profile | None = None) -> RankedPoints:
    """Sort the layers by time, and compute their positions on the intensity axis."""
    points, measured = sort_by_time(roofline), () if profile is None else build_measured_points(profile)
    intensity_steps = (
        round(STEPS_PER_DECADE * math.log10(point.intensity)) if point.intensity else None for point in points
    )
    table = build_layer_table(roofline, points, profile)
    return RankedPoints(roofline, tuple(points), tuple(intensity_steps), table, profile, measured)


def find_points(points: Sequence[RooflinePoint], first: int, last: int) -> list[int]:
    """Return the indices of the points of the layers `first` to `last`."""
    return [i for i, point in enumerate(points) if first <= point.layer <= last]


def draw_missing_machine(key: str, width: int, name: str = "") -> list[Line]:
    """Draw the page for a missing machine, or for the machine `name` if its rates are unknown."""
    why = " What bounds each layer, computing or moving bytes, depends on the machine. "
    why += f"{escape_name(name)} has no clock: its rates per second are not known. " if name else ""
    next_step = f"Press {key} to enter the machine's peak rates or choose a preset."
    return [BLANK, *wrap(((why, "dim"), (next_step, "text")), width - 1, 1)]


def draw_roofline_page(
    ranked: RankedPoints, cursor: int, marked_indices: Collection[int], width: int, height: int
) -> list[Line]:
    """Draw the machine, the bounds, the plot, and the list of layers by time.

    Args:
        ranked: Points in display order.
        cursor: Index of the cursor in `ranked.points`.
        marked_indices: Indices of all points under the cursor: the layers of a group.
        width: Width of the page in cells.
        height: Height of the page in rows. The list is cut to it and follows the cursor.
    """
    width -= 1
    if not ranked.points:
        return [
            *draw([figures(ranked.roofline, profile=ranked.profile)], width, beside=True),
            BLANK,
            ((" No layer takes time", "dim"),),
        ]
    cursor = max(0, min(cursor, len(ranked.points) - 1))
    marked = set(marked_indices) | {cursor}
    lines, rows = _draw_figures(ranked, width, height)
    lines += draw_roof_plot(ranked, cursor, marked, width, rows) if rows else []
    room = _count_list_rows(len(lines), height, len(marked_indices))
    if len(marked_indices) > 1:
        lines += draw([describe_total(ranked.roofline, [ranked.points[i] for i in marked_indices])], width)[
            :1
        ]
    return [*lines, *_draw_list(ranked, cursor, marked, width, room)]


def find_point_at(
    ranked: RankedPoints, cursor: int, marked_indices: Collection[int], row: int, width: int, height: int
) -> int | None:
    """Return the index of the layer in a row of the page that `draw_roofline_page` draws, or None."""
    lines_above, rows = _draw_figures(ranked, width - 1, height)
    lines = len(lines_above) + (rows + _PLOT_MARGIN if rows else 0)
    room = _count_list_rows(lines, height, len(marked_indices))
    count = len(ranked.points)
    first_visible = find_first_visible(cursor, room, count)
    title_rows = 2 + (len(marked_indices) > 1)
    index = first_visible + row - lines - title_rows
    return index if first_visible <= index < count else None


_MIN_FULL_HEIGHT = 30
"""Minimum height of a page in rows on which all figures are drawn. A lower page shows more of the list."""
_MIN_FULL_WIDTH = 48
"""Minimum width of a page in cells on which the machine's name and rates share a line."""
_MIN_ROWS = 6
"""Minimum rows of the plot and the list together."""
_PLOT_MARGIN = 3
"""Lines around the plot: its unit, the axis and the axis labels."""


def _draw_figures(ranked: RankedPoints, width: int, height: int) -> tuple[list[Line], int]:
    """Return the lines above the plot, and the height of the plot: 0 if the list would have no room."""
    options = {"brief": height < _MIN_FULL_HEIGHT, "separate": width < _MIN_FULL_WIDTH}
    lines = draw([figures(ranked.roofline, **options, profile=ranked.profile)], width, beside=True)
    lines += [BLANK] if height > 18 else []  # a low pane has no row to spare
    # the heading of the list and the total of the group are below
    remaining = height - len(lines) - _PLOT_MARGIN - 3
    return lines, min(12, remaining * 5 // 8) if remaining >= _MIN_ROWS else 0


def _count_list_rows(lines: int, height: int, marked_count: int) -> int:
    """Return the number of list rows that fit below `lines` lines."""
    return max(3, height - lines - 2 - (marked_count > 1))


def _draw_list(
    ranked: RankedPoints, cursor: int, marked: Collection[int], width: int, room: int
) -> list[Line]:
    """Draw the part of the list around the cursor."""
    points = ranked.points
    lines: list[Line] = [cut_line(((f" {cursor + 1:,} of {len(points):,} by time", "head"),), width)]
    lines.append(title_line(ranked.table, width))
    start = find_first_visible(cursor, room, len(points))
    for i in range(start, min(start + room, len(points))):
        mark = (" ◆ " if i in marked else "   ", "accent" if i == cursor else ROLES[LIMITS[points[i].limit]])
        lines.append(row_line(ranked.table, i, width, mark=mark, is_current=i == cursor))
    return lines
