"""Table of the layer tree: which columns fit beside the names, and the text and color of each cell.

Columns are defined in `explorer.settings.columns`. Most figures come from the tree model, which has arrays of
them and knows which are bounds. The other cells are computed from the layer.

The column that rows are sorted by shows a bar on the left of each layer's figure. All bars have one scale:
the largest layer of the tree fills the bar. Groups, and rows that fold several layers, have no bar, because
they contain other rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from rich.cells import cell_len

from explorer.base.families import FAMILIES, find_family
from explorer.base.units import bytes_text, count_text, exact_text, number_text, seconds_text
from explorer.report.names import collapse_repeats
from explorer.session.cache.rows import GROUP
from explorer.tui.text.drawing import find_kind_role
from explorer.tui.text.lines import Line, Span, cut_middle, draw_bar, escape_name, fit, line_width
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import MEASURED, METRICS, Metric, TextCells, find_metric, list_columns
from explorer.tui.tree.stages import STAGE

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals
    from explorer.settings.columns import ColumnFigures, LayerColumn

DEFAULT_COLUMNS = (
    *("kind", "output", "macs", "share", "params", "activations", "read", "written", "weights"),
    *("intensity", "kernel"),
)
"""Default columns, in display order. Columns that do not fit are left out."""

_CORE_COUNT = 6
"""Number of leading (core) columns, which a narrow pane makes narrower rather than leave out."""

_MIN_NAME, _MIN_LONG_NAME = 15, 28
"""Minimum cells of a name: beside several columns, and in a wide table."""
_MIN_SHORT_NAME = 8
"""Minimum cells of a name beside only the kind and the sorted column."""
_MIN_BAR, _MAX_BAR = 3, 8
"""Minimum and maximum cells of a bar."""
_MIN_PATH = 24
"""Minimum cells of a path in the flat list."""
_MAX_SHALLOW = 3
"""Depth of a tree up to which names need no extra cells for indentation."""
_WIDE_TABLE = 72
"""Width in cells from which the kind column is wider."""
_LONG_KIND, _MAX_KIND = 12, 18
"""Cells of the kind column: in a wide table, and at most, where names leave room (for LayerNormalization)."""
_MAX_CELLS = {"name": 60, "kind": 24, "output": 24}
"""Maximum cells of names, kinds and shapes that columns and panes adapt to. Longer texts are cut."""
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
_NARROW = {"text": 7, "shape": 12, "count": 7, "bytes": 9, "share": 6}
"""Widths of narrow columns in cells by unit; other units keep their normal widths."""
_MIN_NARROW_NAME, _MIN_FREE_NAME = 13, 24
"""Minimum cells of a name beside narrow columns, and from which columns use their normal widths."""
_MIN_CORE_COUNT = 4
"""Minimum number of core columns: with fewer, columns keep their normal widths."""
_SAMPLE = 48
"""Number of layers, spread over the model, whose texts are measured, besides twice as many first layers."""
_RAIL_AND_SIGN, _MIN_TEXT = 7, 14
"""Cells of the rail and the ▸ beside a name, and minimum cells of the names of a tree with both."""
CORE_WIDTH = 1 + 15 + _MIN_BAR + sum((1 + 7, 1 + 12, 1 + 7, 1 + 6, 1 + 7, 1 + 9))
"""Width in cells of a tree with all core columns (here kind, shape, count, share, count, bytes) and a bar."""
_SHORT_HEADS = {"activations": "activ."}  # titles of narrow columns
_EXACT = {"count": 17, "bytes": 17}  # widths of columns whose numbers are written out, by unit
_MAX_TITLE_WIDTH = 11
"""Maximum cells of a column title. Longer titles are cut."""


class Place(Struct, frozen=True):
    """Position of a column in the table.

    Attributes:
        name: Name of the column.
        start: First cell of the column.
        width: Width of the column in cells.
    """

    name: str
    start: int
    width: int


class Places(Struct, frozen=True):
    """Columns that fit, from left to right.

    Attributes:
        name: Cells of the names, which precede the columns.
        columns: Positions of the columns.
        bar: Cells of the bar on the left of each figure in the sorted column; 0 for no bar.
    """

    name: int
    columns: tuple[Place, ...]
    bar: int = 0

    @property
    def has_kind(self) -> bool:
        """Whether a column shows the kinds."""
        return any(place.name == "kind" for place in self.columns)

    def column_at(self, x: int) -> str:
        """Return the name of the column at cell `x`, or ''."""
        return next((p.name for p in self.columns if p.start <= x <= p.start + p.width), "")


class TableLook(Struct, frozen=True):
    """How figures are written, and the totals that they are compared with.

    Attributes:
        figures: Figures that columns need in addition to the layer.
        total_row: The whole model as a layer.
        exact: Whether numbers are written out instead of rounded.
        letters: Whether families are shown by letters, because colors are too few.
        stale: Names of the columns whose figures are outdated while the engine computes new figures.
    """

    figures: ColumnFigures
    total_row: Layer
    exact: bool = False
    letters: bool = False
    stale: frozenset[str] = frozenset()


_DEFAULT_CELLS = TextCells(_MIN_LONG_NAME, _MIN_LONG_NAME, {})
"""Assumed cells of texts while layers are still being read."""


def choose_look(
    totals: Totals,
    *,
    exact: bool = False,
    letters: bool = False,
    stale: frozenset[str] = frozenset(),
    providers: Mapping[int, str] | None = None,
) -> TableLook:
    """Build the `TableLook` of a model."""
    from explorer.facts import build_total_row  # imported late, because the first paint does not need it
    from explorer.settings.columns import ColumnFigures

    return TableLook(
        ColumnFigures(totals=totals, providers=providers), build_total_row(totals), exact, letters, stale
    )


def list_chosen_columns(model: TreeModel) -> list[str]:
    """Return the columns selected for the table, even those that do not fit."""
    columns = list_columns(model)
    # profile columns stay selected for models without a profile, but take no cells there
    unmeasured = {name for name in MEASURED if name not in model.requested_figures}
    chosen = [name for name in model.columns if name in columns and name not in unmeasured]
    return chosen or [*DEFAULT_COLUMNS]


def column_titles(model: TreeModel) -> str:
    """Return the titles of the selected columns, one a line."""
    columns = list_columns(model)
    return "\n".join(columns[name].head for name in list_chosen_columns(model))


def place_columns(model: TreeModel, width: int, *, exact: bool, letters: bool = False) -> Places:
    """Choose the columns that fit beside the names, and the width of the bar in the sorted column.

    Columns are left out from the right. The last three to go are the profile columns, the sorted column and
    the kind, in this order. If all core columns fit, they are all shown, as narrow columns if necessary.
    Further columns are shown only if names, kinds and shapes are not cut.
    """
    columns, texts = list_columns(model), measure_texts(model, letters=letters)
    names = list_chosen_columns(model)
    first = _list_first_columns(model, names)
    core, widths = _choose_core(model, [*first, *names[:_CORE_COUNT]], width, texts, exact=exact)
    names += [name for name in first if name not in names]
    # in a deep tree, indentation takes cells from the name
    indent = model.deepest if width < _WIDE_TABLE and model.deepest > _MAX_SHALLOW else 0
    least, min_short_name = _MIN_FREE_NAME if indent else _MIN_NAME, min(_MIN_SHORT_NAME + indent, _MIN_NAME)
    # from a width of 60 cells on, names get two of three further cells
    usual_name = _MIN_PATH if model.flat else min(_MIN_LONG_NAME, least + 2 * max(0, width - 60) // 3)
    full_name = max(usual_name, min(texts.name, 3 * width // 10))
    cell_widths: dict[str, int] = {}
    room, bar, essential = width - 1, 0, ("kind", model.metric.id)
    for name in dict.fromkeys([*first, *names]):
        cells = _find_width(columns[name], widths)
        needed = (
            min_short_name
            if name in essential
            else _MIN_NARROW_NAME
            if name in core
            else full_name + texts.count_missing(cell_widths)
        )
        if room - cells - 1 < needed:
            break
        cell_widths[name] = cells
        room -= cells + 1
        if name == model.metric.id and room - _MIN_BAR >= _MIN_NARROW_NAME:
            bar, room = _MIN_BAR, room - _MIN_BAR
    # the cells that names do not need extend kinds and shapes; the kind gets its last cells after the names
    least_name = _MIN_NARROW_NAME if core and widths["bytes"] == _NARROW["bytes"] else usual_name
    extensions = [("kind", texts.columns.get("kind", 0), min(least_name, texts.name))]
    extensions += [(name, most, min(usual_name, texts.name)) for name, most in texts.columns.items()]
    extensions += [
        ("kind", _LONG_KIND, usual_name),
        ("kind", _MAX_KIND, max(usual_name + 2, min(texts.name, full_name))),
    ]
    for column, most, name_width in extensions:
        if column in cell_widths:
            extra_cells = max(0, min(most - cell_widths[column], room - name_width))
            cell_widths[column], room = cell_widths[column] + extra_cells, room - extra_cells
    if bar:
        extra_cells = max(0, min(_MAX_BAR - bar, room - max(usual_name + 2, min(texts.name, full_name))))
        bar, room = bar + extra_cells, room - extra_cells
        cell_widths[model.metric.id] += bar
    placed, start = [], room
    for name in names:
        if name in cell_widths:
            placed.append(Place(name, start + 1, cell_widths[name]))
            start += cell_widths[name] + 1
    return Places(room, tuple(placed), bar)


def find_uncut_width(model: TreeModel, *, letters: bool = False) -> int:
    """Return the width in cells at which no name, kind or shape is cut beside the core columns and a bar."""
    columns, texts = list_columns(model), measure_texts(model, letters=letters)
    names = list_chosen_columns(model)
    core = dict.fromkeys([*_list_first_columns(model, names), *names[:_CORE_COUNT]])
    cells = {name: _find_width(columns[name], _WIDTHS | _NARROW) for name in core}
    name_cells = max(texts.name, _MIN_PATH if model.flat else _MIN_NARROW_NAME)
    return 1 + name_cells + _MIN_BAR + sum(1 + each for each in cells.values()) + texts.count_missing(cells)


def _list_first_columns(model: TreeModel, names: Sequence[str]) -> list[str]:
    """Return the columns that are left out last."""
    timed = [name for name in MEASURED if name in names]
    return [*(name for name in names if name == "kind"), model.metric.id, *timed]


def measure_texts(model: TreeModel, *, letters: bool = False) -> TextCells:
    """Return the cells that names, kinds and shapes use, measured on a sample of the layers."""
    if model.is_growing or not model.count:
        return _DEFAULT_CELLS
    has_kind = "kind" in list_chosen_columns(model)
    key = model.flat, has_kind, model.has_gathered, letters
    if key not in model.text_cells:
        # the same layers whatever is open, so that a resumed screen looks the same
        first, step = range(min(model.count, 2 * _SAMPLE)), max(1, model.count // _SAMPLE)
        places = {*first, *range(0, model.count, step)}
        # the parts of tiled layers are seldom opened, and have names of many sizes as kinds
        layers = [
            model.layers[place]
            for place in sorted(places)
            if not model.is_gathered(place)
            and not (model.layers[place].group if model.flat else _is_part_of_tiled(model, place))
        ]
        if not layers:
            return _DEFAULT_CELLS
        names = {
            layer.id: cell_len(
                collapse_repeats(name_in_list(layer, has_kind=has_kind))
                if model.flat
                else escape_name(layer.name)
            )
            for layer in layers
        }
        depths = {layer.id: 0 if model.flat else layer.depth for layer in layers}
        name, indented = (
            min(max(names[i] + levels * depths[i] for i in names), _MAX_CELLS["name"]) + _RAIL_AND_SIGN
            for levels in (1, 2)
        )
        kind_widths = [
            cell_len(escape_name(layer.kind) + _TILED if layer.tiled else escape_name(layer.kind_text))
            for layer in layers
        ]
        shapes = [cell_len(_format_words([tensor.shape for tensor in layer.outputs])) for layer in layers]
        columns = {
            "kind": min(max(kind_widths) + 2 * letters, _MAX_CELLS["kind"]),
            "output": min(max(shapes), _MAX_CELLS["output"]),
        }
        model.text_cells[key] = TextCells(max(_MIN_TEXT, name), max(_MIN_TEXT, indented), columns)
    return model.text_cells[key]


def name_in_list(layer: Layer, *, has_kind: bool) -> str:
    """Return the path of a layer for a flat list. Beside a column of kinds it does not repeat its kind."""
    path = layer.path or layer.name
    group = path.removesuffix(f"/{layer.kind}") if has_kind and layer.kind else path
    return escape_name(group if group.strip("/") else path)


def _is_part_of_tiled(model: TreeModel, layer: int) -> bool:
    parent = model.structure.parent[layer]
    while parent >= 0 and not model.layers[parent].tiled:
        parent = model.structure.parent[parent]
    return parent >= 0


def _choose_core(
    model: TreeModel, names: Sequence[str], width: int, texts: TextCells, *, exact: bool
) -> tuple[Sequence[str], Mapping[str, int]]:
    """Return the core columns that fit (if few fit: none), and the widths of columns by unit."""
    columns, least = list_columns(model), _MIN_PATH if model.flat else _MIN_NARROW_NAME
    normal = _WIDTHS | {"text": 9 if width < _WIDE_TABLE else _LONG_KIND} | (_EXACT if exact else {})
    core = [] if exact or width < CORE_WIDTH - 2 else [*dict.fromkeys(names)]
    narrow, full_name = _WIDTHS | _NARROW, max(least, min(texts.name, width // 3))
    # narrow columns are left out from the right before kinds and names of usual lengths are cut
    attempts = [(core, normal, max(full_name, _MIN_FREE_NAME))]
    counts = range(len(core), _MIN_CORE_COUNT - 1, -1)
    attempts += [(core[:kept_count], narrow, cells) for cells in (full_name, least) for kept_count in counts]
    for kept_core, widths, name_cells in attempts:
        cells = {name: _find_width(columns[name], widths) for name in kept_core}
        # shapes may be cut in the middle; without its end, a kind can look like another one
        missing = texts.count_missing({n: cells[n] for n in cells if n == "kind" or widths is normal})
        if cells and width - 1 - _MIN_BAR - sum(1 + each for each in cells.values()) - missing >= name_cells:
            return kept_core, widths
    return (), normal


def _find_width(column: LayerColumn, widths: Mapping[str, int]) -> int:
    """Return the width of a column in cells, given widths by unit. Long titles are cut or abbreviated."""
    narrow = widths["bytes"] == _NARROW["bytes"]
    head = _SHORT_HEADS.get(column.name, column.head) if narrow else column.head
    return max(widths[column.unit], min(len(head), _MAX_TITLE_WIDTH) + column.is_number)


def draw_heads(model: TreeModel, layout: Places, title: Sequence[Span]) -> Line:
    """Build the heading line: `title`, then the titles of the columns after it. A mark shows the order."""
    columns = list_columns(model)
    line: list[Span] = list(title)
    for place in layout.columns:
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


def draw_cells(model: TreeModel, row: int, first: Layer, layout: Places, look: TableLook) -> list[Span]:
    """Build the spans of a row's cells. Neighboring spans with the same role are merged to save bytes."""
    columns = list_columns(model)
    spans: list[Span] = [("", "text")]

    def add(text: str, role: str) -> None:
        if spans[-1][1] == role:
            spans[-1] = (spans[-1][0] + text, role)
        else:
            spans.append((text, role))

    for place in layout.columns:
        column = columns[place.name]
        text, role, value = _format_cell(model, row, first, column, look)
        if cell_len(text) > place.width:
            # figures drop the space before the unit; shapes are cut in the middle; tiled kinds keep the ▦
            if column.is_number:
                text = text.replace(" ", "", 1)
            elif place.name == "kind" and text.endswith(_TILED):
                text = _shorten_tiled_kind(text, place.width)
            elif column.unit == "shape":
                text = cut_middle(text, place.width)
        if place.name in look.stale:
            role, value = "dim", None
        add(" ", spans[-1][1])
        bar = _draw_bar(model, row, value, layout.bar) if place.name == model.metric.id else ""
        if bar:
            add(bar, "bar")
        add(fit(text, place.width - len(bar), right=column.is_number), role)
    return spans[1:] if not spans[0][0] else spans


def list_uncut_texts(layer: Layer, layout: Places, look: TableLook) -> list[str]:
    """Return the full text of the text columns of a layer."""
    columns = list_columns(None)
    shown_columns = (columns[place.name] for place in layout.columns if place.name in columns)
    return [
        _format_words(column.get_value(layer, look.figures))
        for column in shown_columns
        if not column.is_number
    ]


def _format_cell(
    model: TreeModel, row: int, first: Layer, column: LayerColumn, look: TableLook
) -> tuple[str, str, float | None]:
    """Return the text, the role and the figure (or None) of a cell."""
    if column.name == "kind":
        return _draw_kind(model, row, first, look)
    if column.name == STAGE and model.stages is not None:
        return model.stages.format_cell(model.members(row), model.find_first_layer(row))
    if not column.is_number:
        return (
            ("" if model.is_range(row) else _format_words(column.get_value(first, look.figures))),
            "dim",
            None,
        )
    value, sign = _find_figure(model, row, first, column, look)
    if column.name == "share":
        model_macs = look.total_row.macs
        is_counted = first.counted or model.is_range(row)
        share = value / model_macs if value and model_macs and is_counted else 0.0
        return (
            (_format_number("share", share, look.exact) if share else ""),
            "number",
            value if share else None,
        )
    if value is None:
        is_blank = column.blank or (model.is_range(row) and find_metric(column.name) not in METRICS)
        return ("", "dim", None) if is_blank else ("?", "warn", None)
    if sign == "≥" and not value:  # a lower bound of zero says nothing
        return "?", "warn", None
    text = (f"{sign} " if sign else "") + _format_number(column.unit, value, look.exact)
    return text, "warn" if sign else "number", value


def _draw_kind(model: TreeModel, row: int, first: Layer, look: TableLook) -> tuple[str, str, None]:
    """Return the operator or class of a row, with the color or the letter of its family."""
    if model.is_range(row):
        return "", "dim", None
    group = find_family(first.kind, tiled=first.tiled)
    letter = f"{FAMILIES[group].letter} " if look.letters and group != "other" and first.kind else ""
    return (
        letter + escape_name(first.kind_text) + _TILED * first.tiled,
        find_kind_role(first.kind, tiled=first.tiled),
        None,
    )


def _shorten_tiled_kind(text: str, room: int) -> str:
    """Return the kind of a tiled layer in `room` cells, without the word 'tiled', which the ▦ expresses."""
    kind = text.removesuffix(_TILED).partition(",")[0]
    return fit(kind, max(1, min(cell_len(kind), room - cell_len(_TILED)))) + _TILED


_TILED = " ▦"
"""Suffix of the kind of a tiled layer. A diff uses the same sign."""


def _find_figure(
    model: TreeModel, row: int, first: Layer, column: LayerColumn, look: TableLook
) -> tuple[float | None, str]:
    """Return the figure of a row in a column, and its sign (see `FoldedRows.figure`)."""
    metric = _get_metric(column)
    if model.column(metric) is not None or column.needs:
        return model.figure(row, metric)
    value: float | None = None if model.is_range(row) else column.get_value(first, look.figures)
    # blocks of a run are identical
    times = len(model.members(row)) if column.adds_up else 1
    return (None if value is None else value * times), ""


@cache
def _get_metric(column: LayerColumn) -> Metric:
    metric = find_metric(column.name, {column.name: column})
    assert metric is not None, column.name
    return metric


def _draw_bar(model: TreeModel, row: int, value: float | None, width: int) -> str:
    """Draw the bar of a layer's figure in up to `width` cells. A row that contains other rows has none."""
    if not width or not value or row < 0 or model.structure.flags[row] & GROUP:
        return ""
    largest = model.find_largest_leaf(model.metric)
    return draw_bar(value / largest, width)[0][0] if value > 0 and largest else ""


def _format_words(value: Any) -> str:
    """Format the value of a text column: a text, or a list of shapes, of which the first is shown."""
    if isinstance(value, str):
        return escape_name(value)
    if not value:
        return ""
    shape = value[0]
    return (
        "?"
        if shape is None
        else "x".join("?" if d is None else escape_name(str(d)) for d in shape) or "scalar"
    )


@lru_cache(4096, typed=True)  # repeated blocks have the same figures
def _format_number(unit: str, value: Any, exact: bool) -> str:
    """Format a number with three digits and its unit in separate cells, so that digits align."""
    if unit == "share":
        return "<0.1 %" if value < 0.0005 else ">99.9 %" if 0.9995 <= value < 1 else f"{100 * value:.1f} %"
    if unit == "number":
        return number_text(value)
    if unit == "ratio":
        return format_three_digits(value)
    if unit == "mebibytes":
        return format_three_digits(value / (1 << 20))
    if unit == "plain" or (exact and unit in _EXACT):
        return exact_text(int(value))
    if unit == "seconds":
        return _format_seconds(value)
    digits, _, prefix = (count_text if unit == "count" else bytes_text)(int(value)).partition(" ")
    if value == 0:
        digits, prefix = "-", ""
    elif "." in digits:
        digits = format_three_digits(float(digits))
    return f"{digits} {prefix:<{1 if unit == 'count' else 3}}"


def _format_seconds(value: float) -> str:
    """Format a duration with three digits, such as '12.3 µs'; from one minute on as `seconds_text` does."""
    for minimum, unit in ((60.0, ""), (1.0, "s "), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns")):
        if value >= minimum:
            scale = {"s ": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}.get(unit, 0.0)
            return f"{format_three_digits(value * scale)} {unit}" if scale else seconds_text(value)
    return "?"


def format_three_digits(value: float) -> str:
    """Format a number with three significant digits, without dropping any before the decimal point."""
    size = abs(value)
    return f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"
