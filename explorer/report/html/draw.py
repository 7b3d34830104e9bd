"""Draws blocks as HTML and as Markdown.

HTML is generated with Jinja2, which escapes the names of a model.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.base.units import printable
from explorer.facts import Info
from explorer.report import plots
from explorer.report.blocks import (
    Block,
    Cell,
    Chart,
    Column,
    Fields,
    Heading,
    Line,
    Paragraph,
    Scatter,
    Span,
    Table,
)
from explorer.report.layout import Page, note_omitted_rows
from explorer.report.present.look.info import describe_model
from explorer.session.headers import get_format_label

if TYPE_CHECKING:
    from jinja2 import Template

Sections = Sequence[tuple[str, Sequence[Block]]]
"""Sections of a page, each with a title and blocks."""

_MAX_ROWS = 5_000
"""Maximum number of rows of a table; browsers are slow with more."""

_FIELDS = (Column(""), Column("", "right"), Column("", "right"), Column("", role="quiet"))


class _TreeRow(Struct, frozen=True):
    """A row of a tree that folds.

    Attributes:
        closes: Number of groups of which the row is the last one.
        is_open: Whether the rows below a group are visible at first.
    """

    cells: Sequence[Sequence[Span]]
    depth: int
    parent: bool
    is_open: bool
    closes: int


class _Part(Struct, frozen=True):
    """A part of a page for the template: a heading, lines of text, a picture, a table, or a tree."""

    heading: str = ""
    text: Sequence[Span] = ()
    plain: str = ""
    picture: str = ""
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Sequence[Span]]] = ()
    sortable: bool = False
    tree: Sequence[_TreeRow] = ()
    widths: str = ""


@cache
def _load_template(name: str) -> Template:
    """Load a template of the report, which may import other templates of the report."""
    from importlib.resources import files

    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda path: files("explorer.report").joinpath(path).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # markup comes only from this program; texts may be untrusted, and users also print pages to a
        # terminal
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    return environment.get_template(name)


def fragment(blocks: Sequence[Block], open_levels: int = 1) -> str:
    """Return blocks as HTML for a cell of a notebook, without scripts, and with a style for this cell alone.

    Args:
        blocks: Blocks in display order. Charts are left out, because each would import matplotlib.
        open_levels: Number of levels of a tree whose groups are open at first, from the top.
    """
    parts: list[_Part] = []
    for block in blocks:
        if isinstance(block, Table) and block.depths:
            parts.append(_draw_tree(block, open_levels))
        elif isinstance(block, Scatter):
            parts.append(_Part(plain="".join(Page((block,), fit=False).plain())))
        elif not isinstance(block, Chart):
            parts += _draw_parts((block,), None)
    return _load_template("fragment.html.j2").render(parts=parts)


def _draw_tree(table: Table, open_levels: int) -> _Part:
    """Create a tree whose groups fold: a table with a depth for each row."""
    rows = [[_list_spans(cell) for cell in row] for row in table.rows[:_MAX_ROWS]]
    # the indentation of a name is a matter of the style
    rows = [[[Span(row[0][0].text.lstrip(" "), *row[0][0][1:]), *row[0][1:]], *row[1:]] for row in rows]
    depths = table.depths[: len(rows)]
    filled = [
        i
        for i, column in enumerate(table.columns)
        if column.role != "bar" and any(i < len(row) and _join_texts(row[i]) for row in rows)
    ]
    widths = []
    for i in filled:
        texts = (_join_texts(row[i]) for row in rows if i < len(row))
        indent = 2 * max(depths, default=0) + 4 if i == 0 else 0
        widths.append(min(_MAX_COLUMN_WIDTH, max(len(table.columns[i].title), *map(len, texts)) + indent))
    tree, open_groups = [], list[int]()
    for row, depth, below in zip(rows, depths, (*depths[1:], 0), strict=True):
        if parent := below > depth:
            open_groups.append(depth)
        closes = sum(group >= below for group in open_groups)
        del open_groups[len(open_groups) - closes :]
        cells = [row[i] if i < len(row) else [] for i in filled]
        tree.append(_TreeRow(cells, depth, parent, depth < open_levels, closes))
    return _Part(
        columns=[table.columns[i] for i in filled],
        tree=tree,
        widths=" ".join(f"{width}ch" for width in widths),
    )


_MAX_COLUMN_WIDTH = 60
"""Largest width of a column of a tree, in characters."""


def html(title: str, sections: Sections, info: Info | None, tool: str) -> str:
    """Return an HTML page of sections about one or several models."""
    parts = [(name, list(_draw_parts(blocks, info))) for name, blocks in sections]
    return _load_template("page.html.j2").render(
        title=title, subtitle=_format_subtitle(info), sections=parts, tool=tool
    )


def markdown(title: str, sections: Sections, info: Info | None, tool: str) -> str:
    """Return a Markdown page of sections."""
    lines = [f"# {_escape(title)}", "", _escape(_format_subtitle(info)), ""]
    for name, blocks in sections:
        lines += [f"## {name}", "", *_markdown_lines(blocks, info, name)]
    return "\n".join([*lines, f"Made by {tool}. Counts are SI, bytes are IEC.", ""])


def format_markdown(blocks: Sequence[Block], *, exact: bool = False) -> str:
    """Return blocks without charts as Markdown, the output of `--markdown`.

    Args:
        blocks: Blocks in display order.
        exact: Whether numbers are written out instead of rounded.
    """
    return "\n".join(_markdown_lines(blocks, None, "", exact)).rstrip() + "\n"


def _markdown_lines(blocks: Iterable[Block], info: Info | None, name: str, exact: bool = False) -> list[str]:
    """Return lines of Markdown, with a blank line after each part."""
    lines: list[str] = []
    for part in _draw_parts(blocks, info):
        if part.heading:
            lines += [f"### {_escape(part.heading)}", ""]
        if part.text:
            lines += [_escape(_join_texts(part.text)), ""]
        if part.picture:
            coded = base64.b64encode(part.picture.encode()).decode()
            lines += [f"![{name}](data:image/svg+xml;base64,{coded})", ""]
        if part.columns:
            lines += [_draw_row(column.title for column in part.columns)]
            lines += [_draw_row("---:" if column.align == "right" else "---" for column in part.columns)]
            lines += [_draw_row(_keep_indent(_join_texts(cell, exact)) for cell in row) for row in part.rows]
            lines.append("")
    return lines


def _format_subtitle(info: Info | None) -> str:
    if info is None:
        return ""
    about = describe_model(info.model, get_format_label(info.model.format))
    return f"{printable(info.model.source)} · {printable(about)}"


def _draw_parts(blocks: Iterable[Block], info: Info | None) -> Iterable[_Part]:
    """Yield the parts of a page that show the blocks. `info` names the model in charts."""
    for block in blocks:
        if isinstance(block, Heading):
            yield _Part(heading=" · ".join(filter(None, (block.text, block.note))))
        elif isinstance(block, Chart):
            yield _Part(picture=plots.svg(block.name, info, block.fact))
        elif isinstance(block, Scatter):
            yield _Part(picture=plots.svg("scatter", info, block))
        elif isinstance(block, Paragraph):
            yield _Part(text=[Span(block.text, block.role)])
        elif isinstance(block, Line):
            if spans := _list_spans(block.cell):
                yield _Part(text=spans)
        elif isinstance(block, Fields):
            rows = [(f.label, f.figure, f.exact, f.remark) for f in block.rows]
            yield _draw_table(_FIELDS, rows, sortable=False)
        else:
            yield from (_Part(text=[Span(text, "warning")]) for text in note_omitted_rows(block, _MAX_ROWS))
            yield _draw_table(block.columns, block.rows[:_MAX_ROWS], sortable=True)


def _draw_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], *, sortable: bool) -> _Part:
    """Create a table without empty columns and without bars."""
    filled = [
        i
        for i, column in enumerate(columns)
        if column.role != "bar" and any(i < len(row) and _join_texts(_list_spans(row[i])) for row in rows)
    ]
    cells = [[_list_spans(row[i]) if i < len(row) else [] for i in filled] for row in rows]
    titled = any(columns[i].title for i in filled)
    return _Part(columns=[columns[i] for i in filled], rows=cells, sortable=sortable and titled)


def _list_spans(cell: Cell) -> list[Span]:
    if isinstance(cell, str):
        return [Span(cell)] if cell else []
    return [cell] if isinstance(cell, Span) else [span for part in cell for span in _list_spans(part)]


def _join_texts(spans: Iterable[Span], exact: bool = False) -> str:
    return "".join(span.exact if exact and span.exact else span.text for span in spans)


def _draw_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _keep_indent(text: str) -> str:
    """Convert the indentation of a tree to spaces that Markdown keeps."""
    bare = text.lstrip(" ")
    return "&nbsp;" * (len(text) - len(bare)) + _escape(bare)


def _escape(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged."""
    return "".join(
        f"\\{c}" if c in "\\`*_{}[]<>#|~$!" else "&amp;" if c == "&" else c for c in printable(text)
    )
