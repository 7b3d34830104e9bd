"""Heat map screen: keys move over a tensor, zoom, and step through its axes and through other tensors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from explorer.base.errors import ExplorerError
from explorer.features.values.heat_panel import HeatPanel, Palette, Picture
from explorer.features.values.map_page import build_figure_lines, cell_span, cursor_line, title_lines
from explorer.features.values.tensor_words import heat_map, scale_of
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.terminal.slices import call_after_paint
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import cut_line, escape_name
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.values import HeatMap, Outlier
    from explorer.report.blocks import Block

Span = tuple[int, int]


class MapRequest(NamedTuple):
    """Arguments of `Session.heat_map`.

    Attributes:
        name: Name of the tensor or layer.
        place: Index on each axis before the last two.
        rows, columns: Half-open range to show, or None for all.
        size: Numbers of rows and columns of cells that fit.
        whole: Whether to measure the figures of the whole tensor, too.
        before: Index of the state to compare with, or None.
    """

    name: str
    place: tuple[int, ...] = ()
    rows: Span | None = None
    columns: Span | None = None
    size: tuple[int, int] = (1, 1)
    whole: bool = True
    before: int | None = None


Ask = Callable[[MapRequest], Awaitable["HeatMap"]]

_MIN_FIGURES_WIDTH = 110
"""Minimum screen width, in cells, for figures next to the map by default."""

# fmt: off
HEAT_KEYS = key_group(
    "In the map of numbers",
    ("heat_step(-1, 0)", ("up", "k"), "↑ k", "One cell up", "Move the cursor; scroll at an edge"),
    ("heat_step(1, 0)", ("down", "j"), "↓ j", "One cell down", "Move the cursor; scroll at an edge"),
    ("heat_step(0, -1)", ("left", "h"), "← h", "One cell to the left", "Move the cursor; scroll at an edge"),
    ("heat_step(0, 1)", ("right", "l"), "→ l", "One cell to the right", "Move the cursor; scroll at an edge"),
    ("heat_page(-1)", ("pageup",), "PgUp", "One part up", "Move by the number of visible rows"),
    ("heat_page(1)", ("pagedown",), "PgDn", "One part down", "Move by the number of visible rows"),
    ("heat_edge(0)", ("home", "g"), "Home g", "First cell", "Go to the upper left"),
    ("heat_edge(1)", ("end", "G"), "End G", "Last cell", "Go to the lower right"),
    ("heat_zoom(1)", ("plus", "enter"), "+ Enter", "Zoom in", "Halve the shown rows and columns"),
    ("heat_zoom(-1)", ("minus",), "-", "Zoom out", "Double the shown rows and columns"),
    ("heat_whole", ("0",), "0", "Show all", "Show every row and column"),
    ("heat_place(1, -1)", ("left_square_bracket",), "[", "Previous matrix", "Move along the third-last axis"),
    ("heat_place(1, 1)", ("right_square_bracket",), "]", "Next matrix", "Move along the third-last axis"),
    ("heat_place(2, -1)", ("left_curly_bracket",), "{", "Previous on the fourth-last axis",
        "In a convolution: the output channel"),
    ("heat_place(2, 1)", ("right_curly_bracket",), "}", "Next on the fourth-last axis",
        "In a convolution: the output channel"),
    ("heat_tensor(1)", ("n",), "n", "Next tensor", "Select a tensor of the layer: weights or outputs"),
    ("heat_tensor(-1)", ("p",), "p", "Previous tensor", "Go through the tensors of the layer"),
    ("heat_outlier", ("o",), "o", "Next outlier", "Of the ten farthest from the mean, the farthest first"),
    ("heat_before", ("b",), "b", "Before and after", "Shows the state before this one beside it"),
    ("heat_about", ("a",), "a", "Figures, or not", "Shows range, histogram, outliers and widest channels"),
    ("heat_scroll(1)", ("space",), "Space", "Further down the figures", "Scroll them, if they do not fit"),
)
# fmt: on
_FOOTER = (
    *(("↑ ↓ ← →", "move"), ("+ -", "zoom"), ("n", "tensor"), ("[ ]", "matrix"), ("o", "outlier")),
    *(("a", "figures"), ("b", "before"), ("q", "back")),
)
_MOVING_ACTIONS = frozenset(
    f"heat_{action}" for action in ("step", "page", "edge", "zoom", "whole", "place", "outlier")
)


class HeatMapView(SubScreen[None]):
    """Show a tensor as a heat map.

    Args:
        names: Tensors, and layers with an output, to page through.
        ask: Async function that reads a tensor as a heat map.
        earlier: Index of the state to compare with on request, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(HEAT_KEYS)
    AUTO_FOCUS = ""

    def __init__(self, names: Sequence[str], ask: Ask, earlier: int | None = None) -> None:
        super().__init__()
        self._names, self._ask, self._earlier_state = tuple(names), ask, earlier
        self._tensor_index = 0
        self.request = MapRequest(self._names[0])
        self.fact: HeatMap | None = None
        self.row = self.column = 0
        self._fetched = self.request  # request of the displayed map
        self._outlier = -1
        self._shows_figures: bool | None = None
        self._wants_earlier = False  # stays True if the earlier state lacks the next tensor
        self._goal: tuple[int, ...] | None = None  # row and column for the cursor in the next map
        self._pending_error = ""  # error of the earlier state, shown after the next map

    def compose(self) -> ComposeResult:
        """Yield the title bar, the maps, the figures and two status lines."""
        yield TitleBar()
        with Horizontal(id="heat-panes"):
            yield HeatPanel(lambda *size: self._build_picture(self.fact, *size), id="heat")
            yield HeatPanel(
                lambda *size: self._build_picture(self.fact.before if self.fact else None, *size),
                id="heat-before",
            )
            yield LineView(id="heat-about", focusable=False)
        yield Status(id="heat-cell")
        yield Status(id="heat-keys")

    def on_mount(self) -> None:
        """Start reading the first map."""
        self._show_keys()
        self._say("reading the numbers…", "dim")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the moving keys until the tensor is read: the visible numbers belong to another tensor."""
        return self._is_read or action not in _MOVING_ACTIONS

    @property
    def _is_read(self) -> bool:
        return self.fact is not None and self._fetched.name == self.request.name

    def on_resize(self) -> None:
        """Read the map again for the new number of cells."""
        self._lay_out()

    def _lay_out(self) -> None:
        is_wide = self.size.width >= _MIN_FIGURES_WIDTH
        shows_figures = is_wide if self._shows_figures is None else self._shows_figures
        self.set_class(shows_figures, "-about")
        self.set_class(self.request.before is not None, "-before")
        call_after_paint(self, self._request_map)

    # drawing

    @property
    def largest(self) -> float:
        """The magnitude of the strongest color: the largest number of this tensor and of the compared one."""
        magnitude = 0.0
        for fact in filter(None, (self.fact, self.fact.before if self.fact else None)):
            stats = fact.stats
            ends = (stats.minimum, stats.maximum) if stats is not None else ()
            magnitude = max(magnitude, *(abs(end) for end in ends if end is not None), 0.0) or scale_of(fact)
        return magnitude

    def _build_picture(
        self, fact: HeatMap | None, width: int, height: int, colors: Palette | None
    ) -> Picture | None:
        if fact is None or not fact.cells:
            return None
        # the border between two maps takes one column
        width = min(width, self.request.size[1] or width)
        return Picture(fact, self.largest, self.row, self.column, width, height, colors)

    def _show_keys(self) -> None:
        fact = self.fact
        has_cells = fact is not None and bool(fact.cells)
        has_effect = {
            "↑ ↓ ← →": has_cells,
            "+ -": has_cells,
            "n": len(self._names) > 1,
            "[ ]": fact is not None and bool(fact.place),
            "o": fact is not None and bool(fact.outliers),
            "b": self._earlier_state is not None,
        }
        keys = [key for key in _FOOTER if has_effect.get(key[0], True)]
        self.query_one("#heat-keys", Status).show(lambda width: (keys_line(keys, width),))

    def _show(self) -> None:
        fact = self.fact
        self._show_keys()
        if fact is None:
            name = cut_line(((f" {escape_name(self.request.name)}", "strong"),), self.size.width)
            self.query_one(TitleBar).show(lambda width: (name,))
            self.query_one("#heat-about", LineView).show(lambda width: ())
            self._show_cursor()
            return
        self.query_one(TitleBar).show(
            lambda width: title_lines(fact, self._tensor_index, len(self._names), width)
        )
        self.query_one("#heat-about", LineView).show(lambda width: build_figure_lines(fact, width))
        self._show_cursor()

    def _show_cursor(self) -> None:
        fact = self.fact
        for panel in self.query(HeatPanel):
            panel.refresh()
        if fact is not None:
            self.query_one("#heat-cell", Status).show(
                lambda width: (cursor_line(fact, self.row, self.column, self.largest, width),)
            )

    def forget_message(self) -> None:
        """Describe the cell under the cursor again after a message about an earlier key."""
        if self.has_message:
            self.has_message = False
            self._show_cursor()

    def _say(self, text: str, role: str = "warn") -> None:
        self.has_message = role == "warn"
        self.query_one("#heat-cell", Status).show(
            lambda width: (cut_line(((f" {escape_name(text)}", role),), width),)
        )

    def page_blocks(self) -> list[Block]:
        """Return the same blocks that `explorer values --map` prints."""
        return [] if self.fact is None else heat_map(self.fact)

    def verb_words(self, source: str) -> list[str]:
        """Return the command line that prints the same part of the tensor."""
        fact, request = self.fact, self.request
        if fact is None:
            return []
        words = ["values", source, request.name, "--map", f"{fact.heights}x{fact.widths}"]
        if fact.place:
            words += ["--at", ",".join(map(str, fact.place))]
        for flag, part in (("--rows", request.rows), ("--columns", request.columns)):
            words += [] if part is None else [flag, f"{part[0]}:{part[1]}"]
        return words

    # reading

    def _request_map(self, request: MapRequest | None = None, goal: tuple[int, ...] | None = None) -> None:
        """Read a map, then move the cursor to `goal`, a row and column of the tensor, unless it is None."""
        request = request or self.request
        heat_panel = self.query_one("#heat", HeatPanel)
        rows_in_line = 1 if heat_panel.terminal_palette is None else 2
        width = min(panel.size.width for panel in self.query(HeatPanel) if panel.display)
        size = max(heat_panel.size.height * rows_in_line, 1), max(width, 1)
        keeps_figures = self._is_read and request.name == self.request.name
        keeps_figures = keeps_figures and request.before == self.request.before
        if keeps_figures and request == self.request and size == request.size:
            return
        self.request = request._replace(size=size, whole=not keeps_figures)
        self._goal = goal or self._goal
        # pass a function: Python would warn about a coroutine that is replaced before it starts
        work: Callable[[], Any] = partial(self._fetch, self.request)
        self.run_worker(work, exclusive=True, exit_on_error=False)

    async def _fetch(self, request: MapRequest) -> None:
        earlier_fact = self.fact
        try:
            fact = await self._ask(request)
        except ExplorerError as error:
            if request.before is not None:
                self._pending_error = str(error)
                self.request = request._replace(before=None, size=(0, 0))
                self._lay_out()
                return
            if self._is_read:
                self.request = self._fetched  # the same key then requests it again
            else:
                self.fact = None
                self._show()
            self._say(str(error))
            return
        if not request.whole and earlier_fact is not None:
            fact = _add_figures(fact, earlier_fact)
        self.fact, self._fetched = fact, request
        goal, self._goal = self._goal, None
        if goal is not None and fact.cells:
            self.row, self.column = (
                (index - first) * cells // (stop - first)
                for index, (first, stop), cells in zip(
                    goal, (fact.rows, fact.columns), (fact.heights, fact.widths), strict=True
                )
            )
        self.row = max(0, min(self.row, fact.heights - 1))
        self.column = max(0, min(self.column, fact.widths - 1))
        self._show()
        if self._pending_error:
            self._say(self._pending_error)
            self._pending_error = ""

    @property
    def _cursor_place(self) -> tuple[int, int]:
        """Row and column of the tensor under the cursor."""
        assert self.fact is not None
        rows, columns = self.fact.rows, self.fact.columns
        if not self.fact.cells:
            return rows[0], columns[0]
        row = cell_span(rows, self.row, self.fact.heights)[0]
        return row, cell_span(columns, self.column, self.fact.widths)[0]

    @property
    def _sizes(self) -> tuple[int, int]:
        """Numbers of rows and columns of the whole matrix; a scalar is one cell, and a vector one row."""
        assert self.fact is not None
        shape = tuple(size for size in self.fact.tensor.shape or () if isinstance(size, int))
        return ((1, 1), (1, *shape[-1:]), shape[-2:])[min(len(shape), 2)]  # type: ignore[return-value]

    # keys

    def on_heat_panel_cell_clicked(self, event: HeatPanel.CellClicked) -> None:
        """Move the cursor to the clicked cell."""
        self.row, self.column = event.row, event.column
        self._show_cursor()

    def action_heat_step(self, row_step: int, column_step: int) -> None:
        """Move the cursor by one cell. At an edge, move the visible part by half its size."""
        fact = self.fact
        if fact is None:
            return
        row, column = self.row + row_step, self.column + column_step
        if 0 <= row < fact.heights and 0 <= column < fact.widths:
            self.row, self.column = row, column
            self._show_cursor()
            return
        axis = 0 if row_step else 1
        first, stop = (fact.rows, fact.columns)[axis]
        self._pan(axis, (row_step or column_step) * max((stop - first) // 2, 1), step=row_step or column_step)

    def _pan(self, axis: int, distance: int, step: int = 0) -> None:
        """Move the visible part by `distance` rows or columns, and the cursor by `step`."""
        if self.fact is None or not self.fact.cells:
            return
        first, stop = (self.fact.rows, self.fact.columns)[axis]
        size = self._sizes[axis]
        start = max(0, min(first + distance, size - (stop - first)))
        if start == first:
            return
        part = (start, start + stop - first)
        goal = list(self._cursor_place)
        goal[axis] = min(max(goal[axis] + step, start), part[1] - 1)
        name = "columns" if axis else "rows"
        self._request_map(self.request._replace(**{name: part}), tuple(goal))  # type: ignore[arg-type]

    def action_heat_page(self, step: int) -> None:
        """Move by the number of visible rows."""
        if self.fact is not None:
            height = self.fact.rows[1] - self.fact.rows[0]
            self._pan(0, step * height, step * height)

    def action_heat_edge(self, end: int) -> None:
        """Move the cursor to the first (`end` 0) or last (`end` 1) cell."""
        if self.fact is not None and self.fact.cells:
            self.row, self.column = (self.fact.heights - 1, self.fact.widths - 1) if end else (0, 0)
            self._show_cursor()

    def action_heat_zoom(self, step: int) -> None:
        """Show half as many (`step` 1) or twice as many (-1) rows and columns around the cursor."""
        fact = self.fact
        if fact is None or not fact.cells:
            return
        parts: list[Span] = []
        for (first, stop), center, size in zip(
            (fact.rows, fact.columns), self._cursor_place, self._sizes, strict=True
        ):
            count = (stop - first + 1) // 2 if step > 0 else min(2 * (stop - first), size)
            start = max(0, min(center - count // 2, size - count))
            parts.append((start, start + count))
        if parts != [fact.rows, fact.columns]:
            self._request_map(self.request._replace(rows=parts[0], columns=parts[1]), self._cursor_place)

    def action_heat_whole(self) -> None:
        """Show every row and column."""
        if self.fact is not None and self.fact.cells:
            self._request_map(self.request._replace(rows=None, columns=None), self._cursor_place)

    def action_heat_place(self, back: int, step: int) -> None:
        """Go to another index on the axis that is `back` axes before the last two."""
        fact = self.fact
        if fact is None or back > len(fact.place):
            return
        place, axis = list(self.request.place or fact.place), len(fact.place) - back
        size = (fact.tensor.shape or ())[axis]
        if isinstance(size, int) and size:
            place[axis] = (place[axis] + step) % size
            self._request_map(self.request._replace(place=tuple(place)), self._cursor_place)

    def action_heat_tensor(self, step: int) -> None:
        """Go to another tensor of the layer."""
        if len(self._names) > 1:
            self._tensor_index = (self._tensor_index + step) % len(self._names)
            self.row = self.column = 0
            self._outlier, self._goal = -1, None
            self._say("reading the numbers…", "dim")
            self._request_map(
                MapRequest(
                    self._names[self._tensor_index],
                    before=self._earlier_state if self._wants_earlier else None,
                )
            )

    def action_heat_outlier(self) -> None:
        """Go to the next of the numbers that are farthest from the mean."""
        fact = self.fact
        if fact is None or not fact.outliers:
            return
        self._outlier = (self._outlier + 1) % len(fact.outliers)
        outlier: Outlier = fact.outliers[self._outlier]
        *place, row, column = (0, 0, *outlier.index)[min(len(outlier.index), 2) :]
        request = self.request._replace(place=tuple(place))
        for name, index, part in (
            ("rows", row, self.request.rows),
            ("columns", column, self.request.columns),
        ):
            if part is not None and not part[0] <= index < part[1]:
                request = request._replace(**{name: None})  # type: ignore[arg-type]
        if request == self.request:
            self._goal = None
            self._move_to(row, column)
        else:
            self._request_map(request, (row, column))

    def _move_to(self, row: int, column: int) -> None:
        """Move the cursor to a number in the visible part."""
        assert self.fact is not None
        (top, bottom), (first_column, right) = self.fact.rows, self.fact.columns
        self.row = (row - top) * self.fact.heights // (bottom - top)
        self.column = (column - first_column) * self.fact.widths // (right - first_column)
        self._show_cursor()

    def action_heat_before(self) -> None:
        """Show or hide the map of the earlier state."""
        if self._earlier_state is None:
            self._say("this is the original model: there is no state before it")
            return
        self._wants_earlier = self.request.before is None
        earlier = self._earlier_state if self._wants_earlier else None
        self.request = self.request._replace(before=earlier, size=(0, 0))
        self.fact = None if earlier is not None else self.fact
        self._lay_out()

    def action_heat_about(self) -> None:
        """Show or hide the figures."""
        self._shows_figures = not self.has_class("-about")
        self._lay_out()

    def action_heat_scroll(self, step: int) -> None:
        """Scroll the figures."""
        self.query_one("#heat-about", LineView).action_scroll_page(step)


def _add_figures(fact: HeatMap, full: HeatMap) -> HeatMap:
    """Add the figures of the whole tensor from an earlier answer to the map of a part."""
    earlier = fact.before
    if earlier is not None and full.before is not None:
        earlier = _add_figures(earlier, full.before)
    return replace(fact, stats=full.stats, outliers=full.outliers, channels=full.channels, before=earlier)
