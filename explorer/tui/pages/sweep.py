"""Tilings beside each other, as lines: the table, the front as a plot, what is known of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer import units
from explorer.facts.sweep import SweepRow
from explorer.report.sweep import FRONT, tile_text
from explorer.tui.lines import Line, Span, fit, flow, safe, wrap
from explorer.tui.pages.plot import Part, framed, overlay, spread

if TYPE_CHECKING:
    from plotille import Canvas

__all__ = ["AXES", "Field", "axes_of", "fields_for", "sweep_facts", "sweep_head", "sweep_line", "sweep_plot"]

Axes = tuple[str, str]

AXES: tuple[Axes, ...] = (
    ("buffer", "cycles"),
    ("buffer", "traffic"),
    ("traffic", "cycles"),
    ("products", "cycles"),
    ("products", "traffic"),
)
"""Pairs of figures to plot: across, and upwards."""


class Field(Struct, frozen=True):
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


def _proof(row: SweepRow) -> Span:
    if row.verified is None:
        return ("not run", "warn") if row.verdict else ("", "dim")
    return ("equal", "good") if row.verified else ("differs", "bad")


_FIELDS: tuple[Field, ...] = (
    Field("tile", "asked", 12, lambda row: (tile_text(row), "text")),
    Field("edges", "asked", 7, lambda row: (row.edges, "dim"), 2),
    Field("cycles", "cycles", 10, lambda row: _figure(row.cycles, _count)),
    Field("time", "time", 9, lambda row: _figure(row.seconds, units.seconds_text), 5),
    Field("traffic", "traffic", 12, lambda row: _figure(row.traffic, _bytes)),
    Field("buffer", "buffer", 12, lambda row: _figure(row.buffer, _bytes)),
    Field("products", "products", 10, lambda row: _figure(row.products, _count), 4),
    Field("used", "utilisation", 8, lambda row: _figure(row.utilisation, _share), 3),
    Field("filling", "padded", 8, lambda row: _figure(row.padded_share, _share), 6),
    Field("proof", "error", 8, _proof, 1),
)
_LEFT = ("tile", "edges")


def fields_for(rows: Sequence[SweepRow], width: int) -> tuple[Field, ...]:
    """The columns that tell something, as many as fit into `width` cells."""
    needless = {
        "edges": len({row.edges for row in rows}) < 2,
        "cycles": all(row.cycles is None for row in rows),
        "time": all(row.seconds is None for row in rows),
        "filling": all(not row.padded_share for row in rows),
        "proof": all(row.verified is None and not row.verdict for row in rows),
    }
    shown = [field for field in _FIELDS if not needless.get(field.title, False)]
    while sum(field.cells + 1 for field in shown) + 3 > width and any(field.drop for field in shown):
        shown.remove(max(shown, key=lambda field: field.drop))
    return tuple(shown)


def sweep_head(fields: Sequence[Field], by: str, reverse: bool, width: int) -> Line:
    """The columns' titles, that by which the rows are sorted lit."""
    spans: list[Span] = [("   ", "text")]
    for field in fields:
        lit = field.sort == by and by != "asked"
        title = f"{field.title}{('▴' if reverse else '▾') if lit else ''}"
        spans.append(
            (fit(title, field.cells, right=field.title not in _LEFT) + " ", "head" if lit else "dim")
        )
    return tuple(spans)


def sweep_line(row: SweepRow, fields: Sequence[Field], width: int) -> Line:
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
        (f"{tile_text(row)} {row.edges}", "strong"),
        (f"{units.exact_text(row.products)} products", "number"),
        (f"{_share(row.utilisation or 0)} used", "dim"),
        (f"{_share(row.padded_share)} filling" if row.padded_share else "", "dim"),
        (f"{row.sites:,} sites" if row.sites is not None else "", "dim"),
        (f"{_ratio(row):.2f} x the least traffic" if _ratio(row) else "", "dim"),
        (f"{row.memory_bound:,} memory-bound" if row.memory_bound else "", "dim"),
        fits[row.fits],
    ]
    figures = flow((((fit(said, min(len(said), width - 1)), role),) for said, role in pieces if said), width)
    tone = {True: "good", False: "bad", None: "warn"}[row.verified]
    return [*figures, *(wrap(((" " + safe(row.verdict), tone),), width - 1, 1) if row.verdict else [])]


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


def sweep_plot(
    rows: Sequence[SweepRow], current: SweepRow | None, axes: Axes, width: int, height: int
) -> list[Line]:
    """Every tiling as a dot, the front as diamonds on a line, the chosen one lit; both axes logarithmic."""
    points = {row: point for row in rows if (point := _point(row, axes)) is not None}
    title = f" {axes[1]} over {axes[0]}"
    if not points or height < 5 or width < 24:
        return [((fit(f"{title}: nothing to plot" if not points else "", width), "dim"),)]
    bounds = [_bounds([point[axis] for point in points.values()]) for axis in (0, 1)]
    texts = [_bytes if name in ("buffer", "traffic") else _count for name in axes]
    labels = [[texts[axis](10.0**end) for end in bounds[axis]] for axis in (0, 1)]
    margin = max(map(len, labels[1]))
    rows_high, across = height - 3, max(8, width - margin - 3)

    def dot(point: tuple[float, float]) -> tuple[int, int]:
        return spread(point[0], *bounds[0], 2 * across), spread(point[1], *bounds[1], 4 * rows_high)

    front = sorted({dot(points[row]) for row in points if row.pareto})

    def others(canvas: Canvas) -> None:
        for row, point in points.items():
            if not row.pareto:
                canvas.point(*dot(point), marker="·")

    def line(canvas: Canvas) -> None:
        for start, stop in pairwise(front):
            canvas.line(*start, *stop)

    def diamonds(canvas: Canvas) -> None:
        for place in front:
            canvas.point(*place, marker=FRONT)

    def chosen(canvas: Canvas) -> None:
        if current in points:
            canvas.point(*dot(points[current]), marker="●" if not current.pareto else FRONT)

    parts: list[Part] = [("track", line), ("dim", others), ("good", diamonds), ("accent", chosen)]
    picture = overlay(across, rows_high, parts)
    said = f"{title}   {FRONT} front   · others"
    return [
        ((fit(said, width), "dim"),),
        *framed(
            picture,
            {0: fit(labels[1][1], margin, right=True), rows_high - 1: fit(labels[1][0], margin, right=True)},
            [(0, labels[0][0]), (across - 1, labels[0][1])],
        ),
    ]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis; never the same."""
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
