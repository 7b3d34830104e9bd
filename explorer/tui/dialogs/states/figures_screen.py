"""The Figures screen: a table that compares the figures of models, states or tilings, and marks the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from explorer.report.present.compare.compared_figures import build_figure_blocks
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, escape_name

if TYPE_CHECKING:
    from explorer.facts.comparison import FigureTable
    from explorer.report.blocks import Block

_FIRST, _OTHER = 37, 27
"""Width in cells of the names of the figures with the first model's column, and of each further column."""

# fmt: off
FIGURE_KEYS = key_group(
    "In a table of figures",
    ("figures_exact", ("e",), "e", "Exact or rounded", "714,188,480 or 714.19 M"),
    ("figures_copy", ("y",), "y", "Copy", "Copy the whole table as Markdown to the clipboard"),
)
# fmt: on


class FigureScreen(ReportScreen[None]):
    """Compares figures side by side.

    Args:
        table: Figures to compare.
        noun: Kind of the columns: 'states', 'tilings' or 'models'.
        exact: Whether numbers are written out instead of rounded.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(FIGURE_KEYS)

    def __init__(self, table: FigureTable, noun: str, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._table, self._noun = table, noun

    def head(self) -> tuple[Line, Line]:
        """Return the title: the compared objects, and the machine."""
        names = self._table.names
        description = f" {len(names):,} {self._noun} beside each other, changes from {escape_name(names[0])}"
        machine = self._table.machine and f"   on {escape_name(self._table.machine)}"
        return ((" Figures", "strong"), (machine, "dim")), ((description, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """Draw the table in parts that fit into `width`."""
        columns_per_part = 1 + max(1, (width - _FIRST) // _OTHER)
        return [BLANK, *draw(build_figure_blocks(self._table, columns_per_part), width - 1, self._exact)]

    def page_blocks(self) -> list[Block]:
        """Return all columns in one table."""
        return build_figure_blocks(self._table, len(self._table.names))
