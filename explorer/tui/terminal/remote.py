"""Textual drivers for SSH and the Linux console that send only changed cells.

If any part of a widget changed, Textual sends its whole lines, with the full style and a reset for each
piece. Moving the cursor at the lower edge of a list redraws 36 lines, 8 KB, most of which the terminal
already shows. `Canvas` parses Textual's output (cursor moves, styles, text), keeps the visible cells, and
sends only the differences. It forwards sequences that it does not know, and then forgets the visible cells.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from rich.cells import cell_len
from textual.drivers.linux_driver import LinuxDriver

from explorer.tui.terminal.console import GLYPHS

_TOKEN = re.compile(
    r"\x1b\[(?P<row>\d+);(?P<column>\d+)H"
    r"|\x1b\[(?P<style>[\d;]*)m"
    r"|(?P<line>\r?\n)"
    r"|(?P<text>[^\x00-\x1f\x7f]+)"
    r"|(?P<mode>\x1b\[[?><=][\d;]*\$?[a-z])"
    r"|(?P<other>\x1bP[^\x1b]*(?:\x1b[^\\][^\x1b]*)*\x1b\\|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[\d;]*[^\d;]|[\s\S])"
)
_SYNC_BEGIN, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
_KEEPS_CELLS = re.compile(r"\x1b\[[?><=](?!1049|47|1047)")  # mode changes, except those that switch screens
_JOIN = 3
"""Maximum number of unchanged cells that are sent again, because a cursor move would take more bytes."""

Style = tuple[tuple[str, ...], str, str]
"""Attributes, foreground and background, as SGR parameters."""
Cell = tuple[str, Style]

_PLAIN: Style = ((), "", "")


class Canvas:
    """The cells that the terminal shows."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell | None]] = {}
        self._row = self._column = 0  # cursor position assumed by Textual
        self._terminal_cursor: tuple[int, int] | None = None  # actual cursor position, or None if unknown
        self._style = ""  # SGR parameters since the last reset
        self._sync = False  # whether a synchronized update has begun that has not been forwarded
        self._dirty: dict[int, dict[int, Cell]] = {}  # written cells by row and column

    def forget(self) -> None:
        """Forget all cells, because the terminal may show anything after a resize or a screen switch."""
        self._rows.clear()
        self._terminal_cursor = None

    def reduce(self, output: str) -> str:
        """Return a shorter output that has the same visible effect as `output`."""
        output_parts: list[str] = []
        for token in _TOKEN.finditer(output):
            kind = token.lastgroup
            if kind == "text":
                self._write_text(token["text"])
            elif kind == "style":
                params = token["style"]
                self._style = (
                    "" if params in ("", "0") else f"{self._style};{params}" if self._style else params
                )
            elif kind == "column":
                self._row, self._column = int(token["row"]) - 1, int(token["column"]) - 1
            elif kind == "line":
                self._row, self._column = self._row + 1, 0
            elif token[0] == _SYNC_BEGIN:
                self._sync = True
            elif token[0] == _SYNC_END:
                self._flush(output_parts)
                if not self._sync:
                    output_parts.append(_SYNC_END)
                self._sync = False
            else:
                self._flush(output_parts)
                output_parts.append(token[0])
                if not _KEEPS_CELLS.match(token[0]) and token[0][:2] not in ("\x1b]", "\x1bP"):
                    self.forget()
        self._flush(output_parts)
        return "".join(output_parts)

    def _write_text(self, text: str) -> None:
        """Mark the cells that a text at the cursor changes as dirty, and move the cursor."""
        style = _parse(self._style)
        blank: Style = _find_blank_style(style)
        row = self._rows.setdefault(self._row, [])
        dirty = self._dirty.setdefault(self._row, {})
        column = self._column
        is_ascii = text.isascii()
        for char in text:
            width = 1 if is_ascii else cell_len(char)
            if width == 0:  # a combining character
                base_cell = dirty.get(column - 1) or (row[column - 1] if 0 < column <= len(row) else None)
                if base_cell is not None:
                    dirty[column - 1] = (base_cell[0] + char, base_cell[1])
                continue
            cell = (char, blank if char == " " else style)
            if column >= len(row):
                row.extend([None] * (column + 1 - len(row)))
            if row[column] != cell or column in dirty:
                dirty[column] = cell
            column += 1
            if width == 2:
                dirty[column - 1] = cell
                dirty[column] = ("", style)
                column += 1
        self._column = column

    def _flush(self, output_parts: list[str]) -> None:
        """Append the sequences that update the terminal to the dirty cells."""
        parts: list[str] = []
        cursor = self._terminal_cursor
        style: Style = _PLAIN
        for y in sorted(self._dirty):
            changes, row = self._dirty[y], self._rows[y]
            end_column = max(changes, default=-1) + 1
            if end_column > len(row):
                row.extend([None] * (end_column - len(row)))
            changed_columns = [x for x in sorted(changes) if row[x] != changes[x]]
            for x, cell in changes.items():
                row[x] = cell
            for x in changes:  # the terminal's other half of an overwritten wide character is unknown
                cell = row[x] or ("", _PLAIN)
                right = row[x + 1] if x + 1 < len(row) else None
                if cell[0] == "" and (x == 0 or cell_len((row[x - 1] or ("", _PLAIN))[0]) != 2):
                    row[x] = None
                elif right is not None and right[0] == "" and cell_len(cell[0]) != 2:
                    row[x + 1] = None
            end = -1
            for x in changed_columns:
                cell_at_x = row[x]
                if cell_at_x is None or cell_at_x[0] == "":
                    continue  # right half of a wide character
                start = x
                if end >= 0 and x - end <= _JOIN and all(row[i] for i in range(end, x)):
                    start = end
                elif cursor != (y, x):
                    parts.append(f"\x1b[{y + 1};{x + 1}H")
                for i in range(start, x + 1):
                    cell = row[i] or (" ", _PLAIN)
                    if cell[0] != " " or not _shows_blank(style, cell[1]):
                        next_style = _find_space_style(style, cell[1]) if cell[0] == " " else cell[1]
                        parts.append(_write_style_change(style, next_style))
                        style = next_style
                    parts.append(cell[0])
                end = x + max(1, cell_len(cell_at_x[0]))
                cursor = (y, end)
        self._dirty.clear()
        if parts:
            if style != _PLAIN:
                parts.append("\x1b[m")
            if self._sync:
                output_parts.append(_SYNC_BEGIN)
                self._sync = False
            output_parts.extend(parts)
            target = (self._row, self._column)
            if cursor != target:
                output_parts.append(
                    f"\x1b[{target[0] + 1};{target[1] + 1}H" if target != (0, 0) else "\x1b[H"
                )
            self._terminal_cursor = target


_COLOR_LEVELS = (0, 95, 135, 175, 215, 255)
_ENTRIES: dict[tuple[str, ...], int] = {
    **{
        (str(r), str(g), str(b)): 16 + 36 * i + 6 * j + k
        for i, r in enumerate(_COLOR_LEVELS)
        for j, g in enumerate(_COLOR_LEVELS)
        for k, b in enumerate(_COLOR_LEVELS)
    },
    **{(str(8 + 10 * i),) * 3: 232 + i for i in range(24)},
}
"""Palette index of each of the 240 fixed colors by its RGB value. Themes use only these colors."""


@lru_cache(4096)
def _parse(params: str) -> Style:
    """Parse SGR parameters. Colors of the palette are written as palette entries, which take fewer bytes."""
    attributes: list[str] = []
    colors = {"38": "", "48": ""}
    parts = iter(params.split(";") if params else ())
    for part in parts:
        if part in colors:
            kind = next(parts, "")
            values = [next(parts, "0") for _ in range(1 if kind == "5" else 3)]
            entry = _ENTRIES.get(tuple(values)) if kind == "2" else None
            colors[part] = f"{part};5;{entry}" if entry else ";".join((part, kind, *values))
        elif part in ("0", ""):
            attributes, colors = [], {"38": "", "48": ""}
        elif part.isdigit() and (30 <= int(part) <= 37 or 90 <= int(part) <= 97 or part == "39"):
            colors["38"] = "" if part == "39" else part
        elif part.isdigit() and (40 <= int(part) <= 47 or 100 <= int(part) <= 107 or part == "49"):
            colors["48"] = "" if part == "49" else part
        else:
            attributes.append(part)
    return tuple(attributes), colors["38"], colors["48"]


@lru_cache(4096)
def _find_blank_style(style: Style) -> Style:
    """Return the style of a space: only the background matters, unless attributes are visible on spaces."""
    attributes, _, background = style
    return style if _VISIBLE & set(attributes) else ((), "", background)


_VISIBLE = frozenset(("4", "5", "7", "9", "21", "53"))
"""SGR attributes that are visible on spaces."""
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "7": "27", "9": "29"}  # code that turns an attribute off


def _shows_blank(drawn: Style, blank: Style) -> bool:
    """Whether a space of style `blank` looks the same in the current style `drawn`: no change is needed."""
    return drawn[2] == blank[2] and not blank[0] and _VISIBLE.isdisjoint(drawn[0])


@lru_cache(4096)
def _find_space_style(drawn: Style, blank: Style) -> Style:
    """Return a style for a space that looks like `blank`, with the foreground of `drawn` if possible.

    The next word often has this foreground, so the style need not change again.
    """
    if _VISIBLE & {*drawn[0], *blank[0]}:
        return blank
    return drawn[0], drawn[1], blank[2]


@lru_cache(16384)
def _write_style_change(old: Style, new: Style) -> str:
    """Return the shortest sequence that changes one style into another."""
    if old == new:
        return ""
    parts = ["0", *new[0], *filter(None, new[1:])]
    removed = [attribute for attribute in old[0] if attribute not in new[0]]
    # one code turns off both bold and dim
    off = {_OFF[attribute] for attribute in removed if attribute in _OFF}
    if len(removed) == len([attribute for attribute in removed if attribute in _OFF]) and not (
        "22" in off and {"1", "2"} & set(new[0])
    ):
        steps = [*sorted(off), *(attribute for attribute in new[0] if attribute not in old[0])]
        steps += [n or plain for o, n, plain in zip(old[1:], new[1:], ("39", "49"), strict=True) if n != o]
        parts = min(steps, parts, key=lambda p: len(";".join(p)))
    return f"\x1b[{';'.join(parts)}m"


class RemoteDriver(LinuxDriver):
    """Textual's driver, with its output reduced by a `Canvas`."""

    canvas: Canvas | None = None
    glyphs: Mapping[int, str] = MappingProxyType({})

    def write(self, data: str) -> None:
        """Send the changes that `data` makes."""
        if self.canvas is None:
            self.canvas = Canvas()
        reduced = self.canvas.reduce(data.translate(self.glyphs) if self.glyphs else data)
        if reduced:
            super().write(reduced)

    def forget(self) -> None:
        """Forget all cells after a resize, so that everything is drawn again."""
        if self.canvas is not None:
            self.canvas.forget()


class ConsoleDriver(RemoteDriver):
    """The driver for the Linux console, which scrolls slowly even without SSH."""

    glyphs = GLYPHS
