"""Heat map on the screen: two numbers a cell by half blocks, and a cursor; without colours one, by shades."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from explorer.facts.values import HeatMap
from explorer.features.values.palette import Palette, palette
from explorer.features.values.tensor_words import shade

_WIDEST = 12
"""Columns of the terminal that a cell of a small tensor gets at most."""


class Picture(NamedTuple):
    """A map as it is painted.

    Attributes:
        fact: It.
        largest: The magnitude of the strongest colour.
        row, column: The cell of the cursor.
        width, height: Of the room, in cells of the terminal.
        colours: None for shades.
    """

    fact: HeatMap
    largest: float
    row: int
    column: int
    width: int
    height: int
    colours: Palette | None

    @property
    def dots(self) -> int:
        """Numbers that a cell of the terminal holds, one above the other."""
        return 1 if self.colours is None else 2

    @property
    def across(self) -> int:
        """Columns of the terminal that a cell of the map gets: of a small tensor several."""
        fact = self.fact
        if not fact.widths or not fact.heights:
            return 1
        down = self.height * 2 // fact.heights
        return max(1, min(self.width // fact.widths, down, _WIDEST))

    @property
    def down(self) -> int:
        """Dots downwards that a cell gets; a dot of half blocks is about as high as wide."""
        return self.across if self.dots == 2 else max(1, self.across // 2)

    def line(self, y: int) -> list[tuple[str, str, str]]:
        """Row `y` of the terminal: pieces of text, their colour and what lies under it ('' for nothing)."""
        rows = [(y * self.dots + dot) // self.down for dot in range(self.dots)]
        found: list[tuple[str, str, str]] = []
        if rows[0] >= self.fact.heights:
            return found
        for column in range(self.fact.widths):
            values = [self._value(row, column) for row in rows]
            if self.colours is None:
                found.append((shade(values[0], self.largest) * self.across, "", ""))
            else:
                upper = self.colours.colour(values[0], self.largest)
                lower = self.colours.colour(values[1], self.largest) if rows[1] < self.fact.heights else ""
                found.append(("▀" * self.across, upper, lower))
        dot = self.row * self.down + self.down // 2
        if dot // self.dots == y:
            self._mark(found, dot % self.dots)
        return found

    def _value(self, row: int, column: int) -> float | None:
        return self.fact.cells[row * self.fact.widths + column] if row < self.fact.heights else None

    def _mark(self, found: list[tuple[str, str, str]], dot: int) -> None:
        text, upper, lower = found[self.column]
        under = (upper, lower)[dot]
        middle = len(text) // 2
        marked = ("◆", "" if self.colours is None else self.colours.cursor, under)
        pieces = ((text[:middle], upper, lower), marked, (text[middle + 1 :], upper, lower))
        found[self.column : self.column + 1] = [piece for piece in pieces if piece[0]]

    def cell_at(self, x: int, y: int) -> tuple[int, int] | None:
        """The row and column of the map under a place; None beside it."""
        row, column = y * self.dots // self.down, x // self.across
        inside = 0 <= row < self.fact.heights and 0 <= column < self.fact.widths
        return (row, column) if inside else None


class HeatPanel(Widget):
    """Paints a map.

    Args:
        make: The picture for a width, a height and colours; None while there is none.
    """

    class CellClicked(Message):
        """A click on a cell of the map."""

        def __init__(self, row: int, column: int) -> None:
            super().__init__()
            self.row, self.column = row, column

    def __init__(self, make: Callable[[int, int, Palette | None], Picture | None], *, id: str) -> None:
        super().__init__(id=id)
        self._make = make

    @property
    def picture(self) -> Picture | None:
        """What is painted now."""
        return self._make(self.size.width, self.size.height, self.colours)

    @property
    def colours(self) -> Palette | None:
        """What the terminal can show; None without colours."""
        if self.app.no_color:
            return None
        return palette(self.app.current_theme.dark, self.app.console.color_system)

    def render_line(self, y: int) -> Strip:
        """Row `y`."""
        picture, base = self.picture, self.rich_style
        pieces = [] if picture is None else picture.line(y)
        segments = [
            Segment(text, base + Style(color=colour or None, bgcolor=under or None))
            for text, colour, under in pieces
        ]
        return Strip(segments).simplify().adjust_cell_length(self.size.width, base)

    def on_click(self, event: events.Click) -> None:
        """The cursor goes to where it was clicked."""
        found = None if self.picture is None else self.picture.cell_at(event.x, event.y)
        if found is not None:
            self.post_message(self.CellClicked(*found))
