"""Draws blocks of a report as lines with roles, for a width."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from msgspec.structs import replace

from explorer.base.families import find_family
from explorer.report.blocks import Block, Cell, Chart, Field, Fields, Heading, Paragraph, Scatter, Table
from explorer.report.blocks import Line as TextLine
from explorer.report.layout import TableLines, note_omitted_rows
from explorer.report.pieces import split_cell, split_terms
from explorer.report.scatter import draw_scatter
from explorer.tui.text.lines import (
    BLANK,
    Line,
    Span,
    cut_line,
    escape_name,
    fit,
    flow_pieces,
    heading_line,
    line_text,
    line_width,
    wrap,
)

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
"""Roles of the screen by role of a report."""

SIGNS = {">= ": "≥ ", "<= ": "≤ ", "~ ": "≈ "}
"""Signs of inexact figures on the screen by sign of a report."""
_MAX_ROWS = 200
"""Maximum number of table rows that are drawn."""
_MIN_NAME = 15
"""Minimum width of a name in cells. A table that needs more width leaves out columns."""
_MIN_FULL_LABELS = 64
"""Width of a pane in cells from which figures have their full labels."""
_CONTINUATION_INDENT = 4
"""Indentation in cells of a continued row."""
_FORMULA_INDENT = 3
"""Indentation in cells of the further lines of a formula in a narrow pane."""
_NO_BREAK = "\u00a0"  # space at which `wrap` does not break a line
_MAX_LABEL, _MIN_LABEL = 24, 17
"""Maximum and minimum cells of the labels of figures."""


def draw(blocks: Iterable[Block], width: int, exact: bool = False, *, beside: bool = False) -> list[Line]:
    """Draw blocks one below the other.

    Args:
        blocks: Blocks in display order.
        width: Width in cells.
        exact: Whether numbers are written out instead of rounded.
        beside: Whether labeled figures are placed side by side, without their remarks.
    """
    lines: list[Line] = []
    for block in blocks:
        if isinstance(block, Fields):
            lines += draw_side_by_side(block, width, exact) if beside else _draw_fields(block, width, exact)
        elif isinstance(block, Table):
            lines += [((f" {text}", "warn"),) for text in note_omitted_rows(block, _MAX_ROWS)]
            lines += _draw_table(block, width, exact)
        elif isinstance(block, Scatter):
            lines += [cut_line(cell_line(spans), width) for spans in draw_scatter(block, width)]
        else:
            lines += _wrap_block(block, width, exact)
    return lines


def _wrap_block(block: Heading | TextLine | Paragraph | Chart, width: int, exact: bool) -> list[Line]:
    if isinstance(block, Heading):
        return wrap(
            (*heading_line(f" {block.text}"), (f"  {block.note}" * bool(block.note), "text")), width, 1
        )
    if isinstance(block, TextLine):
        line = cell_line(block.cell, exact=exact)
        return wrap(((" ", "text"), *line), width, 1) if line else [BLANK]
    if isinstance(block, Paragraph):
        return _wrap_formulas(((f" {escape_name(block.text)}", ROLES[block.role]),), width, 1)
    return []


def _draw_table(block: Table, width: int, exact: bool) -> list[Line]:
    """Draw a table. The last column is wrapped if it has no title."""
    layout = _lay_out_table(block, width, exact)
    if block.indent and layout.is_cut:
        unindented_layout = _lay_out_table(replace(block, indent=0), width, exact)
        # do not use the indentation for another column, which would cut the names more
        layout = unindented_layout if unindented_layout.shown == layout.shown else layout
    lines = (_convert_to_line(line, row=True) for line in layout)
    if block.columns[-1].title:
        return [cut_line(line, width) for line in lines]
    if len(block.columns) > 2:
        return [row for line in lines for row in _draw_last_below(line, width)]
    first = max((line_width(cell_line(row[0])) for row in block.rows[:_MAX_ROWS]), default=0)
    indent = min(block.indent + first + 2, max(4, width // 2))
    return [row for line in lines for row in wrap(line, width, indent)]


def _draw_last_below(line: Line, width: int) -> list[Line]:
    """Draw a row, with the last cell below the others if it does not fit beside them."""
    gap = max((index for index, (text, _) in enumerate(line) if not text.strip()), default=0)
    if line_width(line) <= width or not gap:
        return wrap(line, width, _CONTINUATION_INDENT)
    return wrap(line[:gap], width, _CONTINUATION_INDENT) + wrap(
        ((" " * _CONTINUATION_INDENT, "text"), *line[gap + 1 :]), width, _CONTINUATION_INDENT
    )


def _draw_fields(block: Fields, width: int, exact: bool) -> list[Line]:
    """Draw one line per figure: label, figure and remark. Long remarks are wrapped below themselves."""
    label_width, lines = field_lines(block, width, exact)
    return [row for line in lines for row in _wrap_formulas(line, width, label_width)]


def _wrap_formulas(line: Line, width: int, indent: int) -> list[Line]:
    """Wrap a line, and break its formulas only before operators. A narrow pane indents their lines less."""
    if line_width(line) <= width or not any(role == ROLES["formula"] for _, role in line):
        return wrap(line, width, indent)
    indent = indent if width >= _MIN_FULL_LABELS else min(indent, _FORMULA_INDENT)
    glued_line = [
        (_glue_terms(text, width - indent) if role == ROLES["formula"] else text, role) for text, role in line
    ]
    return [
        tuple((text.replace(_NO_BREAK, " "), role) for text, role in row)
        for row in wrap(glued_line, width, indent)
    ]


def _glue_terms(formula: str, width: int) -> str:
    """Replace the spaces within the terms of a formula by no-break spaces, so that terms stay on one line."""
    return "".join([term[:1] + term[1:].replace(" ", _NO_BREAK) for term in split_terms(formula, width)])


def field_lines(block: Fields, width: int, exact: bool = False) -> tuple[int, list[Line]]:
    """Return the width of the labels in cells, and one line per figure, neither cut nor wrapped."""
    names = [cell_line(_choose_label(field, width), "quiet") for field in block.rows]
    label_width = min(max(map(line_width, names), default=0) + 3, _MAX_LABEL, max(_MIN_LABEL, width // 2))
    lines: list[Line] = []
    for name, field in zip(names, block.rows, strict=True):
        label = (fit(f" {line_text(name)}", label_width - 1) + " ", name[0][1] if name else "dim")
        figure, remark = cell_line(field.figure, "figure", exact), cell_line(field.remark, "quiet")
        separator = (("  ", "dim"),) if line_text(figure) and remark else ()
        lines.append((label, *figure, *separator, *remark))
    return label_width, lines


def _choose_label(field: Field, width: int) -> Cell:
    """Return the label of a figure, or its short form in a narrow pane."""
    return field.short if field.short and width < _MIN_FULL_LABELS else field.label


def draw_side_by_side(block: Fields, width: int, exact: bool = False, gap: int = 2) -> list[Line]:
    """Draw figures with their labels side by side, as many per line as fit."""
    return flow_pieces(
        (
            cut_line(
                (
                    (line_text(cell_line(_choose_label(field, width))).strip() + " ", "dim"),
                    *cell_line(field.figure, "figure", exact),
                ),
                width - 1,
            )
            for field in block.rows
        ),
        width,
        gap=gap,
    )


def title_line(table: Table, width: int, exact: bool = False, narrowest: int = _MIN_NAME) -> Line:
    """Draw the column titles of a table whose rows are drawn by `row_line`."""
    return cut_line(
        (
            (" ", "text"),
            *_convert_to_line(_lay_out_table(table, width - 1, exact, narrowest).head(), row=True),
        ),
        width,
    )


def row_line(
    table: Table,
    index: int,
    width: int,
    exact: bool = False,
    *,
    mark: Span = ("   ", "text"),
    is_current: bool = False,
    narrowest: int = _MIN_NAME,
) -> Line:
    """Draw a row of a table for a list.

    Args:
        table: The table.
        index: Index of the row.
        width: Width in cells.
        exact: Whether numbers are written out instead of rounded.
        mark: Span before the row, one cell wider than the indentation of the table.
        is_current: Whether the row is highlighted as the current one.
        narrowest: Cells that names keep before a column is left out.
    """
    line = _convert_to_line(
        _lay_out_table(table, width - 1, exact, narrowest).line(table.rows[index]), row=True
    )[bool(table.indent) :]
    return cut_line(
        (mark, *((text, "strong" if is_current and role == "text" else role) for text, role in line)), width
    )


@lru_cache(8)
def _lay_out_table(table: Table, width: int, exact: bool, narrowest: int = _MIN_NAME) -> TableLines:
    """Return the layout of a table, cached so that its columns are measured only once."""
    return TableLines(table, width, max_rows=_MAX_ROWS, exact=exact, narrowest=narrowest)


def cell_line(cell: Cell, role: str = "", exact: bool = False) -> Line:
    """Convert a cell to a line. Text without a role gets `role`."""
    return _convert_to_line(split_cell(cell, role, exact=exact))


def _convert_to_line(pieces: Sequence[tuple[str, str]], *, row: bool = False) -> Line:
    """Convert pieces with report roles to a line. With `row`, texts keep their widths, as in a table."""
    return tuple(
        (
            _replace_sign(text, row) if role == "warning" else text,
            find_kind_role(text) if role == "kind" else ROLES[role],
        )
        for text, role in pieces
    )


def find_kind_role(kind: str, *, tiled: bool = False) -> str:
    """Return the role of an operator or class: its family, or 'dim' without one."""
    family_name = find_family(kind, tiled=tiled)
    return "dim" if family_name == "other" else family_name


def _replace_sign(text: str, row: bool) -> str:
    """Replace the ASCII sign of an inexact figure by its Unicode character; in a `row`, at the same width."""
    sign = next((sign for sign in SIGNS if text.startswith(sign)), "")
    return SIGNS.get(sign, "").rjust(len(sign) * row) + text[len(sign) :]
