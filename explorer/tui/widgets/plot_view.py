"""Plot view: a page with a plot, and a cursor that the arrow keys move from point to point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from explorer.tui.text.keys import MOVE, Key, bindings
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineView

Draw = Callable[[int, int, int], Sequence[Line]]  # draw(cursor, width, height)
Pick = Callable[[int, int, int, int], "int | None"]  # cursor = pick(column, row, width, height)

_BELOW = 2
"""Lines below the name of the current point that belong to it, such as its figures."""


# fmt: off
PLOT_KEYS = (
    Key("choose", ("enter",), "Enter", "To the layer", "From a plot's cursor to its layer in the tree", MOVE),
    Key("other", ("plus",), "+", "With the weights", "The memory on top of the weights, or alone", MOVE),
)
# fmt: on


class PlotView(LineView):
    """A page with a cursor, drawn for a width and a height. The current point's name has role `strong`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *bindings(PLOT_KEYS),
        Binding("left,h,up,k", "step(-1)", show=False),
        Binding("right,l,down,j", "step(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end", "edge(1)", show=False),
    ]

    class PointSelected(Message):
        """Sent when the user presses Enter on a point."""

        def __init__(self, source: PlotView) -> None:
            super().__init__()
            self.source = source

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = self.count = 0
        self.other = False  # whether the second form of the plot is shown
        self._pick: Pick = lambda x, y, width, height: None
        self._draw: Draw = lambda cursor, width, height: ()

    def show_plot(self, draw: Draw, count: int, cursor: int, pick: Pick | None = None) -> None:
        """Show `draw(cursor, width, height)` with a cursor from 0 to `count` - 1.

        `pick(column, row, width, height)` returns the cursor position for a click, or None.
        """
        self._draw, self.count = draw, count
        self._pick = pick or (lambda x, y, width, height: None)
        self.cursor = max(0, min(cursor, count - 1))
        self._redraw()

    def show_page(self, page: Callable[[int], Sequence[Line]]) -> None:
        """Show a page without a cursor, such as the reason that there is no plot."""
        self.show_plot(lambda cursor, width, height: page(width), 0, 0)

    def _redraw(self) -> None:
        draw, cursor = self._draw, self.cursor
        self.show(lambda width: draw(cursor, width, self.size.height))

    def on_resize(self, event: events.Resize) -> None:
        """Draw the plot for the new size."""
        self._redraw()

    def move_to(self, cursor: int) -> None:
        """Move the cursor. The plot is always drawn again, because its figures may have changed."""
        self.cursor = max(0, min(cursor, self.count - 1))
        self._redraw()
        self._keep_in_view()

    def _keep_in_view(self) -> None:
        """Scroll just enough to show the name of the current point and the lines that belong to it."""
        height, top = self.size.height, self.scroll_offset.y
        if not 0 < height < len(self.lines):
            return
        y = next((y for y, line in enumerate(self.lines) if any(role == "strong" for _, role in line)), None)
        if y is None:
            return
        last = min(y + min(_BELOW, height - 1), len(self.lines) - 1)
        if y < top or last >= top + height:
            self.scroll_to(y=y if y < top else last - height + 1, animate=False)

    async def on_click(self, event: events.Click) -> None:
        """Move the cursor to the clicked point."""
        position = self._pick(event.x, event.y + self.scroll_offset.y, self.size.width, self.size.height)
        if position is not None:
            self.move_to(position)

    def action_step(self, step: int) -> None:
        """Move the cursor by `step` points."""
        self.move_to(self.cursor + step)

    def action_page(self, step: int) -> None:
        """Scroll by a page if the page is longer than the pane; otherwise move by a tenth of the points."""
        if self.virtual_size.height > self.size.height:
            self.action_scroll_page(step)
        else:
            self.move_to(self.cursor + step * max(1, self.count // 10))

    def action_edge(self, end: int) -> None:
        """Move to the first point (0) or the last one (1)."""
        self.move_to(end * self.count)

    def action_other(self) -> None:
        """Switch to the second form of the plot."""
        self.other = not self.other
        self._redraw()

    def action_choose(self) -> None:
        """Send `PointSelected` for the current point."""
        if self.count:
            self.post_message(self.PointSelected(self))
