"""Blocks: an answer as headings, figures and tables, put into words but not yet laid out.

`explorer.report.present` makes them of facts, once; a terminal (`explorer.report.layout`), the screen
(`explorer.tui.text.drawing`) and a page (`explorer.report.html`) draw the same ones. Text has roles, never
colours: what green is, and whether there is one, is known where it is drawn. Nothing is ever read as markup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

Role = Literal["", "strong", "quiet", "kind", "figure", "formula", "bar", "good", "passed", "warning", "bad"]
"""What a text is: a name that heads the rest, a remark, an operator or dtype, a number, how it comes about, a
bar of a chart; and what is said by it. 'passed' is a verdict."""


class Span(NamedTuple):
    """A piece of text.

    Attributes:
        text: As it is read.
        role: What it is.
        exact: Of a rounded figure the figure itself; '' if `text` is all there is.
        value: What a column of such figures is sorted by; None for nothing that is known.
    """

    text: str
    role: Role = ""
    exact: str = ""
    value: float | None = None


Cell = str | Span | tuple[str | Span, ...]


class Column(NamedTuple):
    """A table's column.

    Attributes:
        title: Printed above it; empty for none.
        align: 'left' or 'right'.
        shrink: May be shortened with an ellipsis where there is little room.
        drop: Columns with the highest number are left out first where there is little room; 0 never.
        role: Of text that has none.
        least: Cells that one which may be shortened keeps before another column is left out; 0 for as many as
            all keep.
        whole: Of what may be shortened only the title is; figures are not cut.
        brief: Other words for what stands in it, where it has to be shortened.
    """

    title: str
    align: Literal["left", "right"] = "left"
    shrink: bool = False
    drop: int = 0
    role: Role = ""
    least: int = 0
    whole: bool = False
    brief: Mapping[str, str] = {}


class Line(Struct, frozen=True):
    """Spans beside each other on one line, which breaks only where it must."""

    cell: Cell = ""
    indent: int = 0


class Paragraph(Struct, frozen=True):
    """A sentence or more."""

    text: str
    role: Role = ""
    indent: int = 2


class Heading(Struct, frozen=True):
    """What the blocks below it are about."""

    text: str
    note: str = ""


class Field(NamedTuple):
    """A figure with its name, what else there is to say of it, and its name where there is little room."""

    label: Cell
    figure: Cell
    remark: Cell = ""
    short: str = ""

    @property
    def exact(self) -> str:
        """Of a rounded figure the figure itself; '' if there is no more to it."""
        return self.figure.exact if isinstance(self.figure, Span) else ""


class Fields(Struct, frozen=True):
    """Figures, one below the other."""

    rows: Sequence[Field]


class Table(Struct, frozen=True, eq=False):
    """Rows under columns. Missing cells at the end of a row are empty.

    Attributes:
        columns: From left to right.
        rows: Looked at more than once; where there may be very many, `Rows` or `SharedRows`.
        indent: Blanks on its left.
        what: What the rows are, where only the first of many are shown: 'layers, slowest first'. A table
            without it is shown whole.
        more: Where all of them are.
        around: A row that is among those that are shown.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    indent: int = 2
    what: str = ""
    more: str = "--csv has all"
    around: int = 0


class Chart(Struct, frozen=True):
    """A picture for a page, by its name in `explorer.report.plots`; elsewhere tables stand for it."""

    name: str
    fact: Any


class Dot(NamedTuple):
    """A dot of a scatter: where it is, across and upwards, and what is drawn there."""

    at: tuple[float, float]
    mark: str
    role: Role = ""


class Axis(NamedTuple):
    """An axis of a scatter: its name, a value on it as text, and whether it goes by powers of ten."""

    name: str
    text: Callable[[float], str]
    logarithmic: bool = False


class Scatter(Struct, frozen=True, eq=False):
    """Dots between two axes: text draws them in cells, a page as a picture.

    Attributes:
        title: What they are dots of.
        across: From left to right.
        upwards: From below.
        dots: The last of those in one place shows.
        legend: What each mark and role means.
        path: Marks that lie on a way, in its order: a page joins their dots.
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
    """Rows of a table, each made when it is looked at: of 100,000 a terminal shows 200."""

    def __init__(self, make: Callable[[Item], Sequence[Cell]], items: Sequence[Item]) -> None:
        self.make = make
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, at: Any) -> Any:
        return list(map(self.make, self.items[at])) if isinstance(at, slice) else self.make(self.items[at])

    def __iter__(self) -> Iterator[Sequence[Cell]]:
        return map(self.make, self.items)


def table_of(
    items: Sequence[Item],
    columns: Sequence[tuple[Column, Callable[[Item], Cell]]],
    indent: int = 2,
    what: str = "",
    around: int = 0,
) -> Table:
    """A row for each item, by columns and what stands in them; the rest as for `Table`."""
    cells = [cell for _, cell in columns]
    rows = Rows(lambda row_of: tuple([cell(row_of) for cell in cells]), items)
    return Table([column for column, _ in columns], rows, indent, what, around=around)


class SharedRows(Sequence[Sequence[Cell]]):
    """Rows of a name and of cells that many share, each put together when somebody looks.

    Args:
        names: The first cell of every row.
        cells: The others; rows that are alike have the same object.
    """

    def __init__(self, names: Sequence[Cell], cells: Sequence[tuple[Cell, ...]]) -> None:
        self.names = names
        self.cells = cells

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return list(SharedRows(self.names[at], self.cells[at]))
        return (self.names[at], *self.cells[at])

    def __iter__(self) -> Iterator[tuple[Cell, ...]]:
        return ((name, *cells) for name, cells in zip(self.names, self.cells, strict=True))
