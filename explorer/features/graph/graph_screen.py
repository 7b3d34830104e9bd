"""Graph view: draws layers as boxes; the arrow keys move from box to box along the edges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal

from explorer.base.errors import ExplorerError, Misuse
from explorer.features.graph.compact_page import RailPage, describe_missing_edges, draw_compact
from explorer.features.graph.graph_page import (
    COMPACT_FOOTER,
    GRAPH_FOOTER,
    SIGNS,
    GraphCanvas,
    View,
    describe_box,
    draw_overview,
    draw_plain,
    find_neighbor,
    title_lines,
)
from explorer.report.present.look.layers import build_overlay_fields
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.dialogs.search_dialog import SearchDialog
from explorer.tui.tabs.layer import layer_page
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import Line, text_line
from explorer.tui.widgets.line_view import LineView, PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.graph.drawing import GraphBox, GraphDrawing
    from explorer.tui.commands.context import CommandContext


_Span = tuple[int, int]
"""Half-open range of rows."""


class GraphRequest(NamedTuple):
    """Arguments of `Session.graph`.

    Attributes:
        row: Row of the group or layer to draw, or None for the whole model.
        steps: Number of edges around `row` to draw, or None to draw the contents of `row`.
        unfold: Groups to open, each as its row or as a range of rows.
        between: Rows of the two ends of a path to highlight, or None.
    """

    row: int | None = None
    steps: int | None = None
    unfold: tuple[_Span | int, ...] = ()
    between: tuple[int, int] | None = None


Draw = Callable[[GraphRequest], Awaitable["GraphDrawing"]]

# fmt: off
GRAPH_KEYS = key_group(
    "In the graph view",
    ("graph_step('down')", ("down", "j"), "↓ j", "To a consumer", "Go down along the straightest edge"),
    ("graph_step('up')", ("up", "k"), "↑ k", "To a producer", "Go up along the straightest edge"),
    ("graph_step('left')", ("left", "h"), "← h", "Box to the left", "In the same rank"),
    ("graph_step('right')", ("right", "l"), "→ l", "Box to the right", "In the same rank"),
    ("graph_edge(0)", ("home", "g"), "Home g", "First box", "Go to the box of the inputs"),
    ("graph_edge(1)", ("end", "G"), "End G", "Last box", "Go to the box of the outputs"),
    ("graph_to_tree", ("enter",), "Enter", "To the layer in the tree", "Backspace returns to the graph"),
    ("graph_unfold", ("plus",), "+", "Unfold the box", "Replace the box by the boxes inside it"),
    ("graph_fold", ("minus",), "-", "Fold", "Fold the unfolded box around it, or leave the group"),
    ("graph_into", ("i",), "i", "Into the group", "Draw only the layers inside the chosen box"),
    ("graph_out", ("o",), "o", "Out of the group", "Draw the group around this one"),
    ("graph_whole", ("0",), "0", "The whole model", "Draw the modules of the whole model"),
    ("graph_around(1)", ("1",), "1 - 4", "Neighborhood", "Draw the boxes that many edges away"),
    ("graph_mark", ("m", "space"), "m Space", "Mark", "Mark or unmark an end of a path, at most two"),
    ("graph_follow", ("f",), "f", "Follow the path", "Draw the path between the marks, or to the box"),
    ("graph_find", ("slash",), "/", "Find a layer", "Find a layer and unfold the groups around it"),
    ("graph_next(1)", ("n",), "n", "Next match", "Go to the next layer that / found"),
    ("graph_next(-1)", ("N",), "N", "Previous match", "Go to the previous layer that / found"),
    ("graph_about", ("a",), "a", "Details", "Show or hide the facts about the box"),
    ("graph_scroll(1)", ("pagedown",), "PgDn", "Scroll down", "Scroll the details down"),
    ("graph_scroll(-1)", ("pageup",), "PgUp", "Scroll up", "Scroll the details up"),
    ("graph_compact", ("c",), "c", "Compact form", "Draw a line for each box; ← → go along the rails"),
    ("graph_map", ("v",), "v", "Map", "Show or hide the map of a large drawing"),
    ("graph_back", ("backspace",), "Backspace", "Previous drawing", "Return to the previous drawing"),
)
_STEPS = key_group("", *((f"graph_around({n})", (str(n),), str(n), "Neighborhood", "") for n in (2, 3, 4)))
# fmt: on


class GraphView(SubScreen[int]):
    """Show a graph; Enter closes the view with the row of the chosen box as result.

    Args:
        drawing: Graph that is shown first.
        request: Request that produced `drawing`.
        chosen_row: Row of the layer whose box is chosen first, or None for the first box.
        draw: Async function that lays out another graph.
        layers: Rows of the layer tree.
        about: Function that returns the detail page of a row at a width in cells.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings([*GRAPH_KEYS, *_STEPS])
    FOOTER = GRAPH_FOOTER
    SIGNS = SIGNS
    AUTO_FOCUS = ""

    def __init__(
        self,
        drawing: GraphDrawing,
        request: GraphRequest,
        chosen_row: int | None,
        draw: Draw,
        layers: Sequence[Layer],
        about: Callable[[int, int], Sequence[Line]],
    ) -> None:
        super().__init__()
        self._ask, self._layers, self._about = draw, layers, about
        self._marks: list[int] = []
        self._earlier: list[tuple[GraphRequest, int | None]] = []  # earlier drawings and their chosen rows
        self._matches: list[int] = []
        self._shows_map = True
        self._shows_details: bool | None = None
        self._is_compact = False
        self._rails: RailPage | None = None
        self._set_drawing(drawing, request, chosen_row)

    def _set_drawing(self, drawing: GraphDrawing, request: GraphRequest, chosen_row: int | None) -> None:
        self.request = request._replace(unfold=drawing.unfolded)
        self.drawing, self._canvas = drawing, GraphCanvas(drawing, self._marks)
        self._rails = None
        first = next((index for index, box in enumerate(drawing.boxes) if box.layers), 0)
        self.chosen = first if chosen_row is None else _find_box(drawing, chosen_row, first)
        self._corner = (0, 0)

    @property
    def box(self) -> GraphBox | None:
        """The chosen box."""
        return self.drawing.boxes[self.chosen] if self.drawing.boxes else None

    def compose(self) -> ComposeResult:
        """Yield the title bar, the graph, its detail page, the line of the chosen box and the key line."""
        yield TitleBar()
        with Horizontal(id="graph-panes"):
            yield PanelView(self._draw_page, id="graph")
            yield LineView(id="graph-about", focusable=False)
        yield Status(id="graph-box")
        yield Status(id="graph-keys")

    def on_mount(self) -> None:
        """Show the first drawing."""
        self.show_keys()
        self._lay_out()
        self._show()

    def on_resize(self) -> None:
        """Show or hide the detail page for the new width."""
        self._lay_out()

    def show_keys(self, message: str = "") -> None:
        """Show the keys of the form in the last line."""
        keys = COMPACT_FOOTER if self._is_compact else GRAPH_FOOTER
        self.query_one("#graph-keys", Status).show(lambda width: (keys_line(keys, width, message),))

    def page_text(self) -> str:
        """Return the whole drawing as text."""
        return "".join((draw_compact if self._is_compact else draw_plain)(self.drawing))

    def verb_words(self, source: str) -> list[str]:
        """Return the command that writes the same drawing as text."""
        row, steps, unfold, between = self.request
        words = ["graph", source, "-o", "graph.txt"]
        if row is not None:
            words += ["--layer", self._layers[row].path]
        words += ["--depth", "1"] if steps is None else ["--steps", str(steps)]
        words += ["--compact"] if self._is_compact else []
        for group in unfold:
            words += ["--unfold", self._layers[group if isinstance(group, int) else group[0]].path]
        ends = () if between is None else zip(("--from", "--to"), between, strict=True)
        return [*words, *(word for flag, end in ends for word in (flag, self._layers[end].path))]

    def _lay_out(self) -> None:
        # on a remote terminal every cell costs bytes
        has_room = self.size.width >= _MIN_DETAIL_WIDTH and not self.app.has_class("remote")
        self.set_class(has_room if self._shows_details is None else self._shows_details, "-about")

    def _show(self) -> None:
        self.query_one(TitleBar).show(lambda width: title_lines(self.drawing, self.request.steps, width))
        self._redraw()

    def _redraw(self) -> None:
        self.query_one("#graph", PanelView).redraw()
        self._show_box()

    def _show_box(self) -> None:
        """Describe the chosen box in the line below the drawing, and on the page beside it."""
        self.has_message = False
        box = self.box
        if box is not None:
            self.query_one("#graph-box", Status).show(lambda width: (describe_box(box, width),))
            row = box.row
            page = () if row is None else lambda width: self._about(row, width)
            self.query_one("#graph-about", LineView).show(page or (lambda width: ()), top=True)

    def forget_message(self) -> None:
        """Describe the chosen box again after a message about an earlier key."""
        if self.has_message:
            self._show_box()

    def _say(self, message: str, role: str = "warn") -> None:
        self.has_message = True
        self.query_one("#graph-box", Status).show(lambda width: (text_line(f" {message}"[:width], role),))

    def _draw_page(self, width: int, height: int) -> list[Line]:
        """Return the visible part of the drawing; scroll only if the chosen box is outside of it."""
        drawing, box = self.drawing, self.box
        if box is None or height < 1:
            return [text_line("no layer to draw in this group", "dim")]
        if self._is_compact:
            return self._draw_compact_page(width, height)
        left, top = self._corner
        if not (left <= box.x and box.x + box.width <= left + width):
            left = box.x + box.width // 2 - width // 2
        if not (top <= box.y and box.y + box.height <= top + height):
            top = box.y + box.height // 2 - height // 2
        if drawing.width <= width:
            left = (drawing.width - width) // 2
        else:
            left = min(max(left, 0), self._canvas.width - width)
        top = 0 if drawing.height <= height else min(max(top, 0), drawing.height - height)
        self._corner = left, top
        lines = self._canvas.lines(self.chosen, left, top, width, height)
        return (
            draw_overview(lines, drawing, self.chosen, View(left, top, width, height))
            if self._shows_map
            else lines
        )

    def _draw_compact_page(self, width: int, height: int) -> list[Line]:
        """Return the visible lines of the compact form; scroll only if the chosen line is outside of them."""
        count, top = len(self.drawing.boxes), self._corner[1]
        if not top <= self.chosen < top + height:
            top = self.chosen - height // 2
        top = max(0, min(top, count - height))
        self._corner = 0, top
        max_rails = max(_MIN_RAILS, width // _CELLS_OF_RAIL)
        if self._rails is None or self._rails.max_rails != max_rails:
            self._rails = RailPage(self.drawing, self._marks, max_rails)
            if self._rails.missing:
                self.call_later(self._say, describe_missing_edges(self._rails.missing))
        return self._rails.lines(self.chosen, top, width, height)

    async def on_click(self, event: events.Click) -> None:
        """Choose the clicked box, or open it if it is chosen already."""
        if getattr(event.widget, "id", "") != "graph":
            return
        x, y = event.x + self._corner[0], event.y + self._corner[1]
        for index, box in enumerate(self.drawing.boxes):
            if (self._is_compact and index == y) or (
                not self._is_compact and 0 <= x - box.x < box.width and 0 <= y - box.y < box.height
            ):
                if index == self.chosen:
                    self.action_graph_unfold()
                self.chosen = index
                self._redraw()

    # keys: from box to box

    def action_graph_step(self, direction: str) -> None:
        """Move to the next box in a direction: 'up', 'down', 'left' or 'right'."""
        if self.drawing.boxes and (index := self._find_neighbor(direction)) is not None:
            self.chosen = index
            self._redraw()

    def _find_neighbor(self, direction: str) -> int | None:
        """Return the index of the box that an arrow key leads to, or None."""
        if self._rails is None or not self._is_compact:
            return find_neighbor(self.drawing, self.chosen, direction)
        if direction in ("left", "right"):
            find = self._rails.find_producer if direction == "left" else self._rails.find_reader
            return find(self.chosen)
        index = self.chosen + (1 if direction == "down" else -1)
        return index if 0 <= index < len(self.drawing.boxes) else None

    def action_graph_edge(self, end: int) -> None:
        """Move to the first (`end` 0) or last (`end` 1) box."""
        if self.drawing.boxes:
            self.chosen = len(self.drawing.boxes) - 1 if end else 0
            self._redraw()

    def action_graph_to_tree(self) -> None:
        """Close the view and go to the layer in the tree."""
        if self.box is not None and (row := self.box.row) is not None:
            self.dismiss(row)

    def action_graph_about(self) -> None:
        """Show or hide the detail page."""
        self._shows_details = not self.has_class("-about")
        self._lay_out()

    def action_graph_scroll(self, step: int) -> None:
        """Scroll the detail page."""
        self.query_one("#graph-about", LineView).action_scroll_page(step)

    def action_graph_compact(self) -> None:
        """Switch between one line for each box, and boxes."""
        self._is_compact = not self._is_compact
        self._corner = (0, 0)
        self.show_keys()
        self._redraw()

    def action_graph_map(self) -> None:
        """Show or hide the overview map."""
        self._shows_map = not self._shows_map
        self._redraw()

    # keys: other drawings

    def action_graph_unfold(self) -> None:
        """Open the chosen box: replace it by the boxes inside it."""
        box = self.box
        if box is not None and box.unfolds is not None:
            unfold = (*self.drawing.unfolded, box.unfolds)
            self._go(self.request._replace(unfold=unfold), box.row, keeps_place=True)
        elif box is not None:
            self._say(
                "this box is one operator, without parts" if box.layers else "this box is outside the group"
            )

    def action_graph_fold(self) -> None:
        """Close the smallest open group that contains the chosen box. Without one, draw the outer group."""
        rows = None if self.box is None else self.box.rows
        enclosing = [span for span in self.drawing.unfolded if rows is not None and _is_within(rows, span)]
        if not enclosing:
            self.action_graph_out()
            return
        span = min(enclosing, key=lambda span: span[1] - span[0])
        unfolded = tuple([group for group in self.drawing.unfolded if not _is_within(group, span)])
        # a mark inside the folded group becomes a mark of the group
        self._marks = [span[0] if span[0] <= mark < span[1] else mark for mark in self._marks]
        between = self.request.between
        if between is not None and any(span[0] <= end < span[1] for end in between):
            between = None
        self._go(self.request._replace(unfold=unfolded, between=between), span[0], keeps_place=True)

    def action_graph_into(self) -> None:
        """Draw only the inside of the chosen group."""
        if self.box is not None and self.box.role == "group":
            self._go(GraphRequest(self.box.row), None)

    def action_graph_out(self) -> None:
        """Draw the group that contains the drawn group or layer."""
        row = self.request.row
        if row is not None:
            self._go(GraphRequest(self._layers[row].parent), row)

    def action_graph_whole(self) -> None:
        """Draw the whole model with all groups closed."""
        self._go(GraphRequest(), None if self.box is None else self.box.row)

    def action_graph_around(self, steps: int) -> None:
        """Draw the chosen box with its neighbors up to `steps` edges away."""
        if self.box is not None and self.box.row is not None:
            if self.box.role == "part":
                self._say("a part has no neighbors of its own; + shows its contents")
            else:
                self._go(GraphRequest(self.box.row, steps), self.box.row)

    def action_graph_back(self) -> None:
        """Return to the previous drawing."""
        if self._earlier:
            request, chosen_row = self._earlier.pop()
            self._go(request, chosen_row, back=True)

    # keys: paths

    def action_graph_mark(self) -> None:
        """Mark or unmark the chosen layer or group as an end of a path. A third mark replaces the oldest."""
        box = self.box
        if box is None or box.role not in ("layer", "group") or box.row is None:
            self._say("only layers and groups are marked")
            return
        marks = [mark for mark in self._marks if mark != box.row]
        self._marks = [*marks, box.row][-2:] if len(marks) == len(self._marks) else marks
        self._canvas, self._rails = GraphCanvas(self.drawing, self._marks), None
        self._redraw()

    def action_graph_follow(self) -> None:
        """Highlight the paths between two marks, or between one mark and the chosen box; or stop doing so."""
        if self.request.between is not None:
            self._go(self.request._replace(between=None), self._chosen_row, keeps_place=True)
            return
        ends = [*self._marks]
        if len(ends) == 1 and self._chosen_row is not None and self._chosen_row != ends[0]:
            ends.append(self._chosen_row)
        if len(ends) < 2:
            self._say("m marks a layer; mark two, and f follows the paths between them")
            return
        request = self.request._replace(between=(min(ends), max(ends)))
        group = request.row
        if request.steps is None and not all(self._is_inside(end, group) for end in ends):
            request = GraphRequest(between=request.between)  # the whole model contains both ends
        self._go(request, min(ends))

    @property
    def _chosen_row(self) -> int | None:
        return None if self.box is None else self.box.row

    def _is_inside(self, row: int | None, group: int | None) -> bool:
        """Return whether `row` is the row `group` or inside it. Group None is the whole model."""
        while row is not None and row != group:
            row = self._layers[row].parent
        return row == group

    # keys: search

    def action_graph_find(self) -> None:
        """Search for a layer in the whole model and show it."""
        dialog = SearchDialog((), self._layers)

        def on_chosen(id: str | None) -> None:
            if id is not None and dialog.search is not None:
                match = dialog.listed[id]
                self._matches = dialog.search.list_visited_layers(match)
                self._reveal(match.layers[0])

        self.app.push_screen(dialog, on_chosen)

    def action_graph_next(self, step: int) -> None:
        """Go to the next or previous search result, with wraparound."""
        if not self._matches:
            self._say("no search yet: / searches")
            return
        current_row = -1 if self._chosen_row is None else self._chosen_row
        candidates = [row for row in self._matches if (row - current_row) * step > 0]
        self._reveal(min(candidates or self._matches) if step > 0 else max(candidates or self._matches))

    def _reveal(self, row: int) -> None:
        index = _find_box(self.drawing, row, -1)
        if index >= 0 and self.drawing.boxes[index].row == row:
            self.chosen = index
            self._redraw()
        elif self.request.steps is None and self._is_inside(row, self.request.row):
            self._go(self.request._replace(unfold=(*self.drawing.unfolded, row)), row, keeps_place=True)
        else:
            self._go(GraphRequest(unfold=(row,)), row)

    # drawing

    def _go(
        self, request: GraphRequest, chosen_row: int | None, *, keeps_place: bool = False, back: bool = False
    ) -> None:
        """Draw a request in the background. Unless `back`, Backspace returns to the present drawing."""
        self.run_worker(
            self._draw(request, chosen_row, keeps_place, back), exclusive=True, exit_on_error=False
        )

    async def _draw(
        self, request: GraphRequest, chosen_row: int | None, keeps_place: bool, back: bool
    ) -> None:
        """Request a drawing and show it; `keeps_place` keeps the chosen box at its place on the screen."""
        previous = self.request, self._chosen_row
        box, corner = self.box, self._corner
        try:
            drawing = await self._request_drawing(request)
        except ExplorerError as error:
            self._say(str(error))
            return
        if not back:
            self._earlier.append(previous)
        self._set_drawing(drawing, request, chosen_row)
        if keeps_place and box is not None and self.box is not None:
            moved_box = self.box
            self._corner = corner[0] + moved_box.x - box.x, corner[1] + moved_box.y - box.y
        self._show()

    async def _request_drawing(self, request: GraphRequest) -> GraphDrawing:
        """Request a drawing. If no path leads from the first end to the second, try the other direction."""
        try:
            return await self._ask(request)
        except Misuse:
            if request.between is None:
                raise
            try:
                return await self._ask(request._replace(between=request.between[::-1]))
            except Misuse:
                pass
            raise


_MIN_RAILS, _CELLS_OF_RAIL = 4, 6
"""Minimum number of rails in the compact form, and cells of the pane for each rail."""
_MIN_DETAIL_WIDTH = 124
"""Minimum width of the screen, in cells, for the detail page next to the drawing."""


def _is_within(rows: _Span, span: _Span) -> bool:
    """Return whether the row range `rows` is inside the row range `span`."""
    return span[0] <= rows[0] and rows[1] <= span[1]


def _find_box(drawing: GraphDrawing, row: int, otherwise: int) -> int:
    """Return the index of a row's box, else of the smallest box around it, of the next, or `otherwise`."""
    boxes = [
        (box.rows, index) for index, box in enumerate(drawing.boxes) if box.rows and box.role != "outside"
    ]
    exact = [index for _, index in boxes if drawing.boxes[index].row == row]
    surrounding = [(rows[1] - rows[0], index) for rows, index in boxes if rows[0] <= row < rows[1]]
    following = [(rows[0], index) for rows, index in boxes if rows[0] > row]
    return exact[0] if exact else min(surrounding or following, default=(0, otherwise))[1]


def draw_graph(context: CommandContext) -> None:
    """Draw the inside of the chosen group, or the group that contains the chosen layer."""
    context.open_view("Graph", _show(context))


async def _show(context: CommandContext) -> None:
    layer, store, tree = context.tree.current_layer, context.store, context.tree
    if layer is None:
        return

    async def ask(request: GraphRequest) -> GraphDrawing:
        row, steps, unfold, between = request
        options = {"steps": steps, "unfold": unfold, "between": between}
        drawing: GraphDrawing = await context.jobs.ask("graph", row, depth=1, **options)
        return drawing

    def draw_details(row: int, width: int) -> list[Line]:
        assert store.analysis is not None
        overlay_fields, totals = build_overlay_fields(tree.model.overlay, row), store.analysis.info.totals
        return layer_page([tree.model.layers[row]], totals, width, store.exact, overlay_fields=overlay_fields)

    request = GraphRequest(layer.id if layer.group else layer.parent)
    drawing: GraphDrawing = await context.jobs.run("drawing the graph", "graph", request.row, depth=1)
    chosen_row = None if layer.group else layer.id
    context.ask(
        GraphView(drawing, request, chosen_row, ask, tree.model.layers, draw_details), context.move_to_row
    )
