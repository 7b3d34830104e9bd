"""Text output of `explorer nodes`: the header of the file, and each node with its attributes and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from explorer.base.units import shape_text
from explorer.facts import Info, to_json
from explorer.facts.graph.nodes import FileNode, NodeTable, NodeTensor
from explorer.report.blocks import Block, Cell, Column, Field, Fields, Line, Span, Table
from explorer.report.present.figures import count, plain, size, value_text
from explorer.report.present.look.info import title

_MAX_ITEMS, _MAX_CHARACTERS = 8, 40
"""Maximum items of a list in a cell, and maximum characters of an attribute's value."""


def nodes(info: Info, fact: NodeTable) -> list[Block]:
    """Return the answer of `explorer nodes`."""
    return [*title(info.model), Line(), *nodes_blocks(fact)]


def nodes_blocks(fact: NodeTable) -> list[Block]:
    """Return the fields about the file, and a row for each node."""
    return [Fields(_build_header(fact)), Line(), _build_table(fact)]


def _build_header(fact: NodeTable) -> list[Field]:
    """Return the fields about the file as a whole: versions, descriptions and metadata."""
    selected = len(fact.nodes)
    remark = "" if selected == fact.total_nodes else f"of {fact.total_nodes:,} in the file"
    version = "-" if fact.model_version is None else str(fact.model_version)
    version_remark = "none in the file" if fact.model_version is None else ""
    domain_text = f"domain {fact.model_domain}" if fact.model_domain else version_remark
    fields = [
        Field("Nodes", plain(selected), remark),
        Field("Model version", version, domain_text),
        Field("IR version", plain(fact.ir_version), f"graph {fact.graph_name}" if fact.graph_name else ""),
    ]
    for label, text in (("Description", fact.doc_string), ("Graph description", fact.graph_doc_string)):
        if text:
            fields.append(Field(label, "", text))
    fields += [Field(f"Property {name}", "", text) for name, text in fact.metadata.items()]
    return fields


def _build_table(fact: NodeTable) -> Table:
    columns = (
        Column("#", "right", role="quiet"),
        Column("node", shrink=True, least=24),
        Column("type", role="kind", shrink=True),
        Column("shape or value", shrink=True, least=16),
        Column("elements", "right", drop=2),
        Column("bytes", "right"),
        Column("numbers", shrink=True, drop=1),
    )
    rows = [row for node in fact.nodes for row in _build_rows(node)]
    return Table(columns, rows, 0, what="rows: nodes, attributes and tensors")


def _build_rows(node: FileNode) -> Iterator[tuple[Cell, ...]]:
    """Yield the row of a node, and a row for each of its attributes and tensors."""
    op = f"{node.domain}.{node.op}" if node.domain else node.op
    yield str(node.index), Span(node.path, "strong"), op
    for name, value in node.attributes.items():
        yield (
            "",
            (Span("  ", "quiet"), name),
            "",
            Span(value_text(value, max_items=_MAX_ITEMS)[:_MAX_CHARACTERS], "figure"),
        )
    for role, tensors in (("in ", node.inputs), ("out", node.outputs)):
        for tensor in tensors:
            yield "", (Span(f"  {role} ", "quiet"), *_format_name(tensor)), *_build_tensor_cells(tensor)


def _format_name(tensor: NodeTensor) -> tuple[str | Span, ...]:
    if not tensor.name:
        return (Span("left out", "quiet"),)
    return (tensor.name, Span(" stored" if tensor.stored else "", "quiet"))


def _build_tensor_cells(tensor: NodeTensor) -> tuple[Cell, ...]:
    if not tensor.name:
        return "", "", "", "", ""
    values = "" if tensor.values is None else value_text(tensor.values, max_items=_MAX_ITEMS)
    shape = shape_text(tensor.shape)
    return tensor.dtype or "?", shape, count(tensor.elements), size(tensor.bytes), values


def list_csv_rows(fact: NodeTable) -> Iterator[dict[str, Any]]:
    """Yield a record for each tensor of each node. A node without tensors has one record."""
    for node in fact.nodes:
        about = {"node": node.index, "path": node.path, "op": node.op, "domain": node.domain}
        tensors = [("input", t) for t in node.inputs] + [("output", t) for t in node.outputs]
        for role, tensor in tensors or [("", NodeTensor(""))]:
            yield {
                **about,
                "role": role,
                "tensor": tensor.name,
                "dtype": tensor.dtype,
                "shape": None if tensor.shape is None else [*tensor.shape],
                "elements": tensor.elements,
                "bytes": tensor.bytes,
                "stored": tensor.stored,
                "values": to_json(tensor.values),
                "attributes": to_json(node.attributes),
            }
