"""Blocks as lines of a pane: what text and pages say, at the width there is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from explorer.base.families import family
from explorer.report.blocks import Block, Cell, Chart, Field, Fields, Heading, Paragraph, Scatter, Table
from explorer.report.blocks import Line as TextLine
from explorer.report.layout import TableLines, cell_pieces, some_of
from explorer.report.scatter import scatter_lines
from explorer.tui.text.lines import BLANK, Line, Span, cut, fit, flow, head, line_text, line_width, safe, wrap

ROLES: Mapping[str, str] = {
    "": "text",
    "strong": "strong",
    "quiet": "dim",
    "figure": "number",
    "formula": "accent",
    "bar": "bar",
    "good": "good",
    "passed": "good",
    "warning": "warn",
    "bad": "bad",
}
"""The screen's roles of those of blocks."""

_SIGNS = {">= ": "≥ ", "<= ": "≤ ", "~ ": "≈ "}
_MOST = 200
"""Rows of a table that are drawn."""
_NARROWEST = 15
"""Cells that a name is cut to before a column is left out."""
_ROOMY = 64
"""Cells of a pane in which figures have their whole names."""
_BELOW = 4
"""Cells by which the rest of a row is indented."""
_LABEL, _LEAST = 24, 17
"""Cells that the labels of figures take at most, and those that they have however narrow it is."""


def draw(blocks: Iterable[Block], width: int, exact: bool = False, *, beside: bool = False) -> list[Line]:
    """Blocks one under the other.

    Args:
        blocks: In order.
        width: In cells.
        exact: Figures are written out instead of rounded.
        beside: Figures stand beside each other, without what else there is to say.
    """
    lines: list[Line] = []
    for block in blocks:
        if isinstance(block, Fields):
            lines += side_by_side(block, width, exact) if beside else _fields(block, width, exact)
        elif isinstance(block, Table):
            lines += [((f" {text}", "warn"),) for text in some_of(block, _MOST)]
            lines += _table(block, width, exact)
        elif isinstance(block, Scatter):
            lines += [cut(cell_line(spans), width) for spans in scatter_lines(block, width)]
        else:
            lines += _wrapped(block, width, exact)
    return lines


def _wrapped(block: Heading | TextLine | Paragraph | Chart, width: int, exact: bool) -> list[Line]:
    if isinstance(block, Heading):
        return wrap((*head(f" {block.text}"), (f"  {block.note}" * bool(block.note), "text")), width, 1)
    if isinstance(block, TextLine):
        line = cell_line(block.cell, exact=exact)
        return wrap(((" ", "text"), *line), width, 1) if line else [BLANK]
    if isinstance(block, Paragraph):
        return wrap(((f" {safe(block.text)}", ROLES[block.role]),), width, 1)
    return []


def _table(block: Table, width: int, exact: bool) -> list[Line]:
    """Rows under columns, indented where there is room; prose in a last one without a title is wrapped."""
    laid = _laid(block, width, exact)
    if block.indent and laid.is_cut:
        wider = _laid(replace(block, indent=0), width, exact)
        laid = wider if wider.shown == laid.shown else laid  # a column more would cut the names more
    lines = (_line(line, row=True) for line in laid)
    if block.columns[-1].title:
        return [cut(line, width) for line in lines]
    if len(block.columns) > 2:
        return [piece for line in lines for piece in _last_below(line, width)]
    first = max((line_width(cell_line(row[0])) for row in block.rows[:_MOST]), default=0)
    under = min(block.indent + first + 2, max(4, width // 2))
    return [piece for line in lines for piece in wrap(line, width, under)]


def _last_below(line: Line, width: int) -> list[Line]:
    """A row whose last cell stands below the others where there is no room beside them."""
    gap = max((at for at, (text, _) in enumerate(line) if not text.strip()), default=0)
    if line_width(line) <= width or not gap:
        return wrap(line, width, _BELOW)
    return wrap(line[:gap], width, _BELOW) + wrap(((" " * _BELOW, "text"), *line[gap + 1 :]), width, _BELOW)


def _fields(block: Fields, width: int, exact: bool) -> list[Line]:
    """A figure a line: its name, the figure, what else there is to say, wrapped under itself."""
    room, lines = field_lines(block, width, exact)
    return [piece for line in lines for piece in wrap(line, width, room)]


def field_lines(block: Fields, width: int, exact: bool = False) -> tuple[int, list[Line]]:
    """A line a figure, however long it is, and the cells that their names take."""
    names = [cell_line(_name(field, width), "quiet") for field in block.rows]
    room = min(max(map(line_width, names), default=0) + 3, _LABEL, max(_LEAST, width // 2))
    lines: list[Line] = []
    for name, field in zip(names, block.rows, strict=True):
        label = (fit(f" {line_text(name)}", room - 1) + " ", name[0][1] if name else "dim")
        figure, remark = cell_line(field.figure, "figure", exact), cell_line(field.remark, "quiet")
        between = (("  ", "dim"),) if line_text(figure) and remark else ()
        lines.append((label, *figure, *between, *remark))
    return room, lines


def _name(field: Field, width: int) -> Cell:
    """What a figure is called, in less words where there is little room."""
    return field.short if field.short and width < _ROOMY else field.label


def side_by_side(block: Fields, width: int, exact: bool = False, gap: int = 2) -> list[Line]:
    """Figures beside each other, each with its name, as many a line as there is room for."""
    return flow(
        (
            cut(
                (
                    (line_text(cell_line(_name(field, width))).strip() + " ", "dim"),
                    *cell_line(field.figure, "figure", exact),
                ),
                width - 1,
            )
            for field in block.rows
        ),
        width,
        gap=gap,
    )


def title_line(table: Table, width: int, exact: bool = False, narrowest: int = _NARROWEST) -> Line:
    """The titles of a table's columns, above what `row_line` makes."""
    return cut(((" ", "text"), *_line(_laid(table, width - 1, exact, narrowest).head(), row=True)), width)


def row_line(
    table: Table,
    at: int,
    width: int,
    exact: bool = False,
    *,
    mark: Span = ("   ", "text"),
    here: bool = False,
    narrowest: int = _NARROWEST,
) -> Line:
    """A row of a table in a list, behind a mark one cell wider than its indent.

    `here`: under the cursor; `narrowest`: cells that names keep before a column is left out.
    """
    line = _line(_laid(table, width - 1, exact, narrowest).line(table.rows[at]), row=True)[
        bool(table.indent) :
    ]
    return cut((mark, *((text, "strong" if here and role == "text" else role) for text, role in line)), width)


@lru_cache(8)
def _laid(table: Table, width: int, exact: bool, narrowest: int = _NARROWEST) -> TableLines:
    """A table laid out; its columns are measured once, however often a row is asked for."""
    return TableLines(table, width, most=_MOST, exact=exact, narrowest=narrowest)


def cell_line(cell: Cell, role: str = "", exact: bool = False) -> Line:
    """A cell as a line; text that has no role gets `role`."""
    return _line(cell_pieces(cell, role, exact=exact))


def _line(pieces: Sequence[tuple[str, str]], *, row: bool = False) -> Line:
    """Pieces with the screen's roles; those of a row keep their cells."""
    return tuple(
        (
            _typeset(text, row) if role == "warning" else text,
            kind_role(text) if role == "kind" else ROLES[role],
        )
        for text, role in pieces
    )


def kind_role(kind: str, *, tiled: bool = False) -> str:
    """The role of the name of an operator or a class: its family, dim where it is in none."""
    found = family(kind, tiled=tiled)
    return "dim" if found == "other" else found


def _typeset(text: str, row: bool) -> str:
    """The sign of a figure that is not exact as a pane can show it."""
    sign = next((sign for sign in _SIGNS if text.startswith(sign)), "")
    return _SIGNS.get(sign, "").rjust(len(sign) * row) + text[len(sign) :]
