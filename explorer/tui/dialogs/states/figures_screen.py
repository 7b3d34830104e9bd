"""The Figures screen: several models, states or tilings beside each other, and what is best in each row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from explorer.report.present.compare.compared_figures import figures
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, safe

if TYPE_CHECKING:
    from explorer.facts.comparison import FigureTable
    from explorer.report.blocks import Block

_FIRST, _OTHER = 37, 27
"""Cells of the names of figures with the first column, and of each other one with its change."""

# fmt: off
FIGURE_KEYS = key_group(
    "In a table of figures",
    ("figures_exact", ("e",), "e", "Exact or rounded", "714.19 M or 714,188,480"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole table to the terminal as Markdown"),
)
# fmt: on


class FigureScreen(ReportScreen[None]):
    """Figures beside each other.

    Args:
        table: They.
        what: What is compared: 'states', 'tilings', 'models'.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(FIGURE_KEYS)

    def __init__(self, table: FigureTable, what: str, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._table, self._what = table, what

    def head(self) -> tuple[Line, Line]:
        """What is compared, and with what."""
        names = self._table.names
        said = f" {len(names):,} {self._what} beside each other, changes from {safe(names[0])}"
        machine = self._table.machine and f"   on {safe(self._table.machine)}"
        return ((" Figures", "strong"), (machine, "dim")), ((said, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """As many columns beside each other as there is room for."""
        per = 1 + max(1, (width - _FIRST) // _OTHER)
        return [BLANK, *draw(figures(self._table, per), width - 1, self._exact)]

    def page_blocks(self) -> list[Block]:
        """All columns in one table."""
        return figures(self._table, len(self._table.names))
