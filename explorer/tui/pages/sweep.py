"""Tilings beside each other, as lines: the table, the front as a plot, what is known of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.base import units
from explorer.facts.sweep import SweepRow
from explorer.report.present.tiling.sweep import FRONT, tile_text
from explorer.report.terms import field_terms
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.lines import Line, Span, fit, flow, safe, wrap
from explorer.tui.text.plot import Part, framed, overlay, spread

if TYPE_CHECKING:
    from plotille import Canvas

Axes = tuple[str, str]
TilePlace = tuple[int, int]

AXES: tuple[Axes, ...] = (
    ("buffer", "cycles"),
    ("buffer", "traffic"),
    ("traffic", "cycles"),
    ("products", "cycles"),
    ("products", "traffic"),
)
"""Pairs of figures to plot: across, and upwards."""
_TITLES = {"products": "tile matmuls"}


class SweepField(Struct, frozen=True):
    """A column: its title, what sorts by it, its cells, the text of a row in it.

    Attributes:
        drop: Columns with the highest number go first where room is short; 0 never.
    """

    title: str
    sort: str
    cells: int
    text: Callable[[SweepRow], Span]
    drop: int = 0


def _figure(value: float | None, text: Callable[[float], str]) -> Span:
    return ("?", "warn") if value is None else (text(value), "number")


def _count(value: float | None) -> str:
    return units.count_text(None if value is None else round(value))


def _bytes(value: float | None) -> str:
    return units.bytes_text(None if value is None else round(value))


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


_PROOFS = {"equal": "equal", "evidence": "evidence", "different": "differs", "unproven": "unproved"}


def _proof(row: SweepRow) -> Span:
    if row.verified is None:
        return ("not run", "warn") if row.verdict else ("", "dim")
    kind = row.verdict_kind or ("equal" if row.verified else "different")
    return _PROOFS[kind], verdict_tone(kind)


_FIELDS: tuple[SweepField, ...] = (
    SweepField("tile", "asked", 12, lambda row: (tile_text(row), "text")),
    SweepField("edges", "asked", 7, lambda row: (units.edges_text(row.edges), "dim"), 2),
    SweepField("cycles", "cycles", 10, lambda row: _figure(row.cycles, _count)),
    SweepField("time", "time", 9, lambda row: _figure(row.seconds, units.seconds_text), 5),
    SweepField("traffic", "traffic", 12, lambda row: _figure(row.traffic, _bytes)),
    SweepField("buffer", "buffer", 12, lambda row: _figure(row.buffer, _bytes)),
    SweepField("tile matmuls", "products", 13, lambda row: _figure(row.products, _count), 4),
    SweepField("utilization", "utilisation", 12, lambda row: _figure(row.utilisation, _share), 3),
    SweepField("padding", "padded", 8, lambda row: _figure(row.padded_share, _share), 6),
    SweepField("proof", "error", 8, _proof, 1),
)
_LEFT = ("tile", "edges")


def fields_for(rows: Sequence[SweepRow], width: int) -> tuple[SweepField, ...]:
    """The columns that tell something, as many as fit into `width` cells."""
    needless = {
        "edges": len({row.edges for row in rows}) < 2,
        "cycles": all(row.cycles is None for row in rows),
        "time": all(row.seconds is None for row in rows),
        "padding": all(not row.padded_share for row in rows),
        "proof": all(row.verified is None and not row.verdict for row in rows),
    }
    shown = [field for field in _FIELDS if not needless.get(field.title, False)]
    while sum(field.cells + 1 for field in shown) + 3 > width and any(field.drop for field in shown):
        shown.remove(max(shown, key=lambda field: field.drop))
    return tuple(shown)


def sweep_head(fields: Sequence[SweepField], by: str, reverse: bool, width: int) -> Line:
    """The columns' titles, that by which the rows are sorted lit."""
    spans: list[Span] = [("   ", "text")]
    for field in fields:
        lit = field.sort == by and by != "asked"
        title = f"{field.title}{('▴' if reverse else '▾') if lit else ''}"
        spans.append(
            (fit(title, field.cells, right=field.title not in _LEFT) + " ", "head" if lit else "dim")
        )
    return tuple(spans)


def sweep_line(row: SweepRow, fields: Sequence[SweepField], width: int) -> Line:
    """A tiling in one line; of one without figures the reason."""
    mark: Span = (f" {FRONT} ", "good") if row.pareto else ("   ", "text")
    if row.error:
        said = fit(safe(row.error), max(1, width - 4 - fields[0].cells))
        return (mark, (fit(tile_text(row), fields[0].cells) + " ", "dim"), (said, "warn"))
    cells = ((field.text(row), field) for field in fields)
    return (
        mark,
        *(
            (fit(text, field.cells, right=field.title not in _LEFT) + " ", role)
            for (text, role), field in cells
        ),
    )


def sweep_facts(row: SweepRow, width: int) -> list[Line]:
    """What is known of one tiling, beside what its row says."""
    if row.error:
        return wrap(((" " + safe(row.error), "warn"),), width - 1, 1)
    fits = {True: ("fits the buffer", "dim"), False: ("more than the buffer", "bad"), None: ("", "dim")}
    pieces: list[Span] = [
        (f"{tile_text(row)} {units.edges_text(row.edges)}", "strong"),
        (f"{units.exact_text(row.products)} tile matmuls", "number"),
        ("? utilization" if row.utilisation is None else f"{_share(row.utilisation)} utilization", "dim"),
        (f"{_share(row.padded_share)} padding" if row.padded_share else "", "dim"),
        (f"{row.sites:,} matmuls" if row.sites is not None else "", "dim"),
        (f"{_ratio(row):.2f} x the lower bound" if _ratio(row) else "", "dim"),
        (f"{row.memory_bound:,} memory-bound" if row.memory_bound else "", "dim"),
        fits[row.fits],
    ]
    figures = flow((((fit(said, min(len(said), width - 1)), role),) for said, role in pieces if said), width)
    tone = {True: "good", False: "bad", None: "warn"}[row.verified]
    return [
        *figures,
        *(wrap(((" " + safe(field_terms(row.verdict)), tone),), width - 1, 1) if row.verdict else []),
    ]


def _ratio(row: SweepRow) -> float | None:
    if row.traffic is None or not row.lower_bound:
        return None
    return row.traffic / row.lower_bound


# the plot


def axes_of(rows: Sequence[SweepRow]) -> tuple[Axes, ...]:
    """The pairs of figures that are known of some rows; the first of all where none is."""
    found = [axes for axes in AXES if any(_point(row, axes) for row in rows)]
    return tuple(found) or AXES[:1]


def _point(row: SweepRow, axes: Axes) -> tuple[float, float] | None:
    """Where a tiling is, in logarithms; None for one without figures."""
    across, upwards = (getattr(row, name) for name in axes)
    if not across or not upwards or row.error:
        return None
    return math.log10(across), math.log10(upwards)


class ParetoPlot:
    """Every tiling as a dot, the Pareto front as diamonds, the chosen one lit; both axes logarithmic.

    The front is that of the two axes: a tiling may be on that of the table by a third.

    Made once for its rows: a cursor that moves asks for nothing but its own place.

    Args:
        rows: The tilings.
        axes: A pair of `AXES`.
    """

    def __init__(self, rows: Sequence[SweepRow], axes: Axes) -> None:
        self.axes = axes
        found = {(row.tile, row.edges): (row, p) for row in rows if (p := _point(row, axes)) is not None}
        best = _best(point for row, point in found.values() if row.verified is not False)
        self._points = {
            mark: (point, row.verified is not False and point in best) for mark, (row, point) in found.items()
        }
        places = [point for point, _ in self._points.values()]
        self._bounds = [_bounds([place[axis] for place in places]) for axis in (0, 1)] if places else []
        self._dots: tuple[tuple[int, int], set[TilePlace], list[TilePlace]] | None = None

    def lines(self, current: SweepRow | None, width: int, height: int) -> list[Line]:
        """The plot in so many cells; where it has no room, its title."""
        title = " {1} over {0}".format(*(_TITLES.get(name, name) for name in self.axes))
        if not self._points or height < 5 or width < 24:
            return [((fit(f"{title}: nothing to plot" if not self._points else "", width), "dim"),)]
        texts = [_bytes if name in ("buffer", "traffic") else _count for name in self.axes]
        labels = [[texts[axis](10.0**end) for end in self._bounds[axis]] for axis in (0, 1)]
        margin = max(map(len, labels[1]))
        rows, across = height - 3, max(8, width - margin - 3)
        others, front = self._spots(across, rows)
        chosen = None if current is None else self._points.get((current.tile, current.edges))

        def dim(canvas: Canvas) -> None:
            for place in others:
                canvas.point(*place, marker="·")

        def line(canvas: Canvas) -> None:
            for start, stop in pairwise(front):
                canvas.line(*start, *stop)

        def diamonds(canvas: Canvas) -> None:
            for place in front:
                canvas.point(*place, marker=FRONT)

        def lit(canvas: Canvas) -> None:
            if chosen is not None:
                point, best = chosen
                canvas.point(*self._dot(point, across, rows), marker=FRONT if best else "●")

        parts: list[Part] = [("track", line), ("dim", dim), ("good", diamonds), ("accent", lit)]
        ends = {0: labels[1][1], rows - 1: labels[1][0]}
        return [
            ((fit(f"{title}   {FRONT} Pareto front of these two   · others", width), "dim"),),
            *framed(
                overlay(across, rows, parts),
                {row: fit(text, margin, right=True) for row, text in ends.items()},
                [(0, labels[0][0]), (across - 1, labels[0][1])],
            ),
        ]

    def _dot(self, point: tuple[float, float], across: int, rows: int) -> TilePlace:
        return spread(point[0], *self._bounds[0], 2 * across), spread(point[1], *self._bounds[1], 4 * rows)

    def _spots(self, across: int, rows: int) -> tuple[set[TilePlace], list[TilePlace]]:
        """Where the others are, and the front from left to right; each place once."""
        if self._dots is None or self._dots[0] != (across, rows):
            found = [(self._dot(point, across, rows), best) for point, best in self._points.values()]
            front = sorted({place for place, best in found if best})
            self._dots = (across, rows), {place for place, best in found if not best}, front
        return self._dots[1:]


def _best(points: Iterable[tuple[float, float]]) -> set[tuple[float, float]]:
    """The points of which no other is at most as far in both directions."""
    best: set[tuple[float, float]] = set()
    lowest = math.inf
    for across, upwards in sorted(set(points)):
        if upwards < lowest:
            best.add((across, upwards))
            lowest = upwards
    return best


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis; never the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
