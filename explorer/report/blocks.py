"""Blocks: an answer as headings, figures and tables, worded but not laid out.

`explorer.report.present` builds blocks from facts. They are drawn by three modules: `explorer.report.layout`
for a terminal, `explorer.tui.text.drawing` for the screen, and `explorer.report.html` for a page. A text has
a role, not a color; each of the three assigns colors to roles. No text is ever parsed as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

Role = Literal["", "strong", "quiet", "kind", "figure", "formula", "bar", "good", "passed", "warning", "bad"]
"""Meaning of a text: a name, a remark, an operator or dtype, a number, a formula, a bar, or a judgment.

'good', 'warning' and 'bad' judge the content of the text; 'passed' is a positive verdict.
"""


class Span(NamedTuple):
    """A piece of text with one role.

    Attributes:
        text: Text as shown.
        role: Role of the text.
        exact: Exact form of a rounded figure, or '' if `text` is exact.
        value: Sort key of the figure in its column, or None if unknown.
    """

    text: str
    role: Role = ""
    exact: str = ""
    value: float | None = None


Cell = str | Span | tuple[str | Span, ...]


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Title of the column; '' for none.
        align: Alignment, 'left' or 'right'.
        shrink: Whether texts may be shortened with an ellipsis if the table is too wide.
        drop: Order in which columns are left out if the table is too wide, highest first; 0 for never.
        role: Role of texts without one.
        least: Minimum cells of a shortened column before another one is left out; 0 for the table's default.
        keeps_figures: Whether the figures are never cut, so that only the title may be shortened.
        brief: Shorter text by full text, used when the column is shortened.
        paths: Whether texts are paths of files, which are shortened without omitting folders.
    """

    title: str
    align: Literal["left", "right"] = "left"
    shrink: bool = False
    drop: int = 0
    role: Role = ""
    least: int = 0
    keeps_figures: bool = False
    brief: Mapping[str, str] = {}
    paths: bool = False


class Line(Struct, frozen=True):
    """Spans on one line, which is wrapped only if it is too long."""

    cell: Cell = ""
    indent: int = 0


class Paragraph(Struct, frozen=True):
    """One or more sentences."""

    text: str
    role: Role = ""
    indent: int = 2


class Heading(Struct, frozen=True):
    """Heading of the blocks below it."""

    text: str
    note: str = ""


class Field(NamedTuple):
    """A figure with its label, a remark, and a short label for narrow screens."""

    label: Cell
    figure: Cell
    remark: Cell = ""
    short: str = ""

    @property
    def exact(self) -> str:
        """Exact form of a rounded figure, or '' if the figure is exact."""
        return self.figure.exact if isinstance(self.figure, Span) else ""


class Fields(Struct, frozen=True):
    """Figures, one per line."""

    rows: Sequence[Field]


class Table(Struct, frozen=True, eq=False):
    """Rows and columns. A row may have fewer cells than there are columns; the others are empty.

    Attributes:
        columns: Columns from left to right.
        rows: Rows, iterated more than once. Large tables use `Rows` or `SharedRows`.
        indent: Number of spaces on the left.
        what: Description of the rows, such as 'layers, slowest first', for a table that may show only some of
            them. A table without it shows all rows.
        more: Where the user finds all rows.
        around: Index of a row that must be among the visible rows.
        depths: Level of each row in a tree, or () for a table without a tree. In a notebook the tree folds.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    indent: int = 2
    what: str = ""
    more: str = "--csv has all"
    around: int = 0
    depths: Sequence[int] = ()


class Chart(Struct, frozen=True):
    """A picture for a page, named as in `explorer.report.plots`. Other outputs show tables instead."""

    name: str
    fact: Any


class Dot(NamedTuple):
    """A dot of a scatter plot: its horizontal and vertical position, its mark, its role and its label."""

    at: tuple[float, float]
    mark: str
    role: Role = ""
    label: str = ""


class Axis(NamedTuple):
    """An axis of a scatter plot: its name, the format of its values, and whether it is logarithmic."""

    name: str
    text: Callable[[float], str]
    logarithmic: bool = False


class Scatter(Struct, frozen=True, eq=False):
    """A scatter plot. Text draws it in cells, a page as a picture.

    Attributes:
        title: Title of the plot.
        across: Horizontal axis.
        upwards: Vertical axis.
        dots: Dots of the plot. If several are in the same place, the last one is visible.
        legend: Mark, role and meaning of each kind of dot.
        path: Positions of dots that a page connects by a line, in this order.
    """

    title: str
    across: Axis
    upwards: Axis
    dots: Sequence[Dot]
    legend: Sequence[tuple[str, Role, str]] = ()
    path: Sequence[tuple[float, float]] = ()


Block = Line | Paragraph | Heading | Fields | Table | Chart | Scatter

Item = TypeVar("Item")


class Rows(Sequence[Sequence[Cell]], Generic[Item]):
    """Rows of a table, created on access, because a terminal shows few of them."""

    def __init__(self, make: Callable[[Item], Sequence[Cell]], items: Sequence[Item]) -> None:
        self.make = make
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return (
            list(map(self.make, self.items[index]))
            if isinstance(index, slice)
            else self.make(self.items[index])
        )

    def __iter__(self) -> Iterator[Sequence[Cell]]:
        return map(self.make, self.items)


def table_of(
    items: Sequence[Item],
    columns: Sequence[tuple[Column, Callable[[Item], Cell]]],
    indent: int = 2,
    what: str = "",
    around: int = 0,
) -> Table:
    """Create a table with one row per item. The columns are pairs of a `Column` and a function for its cells.

    See `Table` for the other arguments.
    """
    build_cells = [build_cell for _, build_cell in columns]
    rows = Rows(lambda item: tuple([build_cell(item) for build_cell in build_cells]), items)
    return Table([column for column, _ in columns], rows, indent, what, around=around)


def select_first_rows(blocks: Iterable[Block], max_rows: int) -> list[Block]:
    """Shorten tables to their first rows, or those around `Table.around`, with a note below each one.

    Args:
        blocks: Blocks of an answer.
        max_rows: Maximum number of rows of each table.
    """
    shortened: list[Block] = []
    for block in blocks:
        if not isinstance(block, Table) or not any(column.title for column in block.columns):
            shortened.append(block)
        elif len(block.rows) <= max_rows:
            shortened.append(replace(block, what=""))
        else:
            note = f"{max_rows:,} of {len(block.rows):,} {block.what or 'rows'}; --top shows more"
            first = max(0, min(block.around - max_rows // 2, len(block.rows) - max_rows))
            shortened += [
                replace(block, rows=block.rows[first : first + max_rows], what="", around=0),
                Line(Span(note, "quiet"), block.indent),
            ]
    return shortened


class SharedRows(Sequence[Sequence[Cell]]):
    """Rows that consist of a name and cells that many rows share, joined on access.

    Args:
        names: First cell of each row.
        cells: Other cells of each row. Equal rows share one object.
    """

    def __init__(self, names: Sequence[Cell], cells: Sequence[tuple[Cell, ...]]) -> None:
        self.names = names
        self.cells = cells

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(SharedRows(self.names[index], self.cells[index]))
        return (self.names[index], *self.cells[index])

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return ((name, *cells) for name, cells in zip(self.names, self.cells, strict=True))
