"""The layer tree as a table: which columns stand beside the names, and what a row has in each.

A column is one of `explorer.settings.columns`. Figures that are known of all rows without taking them out, or
that the engine was asked for, come from the tree's model, with what is not exact in them; the others from the
row itself. A figure's background is its share among its siblings, in few steps: every change of colour is
bytes on the line. Where there are few colours, or none, the steps are marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.cells import cell_len

from explorer.base.families import FAMILIES, family
from explorer.base.units import bytes_text, count_text, exact_text, number_text, seconds_text
from explorer.tui.text.drawing import kind_role
from explorer.tui.text.lines import Line, Span, fit, line_width, middle, safe
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import MEASURED, METRICS, Metric, columns_of, metric_of
from explorer.tui.tree.stages import STAGE

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals
    from explorer.settings.columns import ColumnFigures, LayerColumn

SHOWN = (
    *("kind", "output", "macs", "share", "params", "activations", "read", "written", "weights"),
    *("intensity", "kernel"),
)
"""Columns that are shown unless others are chosen: as many as fit."""

_CORE = 6
"""So many of them, or of those that were chosen, stand closer together where room is scarce."""

_NAME, _LONG_NAME = 15, 28
"""Cells that a name keeps where there is more than one column, and in a wide table."""
_SHORT = 8
"""Cells that it keeps beside the only one."""
_PATH = 24
"""The same of a path, where layers are listed without their groups."""
_NARROW = 58
"""Cells from which on there is room for a name, its kind, its MACs and a shape."""
_SHALLOW = 3
"""Levels whose names have room as it is."""
_ROOMY = 72
"""Cells from which on kinds are shown in more of them."""
_LONG_KIND = 12
"""So many."""
_WIDTHS = {
    "text": 9,
    "shape": 14,
    "count": 8,
    "bytes": 10,
    "mebibytes": 8,
    "seconds": 8,
    "share": 7,
    "ratio": 8,
    "plain": 5,
    "number": 9,
}
_CLOSE = {"text": 7, "shape": 12, "count": 7, "bytes": 9, "share": 6}
"""Cells of columns that stand closer together."""
_CLOSE_NAME, _FREE_NAME = 13, 24
"""Cells of a name beside them, and from which on they need not stand so close."""
CORE_WIDTH = 1 + 15 + sum((1 + 7, 1 + 12, 1 + 7, 1 + 6, 1 + 7, 1 + 9))
"""Cells of a tree with all of them, and names beside a rail."""
_SHORT_HEADS = {"activations": "activ."}
_EXACT = {"count": 17, "bytes": 17}
_LONGEST = 11
"""Cells of a head; of a longer one the column has fewer."""
_HEAT = ((0.5, 3), (0.2, 2), (0.05, 1))
"""Shares among siblings from which on a figure is so hot."""
_MARKS = " ░▒▓"
"""The same where there are no colours to tell them apart."""


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


class TableLook(Struct, frozen=True):
    """How figures are written, and what they are compared with.

    Attributes:
        beside: What rows do not say themselves.
        whole: The model as a row.
        exact: Written out instead of rounded.
        letters: Colours are too few to tell families and shares apart.
        stale: Columns whose figures are on their way, and still the last ones.
    """

    beside: ColumnFigures
    whole: Layer
    exact: bool = False
    letters: bool = False
    stale: frozenset[str] = frozenset()


def look_of(
    totals: Totals,
    *,
    exact: bool = False,
    letters: bool = False,
    stale: frozenset[str] = frozenset(),
    providers: Mapping[int, str] | None = None,
) -> TableLook:
    """How the rows of a model look."""
    from explorer.facts import whole_model  # with the columns, see `rows.metric_of`
    from explorer.settings.columns import ColumnFigures

    return TableLook(
        ColumnFigures(totals=totals, providers=providers), whole_model(totals), exact, letters, stale
    )


def chosen_columns(model: TreeModel) -> list[str]:
    """The columns of the table, whether there is room for them or not."""
    known = columns_of(model)
    # those of a profile stay chosen for models that were not timed, and take no room there
    lacking = {name for name in MEASURED if name not in model.asked}
    return [name for name in model.columns if name in known and name not in lacking] or [*SHOWN]


def places(model: TreeModel, width: int, *, exact: bool) -> Places:
    """The columns that leave room for names: the one that rows are sorted by, then as many as fit.

    Unless columns were chosen, what a layer is, MACs and their share (in a narrow tree the output's shape)
    go before the others; what was measured always does. Where all of `_CORE` have room beside a name, closer
    together if need be, they have it.
    """
    columns = columns_of(model)
    names = chosen_columns(model)
    timed = [name for name in MEASURED if name in names]
    # the background of MACs tells something of the share where there is no room for both
    always = ("kind", "macs", "output", "share") if _NARROW <= width < _ROOMY else ("kind", "macs", "share")
    first = [model.metric.id, *timed, *(() if model.columns else always)]
    core, widths = _core(model, [*first, *names[:_CORE]], width, exact=exact)
    names += [name for name in first if name not in names]
    # where rows lie deep, indentation takes as much of a name
    deep = model.deepest if width < _ROOMY and model.deepest > _SHALLOW else 0
    least = min(_NAME + deep, _FREE_NAME)
    named = _PATH if model.flat else min(_LONG_NAME, least + 2 * max(0, width - 60) // 3)
    fits: dict[str, int] = {}
    room = width - 1
    for name in dict.fromkeys([*first, *names]):
        cells = _cells_of(columns[name], widths)
        if room - cells - 1 < (_CLOSE_NAME if name in core else named if fits else _SHORT):
            break
        fits[name] = cells
        room -= cells + 1
    if core and "kind" in fits and room > _FREE_NAME:
        more = min(_LONG_KIND - fits["kind"], room - _FREE_NAME)
        fits["kind"], room = fits["kind"] + more, room - more
    placed, start = [], room
    for name in names:
        if name in fits:
            placed.append(Place(name, start + 1, fits[name]))
            start += fits[name] + 1
    return Places(room, tuple(placed))


def _core(
    model: TreeModel, names: Sequence[str], width: int, *, exact: bool
) -> tuple[Sequence[str], Mapping[str, int]]:
    """Of the first columns those that have room in a wide tree whatever names lose by it; all widths."""
    columns, least = columns_of(model), _PATH if model.flat else _CLOSE_NAME
    normal = _WIDTHS | {"text": 9 if width < _ROOMY else _LONG_KIND} | (_EXACT if exact else {})
    for widths, name in ((normal, max(least, _FREE_NAME)), (_WIDTHS | _CLOSE, least)):
        core = [] if exact or width < CORE_WIDTH - 2 else [*dict.fromkeys(names)]
        if (
            core
            and width - 1 - sum(1 + _cells_of(columns[column_name], widths) for column_name in core) >= name
        ):
            return core, widths
    return (), normal


def _cells_of(column: LayerColumn, widths: Mapping[str, int]) -> int:
    """Cells of a column: a head that is longer than its figures is cut, or has a short form."""
    close = widths["bytes"] == _CLOSE["bytes"]
    head = _SHORT_HEADS.get(column.name, column.head) if close else column.head
    return max(widths[column.unit], min(len(head), _LONGEST) + column.is_number)


def heads(model: TreeModel, laid: Places, title: Sequence[Span]) -> Line:
    """The title, and behind it the head of each column that it leaves room for; a sorted one is marked."""
    columns = columns_of(model)
    line: list[Span] = list(title)
    for place in laid.columns:
        column = columns[place.name]
        gap = place.start - line_width(line)
        if gap < 1:
            continue
        is_sorted = place.name == model.metric.id
        mark = ("▴" if model.turned else "▾") if is_sorted and model.by_cost else ""
        head = column.head if len(column.head) < place.width else _SHORT_HEADS.get(place.name, column.head)
        text = fit(mark + head, place.width, right=column.is_number)
        line += [(" " * gap, "text"), (text, "accent" if mark else "strong" if is_sorted else "dim")]
    return tuple(line)


def cells(model: TreeModel, row: int, first: Layer, laid: Places, look: TableLook) -> list[Span]:
    """What a row has in its columns, neighbours that look alike in one span: each costs bytes on a line."""
    columns = columns_of(model)
    spans: list[Span] = [("", "text")]

    def add(text: str, role: str) -> None:
        if spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + text, role)
        else:
            spans.append((text, role))

    for place in laid.columns:
        column = columns[place.name]
        text, role, value = _cell(model, row, first, column, look)
        if cell_len(text) > place.width:
            # a figure goes without its blank; of a shape both ends are told
            text = text.replace(" ", "", 1) if column.is_number else _ends(text, column, place.width)
        if place.name in look.stale:
            role, value = "dim", None
        heat = _heat(model, row, column, value, look)
        before = spans[-1][1]
        before = "number" if before.startswith("heat") else before
        add(_MARKS[heat] if look.letters else " ", before)
        if heat and not look.letters:
            # blanks stay blank: each that is coloured is sent
            add(" " * (place.width - cell_len(text)), before)
            add(fit(text, min(place.width, cell_len(text))), f"heat{heat}")
        else:
            add(fit(text, place.width, right=column.is_number), role)
    return spans[1:] if not spans[0][0] else spans


def uncut(layer: Layer, laid: Places, look: TableLook) -> list[str]:
    """What the columns of words say of a layer, however wide they are."""
    known = columns_of(None)
    found = (known[place.name] for place in laid.columns if place.name in known)
    return [_words(column.of(layer, look.beside)) for column in found if not column.is_number]


def _cell(
    model: TreeModel, row: int, first: Layer, column: LayerColumn, look: TableLook
) -> tuple[str, str, float | None]:
    """A cell's text and role, and its figure if it has one."""
    if column.name == "kind":
        return _kind(model, row, first, look)
    if column.name == STAGE and model.stages is not None:
        return model.stages.cell(model.members(row), model.first(row))
    if not column.is_number:
        return ("" if model.is_range(row) else _words(column.of(first, look.beside))), "dim", None
    value, sign = _figure(model, row, first, column, look)
    if column.name == "share":
        whole = look.whole.macs
        counted = first.counted or model.is_range(row)
        share = value / whole if value and whole and counted else 0.0
        return (_number("share", share, look.exact) if share else ""), "number", None
    if value is None:
        blank = column.blank or (model.is_range(row) and metric_of(column.name) not in METRICS)
        return ("", "dim", None) if blank else ("?", "warn", None)
    if sign == "≥" and not value:  # at least nothing: it says nothing
        return "?", "warn", None
    text = (f"{sign} " if sign else "") + _number(column.unit, value, look.exact)
    return text, "warn" if sign else "number", value


def _ends(text: str, column: LayerColumn, room: int) -> str:
    return middle(text, room) if column.unit == "shape" else text


def _kind(model: TreeModel, row: int, first: Layer, look: TableLook) -> tuple[str, str, None]:
    """The operator or class, in the colour of its family, or behind its letter."""
    if model.is_range(row):
        return "", "dim", None
    group = family(first.kind, tiled=first.tiled)
    letter = f"{FAMILIES[group].letter} " if look.letters and group != "other" and first.kind else ""
    return (
        letter + safe(first.kind_text) + _TILED * first.tiled,
        kind_role(first.kind, tiled=first.tiled),
        None,
    )


_TILED = " ▦"
"""Behind the kind of a layer that is made of tiles; a diff marks it with the same sign."""


def _figure(
    model: TreeModel, row: int, first: Layer, column: LayerColumn, look: TableLook
) -> tuple[float | None, str]:
    """A row's figure in a column, and the sign of one that is not exact."""
    metric = _metric(column)
    if model.column(metric) is not None or column.needs:
        return model.figure(row, metric)
    value: float | None = None if model.is_range(row) else column.of(first, look.beside)
    # the blocks of a run are built alike
    times = len(model.members(row)) if column.adds_up else 1
    return (None if value is None else value * times), ""


@cache
def _metric(column: LayerColumn) -> Metric:
    found = metric_of(column.name, {column.name: column})
    assert found is not None, column.name
    return found


def _heat(model: TreeModel, row: int, column: LayerColumn, value: float | None, look: TableLook) -> int:
    """How much of what its siblings have together a row has, in steps: 0 for little."""
    if value and column.needs == "efficiency":
        return next((step for least, step in _HEAT if value >= least), 0)  # a share itself: of the roof
    if not value or not column.adds_up:
        return 0
    above = None if model.flat else model.above(row)
    if above is None:
        whole = _of_model(model, column, look)
    elif above >= 0 and row == above + 1 and model.end[row] == model.end[above]:
        return 0  # the only one
    elif (above, column.name) in model.wholes:
        whole = model.wholes[above, column.name]
    else:
        whole = _figure(model, above, model.layers[model.first(above)], column, look)[0]
        model.wholes[above, column.name] = whole
    if not whole:
        return 0
    return next((step for least, step in _HEAT if value >= least * whole), 0)


def _of_model(model: TreeModel, column: LayerColumn, look: TableLook) -> float | None:
    """The figure of the whole model."""
    if column.name in model.asked:
        return model.asked[column.name][model.count]
    found: float | None = column.of(look.whole, look.beside)
    return found


def _words(value: Any) -> str:
    if isinstance(value, str):
        return safe(value)
    if not value:
        return ""
    shape = value[0]
    return "?" if shape is None else "x".join("?" if d is None else safe(str(d)) for d in shape) or "scalar"


def _number(unit: str, value: Any, exact: bool) -> str:
    """A number in three digits, its unit in cells of its own, so that the digits stand below each other."""
    if unit == "share":
        return "<0.1 %" if value < 0.0005 else ">99.9 %" if 0.9995 <= value < 1 else f"{100 * value:.1f} %"
    if unit == "number":
        return number_text(value)
    if unit == "ratio":
        return three_digits(value)
    if unit == "mebibytes":
        return three_digits(value / (1 << 20))
    if unit == "plain" or (exact and unit in _EXACT):
        return exact_text(int(value))
    if unit == "seconds":
        return _seconds(value)
    digits, _, prefix = (count_text if unit == "count" else bytes_text)(int(value)).partition(" ")
    if value == 0:
        digits, prefix = "-", ""
    elif "." in digits:
        digits = three_digits(float(digits))
    return f"{digits} {prefix:<{1 if unit == 'count' else 3}}"


def _seconds(value: float) -> str:
    """A duration in three digits: '12.3 µs'; a minute and more in words."""
    for least, unit in ((60.0, ""), (1.0, "s "), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns")):
        if value >= least:
            scale = {"s ": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}.get(unit, 0.0)
            return f"{three_digits(value * scale)} {unit}" if scale else seconds_text(value)
    return "?"


def three_digits(value: float) -> str:
    """Three digits, and what stands before the point in full."""
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"
