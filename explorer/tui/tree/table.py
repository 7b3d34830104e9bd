"""The layer tree as a table: which columns stand beside the names, and what a row has in each.

A column is one of `explorer.settings.columns`; figures that the tree knows of all rows without taking them
out (`METRICS`) come from there, with what is not exact in them, and the others from the row itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.base.units import bytes_text, count_text, exact_text
from explorer.tui.text.lines import Line, Span, fit, line_width, middle, safe
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import METRICS

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals
    from explorer.settings.columns import Beside, LayerColumn

FROM = 100
"""Columns of the terminal from which the tree is a table."""
OFFERED = (
    *("kind", "output", "macs", "share", "params", "activations", "read", "written", "weights"),
    *("intensity", "kernel", "input", "bits", "trainable", "ops", "dtype", "calls"),
)
"""Columns that can be chosen, those that are shown unless others are chosen first; as many as fit."""
SHOWN = OFFERED[:11]

_NAME = 17
"""Cells that a name keeps."""
_PATH = 28
"""The same of a path, where layers are listed without their groups."""
_ROOMY = 72
"""Cells from which on kinds are shown in more of them."""
_WIDTHS = {"text": 9, "shape": 14, "count": 8, "bytes": 10, "share": 7, "ratio": 8, "plain": 5}
_EXACT = {"count": 17, "bytes": 17}
_METRICS = {metric.id: metric for metric in METRICS}


class Place(Struct, frozen=True):
    """Where a column stands: from which cell on, in how many."""

    name: str
    start: int
    width: int


class Places(Struct, frozen=True):
    """The columns that fit, from left to right; `name` cells stand before the first."""

    name: int
    columns: tuple[Place, ...]

    def at(self, x: int) -> str:
        """The column at a cell; '' for none."""
        return next((p.name for p in self.columns if p.start <= x <= p.start + p.width), "")


def _known() -> dict[str, LayerColumn]:
    from explorer.settings.columns import COLUMNS  # with the facts, which the first paint does without

    return dict(COLUMNS)


def places(model: TreeModel, width: int, *, exact: bool) -> Places:
    """The columns that leave room for names: the one that rows are sorted by, then as many as fit.

    Unless columns were chosen, MACs and their share go before the others.
    """
    known = _known()
    widths = _WIDTHS | {"text": 9 if width < _ROOMY else 12} | (_EXACT if exact else {})
    shown = [name for name in model.columns if name in known] or [*SHOWN]
    first = [model.metric.id, *([] if model.columns else ["macs", "share"])]
    shown += [name for name in first if name not in shown]
    fits: dict[str, int] = {}
    room = width - (_PATH if model.flat else _NAME) - 1
    for name in dict.fromkeys([*first, *shown]):
        column = known[name]
        cells = max(widths.get(column.unit, 0), len(column.head) + column.is_number)
        if room < cells + 1:
            break
        fits[name] = cells
        room -= cells + 1
    at = width - 1 - sum(cells + 1 for cells in fits.values())
    found, start = [], at
    for name in shown:
        if name in fits:
            found.append(Place(name, start + 1, fits[name]))
            start += fits[name] + 1
    return Places(at, tuple(found))


def heads(model: TreeModel, laid: Places, title: Sequence[Span]) -> Line:
    """The title, and behind it the head of each column that it leaves room for; a sorted one is marked."""
    known = _known()
    line: list[Span] = list(title)
    for place in laid.columns:
        column = known[place.name]
        gap = place.start - line_width(line)
        if gap < 1:
            continue
        chosen = place.name == model.metric.id
        mark = ("▴" if model.turned else "▾") if chosen and model.by_cost else ""
        text = fit(mark + column.head, place.width, right=column.is_number)
        line += [(" " * gap, "text"), (text, "accent" if mark else "strong" if chosen else "dim")]
    return tuple(line)


def cells(
    model: TreeModel, row: int, first: Layer, totals: Totals, laid: Places, *, exact: bool
) -> list[Span]:
    """What a row has in its columns, neighbours that look alike in one span: each costs bytes on a line."""
    from explorer.settings.columns import Beside  # see `_known`

    known, beside = _known(), Beside(totals=totals)
    spans: list[Span] = []
    for place in laid.columns:
        text, role = _cell(model, row, first, known[place.name], beside, exact)
        piece = " " + fit(text, place.width, right=known[place.name].is_number)
        if spans and spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + piece, role)
        else:
            spans.append((piece, role))
    return spans


def _cell(
    model: TreeModel, row: int, first: Layer, column: LayerColumn, beside: Beside, exact: bool
) -> tuple[str, str]:
    """A cell's text and role."""
    if column.name in ("macs", "share") or column.name in _METRICS:
        value, bound = model.figure(row, _METRICS.get(column.name, METRICS[0]))
        if column.name == "share":
            whole = beside.totals.macs if beside.totals is not None else None
            counted = first.counted and not model.is_range(row)
            share = value / whole if value and whole and (counted or model.is_range(row)) else 0.0
            return (_number("share", share, exact) if share else "", "number")
        role = "warn" if value is None or bound else "number"
        return (f"{bound} " if bound else "") + _number(column.unit, value, exact), role
    if model.is_range(row):
        return "", "dim"
    if not column.is_number:
        return _words(column.of(first, beside)), "dim"
    value = column.of(first, beside)
    if value is None:
        return ("", "dim") if column.blank else ("?", "warn")
    # the blocks of a run are built alike
    times = len(model.members(row)) if column.field else 1
    return _number(column.unit, value * times, exact), "number"


def _words(value: Any) -> str:
    if isinstance(value, str):
        return safe(value)
    if not value:
        return ""
    shape = value[0]
    text = "?" if shape is None else "x".join("?" if d is None else safe(str(d)) for d in shape) or "scalar"
    return middle(text, _WIDTHS["shape"])


def _number(unit: str, value: Any, exact: bool) -> str:
    """A number in three digits, its unit in cells of its own, so that the digits stand below each other."""
    if value is None:
        return "?"
    if unit == "share":
        return "<0.1 %" if value < 0.0005 else ">99.9 %" if 0.9995 <= value < 1 else f"{100 * value:.1f} %"
    if unit == "ratio":
        return _three(value)
    if unit == "plain" or (exact and unit in _EXACT):
        return exact_text(value)
    digits, _, prefix = (count_text if unit == "count" else bytes_text)(value).partition(" ")
    if value == 0:
        digits, prefix = "-", ""
    elif "." in digits:
        digits = _three(float(digits))
    return f"{digits} {prefix:<{1 if unit == 'count' else 3}}"


def _three(value: float) -> str:
    """Three digits, and what stands before the point in full."""
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"
