"""Connections of a layer: which its inputs come from, which read its outputs: `explorer layers --layer`.

A table's rows lead to layers; `leads` says where, for who can follow them.
"""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.units import dims_text, shape_text
from explorer.facts import Info, TensorInfo
from explorer.facts.external.overlay import Overlay
from explorer.facts.graph.connections import Connections, InputConnection, LayerRef, OutputConnection
from explorer.report.blocks import Block, Cell, Column, Heading, Line, Paragraph, Span, Table
from explorer.report.present.look.info import answer
from explorer.report.present.look.layers import (
    layer_blocks,
    layer_parts,
    layer_title,
    outside_fields,
    same_name_text,
)
from explorer.report.present.look.overlay_words import overlay_blocks

_SOURCES = {"input": "input of the model", "stored": "stored in the model", "unknown": "not known"}


def layer(about: Info, fact: Connections, overlay: Overlay | None = None) -> list[Block]:
    """The answer of `explorer layers --layer`, with figures from outside where there are some."""
    row = fact.layer
    tables: list[Block] = []
    for name, table in (("Inputs", input_table(fact)), ("Outputs", output_table(fact))):
        if table.rows:
            tables += [Line(), Heading(name, _NOTES[name]), table]
    tables += conflicts(fact)
    parts = layer_parts(row, tensors=bool(fact.unknown))
    dims = about.assumptions.get("dims")
    bound_sizes: list[Block] = []
    if dims:
        bound_sizes = [Line(), Paragraph(f"sizes that were bound: {dims_text(dims)}", "quiet")]
    figures = layer_blocks(row, about.totals, outside_fields(overlay, row.id))
    matched = [] if overlay is None else overlay_blocks(overlay)
    named = same_name_text(row.path, fact.same_name)
    twins: list[Block] = [Paragraph(f"{named}.", "warning", 0), Line()] if named else []
    page = [
        *layer_title(row),
        *twins,
        *figures,
        *tables,
        *bound_sizes,
        *unknown_blocks(fact),
        *parts,
        *matched,
    ]
    return answer(about, page)


_NOTES = {"Inputs": "and who makes them", "Outputs": "and who reads them"}


def unknown_blocks(fact: Connections) -> list[Block]:
    """Why the connections are not known; nothing if they are."""
    return [Line(), Paragraph(fact.unknown, "warning")] if fact.unknown else []


def conflicts(fact: Connections) -> list[Block]:
    """Where what a file says of a tensor cannot be."""
    found = [*(one.tensor for one in fact.inputs), *(one.tensor for one in fact.outputs)]
    tensors = {tensor.name: tensor.conflict for tensor in found}
    return [Paragraph(f"{name}: {said}", "warning") for name, said in tensors.items() if said]


def input_table(fact: Connections) -> Table:
    """A row for each tensor that comes in: from which layer, and what it is."""
    rows: list[tuple[Cell, ...]] = []
    inputs = _unfolded(fact)
    for edge in inputs:
        maker = edge.producer.path if edge.producer is not None else ""
        rows.append((*_source(edge), *_tensor(edge.tensor, maker, fact)))
    if len(inputs) < len(fact.inputs):
        rows.append((Span(f"+{fact.input_count - len(inputs):,} constants", "quiet"),))
        return _table(rows, 0, "inputs")
    return _table(rows, fact.input_count - len(fact.inputs), "inputs")


_FEW = 3
"""Constants that are listed; of more only their number is told, as in the tree."""


def _unfolded(fact: Connections) -> Sequence[InputConnection]:
    """The inputs that are listed: the constants stand behind the others."""
    varying = [one for one in fact.inputs if not one.constant]
    return fact.inputs if len(fact.inputs) - len(varying) <= _FEW else varying


def output_table(fact: Connections) -> Table:
    """A row for each reader of each tensor that goes out."""
    rows: list[tuple[Cell, ...]] = []
    outputs = _listed(fact)
    for edge in outputs:
        cells = _tensor(edge.tensor, fact.layer.path, fact)
        for place, reader in enumerate(_readers(edge)):
            rows.append((*reader, *(cells if not place else ("", "", "", ""))))
    if len(outputs) < len(fact.outputs):
        more = fact.output_count - len(outputs)
        rows.append((Span(f"+{more:,} for constants and shape arithmetic", "quiet"),))
        return _table(rows, 0, "outputs")
    return _table(rows, fact.output_count - len(fact.outputs), "outputs")


def _listed(fact: Connections) -> Sequence[OutputConnection]:
    """The outputs that are listed: what only constants and shape arithmetic read stands behind the others."""
    others = [one for one in fact.outputs if not one.constant]
    return fact.outputs if not others or len(fact.outputs) - len(others) <= _FEW else others


def leads(fact: Connections) -> tuple[list[int | None], list[int | None]]:
    """Ids of the layers to which the rows of both tables lead; None for a row that leads nowhere."""
    return (
        _padded([None if i.producer is None else i.producer.id for i in _unfolded(fact)], input_table(fact)),
        _padded(
            [
                lead
                for output in _listed(fact)
                for lead in (*(r.id for r in output.readers), *(None for _ in _beside(output)))
            ],
            output_table(fact),
        ),
    )


def _padded(found: list[int | None], table: Table) -> list[int | None]:
    return found + [None] * (len(table.rows) - len(found))


_PATH = 26
"""Cells of a path: where a layer leads to is said before of which type what goes there is."""


def _table(rows: list[tuple[Cell, ...]], more: int, noun: str) -> Table:
    columns = (
        Column("layer", shrink=True, least=_PATH),
        Column("kind", role="kind", drop=2),
        Column("shape", role="figure"),
        Column("dtype", role="quiet", drop=1),
        Column("shape is", role="quiet", drop=3),
        Column("tensor", shrink=True, drop=4, role="quiet"),
    )
    if more:
        rows.append((Span(f"and {more:,} more {noun}", "quiet"),))
    return Table(columns, rows, 1)


_Two = tuple[Cell, Cell]


def _source(one: InputConnection) -> _Two:
    return (Span(_SOURCES[one.source], "quiet"), "") if one.producer is None else _ref(one.producer, "← ")


def _ref(layer: LayerRef, sign: str) -> _Two:
    return (Span(sign, "formula"), layer.path or "(unnamed)"), layer.kind


def _readers(one: OutputConnection) -> list[_Two]:
    """Two cells for each reader, and for what else becomes of a tensor."""
    return [*(_ref(reader, "→ ") for reader in one.readers), *((cell, "") for cell in _beside(one))]


def _beside(output: OutputConnection) -> Sequence[Cell]:
    """What becomes of a tensor beside the readers that are named."""
    cells: list[Cell] = []
    if (more := output.reader_count - len(output.readers)) > 0:
        cells.append(Span(f"and {more:,} more readers, {output.reader_count:,} in all", "quiet"))
    if output.model_output:
        cells.append(Span("output of the model", "quiet"))
    return cells or ([] if output.readers else [Span("nobody reads it", "quiet")])


def _tensor(tensor: TensorInfo, maker: str, fact: Connections) -> tuple[Cell, Cell, Cell, Cell]:
    """Shape, type, who said so, and name; a tensor that is called after its maker needs none.

    Where a size was bound the shape that the file declares stands beside.
    """
    shape = shape_text(tensor.shape) + (" at most" if tensor.origin == "bound" else "")
    origin = _SAID.get(tensor.origin, tensor.origin)
    if (declared := fact.declared.get(tensor.name)) is not None:
        declared_text = f"bound, declared {shape_text(declared)}"
        origin = (
            declared_text if tensor.origin == "declared" else f"{origin}, declared {shape_text(declared)}"
        )
    return Span(shape, "figure"), tensor.dtype or "?", origin, "" if tensor.name == maker else tensor.name


_SAID = {"observed": "seen in a run", "bound": "an upper bound", "unknown": "not known"}
"""Who said what a shape is, where it is not called 'declared' (in the file) or 'inferred' as in JSON."""
