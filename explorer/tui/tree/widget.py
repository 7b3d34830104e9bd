"""The layer tree: a widget with one line per row, and figures in columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, overload

from rich.cells import cell_len

from explorer.base.units import many_text
from explorer.report.names import NameSet
from explorer.session.cache.rows import GROUP
from explorer.tui.text.lines import BLANK, Line, Span, cut_middle, cut_start, escape_name, fit, line_width
from explorer.tui.tree import table
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.table import Places, TableLook
from explorer.tui.widgets.cut_text import UNCUT_WIDTH
from explorer.tui.widgets.line_view import LineList

if TYPE_CHECKING:
    from explorer.facts import Layer, Totals
    from explorer.tui.tree.rail import Rail

RAIL_FROM = 48
"""Minimum width in cells of a tree that shows a rail."""
_MIN_NAME = 12
"""Cells that the deepest names keep before the indentation is reduced."""
_NEIGHBORS = 12
"""Number of layers before and after a layer from which its shortened name must differ."""
_SAMPLE = 12
"""Number of first layers, and of layers spread over the model, that are searched for a common start."""
_MIN_PREFIX = 8
"""Minimum cells that a heading needs to show the common start of names."""
_MAX_SHORT_NAMES = 4096
"""Number of shortened names that are cached."""


class LayerTree(LineList):
    """Draws the rows of a `TreeModel` when they come into view.

    Attributes:
        totals: Totals of the model, or None before there is a model.
        exact: Whether numbers are written out instead of rounded.
        rail: Strip beside the rows, or None.
        stale: Names of the columns whose figures are outdated.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.model = TreeModel(())
        self.totals: Totals | None = None
        self.exact = False
        self.rail: Rail | None = None
        self.stale: frozenset[str] = frozenset()
        self._look: tuple[object, TableLook] | None = None
        self._places: tuple[object, Places] | None = None

    def set_model(self, model: TreeModel, totals: Totals, *, keep_cursor: bool = False) -> None:
        """Show another model. The cursor goes to the first layer, or with `keep_cursor` keeps its layer."""
        row = self.current_row if keep_cursor else None
        self.model, self.totals = model, totals
        if row is not None:
            self.cursor = model.index_of(
                model.find_first_layer(row) if row >= 0 else -row - 1, self.cursor, run=row < 0
            )
        self.refresh_rows(keep_cursor=keep_cursor)
        if not keep_cursor and self.row_count > 1 and model.is_constants(model.rows[0]):
            self.cursor = 1  # a row of constants tells little about a newly opened model

    @property
    def paths(self) -> list[str]:
        """Paths of the open rows, with and without the filter, and of the row under the cursor."""
        layer = self.current_layer
        paths = {path for path, _ in self.model.shape.open_rows} | (self.model.open_matches or set())
        return sorted(paths | ({layer.path} if layer else set()))

    @property
    def row_count(self) -> int:
        """Number of visible rows."""
        return len(self.model.rows)

    @property
    def current_layer(self) -> Layer | None:
        """The layer under the cursor, or None without rows."""
        if not self.model.rows:
            return None
        return self.model.layers[
            self.model.find_first_layer(self.model.rows[min(self.cursor, self.row_count - 1)])
        ]

    @property
    def current_row(self) -> int | None:
        """The row under the cursor as an integer of `TreeModel`, or None without rows."""
        return self.model.rows[min(self.cursor, self.row_count - 1)] if self.model.rows else None

    @property
    def cursor_layers(self) -> Sequence[Layer]:
        """The layer under the cursor, or all blocks of the run there. Layers are loaded on access."""
        row = self.current_row
        return () if row is None else _LayerSubset(self.model.layers, self.model.members(row))

    @property
    def span(self) -> tuple[int, int]:
        """IDs of the first and the last layer under the cursor, with descendants. Requires a row."""
        first, stop = self.cursor_range
        return first, stop - 1

    @property
    def cursor_range(self) -> tuple[int, int]:
        """ID of the first layer under the cursor, and the ID after its last descendant; (0, 0) if empty."""
        row = self.current_row
        if row is None:
            return 0, 0
        members = self.model.members(row)
        # other layers are between the constants of a group
        last_member = members[0] if self.model.is_constants(row) else members[-1]
        return members[0], self.model.end[last_member]

    def move_to_layer(self, layer: int) -> None:
        """Move the cursor to a layer, and open its ancestors."""
        old_row, index = self.current_row, self.model.reveal(layer)
        self.refresh_rows()
        if index == self.cursor and self.current_row != old_row:
            # opening rows moved the layer to the index that the cursor already had
            self.post_message(self.RowHighlighted(self, index))
        self.move_to(index)

    def is_filtered_out(self, layer: int) -> bool:
        """Whether the filter hides a layer."""
        matches = self.model.matches
        return matches is not None and layer not in matches

    def rearrange(
        self, change: Callable[[TreeModel], None], *, sorting: bool = False, stays_first: bool = False
    ) -> None:
        """Apply `change` to the model, and keep the cursor on the same layer.

        Args:
            change: Function that changes the model.
            sorting: Whether the user sorts. If the rows are then sorted by a figure, the cursor moves to the
                first row, because users sort to find the largest.
            stays_first: Whether a cursor in the first row stays there and does not follow its layer.
        """
        keeps_layer = self.row_count and (self.cursor or not (sorting or stays_first))
        row = self.model.rows[self.cursor] if keeps_layer else None
        change(self.model)
        if sorting and self.model.by_cost:
            self.cursor, row = 0, None
        if row is not None:
            while row is not None and row not in self.model.rows:
                row = self.model.parent_row(row)
            self.cursor = self.model.rows.index(row) if row is not None else 0
        self.refresh_rows()

    def toggle_row(self, index: int, should_open: bool | None = None) -> bool:
        """Open or close a row; `should_open` sets the direction. Returns whether anything changed."""
        row = self.model.rows[index]
        if should_open is not None and self.model.is_open(row) == should_open:
            return False
        return self.model.toggle(index)

    def parent_of(self, index: int) -> int | None:
        """Return the index of the parent row, or None at the top level."""
        return self.model.parent_index(index)

    def row_line(self, index: int, width: int) -> Line:
        """Draw row `index` in `width` cells."""
        if self.totals is None:
            return BLANK
        rail = ""
        if self.rail is not None and width >= RAIL_FROM:
            rail = self.rail.line(self.model, index, self.scroll_offset.y)
        row, layout = self.model.rows[index], self.places(width)
        assert layout is not None
        strip: Line = ((f"{rail} " if layout.name < 2 * _MIN_NAME else f" {rail} ", "track"),) if rail else ()
        rail_width = line_width(strip)
        return (
            *strip,
            *draw_table_line(self.model, row, layout, self._find_current_look(), used_cells=rail_width),
        )

    def list_uncut_lines(self, y: int) -> Iterable[Line]:
        """Return the full texts of a row, which its columns may cut: name, path, kind, text columns."""
        row = self.model.rows[y + self.scroll_offset.y]
        layer = self.model.layers[self.model.find_first_layer(row)]
        yield from (((escape_name(text), ""),) for text in (layer.name, layer.path, layer.kind))
        if self.totals is not None and (layout := self.places(self.size.width)) is not None:
            yield from (
                ((text, ""),) for text in table.list_uncut_texts(layer, layout, self._find_current_look())
            )
        yield self.row_line(y + self.scroll_offset.y, UNCUT_WIDTH)

    def places(self, width: int) -> Places | None:
        """Return the positions of the columns, or None for an empty model."""
        model = self.model
        if not model.count:
            return None
        key = (
            model,
            width,
            self.exact,
            model.metric,
            model.columns,
            model.flat,
            model.all_columns,
            len(model.requested_figures),
            model.has_gathered,
            model.is_growing,
            self.letters,
        )
        if self._places is None or self._places[0] != key:
            layout = table.place_columns(model, width, exact=self.exact, letters=self.letters)
            self._places = (key, layout)
        return self._places[1]

    @property
    def letters(self) -> bool:
        """Whether families are shown by letters, because colors are too few."""
        return self.app.no_color or self.app.console.color_system not in ("256", "truecolor")

    def _find_current_look(self) -> TableLook:
        """Return the current `TableLook`, cached until an input changes."""
        letters, providers = self.letters, self.model.providers
        key = (self.totals, self.exact, letters, self.stale, id(providers))
        if self._look is None or self._look[0] != key:
            assert self.totals is not None
            look = table.choose_look(
                self.totals, exact=self.exact, letters=letters, stale=self.stale, providers=providers
            )
            self._look = (key, look)
        return self._look[1]


class _LayerSubset(Sequence["Layer"]):
    """A lazy subset of the layers, in order."""

    def __init__(self, layers: Sequence[Layer], ids: Sequence[int]) -> None:
        self._layers, self._ids = layers, ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Layer: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Layer]: ...

    def __getitem__(self, index: int | slice) -> Layer | Sequence[Layer]:
        if isinstance(index, slice):
            return _LayerSubset(self._layers, self._ids[index])
        return self._layers[self._ids[index]]


def draw_tree_head(
    model: TreeModel,
    query: str,
    width: int,
    *,
    focused: bool,
    growing: bool = False,
    layout: Places | None = None,
) -> Line:
    """Build the heading: the number of layers (so far, if `growing`), the filter, and the column titles."""
    title: list[Span] = [(" Layers", "head" if focused else "dim")]
    if model.matches is not None:
        match_count = model.match_count - model.hidden_constants
        shown_of = f"{len(model.matches):,} of " if match_count > len(model.matches) else ""
        more = "+" if model.searched is not None else ""
        title.append((f"  {shown_of}{match_count:,}{more}/{model.count:,}{'+' if growing else ''}", "accent"))
    elif model.count:
        is_unknown = model.count == 1 and model.layers[0].kind == "more"
        count = "  ?" if is_unknown else f"  {model.count:,}{'+' if growing else ''}"
        room = layout.columns[0].start if layout is not None and layout.columns else width
        room -= 6 * model.flat + len(_format_hidden(model))  # 6 cells for '  flat'
        # the title of the first column is more useful than the count
        title.append((count * (line_width(title) + len(count) < room), "dim"))
    if model.flat:
        title.append(("  flat", "accent"))
    if layout is not None and (prefix := _find_shared_prefix(model, layout)):
        title[1:] = [("  flat", "accent")] * model.flat
        room = layout.name - line_width(title) - 3
        title.append((f"  {cut_start(prefix, room)}…", "dim"))
    if constants := _format_hidden(model):
        start = layout.columns[0].start if layout is not None and layout.columns else width
        if not query and line_width(title) + len(constants) >= start:
            constants = constants.rpartition(" ")[0]  # the title of the first column is more useful
        title.append((constants, "dim"))
    if layout is None:
        return tuple(title)
    room = (layout.columns[0].start if layout.columns else width) - line_width(title) - 3
    if query and model.matches is not None:
        # the query is more useful than the titles that it covers
        title.append((f"  {cut_middle(escape_name(query), max(room, 24))}", "dim"))
    return table.draw_heads(model, layout, title)


def _find_shared_prefix(model: TreeModel, layout: Places) -> str:
    """Return the common start of names that the heading shows and the rows leave out; '' for none.

    It is shared by all names of a flat list, or of the rows outside groups. There is no common start if all
    names fit beside the columns, or if the heading has no room. Only a sample of the layers is read: a name
    that begins differently is shown with its start.
    """
    if model.matches is not None or model.is_growing or not model.count:
        return ""
    cells, has_kind = layout.name, layout.has_kind
    key = cells, model.flat, has_kind, model.has_gathered
    if key not in model.shared_prefixes:
        flags, parents, count = model.structure.flags, model.structure.parent, model.count
        spread = range(0, count, max(1, count // _SAMPLE))
        places = {*range(min(count, _SAMPLE)), *spread, count - 1}
        names = {
            _name_layer(model, model.layers[place], has_kind=has_kind)
            for place in places
            if (not flags[place] & GROUP if model.flat else parents[place] < 0)
            and not model.is_gathered(place)
        }
        room = cells - line_width(((" Layers    …", ""),)) - 6 * model.flat  # 6 cells for '  flat'
        is_cut = room >= _MIN_PREFIX and any(cell_len(name) > cells - 2 for name in names)
        model.shared_prefixes[key] = NameSet(names).prefix if is_cut else ""
    return model.shared_prefixes[key]


def _name_layer(model: TreeModel, layer: Layer, *, has_kind: bool) -> str:
    """Return the name of a layer, or its path in the flat list, without the kind if a column `has_kind`."""
    return table.name_in_list(layer, has_kind=has_kind) if model.flat else escape_name(layer.name)


def _shorten_layer_name(model: TreeModel, row: int, room: int, prefix: str, *, has_kind: bool) -> str:
    """Return the name of layer `row`, or its path in the flat list, shortened so that nearby names differ.

    The heading shows `prefix`, so the name is returned without it. See `_name_layer` for `has_kind`.
    """
    full_name = _name_layer(model, model.layers[row], has_kind=has_kind)
    # a flat list leaves out repeated modules in each path, so that all paths look alike
    if cell_len(full_name) <= room and not prefix and not (model.flat and "/" in full_name):
        return full_name
    key = row, room, model.flat, has_kind, prefix
    text = model.short_names.get(key)
    if text is None:
        if model.flat:
            flags = model.structure.flags
            ids = (*range(row - _NEIGHBORS, row + _NEIGHBORS + 1), *model.list_anchors(row))
            nearby_ids = [i for i in ids if 0 <= i < model.count and not flags[i] & GROUP]
        else:
            nearby_ids = model.list_near_siblings(row, _NEIGHBORS)
            group = model.structure.parent[row]
            nearby_ids += [i for i in model.list_anchors(row) if model.structure.parent[i] == group]
        if len(model.short_names) >= _MAX_SHORT_NAMES:
            model.short_names.clear()
        names = {i: _name_layer(model, model.layers[i], has_kind=has_kind) for i in nearby_ids}
        rows = nearby_ids[nearby_ids.index(row) :][: _NEIGHBORS + 1]  # the rows below are drawn next
        rooms = {names[i]: room for i in rows}
        name_set = NameSet(names.values())
        texts = (
            name_set.drop_prefix(rooms, prefix)
            if prefix
            else name_set.shorten(rooms, collapsed=model.flat).texts
        )
        for i in rows:
            model.short_names.setdefault((i, *key[1:]), texts[names[i]])
        text = texts[full_name]
    return text


def _format_hidden(model: TreeModel) -> str:
    return f"  +{many_text(model.hidden_constants, 'constant')}" if model.hidden_constants else ""


def _format_run_name(first_layer: Layer, last_layer: Layer, room: int) -> str:
    """Return the name of a run in `room` cells: `layers.0 … layers.11`, or `layers.0 … 11`."""
    first, last = escape_name(first_layer.name), escape_name(last_layer.name)
    name = f"{first} … {last}"
    if cell_len(name) > room:
        name = f"{first} … {last[_measure_common_prefix(first, last) :]}"
    closer = name.replace(" … ", "…")
    # the numbers of a run are at its end
    return name if cell_len(name) <= room else cut_start(closer, room)


def _format_row_label(
    model: TreeModel, row: int, first: Layer, members: Sequence[int], room: int, layout: Places
) -> str:
    """Return the label of a row: its name, its path in the flat list, or the number of constants.

    A name in a flat list or outside groups is returned without the common start that the heading shows.
    """
    if model.is_constants(row):
        return fit(f"+{many_text(model.count_layers(row), 'constant')}", room).rstrip()
    if model.flat or len(members) == 1:
        is_below_group = not model.flat and model.structure.parent[members[0]] >= 0
        prefix = "" if is_below_group else _find_shared_prefix(model, layout)
        return _shorten_layer_name(model, members[0], room, prefix, has_kind=layout.has_kind)
    return _format_run_name(first, model.layers[members[-1]], room)


def _count_suffix(model: TreeModel, row: int, members: Sequence[int]) -> str:
    """Return ' ×N' for a row that contains N layers, or '' if the label already says so."""
    return f" ×{len(members):,}" if len(members) > 1 and not model.is_constants(row) else ""


def _choose_name_role(model: TreeModel, row: int, first: Layer) -> str:
    """Return 'dim' for ancestors of matches and for constants, otherwise 'text'."""
    is_ancestor = model.matches is not None and first.id not in model.matches
    return "dim" if is_ancestor or model.is_constants(row) else "text"


def draw_table_line(
    model: TreeModel, row: int, layout: Places, look: TableLook, *, used_cells: int = 0
) -> Line:
    """Draw one row of the table: indentation, name and columns. `used_cells` cells are already drawn."""
    first, members = model.layers[model.find_first_layer(row)], model.members(row)
    glyph = ("▾ " if model.is_open(row) else "▸ ") if model.is_expandable(row) else "  "
    cells = layout.name - used_cells
    # all levels use the same indentation; otherwise names could align with their parents' names
    texts = table.measure_texts(model, letters=look.letters)
    is_tight = cells - 2 * model.deepest < _MIN_NAME or texts.name <= layout.name < texts.indented
    indent = (" " if is_tight else "  ") * model.depth(row)
    times = _count_suffix(model, row, members)
    room = max(1, cells - len(indent) - 2 - len(times))
    name = _format_row_label(model, row, first, members, room, layout)
    cell_spans = table.draw_cells(model, row, first, layout, look)
    blank = _count_spaces(cell_spans) - 1 if "…" in name else 0
    if blank > 0:
        # a long name may extend into blank cells of the first columns
        longer = _format_row_label(model, row, first, members, room + blank, layout)
        extra_cells = max(0, cell_len(longer) - room)
        name, room, cell_spans = (
            (longer, room + extra_cells, _drop_spaces(cell_spans, extra_cells))
            if extra_cells
            else (name, room, cell_spans)
        )
    pad = " " * max(0, room - cell_len(name))
    return (
        (indent, "text"),
        (glyph, "dim"),
        (name, _choose_name_role(model, row, first)),
        (times, "accent"),
        (pad, "dim"),
        *cell_spans,
        (" ", "text"),
    )


def _count_spaces(spans: Sequence[Span]) -> int:
    """Count the leading spaces of a line."""
    text = "".join([text for text, *_ in spans])
    return len(text) - len(text.lstrip(" "))


def _drop_spaces(spans: Sequence[Span], blanks: int) -> list[Span]:
    """Drop the first `blanks` spaces of a line."""
    remaining = list(spans)
    while remaining and blanks >= len(remaining[0][0]):
        blanks -= len(remaining.pop(0)[0])
    return [(remaining[0][0][blanks:], remaining[0][1]), *remaining[1:]] if remaining else []


def _measure_common_prefix(first: str, last: str) -> int:
    """Return the length of the common prefix of two names; 0 if one name is the start of the other."""
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
