"""Lays out blocks as tables and aligned text for a terminal, fast and safe for any names in a model.

rich's own Table needed six seconds for 5,000 rows, because it parses and wraps each cell. Here columns are
measured once, and rich only gets segments, which it converts for the color depth and NO_COLOR. Redirected
output is plain text and does not import rich. No text is parsed as markup, and `units.printable` escapes
every text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from msgspec.structs import replace
from rich.cells import cell_len

from explorer.report.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Fields,
    Heading,
    Line,
    Paragraph,
    Rows,
    Scatter,
    SharedRows,
    Span,
    Table,
)
from explorer.report.names import NameSet
from explorer.report.pieces import (
    KEPT,
    Kept,
    Piece,
    count_cells,
    cut_ends,
    escape_controls,
    join_pieces,
    shorten,
    split_cell,
    strip_end,
    wrap,
)
from explorer.report.scatter import draw_scatter

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment
    from rich.style import Style


_STYLES: Mapping[str, str] = {
    "strong": "bold",
    "quiet": "dim",
    "kind": "dim",
    "good": "green",
    "passed": "bold green",
    "warning": "yellow",
    "bad": "bold red",
    "bar": "cyan",
}
"""Style of each role in rich's notation. Other roles have no style."""

CAP = 200
"""Maximum number of rows of a table that may show only some of them."""

_MIN_COLUMN_WIDTH = 16
"""Minimum width in cells of a shortened column before another one is left out."""
_GAP = 2  # cells between columns
_WRAP_INDENT = 4
"""Indentation in cells of a wrapped line."""
_MIN_LAST = 20
"""Minimum width in cells of a wrapped last column."""
_CACHED_CELLS = 4096
"""Number of cells per column that are cached as text, and number of rows that are measured at a time."""
_NAMES_IN_VIEW = 1_000
"""Number of rows whose names are compared with each other before they are shortened."""
_NAME = re.compile(r"(\s*)(\S+)(?: and ([\d,]+) more)?")
"""A name with the indentation before it, and the number of other names after it."""
_PROSE_WIDTH = 100
_PLOT_WIDTH = 80
"""Maximum width of a paragraph, and of a scatter plot, in cells."""

NamesInView = tuple[NameSet, Mapping[str, tuple[int, int]]]
"""Names, and for each of them the width of the texts beside it and the number of names in its table cell."""


class Page:
    """An answer for a terminal: blocks one below the other, printable by rich.

    Args:
        blocks: Blocks in display order.
        fit: Whether lines must fit the width of the console. If False, no text is shortened, dropped or
            wrapped.
        exact: Whether numbers are written out instead of rounded.
    """

    def __init__(self, blocks: Iterable[Block], *, fit: bool, exact: bool = False) -> None:
        self.blocks = tuple(blocks)
        self.fit = fit
        self.exact = exact

    def plain(self, ascii_only: bool = False) -> Iterator[str]:
        """Yield the answer without styles, for a file or a pipe.

        Args:
            ascii_only: Whether the output supports only ASCII.
        """
        for block in _convert_blocks(self.blocks, self.exact):
            if isinstance(block, Table):
                yield from TableLines(block, None, ascii_only=ascii_only, exact=self.exact).plain()
                continue
            for line in _draw_lines(block, ascii_only, self.exact):
                yield join_pieces(line).rstrip() + "\n"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        styles: dict[str, Style | None] = {"": None}
        width = options.max_width if self.fit else None
        for block in _convert_blocks(self.blocks, self.exact):
            for line in _fit_lines(block, width, options.ascii_only, self.exact):
                for text, role in line:
                    if role not in styles:
                        styles[role] = console.get_style(_STYLES.get(role, "none"))
                    yield Segment(text, styles[role])
                yield Segment.line()


def _convert_blocks(
    blocks: Iterable[Block], exact: bool = False
) -> Iterator[Line | Paragraph | Table | Scatter]:
    """Convert blocks to the four types that a terminal draws. `exact` as for `Page`."""
    for block in blocks:
        if isinstance(block, Heading):
            yield Line((Span(block.text, "strong"), Span(block.note and f"   {block.note}", "quiet")))
        elif isinstance(block, Fields):
            # a rounded figure is printed with its exact form, and an exact figure alone
            rows = [
                (f.label, f.figure, "" if exact else f.exact.replace(" B", ""), f.remark) for f in block.rows
            ]
            yield Table(_FIELD_COLUMNS, rows)
        elif isinstance(block, Table):
            yield from (Paragraph(words, "warning") for words in note_omitted_rows(block, CAP))
            yield block
        elif not isinstance(block, Chart):
            yield block


_FIELD_COLUMNS = (
    Column("", role="quiet"),
    Column("", "right", role="strong"),
    Column("", "right"),
    Column("", role="quiet"),
)


def note_omitted_rows(table: Table, max_rows: int) -> list[str]:
    """Return a note that not all rows of a table are shown, or [] if they are."""
    if not table.what or len(table.rows) <= max_rows:
        return []
    return [f"{max_rows:,} of {len(table.rows):,} {table.what}; {table.more}"]


def _fit_lines(
    block: Line | Paragraph | Table | Scatter, width: int | None, ascii_only: bool, exact: bool
) -> Iterable[list[Piece]]:
    """Yield the lines of a block, none wider than `width` cells. None does not limit the width."""
    if width is None:
        return _draw_lines(block, ascii_only, exact)
    if isinstance(block, Table):
        return _fit_table(block, width, ascii_only, exact)
    line_width = min(width, _PROSE_WIDTH) if isinstance(block, Paragraph) else width
    indent = block.indent if isinstance(block, Paragraph) else _WRAP_INDENT
    lines = _draw_lines(block, ascii_only, exact, min(width, _PLOT_WIDTH))
    return (part for line in lines for part in wrap(line, line_width, indent))


def _draw_lines(
    block: Line | Paragraph | Table | Scatter, ascii_only: bool, exact: bool, plot_width: int = _PLOT_WIDTH
) -> Iterable[list[Piece]]:
    """Yield the lines of a block at any width."""
    if isinstance(block, Scatter):
        for spans in draw_scatter(block, plot_width):
            yield from _draw_lines(Line(spans), ascii_only, exact)
    elif isinstance(block, Table):
        yield from TableLines(block, None, ascii_only=ascii_only, exact=exact)
    elif isinstance(block, Paragraph):
        yield [(" " * block.indent, ""), (escape_controls(block.text, ascii_only), block.role)]
    else:
        yield [(" " * block.indent, "")] * bool(block.indent) + split_cell(
            block.cell, ascii_only=ascii_only, exact=exact
        )


def _fit_table(table: Table, width: int, ascii_only: bool, exact: bool) -> Iterator[list[Piece]]:
    """Yield the lines of a table, none wider than `width` cells.

    First, columns that allow it are shortened or left out. If the table is still too wide, the last column is
    wrapped. If fewer than `_MIN_LAST` cells remain for it, all texts are shortened, and then columns in the
    middle are left out. Rows without titles are wrapped instead.
    """

    def lay_out(table: Table) -> TableLines:
        return TableLines(table, width, ascii_only=ascii_only, exact=exact)

    lines = lay_out(table)
    is_titled = bool(_list_titles(table))
    if is_titled and not lines.fits(width):
        columns = [
            column._replace(shrink=column.shrink or (column.align == "left" and not column.keeps_figures))
            for column in table.columns
        ]
        lines = lay_out(replace(table, columns=columns))
    note = ""
    if is_titled and not lines.fits(width):
        shown_count = sum(bool(table.columns[i].title) for i in lines.shown)
        table = lines.without_middle(width)
        lines = TableLines(table, None, ascii_only=ascii_only, exact=exact)
        kept_count = sum(bool(column.title) for column in table.columns) - 1
        note = f"{kept_count:,} of {shown_count:,} columns; {table.more}"
    indent = lines.start_of_last if width - lines.start_of_last >= _MIN_LAST else _WRAP_INDENT
    for line in lines:
        yield from wrap(line, width, indent)
    if note:
        yield [(" " * table.indent, ""), (note, "warning")]


class TableLines:
    """The lines of a table. Columns are measured once, and lines are created on access.

    Args:
        table: Table to lay out.
        width: Maximum width in cells, or None for no limit.
        max_rows: Maximum number of rows of a table with a `what` text.
        ascii_only: Whether the output supports only ASCII.
        exact: Whether numbers are written out instead of rounded.
        narrowest: Minimum width of a shortened column before another one is left out. If that is not enough,
            columns are shortened to half of it.
    """

    def __init__(
        self,
        table: Table,
        width: int | None,
        *,
        max_rows: int = CAP,
        ascii_only: bool = False,
        exact: bool = False,
        narrowest: int = _MIN_COLUMN_WIDTH,
    ) -> None:
        self._table, self._ascii, self._exact = table, ascii_only, exact
        self._rows = table.rows
        if table.what:
            first = max(0, min(table.around - max_rows // 2, len(table.rows) - max_rows))
            self._rows = table.rows[first : first + max_rows]
        self._shown, self._widths, min_widths = self._measure_columns()
        self._kept_parts: dict[int, Kept] = {}
        self._short_names: dict[int, Mapping[str, str]] = {}
        self._prefixes: dict[int, str] = {}
        if width is not None and self.width > width:

            def measure(name_width: int, beside: Mapping[str, tuple[int, int]]) -> int:
                return max(taken + count * name_width for taken, count in set(beside.values()))

            full, names, whole_names = self._widths, self._collect_names(), {}
            for i, name_sets in names.items():
                if table.columns[i].drop or table.columns[i].least:
                    continue
                # names keep their distinguishing parts, unless these take more than their share of the width
                least = max(measure(name_set.least_width, beside) for name_set, beside in name_sets)
                min_widths[i] = max(min_widths[i], min(least, full[i], width // (1 + len(names))))
                uncut = max(measure(name_set.collapsed_width, beside) for name_set, beside in name_sets)
                whole_names[i] = min(uncut, full[i]) if uncut <= width // (2 + len(names)) else 0
            self._shown, self._widths = _fit_columns(
                table, self._shown, full, min_widths, width, narrowest, whole_names
            )
            shortened = [i for i in self._shown if self._widths[i] < full[i]]
            self._kept_parts = {i: self._find_distinguishing_part(i) for i in shortened}
            for i in names:
                if i in self._kept_parts:
                    self._shorten_names(i, names[i])

    def __iter__(self) -> Iterator[list[Piece]]:
        if head := self.head():
            yield head
        yield from map(self.line, self._rows)

    @property
    def shown(self) -> list[int]:
        """Indices of the columns that are not left out."""
        return self._shown

    @property
    def width(self) -> int:
        """Width of the table in cells."""
        columns = [self._widths[i] for i in self._shown]
        return self._table.indent + sum(columns) + _GAP * max(0, len(columns) - 1)

    def fits(self, width: int) -> bool:
        """Whether the table is at most `width` cells wide, if necessary with a wrapped last column."""
        if self.width <= width:
            return True
        is_text = self._table.columns[self._shown[-1]].align == "left"
        return is_text and width - self.start_of_last >= _MIN_LAST

    @property
    def start_of_last(self) -> int:
        """Number of cells before the last column."""
        return self.width - self._widths[self._shown[-1]] if self._shown else 0

    def without_middle(self, width: int) -> Table:
        """Return the table with the first and last columns that fit, and an ellipsis between them."""
        left, right = self._shown[:1], list[int]()
        remaining_width = width - self._table.indent - self._widths[left[0]] - _GAP - 1
        ends = self._shown[1:]
        while ends:
            # keep as many first columns as last columns
            index, side = (0, left) if len(left) <= len(right) + 1 else (-1, right)
            remaining_width -= self._widths[ends[index]] + _GAP
            if remaining_width < 0:
                break
            side.append(ends.pop(index))
        right.reverse()
        columns = self._table.columns

        def drop_middle(cells: Sequence[Cell]) -> list[Cell]:
            padded = [*cells, *[""] * (len(columns) - len(cells))]
            return [*[padded[i] for i in left], "…", *[padded[i] for i in right]]

        kept_columns = [*[columns[i] for i in left], Column("…"), *[columns[i] for i in right]]
        return replace(self._table, columns=kept_columns, rows=Rows(drop_middle, self._rows), what="")

    @property
    def is_cut(self) -> bool:
        """Whether texts of any column are shortened."""
        return bool(self._kept_parts)

    def head(self) -> list[Piece]:
        """Return the titles of the columns, or [] if there are none."""
        titles = list(_list_titles(self._table))
        if not self._prefixes:
            return self.line(titles)
        line: list[Piece] = [(" " * self._table.indent, "")] * bool(self._table.indent)
        columns_in_prefix = 0
        for place, i in enumerate(self._shown):
            if columns_in_prefix:
                columns_in_prefix -= 1
                continue
            line += [(" " * _GAP, "")] * bool(place)
            if i in self._prefixes:
                width, columns_in_prefix = self._measure_title(place)
                title = f"{self._table.columns[i].title} {self._prefixes[i]}…"
                line += [(title, "quiet"), (" " * (width - cell_len(title)), "")]
            else:
                line += self._pad_cell(titles[i], i)
        return strip_end(line)

    def _measure_title(self, place: int) -> tuple[int, int]:
        """Return the width for a title, and the number of untitled columns after it in that width."""
        columns, (first, *others) = self._table.columns, self._shown[place:]
        untitled = list(takewhile(lambda i: not columns[i].title, others))
        return self._widths[first] + sum(_GAP + self._widths[i] for i in untitled), len(untitled)

    def line(self, row: Sequence[Cell]) -> list[Piece]:
        """Return the pieces of a row."""
        indent = self._table.indent
        line: list[Piece] = [(" " * indent, "")] if indent else []
        for place, i in enumerate(self._shown):
            line += [(" " * _GAP, "")] * bool(place)
            line += self._pad_cell(row[i] if i < len(row) else "", i)
        return strip_end(line)

    def plain(self) -> Iterator[str]:
        """Yield the lines without roles. Texts of cells are cached, because many rows have equal cells."""
        table, rows = self._table, self._rows
        texts = [
            (i, lru_cache(_CACHED_CELLS)(lambda cell, i=i: join_pieces(self._pad_cell(cell, i))))
            for i in self._shown
        ]
        lead, gap, missing = " " * table.indent, " " * _GAP, ("",) * len(table.columns)

        def line(row: Sequence[Cell], formatters: Sequence[tuple[int, Callable[[Cell], str]]] = texts) -> str:
            padded_row = row if len(row) == len(missing) else (*row, *missing)
            return gap.join([text(padded_row[i]) for i, text in formatters])

        if titles := _list_titles(table):
            yield f"{lead}{line(titles)}".rstrip() + "\n"
        if not isinstance(rows, SharedRows) or self._shown[:1] != [0]:
            yield from (f"{lead}{line(row)}".rstrip() + "\n" for row in rows)
            return
        first, other_texts = texts[0][1], texts[1:]
        is_left, name_width = table.columns[0].align == "left", len(first(""))
        tails: dict[int, str] = {}
        for name, cells in zip(rows.names, rows.cells, strict=True):
            tail = tails.get(id(cells))
            if tail is None:
                tail = tails[id(cells)] = f"{gap}{line(('', *cells), other_texts)}".rstrip()
            name_cell = (
                name.ljust(name_width)
                if is_left and isinstance(name, str) and _is_plain(name)
                else first(name)
            )
            yield f"{lead}{name_cell}{tail}".rstrip() + "\n"

    def _pieces(self, cell: Cell, i: int) -> list[Piece]:
        return split_cell(cell, self._table.columns[i].role, ascii_only=self._ascii, exact=self._exact)

    def _pad_cell(self, cell: Cell, i: int) -> list[Piece]:
        """Return a cell padded to the width of its column."""
        if i in self._kept_parts and isinstance(cell, str):
            cell = self._table.columns[i].brief.get(cell, cell)
        parts = self._pieces(cell, i)
        if texts := self._short_names.get(i):
            for place, lead, name, others in _find_names(parts):
                parts[place] = f"{lead}{texts.get(name, name)}{others}", parts[place][1]
        parts = shorten(parts, self._widths[i], self._kept_parts.get(i, "ends"))
        if self._ascii:
            parts = [(text.replace("…", "~"), role) for text, role in parts]
        pad = (" " * (self._widths[i] - count_cells(parts)), "")
        return [pad, *parts] if self._table.columns[i].align == "right" else [*parts, pad]

    def _measure_columns(self) -> tuple[list[int], list[int], list[int]]:
        """Return the indices of the non-empty columns, and the full and the minimum width of each column."""
        columns, pieces = self._table.columns, self._pieces
        widest: list[int | None] = [None for _ in columns]
        rows = iter(self._rows)
        if isinstance(self._rows, SharedRows):
            widest[0] = max(
                (
                    len(cell) if isinstance(cell, str) and _is_plain(cell) else count_cells(pieces(cell, 0))
                    for cell in self._rows.names
                ),
                default=None,
            )
            rows = (("", *cells) for cells in {id(cells): cells for cells in self._rows.cells}.values())
        while row_batch := list(islice(rows, _CACHED_CELLS)):
            for i in range(len(columns)):
                cells = {row[i] for row in row_batch if i < len(row)}
                cell_widths = [count_cells(text) for cell in cells if (text := pieces(cell, i))]
                if cell_widths:
                    widest[i] = max(widest[i] or 0, *cell_widths)
        indices = [i for i, width in enumerate(widest) if width is not None]
        full_widths = [max(w or 0, count_cells(pieces(columns[i].title, i))) for i, w in enumerate(widest)]
        figure_widths = [(width or 0) * columns[i].keeps_figures for i, width in enumerate(widest)]
        return indices, full_widths, figure_widths

    def _find_distinguishing_part(self, i: int) -> Kept:
        """Return the part of the texts in a column to keep, so that most of the shortened texts differ."""
        samples = [self._pieces(row[i], i) for row in islice(self._rows, CAP) if i < len(row)]

        def count_distinct(part: Kept) -> int:
            return len({join_pieces(shorten(text_pieces, self._widths[i], part)) for text_pieces in samples})

        return max(KEPT, key=count_distinct)

    def _collect_names(self) -> dict[int, list[NamesInView]]:
        """Return the names in each column that may be shortened, compared with those in nearby rows."""
        name_sets: dict[int, list[NamesInView]] = {}
        for i in self._shown:
            column, rows = self._table.columns[i], iter(self._rows)
            if not column.shrink or column.align != "left" or column.brief:
                continue  # `brief` has the short texts of its cells
            while row_batch := list(islice(rows, _NAMES_IN_VIEW)):
                beside: dict[str, tuple[int, int]] = {}
                for row in row_batch:
                    pieces = self._pieces(row[i], i) if i < len(row) else []
                    names_by_place = {place: texts for place, *texts in _find_names(pieces)}
                    taken = sum(
                        cell_len(text)
                        for place, (text, _) in enumerate(pieces)
                        if place not in names_by_place
                    )
                    taken += sum(cell_len(lead + others) for lead, _, others in names_by_place.values())
                    for _, name, _ in names_by_place.values():
                        beside[name] = max((taken, len(names_by_place)), beside.get(name, (0, 1)))
                if beside:
                    name_sets.setdefault(i, []).append((NameSet(beside, paths=column.paths), beside))
        return name_sets

    def _shorten_names(self, i: int, name_sets: Sequence[NamesInView]) -> None:
        """Shorten the names in a column. The title of the column then shows their common prefix."""
        title = self._table.columns[i].title
        title_width, _ = self._measure_title(self._shown.index(i))
        prefix_width = title_width - cell_len(title) - 2 if title and len(name_sets) == 1 else 0
        texts: dict[str, str] = {}
        for name_set, beside in name_sets:
            name_widths = {
                name: max(1, (self._widths[i] - taken) // count) for name, (taken, count) in beside.items()
            }
            short = name_set.shorten(name_widths, prefix_width)
            texts = {**short.texts, **texts}
            if short.prefix:
                self._prefixes[i] = _cut_start(short.prefix, prefix_width)
        self._short_names[i] = texts


def _find_names(pieces: Sequence[Piece]) -> Iterator[tuple[int, str, str, str]]:
    """Yield the index of each piece of a cell that contains a name, and its parts: text, name, text.

    A count of other names becomes shorter: 'fc1 and 3 more' becomes 'fc1, 3 more'.
    """
    for place, (text, _) in enumerate(pieces):
        if match := _NAME.fullmatch(text):
            lead, name, others = match.groups()
            yield place, lead, name, f", {others} more" if others else ""


def _cut_start(text: str, width: int) -> str:
    return text if cell_len(text) <= width else cut_ends(text, width, 0)


def _list_titles(table: Table) -> Sequence[Cell]:
    """Return the titles of the columns, or () if there are none."""
    has_titles = any(column.title for column in table.columns)
    return [Span(column.title, "quiet") for column in table.columns] if has_titles else ()


def _is_plain(text: str) -> bool:
    """Whether a text needs no escaping and each character takes one cell."""
    return text.isascii() and text.isprintable()


def _fit_columns(
    table: Table,
    columns: list[int],
    widths: list[int],
    min_widths: list[int],
    width: int,
    narrowest: int,
    whole_names: Mapping[int, int],
) -> tuple[list[int], list[int]]:
    """Leave out and shorten columns until the table fits into `width` cells.

    `whole_names` holds the width of uncut names by column. A column becomes narrower than `narrowest` only if
    the last column cannot be wrapped instead.
    """

    def count_needed(i: int) -> int:
        column = table.columns[i]
        return min(widths[i], max(narrowest, column.least, min_widths[i])) if column.shrink else widths[i]

    def sum_needed() -> int:
        return table.indent + sum(map(count_needed, columns)) + _GAP * max(0, len(columns) - 1)

    for i in sorted((i for i in columns if table.columns[i].drop), key=lambda i: -table.columns[i].drop):
        if sum_needed() <= width:
            break
        columns = [j for j in columns if j != i]
    widths = list(widths)
    shrinkable = [i for i in columns if table.columns[i].shrink]
    if not columns:
        return columns, widths
    # columns that could be left out are shortened before names, which identify the rows
    droppable = [i for i in shrinkable if table.columns[i].drop]
    passes = ((droppable, narrowest, whole_names), (shrinkable, narrowest, whole_names))
    for columns_to_cut, least_wide, least_names in (*passes, (shrinkable, narrowest // 2, dict[int, int]())):
        before_last = table.indent + sum(widths[i] + _GAP for i in columns[:-1])
        last = columns[-1]
        is_wrapped = not table.columns[last].title and table.columns[last].align == "left"
        if least_wide < narrowest and is_wrapped and width - before_last >= _MIN_LAST:
            break
        floors = {i: max(least_wide, min_widths[i], least_names.get(i, 0)) for i in columns_to_cut}
        _shorten_columns(columns_to_cut, widths, before_last + widths[last] - width, floors)
    return columns, widths


def _shorten_columns(
    columns: list[int], widths: list[int], excess: int, narrowest: Mapping[int, int]
) -> None:
    """Shorten columns by `excess` cells in total, but none below its width in `narrowest`."""
    shrinkable = [i for i in columns if widths[i] > narrowest[i]]
    while excess > 0 and shrinkable:
        # the widest column is shortened first, so that narrow columns keep their texts
        widest = max(shrinkable, key=lambda i: widths[i])
        floor = max((widths[i] for i in shrinkable if widths[i] < widths[widest]), default=0)
        cut = min(excess, max(1, widths[widest] - max(floor, narrowest[widest])))
        widths[widest] -= cut
        excess -= cut
        shrinkable = [i for i in shrinkable if widths[i] > narrowest[i]]
