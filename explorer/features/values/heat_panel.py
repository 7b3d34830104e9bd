"""Heat map on the screen: its colors, and the widget that paints it.

With colors, each terminal cell shows two numbers as half blocks. Without colors, it shows one number as a
shade.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from explorer.facts.values import HeatMap
from explorer.features.values.tensor_words import find_level, find_shade

_MAX_CELL_WIDTH = 12
"""Maximum width of a map cell, in terminal cells."""


class Picture(NamedTuple):
    """A heat map, its cursor, and the size of the area in which it is painted.

    Attributes:
        fact: Heat map to paint.
        largest: Magnitude of the numbers that get the strongest color.
        row, column: Map cell under the cursor.
        width, height: Available space, in terminal cells.
        colors: Palette, or None to paint shades.
    """

    fact: HeatMap
    largest: float
    row: int
    column: int
    width: int
    height: int
    colors: Palette | None

    @property
    def dots(self) -> int:
        """Number of values stacked in a terminal cell."""
        return 1 if self.colors is None else 2

    @property
    def cell_width(self) -> int:
        """Width of a map cell in terminal cells; more than 1 for a small tensor."""
        fact = self.fact
        if not fact.widths or not fact.heights:
            return 1
        height_limit = self.height * 2 // fact.heights
        return max(1, min(self.width // fact.widths, height_limit, _MAX_CELL_WIDTH))

    @property
    def cell_height(self) -> int:
        """Height of a map cell in dots. A half block is about as high as wide."""
        return self.cell_width if self.dots == 2 else max(1, self.cell_width // 2)

    def line(self, y: int) -> list[tuple[str, str, str]]:
        """Return terminal line `y` as pieces: text, foreground color and background color ('' for none)."""
        rows = [(y * self.dots + dot) // self.cell_height for dot in range(self.dots)]
        pieces: list[tuple[str, str, str]] = []
        if rows[0] >= self.fact.heights:
            return pieces
        for column in range(self.fact.widths):
            values = [self._get_value(row, column) for row in rows]
            if self.colors is None:
                pieces.append((find_shade(values[0], self.largest) * self.cell_width, "", ""))
            else:
                upper = self.colors.color(values[0], self.largest)
                lower = self.colors.color(values[1], self.largest) if rows[1] < self.fact.heights else ""
                pieces.append(("▀" * self.cell_width, upper, lower))
        dot = self.row * self.cell_height + self.cell_height // 2
        if dot // self.dots == y:
            self._mark_cursor(pieces, dot % self.dots)
        return pieces

    def _get_value(self, row: int, column: int) -> float | None:
        return self.fact.cells[row * self.fact.widths + column] if row < self.fact.heights else None

    def _mark_cursor(self, line: list[tuple[str, str, str]], dot: int) -> None:
        text, upper, lower = line[self.column]
        background = (upper, lower)[dot]
        middle = len(text) // 2
        cursor_piece = ("◆", "" if self.colors is None else self.colors.cursor, background)
        pieces = ((text[:middle], upper, lower), cursor_piece, (text[middle + 1 :], upper, lower))
        line[self.column : self.column + 1] = [part for part in pieces if part[0]]

    def cell_at(self, x: int, y: int) -> tuple[int, int] | None:
        """Return row and column of the map cell at a terminal position, or None outside the map."""
        row, column = y * self.dots // self.cell_height, x // self.cell_width
        is_inside = 0 <= row < self.fact.heights and 0 <= column < self.fact.widths
        return (row, column) if is_inside else None


class HeatPanel(Widget):
    """Widget that paints a heat map.

    Args:
        make: Function that returns the picture for a width, a height and a palette, or None before the map is
            read.
    """

    class CellClicked(Message):
        """Message about a click on a cell of the map."""

        def __init__(self, row: int, column: int) -> None:
            super().__init__()
            self.row, self.column = row, column

    def __init__(self, make: Callable[[int, int, Palette | None], Picture | None], *, id: str) -> None:
        super().__init__(id=id)
        self._make = make

    @property
    def picture(self) -> Picture | None:
        """The picture at the current size."""
        return self._make(self.size.width, self.size.height, self.terminal_palette)

    @property
    def terminal_palette(self) -> Palette | None:
        """The palette for the terminal, or None without colors."""
        if self.app.no_color:
            return None
        return choose_palette(self.app.current_theme.dark, self.app.console.color_system)

    def render_line(self, y: int) -> Strip:
        """Render terminal line `y`."""
        picture, base = self.picture, self.rich_style
        pieces = [] if picture is None else picture.line(y)
        segments = [
            Segment(text, base + Style(color=color or None, bgcolor=background or None))
            for text, color, background in pieces
        ]
        return Strip(segments).simplify().adjust_cell_length(self.size.width, base)

    def on_click(self, event: events.Click) -> None:
        """Post a message about the clicked cell."""
        cell = None if self.picture is None else self.picture.cell_at(event.x, event.y)
        if cell is not None:
            self.post_message(self.CellClicked(*cell))


class Palette(NamedTuple):
    """Colors of negative and positive numbers (weakest first), zero, missing values and the cursor."""

    negative: Sequence[str]
    positive: Sequence[str]
    zero: str
    missing: str
    cursor: str

    def color(self, value: float | None, largest: float) -> str:
        """Return the color of a number; a magnitude of `largest` gets the strongest color."""
        if value is None:
            return self.missing
        scale = self.positive if value > 0 else self.negative
        step = min(find_level(value, largest, len(scale) + 1), len(scale))
        return scale[step - 1] if step else self.zero


# Colors of the xterm palette, as in the themes. The weakest step is distinct from zero.
_DARK = Palette(
    ("#00005f", "#000087", "#005faf", "#0087d7", "#5fafff", "#afd7ff"),
    ("#5f0000", "#870000", "#af5f00", "#d78700", "#ffaf5f", "#ffd7af"),
    "#121212",
    "#8700af",
    "#ffffff",
)
_LIGHT = Palette(
    ("#d7d7ff", "#afd7ff", "#5fafff", "#0087d7", "#005faf", "#00005f"),
    ("#ffd7d7", "#ffd7af", "#ffaf5f", "#d78700", "#af5f00", "#5f0000"),
    "#ffffff",
    "#af00d7",
    "#000000",
)
# the Linux console has only the first eight colors for backgrounds
_DARK_16 = Palette(("#0000aa", "#00aaaa"), ("#aa0000", "#aa5500"), "#000000", "#aa00aa", "#ffffff")
_LIGHT_16 = Palette(("#00aaaa", "#0000aa"), ("#aa5500", "#aa0000"), "#aaaaaa", "#aa00aa", "#000000")


def choose_palette(dark: bool, color_system: str | None) -> Palette:
    """Return the palette for a dark or light theme and a color system of Rich."""
    has_few_colors = color_system in ("standard", "windows")
    return (_DARK_16 if has_few_colors else _DARK) if dark else (_LIGHT_16 if has_few_colors else _LIGHT)
