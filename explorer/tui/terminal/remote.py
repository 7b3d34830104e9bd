"""Textual's driver, over SSH and on a console: send only the cells that changed, in glyphs that are there.

Textual sends a widget's whole lines when any of it changed, each piece with its full style and a reset
behind it: moving the cursor through a list at its lower edge redraws 36 lines, 8 KB. The terminal already
shows most of those cells. `Canvas` keeps what the terminal shows, reads what Textual writes (moves,
styles, text), and writes what differs. What it does not know it passes on, and forgets what it held.
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
    r"|(?P<mode>\x1b\[[?>=][\d;]*[a-z])"
    r"|(?P<other>\x1bP[^\x1b]*(?:\x1b[^\\][^\x1b]*)*\x1b\\|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[\d;]*[^\d;]|[\s\S])"
)
_SYNC_BEGIN, _SYNC_END = "\x1b[?2026h", "\x1b[?2026l"
_KEEPS_CELLS = re.compile(r"\x1b\[[?>=](?!1049|47|1047)")
_JOIN = 3
"""Cells that did not change but are sent again, because moving the cursor costs more."""

Style = tuple[tuple[str, ...], str, str]
"""Attributes, foreground, background."""
Cell = tuple[str, Style]

_PLAIN: Style = ((), "", "")


class Canvas:
    """What the terminal shows, cell by cell."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell | None]] = {}
        self._row = self._column = 0  # where Textual thinks the cursor is
        self._told: tuple[int, int] | None = None  # where it is
        self._style = ""
        self._sync = False
        self._dirty: dict[int, dict[int, Cell]] = {}

    def forget(self) -> None:
        """The terminal may show anything: a resize, another screen."""
        self._rows.clear()
        self._told = None

    def reduce(self, output: str) -> str:
        """What must be sent so that the terminal shows what `output` would have made it show."""
        out: list[str] = []
        for token in _TOKEN.finditer(output):
            kind = token.lastgroup
            if kind == "text":
                self._put(token["text"])
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
                self._flush(out)
                if not self._sync:
                    out.append(_SYNC_END)
                self._sync = False
            else:
                self._flush(out)
                out.append(token[0])
                if not _KEEPS_CELLS.match(token[0]) and token[0][:2] not in ("\x1b]", "\x1bP"):
                    self.forget()
        self._flush(out)
        return "".join(out)

    def _put(self, text: str) -> None:
        style = _parse(self._style)
        blank: Style = _blank(style)
        row = self._rows.setdefault(self._row, [])
        dirty = self._dirty.setdefault(self._row, {})
        column = self._column
        narrow = text.isascii()
        for char in text:
            width = 1 if narrow else cell_len(char)
            if width == 0:  # combines with the character before it
                before = dirty.get(column - 1) or (row[column - 1] if 0 < column <= len(row) else None)
                if before is not None:
                    dirty[column - 1] = (before[0] + char, before[1])
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

    def _flush(self, out: list[str]) -> None:
        pieces: list[str] = []
        cursor = self._told
        style: Style = _PLAIN
        for y in sorted(self._dirty):
            changes, row = self._dirty[y], self._rows[y]
            reach = max(changes, default=-1) + 1
            if reach > len(row):
                row.extend([None] * (reach - len(row)))
            changed = [x for x in sorted(changes) if row[x] != changes[x]]
            for x, cell in changes.items():
                row[x] = cell
            for x in changes:  # half of a wide character was overwritten: nobody knows what is shown
                cell = row[x] or ("", _PLAIN)
                right = row[x + 1] if x + 1 < len(row) else None
                if cell[0] == "" and (x == 0 or cell_len((row[x - 1] or ("", _PLAIN))[0]) != 2):
                    row[x] = None
                elif right is not None and right[0] == "" and cell_len(cell[0]) != 2:
                    row[x + 1] = None
            at = -1
            for x in changed:
                now = row[x]
                if now is None or now[0] == "":
                    continue  # the right half of the cell before it
                start = x
                if at >= 0 and x - at <= _JOIN and all(row[i] for i in range(at, x)):
                    start = at
                elif cursor != (y, x):
                    pieces.append(f"\x1b[{y + 1};{x + 1}H")
                for i in range(start, x + 1):
                    cell = row[i] or (" ", _PLAIN)
                    if cell[0] != " " or not _shows_blank(style, cell[1]):
                        due = _over(style, cell[1]) if cell[0] == " " else cell[1]
                        pieces.append(_change(style, due))
                        style = due
                    pieces.append(cell[0])
                at = x + max(1, cell_len(now[0]))
                cursor = (y, at)
        self._dirty.clear()
        if pieces:
            if style != _PLAIN:
                pieces.append("\x1b[m")
            if self._sync:
                out.append(_SYNC_BEGIN)
                self._sync = False
            out.extend(pieces)
            target = (self._row, self._column)
            if cursor != target:
                out.append(f"\x1b[{target[0] + 1};{target[1] + 1}H" if target != (0, 0) else "\x1b[H")
            self._told = target


_STEPS = (0, 95, 135, 175, 215, 255)
_ENTRIES: dict[tuple[str, ...], int] = {
    **{
        (str(r), str(g), str(b)): 16 + 36 * i + 6 * j + k
        for i, r in enumerate(_STEPS)
        for j, g in enumerate(_STEPS)
        for k, b in enumerate(_STEPS)
    },
    **{(str(8 + 10 * i),) * 3: 232 + i for i in range(24)},
}
"""The 240 fixed colours of the palette: the themes use no others, and a number is shorter."""


@lru_cache(4096)
def _parse(params: str) -> Style:
    attributes: list[str] = []
    colours = {"38": "", "48": ""}
    parts = iter(params.split(";") if params else ())
    for part in parts:
        if part in colours:
            kind = next(parts, "")
            rest = [next(parts, "0") for _ in range(1 if kind == "5" else 3)]
            entry = _ENTRIES.get(tuple(rest)) if kind == "2" else None
            colours[part] = f"{part};5;{entry}" if entry else ";".join((part, kind, *rest))
        elif part in ("0", ""):
            attributes, colours = [], {"38": "", "48": ""}
        elif part.isdigit() and (30 <= int(part) <= 37 or 90 <= int(part) <= 97 or part == "39"):
            colours["38"] = "" if part == "39" else part
        elif part.isdigit() and (40 <= int(part) <= 47 or 100 <= int(part) <= 107 or part == "49"):
            colours["48"] = "" if part == "49" else part
        else:
            attributes.append(part)
    return tuple(attributes), colours["38"], colours["48"]


@lru_cache(4096)
def _blank(style: Style) -> Style:
    """The style that matters for a blank: its background, unless something is drawn on it."""
    attributes, _, background = style
    return style if _DRAWN & set(attributes) else ((), "", background)


_DRAWN = frozenset(("4", "5", "7", "9", "21", "53"))
"""Attributes that a blank shows."""
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "7": "27", "9": "29"}


def _shows_blank(drawn: Style, blank: Style) -> bool:
    """Whether a blank looks the same in the style of what stands before it: most words are one colour."""
    return drawn[2] == blank[2] and not blank[0] and _DRAWN.isdisjoint(drawn[0])


@lru_cache(4096)
def _over(drawn: Style, blank: Style) -> Style:
    """A blank's style with the letters' colour of what stands before it, which the next word may share."""
    if _DRAWN & {*drawn[0], *blank[0]}:
        return blank
    return drawn[0], drawn[1], blank[2]


@lru_cache(16384)
def _change(old: Style, new: Style) -> str:
    """The shortest sequence that turns one style into another."""
    if old == new:
        return ""
    parts = ["0", *new[0], *filter(None, new[1:])]
    gone = [a for a in old[0] if a not in new[0]]
    # bold and dim go together
    off = {_OFF[a] for a in gone if a in _OFF}
    if len(gone) == len([a for a in gone if a in _OFF]) and not ("22" in off and {"1", "2"} & set(new[0])):
        steps = [*sorted(off), *(a for a in new[0] if a not in old[0])]
        steps += [n or plain for o, n, plain in zip(old[1:], new[1:], ("39", "49"), strict=True) if n != o]
        parts = min(steps, parts, key=lambda p: len(";".join(p)))
    return f"\x1b[{';'.join(parts)}m"


class RemoteDriver(LinuxDriver):
    """Textual's driver with a `Canvas` before the wire."""

    canvas: Canvas | None = None
    glyphs: Mapping[int, str] = MappingProxyType({})

    def write(self, data: str) -> None:
        """Send what `data` changes."""
        if self.canvas is None:
            self.canvas = Canvas()
        reduced = self.canvas.reduce(data.translate(self.glyphs) if self.glyphs else data)
        if reduced:
            super().write(reduced)

    def forget(self) -> None:
        """The terminal was resized: draw all of it."""
        if self.canvas is not None:
            self.canvas.forget()


class ConsoleDriver(RemoteDriver):
    """The same for the Linux console, which is slow to scroll wherever it stands."""

    glyphs = GLYPHS
