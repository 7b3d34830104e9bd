"""The Roofline tab: what bounds each layer on a machine, and how long the model takes at the least.

Without a measurement every layer lies on the roof: its place along it, left or right of the ridge, says
what bounds it. A layer without MACs has intensity 0 and no place on a logarithmic axis; it is in the list.
Once the model was timed, what each layer reached lies under the roof.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from explorer.facts.profile.points import measured_points
from explorer.report.present.look.roofline_words import LIMITS, by_time, figures, slowest, together
from explorer.tui.state.hardware import known_machine
from explorer.tui.tabs.roofline_plot import STEPS, RankedPoints, roof_plot
from explorer.tui.tabs.tab import PlotTab
from explorer.tui.text.drawing import ROLES, draw, row_line, title_line
from explorer.tui.text.lines import BLANK, Line, cut, first_shown, safe, wrap

if TYPE_CHECKING:
    from explorer.facts.profile.profile import Profile
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
        return rank_points(answer, self.store.profile)

    def paint(self) -> None:
        """The roof, and the layers below it."""
        ranked, view = self._with_measured(self.answer), self.view
        self.show_age()
        if ranked is None:
            self.show_wait()
            if self.store.machine is None:
                name = self.store.hardware.name or "The machine" if self.store.hardware else ""
                view.show_page(lambda width: no_machine_page("m", width, name))
            return
        fresh = view.count != len(ranked.points)
        view.show_plot(
            lambda at, width, height: roofline_page(ranked, at, self._lit(at), width, height),
            len(ranked.points),
            0 if fresh else view.cursor,
            lambda x, y, width, height: point_at(
                ranked, view.cursor, self._lit(view.cursor), y, width, height
            ),
        )
        if fresh:
            self.follow()

    def _with_measured(self, answer: RankedPoints | None) -> RankedPoints | None:
        """What was measured of the state on show, beside what it may do at best."""
        profile = self.store.profile
        if answer is None or answer.profile is profile:
            return answer
        ranked, cache = rank_points(answer.roofline, profile), self.store.on_demand
        if self.id in cache.answers:  # not what holds no more
            cache.answers[self.id] = ranked
        return ranked

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


def rank_points(roofline: Roofline, profile: Profile | None = None) -> RankedPoints:
    """Order the layers by time and place them, once."""
    points, measured = by_time(roofline), () if profile is None else measured_points(profile)
    places = (round(STEPS * math.log10(p.intensity)) if p.intensity else None for p in points)
    table = slowest(roofline, points, profile)
    return RankedPoints(roofline, tuple(points), tuple(places), table, profile, measured)


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
    ranked: RankedPoints, at: int, marked_indices: Collection[int], width: int, height: int
) -> list[Line]:
    """The machine, the bounds, the plot, and the layers by time.

    Args:
        ranked: The figures.
        at: Where the cursor is among `shown.points`.
        marked_indices: Indices of all that the cursor stands for: the layers of a group.
        width: In cells.
        height: In cells; the list is cut to it and follows the cursor.
    """
    width -= 1
    if not ranked.points:
        return [
            *draw([figures(ranked.roofline, profile=ranked.profile)], width, beside=True),
            BLANK,
            ((" No layer takes time", "dim"),),
        ]
    at = max(0, min(at, len(ranked.points) - 1))
    marked = set(marked_indices) | {at}
    lines, rows = _above(ranked, width, height)
    lines += roof_plot(ranked, at, marked, width, rows) if rows else []
    room = _room(len(lines), height, len(marked_indices))
    if len(marked_indices) > 1:
        lines += draw([together(ranked.roofline, [ranked.points[i] for i in marked_indices])], width)[:1]
    return [*lines, *_list(ranked, at, marked, width, room)]


def point_at(
    ranked: RankedPoints, at: int, marked_indices: Collection[int], row: int, width: int, height: int
) -> int | None:
    """The layer in a row of the page that `roofline_page` makes of the same."""
    above, rows = _above(ranked, width - 1, height)
    lines = len(above) + (rows + _AROUND if rows else 0)
    room = _room(lines, height, len(marked_indices))
    index = first_shown(at, room, len(ranked.points)) + row - lines - (len(marked_indices) > 1) - 2
    return index if first_shown(at, room, len(ranked.points)) <= index < len(ranked.points) else None


_LOW = 30
"""Rows under which figures give way to the list."""
_SHORT = 48
"""Cells under which the machine's name and rates do not stand in one line."""
_LEAST = 6
"""Rows that plot and list share at least."""
_AROUND = 3
"""Lines around the plot: its unit, and the axis with the words under it."""


def _above(ranked: RankedPoints, width: int, height: int) -> tuple[list[Line], int]:
    """What stands above the plot, and the rows that it takes: none where the list would have no room."""
    form = {"brief": height < _LOW, "apart": width < _SHORT}
    lines = draw([figures(ranked.roofline, **form, profile=ranked.profile)], width, beside=True)
    lines += [BLANK] if height > 18 else []
    # below are the heading of the list and what is chosen
    rest = height - len(lines) - _AROUND - 3
    return lines, min(12, rest * 5 // 8) if rest >= _LEAST else 0


def _room(lines: int, height: int, chosen: int) -> int:
    """Rows of the list under so many lines."""
    return max(3, height - lines - 2 - (chosen > 1))


def _list(ranked: RankedPoints, at: int, marked: Collection[int], width: int, room: int) -> list[Line]:
    """A window on the layers by time, around the cursor."""
    points = ranked.points
    lines: list[Line] = [cut(((f" {at + 1:,} of {len(points):,} by time", "head"),), width)]
    lines.append(title_line(ranked.table, width))
    start = first_shown(at, room, len(points))
    for i in range(start, min(start + room, len(points))):
        mark = (" ◆ " if i in marked else "   ", "accent" if i == at else ROLES[LIMITS[points[i].limit]])
        lines.append(row_line(ranked.table, i, width, mark=mark, here=i == at))
    return lines
