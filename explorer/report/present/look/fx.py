"""Text output of `explorer ops --fx`: the torch.fx nodes of a module."""

from __future__ import annotations

from explorer.base.units import printable, shape_text
from explorer.facts import Info
from explorer.facts.graph.fx import FxGraph, FxNode
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Rows, Span, Table
from explorer.report.present.figures import plain
from explorer.report.present.look.info import title


def fx_graph(info: Info, fact: FxGraph) -> list[Block]:
    """Return the answer of `explorer ops --fx`: counts by kind and by module type, then all nodes."""
    labels = list(next((node.values for node in fact.nodes if node.values), {}))
    columns = (
        Column("node", shrink=True, role="strong"),
        Column("kind", role="quiet"),
        Column("target", shrink=True),
        Column("type", role="kind", shrink=True),
        Column("dtype", role="quiet", drop=3),
        Column("inputs", drop=4, shrink=True),
        Column("output", drop=2),
        *(Column(label, "right") for label in labels),
    )
    calls = [(Span(name, "kind"), plain(count)) for name, count in fact.modules]
    modules: list[Block] = [Line(), Table((Column("module"), Column("calls", "right")), calls, 0)]
    untraced = f"torch.fx cannot trace it: {fact.reason}; these are the nodes of torch.export"
    return [
        *title(info.model),
        *([Paragraph(printable(untraced), "warning")] if fact.reason else []),
        *(Paragraph(printable(text), "quiet") for text in fact.inputs_from),
        Line(),
        Table((Column("kind"), Column("nodes", "right")), [(k, plain(n)) for k, n in fact.kinds.items()], 0),
        *(modules if fact.modules else []),
        Line(),
        Table(columns, Rows(lambda node: _build_row(node, labels), fact.nodes), 0, "nodes"),
    ]


def _build_row(node: FxNode, labels: list[str]) -> tuple[Cell, ...]:
    return (
        printable(node.name),
        node.kind,
        printable(node.target),
        printable(node.type),
        node.dtype or "",
        ", ".join(shape_text(shape) for shape in node.inputs),
        ", ".join(shape_text(info.shape) for info in node.outputs),
        *(_number(node.values.get(label)) for label in labels),
    )


def _number(value: float | None) -> Cell:
    return "" if value is None else Span(f"{value:.4g}", "figure", f"{value!r}", value)
