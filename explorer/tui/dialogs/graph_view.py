"""Graph view: a group's layers as boxes that the arrow keys walk through along the edges."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import ExplorerError
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.pages.graph import GraphCanvas, box_line, keys_line, neighbour, title_lines
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import Line, text
from explorer.tui.widgets.line_view import PanelView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.graph.drawing import GraphDrawing

Draw = Callable[[int | None], Awaitable["GraphDrawing"]]
"""Asks for the drawing of a group by its row; None for the whole model."""

# fmt: off
GRAPH_KEYS = key_group(
    "In the graph view",
    ("graph_step('down')", ("down", "j"), "↓ j", "To a reader", "Down along an edge, the straightest"),
    ("graph_step('up')", ("up", "k"), "↑ k", "To a maker", "Up along an edge, the straightest"),
    ("graph_step('left')", ("left", "h"), "← h", "Box to the left", "In the same rank"),
    ("graph_step('right')", ("right", "l"), "→ l", "Box to the right", "In the same rank"),
    ("graph_edge(0)", ("home", "g"), "Home g", "First box", "Where the data comes in"),
    ("graph_edge(1)", ("end", "G"), "End G", "Last box", "Where it goes out"),
    ("graph_to_tree", ("enter",), "Enter", "To the layer in the tree", "Backspace comes back from there"),
    ("graph_into", ("plus", "space"), "+ Space", "Into the group", "Draws what stands in the chosen box"),
    ("graph_out", ("minus",), "-", "Out of the group", "Draws what is around it"),
)
# fmt: on


class GraphView(SubScreen[int]):
    """Shows a drawing; Enter answers with the row of the chosen box.

    Args:
        drawing: What is shown first.
        row: Of the group that it is of; None for the whole model.
        chosen: Row of the layer that is chosen first, if it has a box.
        draw: Makes other drawings.
        around: The group that a group stands in.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(GRAPH_KEYS)
    AUTO_FOCUS = ""

    def __init__(
        self,
        drawing: GraphDrawing,
        row: int | None,
        chosen: int | None,
        draw: Draw,
        around: Callable[[int], int | None],
    ) -> None:
        super().__init__()
        self._ask, self._around, self.row = draw, around, row
        self._take(drawing, chosen)

    def _take(self, drawing: GraphDrawing, chosen: int | None) -> None:
        self.drawing, self._canvas = drawing, GraphCanvas(drawing)
        boxes = range(len(drawing.boxes))
        first = next((at for at in boxes if drawing.boxes[at].role in ("layer", "group", "part")), 0)
        mine = (at for at in boxes if chosen is not None and drawing.boxes[at].row == chosen)
        self.chosen = next(mine, first)
        self._corner = (0, 0)

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield PanelView(self._page, id="graph")
        yield Status(id="graph-box")
        yield Status(id="graph-keys")

    def on_mount(self) -> None:
        """Show the first drawing."""
        self.query_one("#graph-keys", Status).show(lambda width: (keys_line(width),))
        self._show()

    def _show(self) -> None:
        self.query_one(TitleBar).show(lambda width: title_lines(self.drawing, width))
        self._moved()

    def _moved(self) -> None:
        self.query_one("#graph", PanelView).again()
        if self.drawing.boxes:
            box = self.drawing.boxes[self.chosen]
            self.query_one("#graph-box", Status).show(lambda width: (box_line(box, width),))

    def _page(self, width: int, height: int) -> list[Line]:
        """The part of the drawing around the chosen box; it stays where it is while the box is in it."""
        drawing = self.drawing
        if not drawing.boxes or height < 1:
            return [text("nothing in it is to be drawn", "dim")]
        box = drawing.boxes[self.chosen]
        left, top = self._corner
        if not (left <= box.x and box.x + box.width <= left + width):
            left = box.x + box.width // 2 - width // 2
        if not (top <= box.y and box.y + box.height <= top + height):
            top = box.y + box.height // 2 - height // 2
        if drawing.width <= width:
            left = (drawing.width - width) // 2
        else:
            left = min(max(left, 0), drawing.width - width)
        top = 0 if drawing.height <= height else min(max(top, 0), drawing.height - height)
        self._corner = left, top
        return self._canvas.lines(self.chosen, left, top, width, height)

    # keys

    def action_graph_step(self, way: str) -> None:
        """To the next box."""
        if self.drawing.boxes and (found := neighbour(self.drawing, self.chosen, way)) is not None:
            self.chosen = found
            self._moved()

    def action_graph_edge(self, end: int) -> None:
        """To the first or the last box."""
        if self.drawing.boxes:
            self.chosen = len(self.drawing.boxes) - 1 if end else 0
            self._moved()

    def action_graph_to_tree(self) -> None:
        """Leave for the layer in the tree."""
        if self.drawing.boxes and (row := self.drawing.boxes[self.chosen].row) is not None:
            self.dismiss(row)

    def action_graph_into(self) -> None:
        """Draw the inside of the chosen box."""
        box = self.drawing.boxes[self.chosen] if self.drawing.boxes else None
        if box is not None and box.role == "group" and box.row is not None:
            self.run_worker(self._go(box.row, None), exclusive=True, exit_on_error=False)

    def action_graph_out(self) -> None:
        """Draw what is around the group on show."""
        if self.row is not None:
            self.run_worker(self._go(self._around(self.row), self.row), exclusive=True, exit_on_error=False)

    async def _go(self, row: int | None, chosen: int | None) -> None:
        try:
            drawing = await self._ask(row)
        except ExplorerError as error:
            said = str(error)
            self.query_one("#graph-box", Status).show(lambda width: (text(said[:width], "warn"),))
            return
        self.row = row
        self._take(drawing, chosen)
        self._show()
