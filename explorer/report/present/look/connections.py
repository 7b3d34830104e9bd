"""Connections of a layer: the producers of its inputs and the readers of its outputs.

Used by `explorer layers --layer` and by the Layer tab, whose rows link to the layers from `find_row_links`.
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
    build_overlay_fields,
    describe_same_names,
    layer_blocks,
    layer_parts,
    layer_title,
)
from explorer.report.present.look.overlay_words import overlay_blocks

_SOURCES = {"input": "input of the model", "stored": "stored in the model", "unknown": "not known"}
"""Words for a tensor without a name."""
_LEADS = {"input": "input ", "stored": "stored "}
"""Words before the name of a tensor that no layer makes."""


def layer(info: Info, fact: Connections, overlay: Overlay | None = None) -> list[Block]:
    """Return the answer of `explorer layers --layer`, with external figures if there are any."""
    row = fact.layer
    tables: list[Block] = []
    for name, table in (("Inputs", list_inputs(fact)), ("Outputs", list_outputs(fact))):
        if table.rows:
            tables += [Line(), Heading(name, _NOTES[name]), table]
    tables += conflicts(fact)
    parts = layer_parts(row, tensors=bool(fact.unknown))
    dims = info.assumptions.get("dims")
    bound_sizes: list[Block] = []
    if dims:
        bound_sizes = [Line(), Paragraph(f"sizes that were bound: {dims_text(dims)}", "quiet")]
    figures = layer_blocks(row, info.totals, build_overlay_fields(overlay, row.id))
    matched = [] if overlay is None else overlay_blocks(overlay)
    same_name_note = describe_same_names(row.path, fact.same_name)
    same_name_blocks: list[Block] = (
        [Paragraph(f"{same_name_note}.", "warning", 0), Line()] if same_name_note else []
    )
    page = [
        *layer_title(row),
        *same_name_blocks,
        *figures,
        *tables,
        *bound_sizes,
        *build_unknown_blocks(fact),
        *parts,
        *matched,
    ]
    return answer(info, page)


_NOTES = {"Inputs": "and the layers that make them", "Outputs": "and the layers that read them"}


def build_unknown_blocks(fact: Connections) -> list[Block]:
    """Return the reason that the connections are unknown, or []."""
    return [Line(), Paragraph(fact.unknown, "warning")] if fact.unknown else []


def conflicts(fact: Connections) -> list[Block]:
    """Return the tensors whose declared facts contradict each other."""
    listed_tensors = [
        *(connection.tensor for connection in fact.inputs),
        *(connection.tensor for connection in fact.outputs),
    ]
    tensors = {tensor.name: tensor.conflict for tensor in listed_tensors}
    return [Paragraph(f"{name}: {conflict}", "warning") for name, conflict in tensors.items() if conflict]


def list_inputs(fact: Connections) -> Table:
    """Return a table with one row per input tensor and its producer."""
    rows: list[tuple[Cell, ...]] = []
    inputs = _select_inputs(fact)
    for edge in inputs:
        is_named = edge.producer is None and edge.source in _LEADS
        producer_path = edge.producer.path if edge.producer is not None else edge.tensor.name * is_named
        rows.append((*_describe_source(edge), *_describe_tensor(edge.tensor, producer_path, fact)))
    if len(inputs) < len(fact.inputs):
        rows.append((Span(f"+{fact.input_count - len(inputs):,} constants", "quiet"),))
        return _build_table(rows, 0, "inputs")
    return _build_table(rows, fact.input_count - len(fact.inputs), "inputs")


_MAX_CONSTANTS = 3
"""Maximum number of constants that are listed. More are only counted, as in the tree."""


def _select_inputs(fact: Connections) -> Sequence[InputConnection]:
    """Return the inputs to list: all, or only those that are not constant."""
    varying = [connection for connection in fact.inputs if not connection.constant]
    return fact.inputs if len(fact.inputs) - len(varying) <= _MAX_CONSTANTS else varying


def list_outputs(fact: Connections) -> Table:
    """Return a table with one row per reader of each output tensor."""
    rows: list[tuple[Cell, ...]] = []
    outputs = _select_outputs(fact)
    for edge in outputs:
        cells = _describe_tensor(edge.tensor, fact.layer.path, fact)
        for place, reader in enumerate(_list_readers(edge)):
            rows.append((*reader, *(cells if not place else ("", "", "", ""))))
    if len(outputs) < len(fact.outputs):
        hidden_count = fact.output_count - len(outputs)
        rows.append((Span(f"+{hidden_count:,} for constants and shape arithmetic", "quiet"),))
        return _build_table(rows, 0, "outputs")
    return _build_table(rows, fact.output_count - len(fact.outputs), "outputs")


def _select_outputs(fact: Connections) -> Sequence[OutputConnection]:
    """Return the outputs to list: all, or only those that more than constants and shape arithmetic read."""
    varying = [connection for connection in fact.outputs if not connection.constant]
    return fact.outputs if not varying or len(fact.outputs) - len(varying) <= _MAX_CONSTANTS else varying


def find_row_links(fact: Connections) -> tuple[list[int | None], list[int | None]]:
    """Return the layer ID that each row of the two tables links to, or None for a row without a link."""
    return (
        _pad_links(
            [None if i.producer is None else i.producer.id for i in _select_inputs(fact)], list_inputs(fact)
        ),
        _pad_links(
            [
                reader_id
                for output in _select_outputs(fact)
                for reader_id in (*(r.id for r in output.readers), *(None for _ in _list_other_uses(output)))
            ],
            list_outputs(fact),
        ),
    )


def _pad_links(layer_ids: list[int | None], table: Table) -> list[int | None]:
    return layer_ids + [None] * (len(table.rows) - len(layer_ids))


_MIN_PATH_WIDTH = 26
"""Minimum cells of the layer's path before another column is left out."""


def _build_table(rows: list[tuple[Cell, ...]], hidden_count: int, noun: str) -> Table:
    columns = (
        Column("layer", shrink=True, least=_MIN_PATH_WIDTH),
        Column("kind", role="kind", drop=2),
        Column("shape", role="figure"),
        Column("dtype", role="quiet", drop=1),
        Column("shape is", role="quiet", drop=3),
        Column("tensor", shrink=True, drop=4, role="quiet"),
    )
    if hidden_count:
        rows.append((Span(f"and {hidden_count:,} more {noun}", "quiet"),))
    return Table(columns, rows, 1)


_LayerCells = tuple[Cell, Cell]


def _describe_source(connection: InputConnection) -> _LayerCells:
    if connection.producer is not None:
        return _describe_layer(connection.producer, "← ")
    if connection.source in _LEADS and connection.tensor.name:
        return (Span(_LEADS[connection.source], "quiet"), connection.tensor.name), ""
    return Span(_SOURCES[connection.source], "quiet"), ""


def _describe_layer(layer: LayerRef, sign: str) -> _LayerCells:
    return (Span(sign, "formula"), layer.path or "(unnamed)"), layer.kind


def _list_readers(connection: OutputConnection) -> list[_LayerCells]:
    """Return a row of two cells, place and kind, for each reader of a tensor and each other use."""
    return [
        *(_describe_layer(reader, "→ ") for reader in connection.readers),
        *((cell, "") for cell in _list_other_uses(connection)),
    ]


def _list_other_uses(output: OutputConnection) -> Sequence[Cell]:
    """Return the uses of a tensor apart from the listed readers."""
    cells: list[Cell] = []
    if (hidden_count := output.reader_count - len(output.readers)) > 0:
        cells.append(Span(f"and {hidden_count:,} more readers, {output.reader_count:,} in all", "quiet"))
    if output.model_output:
        cells.append(Span("output of the model", "quiet"))
    return cells or ([] if output.readers else [Span("no layer reads it", "quiet")])


def _describe_tensor(
    tensor: TensorInfo, producer_path: str, fact: Connections
) -> tuple[Cell, Cell, Cell, Cell]:
    """Return the cells of a tensor: shape, dtype, origin of the shape, and name.

    The name is blank if it equals the path of the producer. If a dimension was bound, the declared shape is
    added to the origin.
    """
    shape = shape_text(tensor.shape) + (" at most" if tensor.origin == "bound" else "")
    origin = _ORIGIN_TEXTS.get(tensor.origin, tensor.origin)
    if (declared := fact.declared.get(tensor.name)) is not None:
        declared_text = f"bound, declared {shape_text(declared)}"
        origin = (
            declared_text if tensor.origin == "declared" else f"{origin}, declared {shape_text(declared)}"
        )
    return (
        Span(shape, "figure"),
        tensor.dtype or "?",
        origin,
        "" if tensor.name == producer_path else tensor.name,
    )


_ORIGIN_TEXTS = {"observed": "seen in a run", "bound": "an upper bound", "unknown": "not known"}
"""Text for the origin of a shape, if it differs from the name in JSON."""
