"""Plot view: a page with a plot whose cursor the arrow keys move: along the steps, or from layer to layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from explorer.tui.text.keys import MOVE, Key, bindings
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineView

Draw = Callable[[int, int, int], Sequence[Line]]
PickDialog = Callable[[int, int, int, int], "int | None"]

_BELOW = 2
"""Lines under the name of what the cursor is on that belong to it: a long name goes on, figures follow."""


# fmt: off
PLOT_KEYS = (
    Key("choose", ("enter",), "Enter", "To the layer", "From a plot's cursor to its layer in the tree", MOVE),
    Key("other", ("plus",), "+", "With the weights", "The memory on top of the weights, or alone", MOVE),
)
# fmt: on


class PlotView(LineView):
    """A page made for a width, a height and a cursor; what the cursor is on is named in role `strong`."""

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
        """Enter."""

        def __init__(self, source: PlotView) -> None:
            super().__init__()
            self.source = source

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = self.count = 0
        self.other = False
        self._pick: PickDialog = lambda x, y, width, height: None
        self._draw: Draw = lambda cursor, width, height: ()

    def show_plot(self, draw: Draw, count: int, cursor: int, pick: PickDialog | None = None) -> None:
        """Show `draw(cursor, width, height)`, whose cursor goes from 0 to `count` - 1.

        `pick(column, row, width, height)` is where a click puts the cursor, if anywhere.
        """
        self._draw, self.count = draw, count
        self._pick = pick or (lambda x, y, width, height: None)
        self.cursor = max(0, min(cursor, count - 1))
        self._again()

    def show_page(self, page: Callable[[int], Sequence[Line]]) -> None:
        """Show a page without a cursor: why there is no plot."""
        self.show_plot(lambda cursor, width, height: page(width), 0, 0)

    def _again(self) -> None:
        draw, cursor = self._draw, self.cursor
        self.show(lambda width: draw(cursor, width, self.size.height))

    def on_resize(self, event: events.Resize) -> None:
        """Lay out for the new size: the plot's height follows the pane's."""
        self._again()

    def move_to(self, cursor: int) -> None:
        """Put the cursor elsewhere; draw again even if it is there, for what it stands for may differ."""
        self.cursor = max(0, min(cursor, self.count - 1))
        self._again()
        self._keep_in_view()

    def _keep_in_view(self) -> None:
        """Scroll no further than it takes to see what the cursor is on, and what is said of it below."""
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
        """Handles a click."""
        found = self._pick(event.x, event.y + self.scroll_offset.y, self.size.width, self.size.height)
        if found is not None:
            self.move_to(found)

    def action_step(self, step: int) -> None:
        """One to the left or right."""
        self.move_to(self.cursor + step)

    def action_page(self, step: int) -> None:
        """Read on where the page is longer than the pane, else a tenth of the plot on."""
        if self.virtual_size.height > self.size.height:
            self.action_scroll_page(step)
        else:
            self.move_to(self.cursor + step * max(1, self.count // 10))

    def action_edge(self, end: int) -> None:
        """To the first or the last."""
        self.move_to(end * self.count)

    def action_other(self) -> None:
        """Draw the other form of a plot that has two."""
        self.other = not self.other
        self._again()

    def action_choose(self) -> None:
        """Say that this is the one."""
        if self.count:
            self.post_message(self.PointSelected(self))
