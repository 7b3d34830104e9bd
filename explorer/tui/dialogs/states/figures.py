"""The Figures screen: several models, states or tilings beside each other, and what is best in each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.report.html.draw import markdown_text
from explorer.report.present.compare.figures import figures
from explorer.tui.dialogs.dialogs import SubScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from explorer.facts.comparison import FigureTable
    from explorer.report.blocks import Block

_FIRST, _OTHER = 37, 27
"""Cells of the names of figures with the first column, and of each other one with its change."""
_FOOTER = (("↑↓", "scroll"), ("e", "exact"), ("y", "copy as Markdown"), ("Esc", "back"))

# fmt: off
FIGURE_KEYS = key_group(
    "In a table of figures",
    ("figures_exact", ("e",), "e", "Exact or rounded", "714.19 M or 714,188,480"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole table to the terminal as Markdown"),
)
# fmt: on


class FigureScreen(SubScreen[None]):
    """Figures beside each other.

    Args:
        table: They.
        what: What is compared: 'states', 'tilings', 'models'.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(FIGURE_KEYS)
    AUTO_FOCUS = "#figures"

    def __init__(self, table: FigureTable, what: str, *, exact: bool = False) -> None:
        super().__init__()
        self._table, self._what, self._exact = table, what, exact

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield LineView(id="figures")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the table."""
        names = self._table.names
        said = f" {len(names):,} {self._what} beside each other, changes from {safe(names[0])}"
        machine = self._table.machine and f"   on {safe(self._table.machine)}"
        head = (((" Figures", "strong"), (machine, "dim")), ((said, "dim"),))
        self.query_one(TitleBar).show(lambda width: head)
        self.query_one("#figures", LineView).show(self._page)
        self.query_one(Status).show(lambda width: (keys_line(_FOOTER, width),))

    def _page(self, width: int) -> Sequence[Line]:
        per = 1 + max(1, (width - _FIRST) // _OTHER)
        return [BLANK, *draw(figures(self._table, per), width - 1, self._exact)]

    def page_blocks(self) -> list[Block]:
        """All columns in one table."""
        return figures(self._table, len(self._table.names))

    def action_figures_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self.query_one("#figures", LineView).show(self._page)

    def action_figures_copy(self) -> None:
        """Send the table to the terminal's clipboard."""
        self.app.copy_to_clipboard(markdown_text(self.page_blocks()))
        self.query_one(Status).show(lambda width: (((" sent to terminal as Markdown", "dim"),),))
