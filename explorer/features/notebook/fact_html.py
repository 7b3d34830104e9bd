"""HTML of facts for cells of a notebook, and the text of a summary: the blocks of the report.

A fact without blocks of its own is shown as its fields and, if it has rows, as a table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.fact import Fact, TableFact, describe_value
from explorer.base.features import list_offers, load
from explorer.base.version import __version__
from explorer.facts import Analysis, Layer, LayerTable, TensorInfo, build_total_row
from explorer.facts.history import History
from explorer.facts.summary import Summary
from explorer.report import document
from explorer.report.blocks import Block, Column, Field, Fields, Heading, Line, Paragraph, Rows, Table
from explorer.report.html.draw import fragment
from explorer.report.layout import Page
from explorer.report.present.figures import value_text
from explorer.report.present.look.layers import layer_parts, layer_title
from explorer.report.present.look.table import table as table_answer
from explorer.report.present.shell.history_words import states
from explorer.settings.columns import COLUMNS, ColumnFigures

_MAX_ROWS = 200
"""Largest number of rows of a table without blocks of its own."""

_PRESENTERS = {
    "Analysis": "look.table.layers",
    "Conversion": "compare.convert.conversion",
    "Diff": "compare.diff.diff",
    "FigureTable": "compare.compared_figures.build_figure_blocks",
    "Info": "look.info.info",
    "LayerTable": "look.table.table",
    "Machines": "shell.machines_words.machines",
    "Memory": "look.memory_words.memory_blocks",
    "ModelListing": "shell.list.build_listing_blocks",
    "Overlay": "look.overlay_words.overlay_blocks",
    "Placement": "look.overlay_words.build_placement_blocks",
    "Roofline": "look.roofline_words.build_roofline_blocks",
    "Verification": "compare.verify.verification",
}
"""Functions of `explorer.report.present` that build the blocks of a fact, by the fact's type."""


def draw_fact(fact: Fact) -> str | None:
    """Return a fact as HTML for a cell of a notebook, or None if Jinja2 is not installed.

    A notebook then shows the repr.
    """
    if find_spec("jinja2") is None:
        return None
    if isinstance(fact, Summary):
        return fragment(_build_summary_blocks(fact, None, is_text=False), fact.depth - 1)
    return fragment(build_fact_blocks(fact))


def build_fact_blocks(fact: Fact) -> list[Block]:
    """Return the blocks of any fact."""
    name = type(fact).__name__
    if isinstance(fact, History):
        return [states(fact, "*")]
    if isinstance(fact, Layer):
        return [*layer_title(fact), _list_fields(fact), Line(), *layer_parts(fact)]
    if name in list_offers("blocks"):
        blocks: list[Block] = load("blocks", name)(fact)
        return blocks
    if name in _PRESENTERS:
        module, _, function = _PRESENTERS[name].rpartition(".")
        build_blocks = getattr(import_module(f"explorer.report.present.{module}"), function)
        fact_blocks: list[Block] = build_blocks(fact)
        return fact_blocks
    rows: list[Block] = (
        [Line(), _list_rows(getattr(fact, type(fact).ROWS))] if isinstance(fact, TableFact) else []
    )
    return [Heading(name), _list_fields(fact), *rows]


def _list_fields(fact: Struct) -> Fields:
    """Return the fields of a record that have a single value; None and lists are left out."""
    values = {name: getattr(fact, name) for name in fact.__struct_fields__}
    return Fields(
        [
            Field(name.replace("_", " "), _format_value(value))
            for name, value in values.items()
            if value is not None and not _is_list(value)
        ]
    )


def _is_list(value: Any) -> bool:
    return hasattr(value, "__len__") and not isinstance(value, (str, bytes, Struct))


def _format_value(value: Any) -> str:
    """Return a value of a field as text, and "?" for an unknown figure."""
    if value is None:
        return "?"
    if isinstance(value, Struct):
        return describe_value(value)
    return f"{value:.6g}" if isinstance(value, float) else value_text(value)


def _list_rows(rows: Any) -> Table:
    """Return a table of at most `_MAX_ROWS` records, with the fields that have a single value."""
    listed_rows = list(rows[:_MAX_ROWS])
    names = [
        name
        for name in (listed_rows[0].__struct_fields__ if listed_rows else ())
        if not any(_is_list(getattr(row, name)) for row in listed_rows)
    ]
    columns = [
        Column(name.replace("_", " "), "left" if isinstance(getattr(listed_rows[0], name), str) else "right")
        for name in names
    ]

    def build_row(row: Struct) -> list[str]:
        return [_format_value(getattr(row, name)) for name in names]

    more_note = f"the first {_MAX_ROWS:,}; to_frame() has all" if len(rows) > _MAX_ROWS else ""
    return Table([*columns, *([Column(more_note)] if more_note else [])], Rows(build_row, listed_rows))


def _build_summary_blocks(fact: Summary, depth: int | None, *, is_text: bool) -> list[Block]:
    """Return the table of a summary and its totals.

    Args:
        fact: The summary.
        depth: Number of levels of the tree, or None for all.
        is_text: Whether the blocks are for a text, in which characters draw the tree.
    """
    figures = ColumnFigures(totals=fact.info.totals)
    # a name in torchinfo's form contains the type
    names = fact.columns[1:] if fact.row_settings and fact.columns[0] == "kind" else fact.columns
    columns = [COLUMNS[name] for name in names]
    layers = [layer for layer in fact.layers if depth is None or layer.depth < depth]
    if fact.weights:
        layers = [row for layer in layers for row in (layer, *_list_weight_rows(layer))]
    total = build_total_row(fact.info.totals, fact.info.model.inputs, fact.info.model.outputs)
    table = LayerTable(
        fact.info,
        names,
        tuple(layers),
        tuple([tuple([column.get_value(layer, figures) for column in columns]) for layer in layers]),
        total,
        tuple([column.get_value(total, figures) for column in columns]),
        style="torchinfo",
    )
    notes = [Paragraph(note, "warning") for note in fact.info.model.notes]
    blocks = [*table_answer(table), *([Line()] if notes else []), *notes]
    table_index = next(index for index, block in enumerate(blocks) if isinstance(block, Table))
    if fact.row_settings:
        blocks[table_index] = _name_rows(blocks[table_index], layers, fact.row_settings, is_text=is_text)
    if fact.col_width and is_text:
        blocks[table_index] = _widen_columns(blocks[table_index], fact.col_width)
    return blocks


def _name_rows(table: Block, layers: Sequence[Layer], settings: Collection[str], *, is_text: bool) -> Table:
    """Return a table whose rows have names in torchinfo's form, such as '│    └─Linear (0): 2-1'."""
    assert isinstance(table, Table)
    words = "type" + " (var_name)" * ("var_names" in settings) + ":depth-idx" * ("depth" in settings)
    counts: Counter[int] = Counter()
    names: list[str] = []
    for layer in layers:
        counts[layer.depth] += 1
        number = f": {layer.depth + 1}-{counts[layer.depth]}" if "depth" in settings else ""
        calls = f" ×{layer.calls:,}" if layer.calls > 1 else ""
        name = f"{layer.kind}{f' ({layer.name})' * ('var_names' in settings)}{number}{calls}"
        names.append(_draw_branch(layer.depth, is_ascii="ascii_only" in settings) * is_text + name)
    rows = [(name, *row[1:]) for name, row in zip(names, table.rows, strict=False)]
    head = table.columns[0]._replace(title=f"Layer ({words})")
    return replace(table, columns=(head, *table.columns[1:]), rows=(*rows, table.rows[len(names)]))


def _draw_branch(depth: int, *, is_ascii: bool) -> str:
    """Return the characters that torchinfo draws before the name of a row; `depth` starts at 0."""
    if is_ascii:
        return "|    " * depth + "+ "
    return "│    " * depth + ("└─" if depth else "├─")


def _widen_columns(table: Block, min_width: int) -> Table:
    """Return a table whose columns with a title, except the first, have at least `min_width` characters."""
    assert isinstance(table, Table)
    columns = [
        column._replace(
            title=column.title.rjust(min_width) if column.align == "right" else column.title.ljust(min_width)
        )
        if column.title
        else column
        for column in table.columns[1:]
    ]
    return replace(table, columns=(table.columns[0], *columns))


def _list_weight_rows(layer: Layer) -> list[Layer]:
    """Return a row for each stored tensor of a layer, one level below the layer; none for a group."""
    if layer.group:
        return []
    return [
        Layer(
            id=layer.id,
            parent=layer.id,
            path=f"{layer.path}.{tensor.name}",
            name=tensor.name.rpartition(".")[2],
            kind=tensor.dtype or "",
            depth=layer.depth + 1,
            group=False,
            outputs=(replace(tensor, origin="inferred"),),
            params=_count_elements(tensor),
        )
        for tensor in layer.weights
    ]


def _count_elements(tensor: TensorInfo) -> int:
    sizes = [size for size in tensor.shape or () if isinstance(size, int)]
    return math.prod(sizes)


def write_summary(fact: Summary) -> str:
    """Return the table of a summary as text, without styles."""
    page = Page(_build_summary_blocks(fact, fact.depth, is_text=True), fit=False)
    is_ascii = "ascii_only" in fact.row_settings
    text = "".join(page.plain(ascii_only=is_ascii)).rstrip("\n")
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode() if is_ascii else text


_ASCII = str.maketrans({"·": "-", "×": "x", "…": "..."})
"""ASCII for the characters of a table other than bars."""


def build_document(fact: Summary) -> dict[str, Any]:
    """Return the JSON document of `explorer layers` for a summary."""
    return document.layers(Analysis(fact.info, tuple(fact.layers)), f"explorer {__version__}")
