"""Aligned text on a terminal, fast and safe whatever a model file calls its layers.

rich's own Table measures every cell through its markup and wrapping machinery: 5,000 rows of layers
took it six seconds. Here a table is columns of plain cells, measured once and handed to rich as
segments, so that rich keeps what it is good at (colour depth, NO_COLOR). Redirected, it is plain text, for
which nobody waits until rich is imported.
Nothing is ever read as markup, and every character passes through `units.printable` at this one exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple

from msgspec import Struct
from rich.cells import cell_len, chop_cells

from explorer.base.units import printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.style import Style

__all__ = [
    "BAD",
    "BAR",
    "DIM",
    "GOOD",
    "NOTE",
    "STRONG",
    "Alike",
    "Cell",
    "Column",
    "Line",
    "Page",
    "Prose",
    "Span",
    "Table",
]

DIM = "dim"
STRONG = "bold"
GOOD = "green"
BAD = "bold red"
NOTE = "yellow"
BAR = "cyan"

_NARROWEST = 16
_ASCII = str.maketrans(
    {
        "█": "#",
        "▌": "=",
        "·": "-",
        "…": "~",
        "×": "x",
        "Δ": "d",
        **dict(zip("▁▂▃▄▅▆▇", "_.,:-=+", strict=True)),
    }
)
_GAP = 2
_MEMO = 4096
"""Cells of a column that are kept as text."""
_PROSE_WIDTH = 100


class Span(NamedTuple):
    """A piece of one line in one style."""

    text: str
    style: str = ""


Cell = str | Span | tuple[Span, ...]


class Column(NamedTuple):
    """A table's column.

    Attributes:
        title: Printed above it, dimmed; empty for none.
        align: 'left' or 'right'.
        shrink: May be shortened with an ellipsis when a terminal is too narrow.
        drop: Columns with the highest number are left out first on a narrow terminal; 0 never.
        style: Style of cells that carry none.
    """

    title: str
    align: Literal["left", "right"] = "left"
    shrink: bool = False
    drop: int = 0
    style: str = ""


class Line(Struct, frozen=True):
    """One line of spans; the terminal wraps it where it must."""

    cell: Cell | tuple[str | Span, ...] = ""
    indent: int = 0


class Prose(Struct, frozen=True):
    """A sentence or more: wrapped with its indent kept on a terminal, one line when redirected."""

    text: str
    style: str = ""
    indent: int = 2


class Alike:
    """Rows of a name and of cells that many share, each put together when somebody looks.

    Args:
        names: The first cell of every row.
        cells: The others; rows that are alike have the same object.
    """

    def __init__(self, names: Sequence[Cell], cells: Sequence[tuple[Cell, ...]]) -> None:
        self.names = names
        self.cells = cells

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return ((name, *cells) for name, cells in zip(self.names, self.cells, strict=True))


class Table(Struct, frozen=True):
    """Rows under columns, looked at twice. Missing cells at the end of a row are empty."""

    columns: Sequence[Column]
    rows: Iterable[Sequence[Cell]]
    indent: int = 2


class Page:
    """A report: blocks one under the other, as something that rich can print.

    Args:
        blocks: Lines, prose and tables, in order.
        fit: Keep within the console's width; without it nothing is shortened, dropped or wrapped.
    """

    def __init__(self, blocks: Iterable[Line | Prose | Table], *, fit: bool) -> None:
        self.blocks = tuple(blocks)
        self.fit = fit

    def plain(self, ascii_only: bool = False) -> Iterator[str]:
        """The report without colours, in pieces: what a file or a pipe gets.

        Args:
            ascii_only: Nothing but ASCII can be written there.
        """
        for block in self.blocks:
            if isinstance(block, Table):
                yield from _plain_rows(block, ascii_only)
                continue
            for line in _lines(block, None, ascii_only):
                yield _text(line) + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        styles: dict[str, Style | None] = {"": None}
        width = options.max_width if self.fit else None
        for block in self.blocks:
            for line in _lines(block, width, options.ascii_only):
                for text, style in line:
                    if style not in styles:
                        styles[style] = console.get_style(style)
                    yield Segment(text, styles[style])
                yield Segment.line()


def _lines(block: Line | Prose | Table, width: int | None, ascii_only: bool) -> Iterator[list[Span]]:
    if isinstance(block, Table):
        yield from _table_lines(block, width, ascii_only)
    elif isinstance(block, Prose):
        import textwrap

        text = _clean(block.text, ascii_only)
        room = len(text) + 1 if width is None else max(_NARROWEST, min(width, _PROSE_WIDTH) - block.indent)
        for piece in textwrap.wrap(text, room, break_on_hyphens=False) or [""]:
            yield [Span(" " * block.indent + piece, block.style)]
    else:
        yield [Span(" " * block.indent)] * bool(block.indent) + _spans(block.cell, "", ascii_only)


def _table_lines(table: Table, width: int | None, ascii_only: bool) -> Iterator[list[Span]]:
    shown, filled = _laid(table, width, ascii_only)
    for row in _titled(table):
        line = [Span(" " * table.indent)] if table.indent else []
        for place, i in enumerate(shown):
            line += [Span(" " * _GAP)] * bool(place)
            line += filled(row[i] if i < len(row) else "", i)
        yield _stripped(line)


def _plain_rows(table: Table, ascii_only: bool) -> Iterator[str]:
    """The same as text without styles. Of many rows most cells are those of other rows, and made once."""
    shown, filled = _laid(table, None, ascii_only)
    texts = [(i, lru_cache(_MEMO)(lambda cell, i=i: _text(filled(cell, i)))) for i in shown]
    lead, gap, missing = " " * table.indent, " " * _GAP, ("",) * len(table.columns)

    def line(row: Sequence[Cell], some: Sequence[tuple[int, Callable[[Cell], str]]] = texts) -> str:
        whole = row if len(row) == len(missing) else (*row, *missing)
        return gap.join([text(whole[i]) for i, text in some])

    if titles := _titles(table):
        yield f"{lead}{line(titles)}".rstrip() + "\n"
    rows = table.rows
    if not isinstance(rows, Alike) or shown[:1] != [0]:
        yield from (f"{lead}{line(row)}".rstrip() + "\n" for row in rows)
        return
    first, rest = texts[0][1], texts[1:]
    left, wide = table.columns[0].align == "left", len(first(""))
    tails: dict[int, str] = {}
    for name, cells in zip(rows.names, rows.cells, strict=True):
        tail = tails.get(id(cells))
        if tail is None:
            tail = tails[id(cells)] = f"{gap}{line(('', *cells), rest)}".rstrip()
        own = name.ljust(wide) if left and isinstance(name, str) and _is_plain(name) else first(name)
        yield f"{lead}{own}{tail}".rstrip() + "\n"


def _is_plain(text: str) -> bool:
    """Whether a text is written as it is, a character a cell."""
    return text.isascii() and text.isprintable()


def _titles(table: Table) -> Sequence[Cell]:
    """The titles above the rows, if there are some."""
    there = any(column.title for column in table.columns)
    return [Span(column.title, DIM) for column in table.columns] if there else ()


def _titled(table: Table) -> Iterator[Sequence[Cell]]:
    """The rows, below the titles if there are some."""
    if titles := _titles(table):
        yield titles
    yield from table.rows


def _laid(
    table: Table, width: int | None, ascii_only: bool
) -> tuple[list[int], Callable[[Cell, int], list[Span]]]:
    """The columns that are shown, and what makes a cell as wide as its column."""
    columns = table.columns

    def spans(cell: Cell, i: int) -> list[Span]:
        return _spans(cell, columns[i].style, ascii_only)

    def filled(cell: Cell, i: int) -> list[Span]:
        found = _shorten(spans(cell, i), widths[i])
        pad = Span(" " * (widths[i] - _width(found)))
        return [pad, *found] if columns[i].align == "right" else [*found, pad]

    widest: list[int | None] = [None for _ in columns]
    rows = iter(table.rows)
    if isinstance(table.rows, Alike):
        widest[0] = max(
            (
                len(cell) if isinstance(cell, str) and _is_plain(cell) else _width(spans(cell, 0))
                for cell in table.rows.names
            ),
            default=None,
        )
        rows = (("", *cells) for cells in {id(cells): cells for cells in table.rows.cells}.values())
    while some := list(islice(rows, _MEMO)):
        for i in range(len(columns)):
            cells = {row[i] for row in some if i < len(row)}
            found = [_width(text) for cell in cells if (text := spans(cell, i))]
            if found:
                widest[i] = max(widest[i] or 0, *found)
    shown = [i for i, most in enumerate(widest) if most is not None]
    widths = [max(most or 0, _width(spans(columns[i].title, i))) for i, most in enumerate(widest)]
    if width is not None:
        shown, widths = _fit(table, shown, widths, width)
    return shown, filled


def _fit(table: Table, shown: list[int], widths: list[int], width: int) -> tuple[list[int], list[int]]:
    """Leave out and shorten columns until the table is at most `width` cells wide."""

    def least(i: int) -> int:
        return min(widths[i], _NARROWEST) if table.columns[i].shrink else widths[i]

    def needed() -> int:
        return table.indent + sum(map(least, shown)) + _GAP * max(0, len(shown) - 1)

    for i in sorted((i for i in shown if table.columns[i].drop), key=lambda i: -table.columns[i].drop):
        if needed() <= width:
            break
        shown = [j for j in shown if j != i]
    widths = list(widths)
    excess = table.indent + sum(widths[i] for i in shown) + _GAP * max(0, len(shown) - 1) - width
    able = [i for i in shown if table.columns[i].shrink]
    while excess > 0 and able:
        # the widest gives way down to the next one, so that a short column keeps its words
        widest = max(able, key=lambda i: widths[i])
        if widths[widest] <= least(widest):
            able.remove(widest)
            continue
        floor = max((widths[i] for i in able if widths[i] < widths[widest]), default=0)
        cut = min(excess, max(1, widths[widest] - max(floor, least(widest))))
        widths[widest] -= cut
        excess -= cut
    return shown, widths


def _spans(cell: Cell | tuple[str | Span, ...], style: str, ascii_only: bool) -> list[Span]:
    if isinstance(cell, str):
        return [Span(_clean(cell, ascii_only), style)] if cell else []
    if isinstance(cell, Span):
        return [Span(_clean(cell.text, ascii_only), cell.style or style)] if cell.text else []
    return [span for piece in cell for span in _spans(piece, style, ascii_only)]


def _clean(text: str, ascii_only: bool) -> str:
    text = printable(text)
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode() if ascii_only else text


def _width(spans: Sequence[Span]) -> int:
    return cell_len(spans[0].text) if len(spans) == 1 else sum([cell_len(span.text) for span in spans])


def _text(spans: Sequence[Span]) -> str:
    return "".join([span.text for span in spans])


def _shorten(spans: list[Span], width: int) -> list[Span]:
    """`spans` in at most `width` cells, the middle of the longest one replaced by an ellipsis."""
    excess = _width(spans) - width
    if excess <= 0:
        return spans
    longest = max(range(len(spans)), key=lambda i: cell_len(spans[i].text))
    text, style = spans[longest]
    keep = cell_len(text) - excess - 1
    # trimming leading blanks would lose a tree's indent, so only what follows them is shortened
    lead = len(text) - len(text.lstrip())
    if keep < 1:
        return [Span("…"[: max(0, width)], style)]
    body, keep = text[lead:], keep - lead
    if keep < 2:
        short = chop_cells(text, max(1, width - 1))[0] + "…"
    else:
        tail = body[-(keep // 2) :]
        short = text[:lead] + chop_cells(body, keep - keep // 2)[0] + "…" + tail
    return [*spans[:longest], Span(short, style), *spans[longest + 1 :]]


def _stripped(line: list[Span]) -> list[Span]:
    """Without blanks at its end, so that redirected text has none."""
    while line and not line[-1].text.strip():
        line = line[:-1]
    return line
