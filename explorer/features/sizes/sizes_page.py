"""Page of the sizes screen: a slider, the figures at its size, and curves on logarithmic axes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from explorer.base.units import dims_text
from explorer.facts.sizes.curves import CurveName, SizeCurve, SizeCurves
from explorer.features.sizes.sizes_words import build_fields_at, describe_crossing
from explorer.report.blocks import Fields
from explorer.tui.text.drawing import draw_side_by_side
from explorer.tui.text.lines import BLANK, Line, cut_line, escape_name, fit, join_columns, wrap
from explorer.tui.text.plot import build_lines, draw_axes, draw_columns, log_ticks, power_text, put_text

_TICK_DISTANCE = 8
"""Minimum distance of two labels under an axis, in cells."""
_WIDE_CELLS, _TALL_LINES = 100, 22
"""Minimum width of a page, in cells, for two columns of plots; minimum height, in lines, for all figures."""
_MIN_ROWS = 4
"""Minimum number of rows of a plot."""
_PLOT_EDGE_LINES = 3
"""Number of lines that a plot needs besides its rows: title, axis and labels."""

CurveStyle = tuple[CurveName, str, str, str]
"""Name of a curve, character that draws it ('' fills the area below), its color role and its label."""


class _Plot(NamedTuple):
    """Curves with common axes, and the units of the vertical axis with their factors."""

    title: str
    styles: tuple[CurveStyle, ...]
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


def sizes_page(fact: SizeCurves, index: int, width: int, height: int) -> list[Line]:
    """Draw the slider at `fact.sizes[index]`, the figures there, the crossings and the plots."""
    width -= 1
    figures = build_fields_at(fact, index)
    curves = zip(fact.curves, figures.rows, strict=True)
    visible_figures = Fields(
        [row for curve, row in curves if height >= _TALL_LINES or curve.name not in _OPTIONAL_CURVES]
    )
    lines = [*_draw_slider(fact, index, width), *draw_side_by_side(visible_figures, width)]
    spare = height - len(lines)
    crossing_lines = [cut_line(line, width) for line in _build_crossing_lines(fact, index)]
    crossing_lines = crossing_lines[: max(1, min(len(crossing_lines), spare - _MIN_ROWS - _PLOT_EDGE_LINES))]
    spare -= len(crossing_lines)
    plots = [MEMORY, MACS, *([TIME] if fact.machine is not None else [])]
    if width >= _WIDE_CELLS and spare >= 2 * (_MIN_ROWS + _PLOT_EDGE_LINES):
        half = width // 2
        left_plots = _stack_plots(fact, index, plots[:1], half - 1, spare)
        right = _stack_plots(fact, index, plots[1:], width - half, spare)
        return [*lines, *crossing_lines, *join_columns(left_plots, right, half)]
    plot_count = max(1, spare // (_MIN_ROWS + _PLOT_EDGE_LINES))
    return [*lines, *crossing_lines, *_stack_plots(fact, index, plots[:plot_count], width, spare)]


_OPTIONAL_CURVES = ("moved", "compute", "memory")
"""Curves whose figures are hidden on a screen of little height."""


def _draw_slider(fact: SizeCurves, index: int, width: int) -> list[Line]:
    """Draw the slider with the size, its place in the range, and marks at the crossings."""
    size, track_width = fact.sizes[index], max(8, width - len(f" {fact.low:,}  {fact.high:,} "))
    track = ["─"] * track_width
    for crossing in fact.crossings:
        track[_find_column(fact, crossing.size, track_width)] = "┼"
    slider_column = _find_column(fact, size, track_width)
    current_note = " as the model is now" if size == fact.at else ""
    others_note = f"  with {escape_name(dims_text(fact.others))}" if fact.others else ""
    return [
        cut_line(
            (
                (f" {escape_name(fact.name)} ", "dim"),
                (f"{size:,}", "strong"),
                (current_note, "dim"),
                (others_note, "text"),
            ),
            width,
        ),
        (
            (f" {fact.low:,} ", "dim"),
            ("".join(track[:slider_column]), "track"),
            ("●", "accent"),
            ("".join(track[slider_column + 1 :]), "track"),
            (f" {fact.high:,}", "dim"),
        ),
    ]


def _find_column(fact: SizeCurves, size: int, column_count: int) -> int:
    """Return the column of a size on a logarithmic axis over the range."""
    if fact.high == fact.low:
        return 0
    share = math.log(size / fact.low) / math.log(fact.high / fact.low)
    return max(0, min(column_count - 1, round(share * (column_count - 1))))


def _build_crossing_lines(fact: SizeCurves, index: int) -> list[Line]:
    """Return a line for each crossing. Its mark is filled once the slider's size has reached it."""
    if not fact.crossings:
        return [((" no two figures cross in this range", "dim"),)]
    return [
        (
            (" ◆ " if crossing.size <= fact.sizes[index] else " ◇ ", "warn"),
            (escape_name(describe_crossing(fact, crossing)), "text"),
            ("" if crossing.counted else ", not counted there", "dim"),
        )
        for crossing in fact.crossings
    ]


def _stack_plots(fact: SizeCurves, index: int, plots: Sequence[_Plot], width: int, height: int) -> list[Line]:
    """Draw the plots from top to bottom in `height` lines."""
    rows = max(1, height // max(1, len(plots)) - _PLOT_EDGE_LINES)
    return [line for plot in plots for line in _draw_plot(fact, index, plot, width, rows)]


def _draw_plot(fact: SizeCurves, index: int, plot: _Plot, width: int, rows: int) -> list[Line]:
    """Draw one plot with logarithmic axes: sizes from left to right, figures upwards."""
    drawn_curves = [(curve, style) for style in plot.styles if (curve := fact.curve(style[0])) is not None]
    values = [value for curve, _ in drawn_curves for value in curve.values if value > 0]
    if not values:
        return [((fit(f" {plot.title}: no figures to plot", width), "dim"),)]
    low, high = math.log10(min(values)) - 0.15, math.log10(max(values)) + 0.05  # margins in decades
    unit, unit_log = _choose_unit(plot, max(values))
    ticks = log_ticks(low - unit_log, high - unit_log, max(2, rows // 2))
    power_texts = {power: power_text(power) for power in ticks}
    margin = max(map(len, power_texts.values()), default=0)
    column_count = max(4, width - margin - 2)
    slider_column = _find_column(fact, fact.sizes[index], column_count)

    def share(value: float) -> float:
        return (math.log10(value) - low) / (high - low) if value > 0 else 0.0

    def row(value: float) -> int:
        return rows - 1 - max(0, min(rows - 1, int(share(value) * rows)))

    roles = ["bar"] * column_count
    roles[slider_column] = "accent"
    size_indices = [_find_size_index(fact, x, column_count) for x in range(column_count)]
    cells = draw_columns([share(drawn_curves[0][0].values[i]) for i in size_indices], rows, roles)
    for curve, (_, sign, role, _) in drawn_curves[1:]:
        for x, size_index in enumerate(size_indices):
            put_text(cells, x, row(curve.values[size_index]), sign, role)
    for crossing in fact.crossings:
        crossed_curve = fact.curve(crossing.below)
        if crossed_curve is not None and {crossing.above, crossing.below} <= {
            curve.name for curve, _ in drawn_curves
        }:
            value = crossed_curve.values[fact.sizes.index(crossing.size)]
            put_text(cells, _find_column(fact, crossing.size, column_count), row(value), "◆", "strong")
    labels = {
        row(10.0 ** (power + unit_log)): fit(power_texts[power], margin, right=True)
        for power in reversed(ticks)
    }
    tick_labels = [(_find_column(fact, n, column_count), f"{n:,}") for n in _list_ticks(fact, column_count)]
    return [
        _build_title(unit, drawn_curves, margin, width),
        *draw_axes(build_lines(cells), labels, tick_labels, mark=slider_column),
    ]


def _choose_unit(plot: _Plot, largest: float) -> tuple[str, float]:
    """Choose the unit of an axis by its largest value; return its name and decimal logarithm."""
    units = [(name, factor) for name, factor in plot.units.items() if factor <= largest] or list(
        plot.units.items()
    )[:1]
    return units[-1][0], math.log10(units[-1][1])


def _build_title(unit: str, curves: Sequence[tuple[SizeCurve, CurveStyle]], margin: int, width: int) -> Line:
    """Build the title of a plot: the unit, and the character of each curve."""
    spans: list[tuple[str, str]] = [(" " * (margin + 2) + unit + " " * bool(unit), "dim")]
    for _, (_, sign, role, name) in curves:
        spans += [(f"{sign or '█'} ", role), (f"{name}  ", "dim")]
    return cut_line(spans, width)


def _find_size_index(fact: SizeCurves, x: int, column_count: int) -> int:
    """Return the index of the size for a column: the last size at or left of it."""
    share = (x + 0.5) / column_count
    size = fact.low * (fact.high / fact.low) ** share
    return max(0, bisect_right(fact.sizes, size) - 1)


def _list_ticks(fact: SizeCurves, column_count: int) -> list[int]:
    """Return the powers of two that fit as labels under an axis."""
    powers = [n for n in fact.sizes if not n & (n - 1)]
    step = max(1, -(-len(powers) * _TICK_DISTANCE // max(1, column_count)))
    return [*powers[::step], *([fact.high] if fact.high not in powers[::step] else [])]


def draw_reason(reason: str, width: int) -> list[Line]:
    """Explain why there are no curves."""
    return [BLANK, *wrap(((f" {escape_name(reason)}", "warn"),), width - 1, 1)]
