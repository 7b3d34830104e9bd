"""Lines of the screen of open sizes: a slider, the figures at its size, and curves on logarithmic axes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from explorer.facts.sizes.curves import CurveName, SizeCurve, SizeCurves
from explorer.features.sizes.sizes_words import crossing_text, figures_at
from explorer.report.blocks import Fields
from explorer.tui.text.drawing import side_by_side
from explorer.tui.text.lines import BLANK, Line, beside, cut, fit, safe, wrap
from explorer.tui.text.plot import filled, framed, lines_of, log_ticks, power_text, put

_TICK = 8
"""Least number of cells between two sizes under an axis."""
_WIDE, _TALL = 100, 22
"""Width in cells and height in rows from which plots stand beside each other."""
_LEAST = 4
"""Least number of rows of a plot."""
_AROUND = 3
"""Lines around a plot: its title, its axis, the sizes under it."""

Sign = tuple[CurveName, str, str, str]
"""A curve, the sign that draws it ('' fills the area below), its role and its name."""


class _Plot(NamedTuple):
    """Curves on one pair of axes, and the units of the vertical axis, each as a multiple of the first."""

    title: str
    signs: tuple[Sign, ...]
    units: Mapping[str, float]


_BYTES = {"B": 1.0, "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40, "PiB": 2.0**50}
_COUNTS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SECONDS = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
MEMORY = _Plot(
    "memory",
    (
        ("activations", "", "bar", "activations"),
        ("weights", "━", "warn", "weights"),
        ("kv_cache", "•", "good", "KV cache"),
    ),
    _BYTES,
)
MACS = _Plot("MACs", (("macs", "", "bar", "MACs"),), _COUNTS)
TIME = _Plot(
    "least time",
    (
        ("time", "", "bar", "least time"),
        ("compute", "━", "good", "all MACs"),
        ("memory", "•", "warn", "all bytes"),
    ),
    _SECONDS,
)


def sizes_page(fact: SizeCurves, at: int, width: int, height: int) -> list[Line]:
    """The slider at `fact.sizes[at]`, the figures there, the crossings and the plots."""
    width -= 1
    figures = figures_at(fact, at)
    curves = zip(fact.curves, figures.rows, strict=True)
    visible_figures = Fields([row for curve, row in curves if height >= _TALL or curve.name not in _SECOND])
    lines = [*_slider(fact, at, width), *side_by_side(visible_figures, width)]
    room = height - len(lines)
    crossing_lines = [cut(line, width) for line in _crossings(fact, at)]
    crossing_lines = crossing_lines[: max(1, min(len(crossing_lines), room - _LEAST - _AROUND))]
    room -= len(crossing_lines)
    plots = [MEMORY, MACS, *([TIME] if fact.machine is not None else [])]
    if width >= _WIDE and room >= 2 * (_LEAST + _AROUND):
        half = width // 2
        left_plots = _column(fact, at, plots[:1], half - 1, room)
        right = _column(fact, at, plots[1:], width - half, room)
        return [*lines, *crossing_lines, *beside(left_plots, right, half)]
    fits = max(1, room // (_LEAST + _AROUND))
    return [*lines, *crossing_lines, *_column(fact, at, plots[:fits], width, room)]


_SECOND = ("moved", "compute", "memory")
"""Curves whose figures are left out on a low screen."""


def _slider(fact: SizeCurves, at: int, width: int) -> list[Line]:
    """The size and its place in the range, with the crossings marked."""
    size, room = fact.sizes[at], max(8, width - len(f" {fact.low:,}  {fact.high:,} "))
    track = ["─"] * room
    for crossing in fact.crossings:
        track[_column_of(fact, crossing.size, room)] = "┼"
    here = _column_of(fact, size, room)
    now = " as the model is now" if size == fact.at else ""
    return [
        ((f" {safe(fact.name)} ", "dim"), (f"{size:,}", "strong"), (now, "dim")),
        (
            (f" {fact.low:,} ", "dim"),
            ("".join(track[:here]), "track"),
            ("●", "accent"),
            ("".join(track[here + 1 :]), "track"),
            (f" {fact.high:,}", "dim"),
        ),
    ]


def _column_of(fact: SizeCurves, size: int, across: int) -> int:
    """The column of a size on a logarithmic axis over the range."""
    if fact.high == fact.low:
        return 0
    share = math.log(size / fact.low) / math.log(fact.high / fact.low)
    return max(0, min(across - 1, round(share * (across - 1))))


def _crossings(fact: SizeCurves, at: int) -> list[Line]:
    """A line for each crossing; its mark says whether the size of the slider has reached it."""
    if not fact.crossings:
        return [((" nothing passes anything else in this range", "dim"),)]
    return [
        (
            (" ◆ " if crossing.size <= fact.sizes[at] else " ◇ ", "warn"),
            (safe(crossing_text(fact, crossing)), "text"),
            ("" if crossing.counted else ", not counted there", "dim"),
        )
        for crossing in fact.crossings
    ]


def _column(fact: SizeCurves, at: int, plots: Sequence[_Plot], width: int, height: int) -> list[Line]:
    """Plots one below the other, in `height` rows."""
    rows = max(1, height // max(1, len(plots)) - _AROUND)
    return [line for plot in plots for line in _drawn(fact, at, plot, width, rows)]


def _drawn(fact: SizeCurves, at: int, plot: _Plot, width: int, rows: int) -> list[Line]:
    """One plot, with logarithms of sizes across and of figures upwards."""
    drawn_curves = [(curve, sign) for sign in plot.signs if (curve := fact.curve(sign[0])) is not None]
    values = [value for curve, _ in drawn_curves for value in curve.values if value > 0]
    if not values:
        return [((fit(f" {plot.title}: nothing to plot", width), "dim"),)]
    low, high = math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.05
    unit, unit_log = _unit(plot, max(values))
    ticks = log_ticks(low - unit_log, high - unit_log, max(2, rows // 2))
    words = {power: power_text(power) for power in ticks}
    margin = max(map(len, words.values()), default=0)
    across = max(4, width - margin - 2)
    here = _column_of(fact, fact.sizes[at], across)

    def share(value: float) -> float:
        return (math.log10(value) - low) / (high - low) if value > 0 else 0.0

    def row(value: float) -> int:
        return rows - 1 - max(0, min(rows - 1, int(share(value) * rows)))

    roles = ["bar"] * across
    roles[here] = "accent"
    columns = [_size_at(fact, x, across) for x in range(across)]
    cells = filled([share(drawn_curves[0][0].values[n]) for n in columns], rows, roles)
    for curve, (_, sign, role, _) in drawn_curves[1:]:
        for x, n in enumerate(columns):
            put(cells, x, row(curve.values[n]), sign, role)
    for crossing in fact.crossings:
        crossed = fact.curve(crossing.below)
        if crossed is not None and {crossing.above, crossing.below} <= {
            curve.name for curve, _ in drawn_curves
        }:
            value = crossed.values[fact.sizes.index(crossing.size)]
            put(cells, _column_of(fact, crossing.size, across), row(value), "◆", "strong")
    labels = {
        row(10.0 ** (power + unit_log)): fit(words[power], margin, right=True) for power in reversed(ticks)
    }
    below = [(_column_of(fact, n, across), f"{n:,}") for n in _ticks(fact, across)]
    return [_title(unit, drawn_curves, margin, width), *framed(lines_of(cells), labels, below, mark=here)]


def _unit(plot: _Plot, largest: float) -> tuple[str, float]:
    """The unit of an axis, and its logarithm."""
    fits = [(name, factor) for name, factor in plot.units.items() if factor <= largest] or list(
        plot.units.items()
    )[:1]
    return fits[-1][0], math.log10(fits[-1][1])


def _title(unit: str, known: Sequence[tuple[SizeCurve, Sign]], margin: int, width: int) -> Line:
    """The unit, and the sign of each curve."""
    spans: list[tuple[str, str]] = [(" " * (margin + 2) + unit + " " * bool(unit), "dim")]
    for _, (_, sign, role, name) in known:
        spans += [(f"{sign or '█'} ", role), (f"{name}  ", "dim")]
    return cut(spans, width)


def _size_at(fact: SizeCurves, x: int, across: int) -> int:
    """The place of the size that a column shows: the last size not to the right of it."""
    share = (x + 0.5) / across
    size = fact.low * (fact.high / fact.low) ** share
    return max(0, bisect_right(fact.sizes, size) - 1)


def _ticks(fact: SizeCurves, across: int) -> list[int]:
    """Powers of two that have room under an axis."""
    powers = [n for n in fact.sizes if not n & (n - 1)]
    step = max(1, -(-len(powers) * _TICK // max(1, across)))
    return [*powers[::step], *([fact.high] if fact.high not in powers[::step] else [])]


def reason_lines(reason: str, width: int) -> list[Line]:
    """The reason why there are no curves."""
    return [BLANK, *wrap(((f" {safe(reason)}", "warn"),), width - 1, 1)]
