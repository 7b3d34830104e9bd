"""Drawings of analyzed models as graphs, and figures of their nodes for the drawings of other programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import printable
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.graph.model import Graph
from explorer.engine.graph_view import view
from explorer.engine.graph_view.items import Span
from explorer.engine.graph_view.rows import TreeRows
from explorer.engine.models.opened_model import OpenedModel
from explorer.engine.models.torch.described_program import read_node_figures
from explorer.engine.progress import Cancel
from explorer.facts import Layer
from explorer.facts.external.overlay import Overlay
from explorer.facts.graph.drawing import FIGURES, GraphDrawing, NodeFigures


class ModelGraphs:
    """Draws analyzed models as graphs, and caches the rows of the last analysis for the next drawing."""

    def __init__(self) -> None:
        self._last: tuple[object, TreeRows] | None = None

    def draw(
        self,
        result: AnalysisResult,
        source: str,
        row: int | None = None,
        *,
        depth: int | None = None,
        steps: int | None = None,
        unfold: Sequence[int | Span] = (),
        between: tuple[int, int] | None = None,
        nested: bool = False,
        outside: Overlay | None = None,
        cancel: Cancel = None,
    ) -> GraphDrawing:
        """Draws a model, a group or the neighborhood of a layer. See `view.draw` for the arguments.

        A row in `unfold` stands for its span. `outside` has figures from a file of the user, or is None.

        Raises:
            Misuse: `depth` or `steps` is not positive, `steps` has no layer, or the edges are unknown.
        """
        for flag, value in (("--depth", depth), ("--steps", steps)):
            if value is not None and value < 1:
                noun = flag.removeprefix("--")
                message = (
                    f"'{value}' is not a number of {noun}" if noun == "steps" else f"'{value}' is not a depth"
                )
                raise Misuse(message, where=flag, hint="write a whole number of 1 or more")
        if steps is not None and row is None:
            raise Misuse("steps are counted from a layer", where="--steps", hint="add --layer LAYER")
        tree = self._get_tree(result, source).replace_overlay(outside)
        spans = [
            (row_or_span, tree.ends[row_or_span]) if isinstance(row_or_span, int) else row_or_span
            for row_or_span in unfold
        ]
        return view.draw(
            tree, source, row, depth, steps=steps, unfold=spans, between=between, nested=nested, cancel=cancel
        )

    def compute_node_figures(
        self, result: AnalysisResult, opened: OpenedModel, source: str, figure: str, outside: Overlay | None
    ) -> NodeFigures:
        """Returns a figure of every node, by the names that the program Model Explorer uses for nodes.

        Raises:
            Misuse: There is no such figure, or the model's nodes do not have it.
        """
        field = FIGURES.get(figure)
        overlay_column = None if outside is None else outside.figures.get(figure)
        if field is None and overlay_column is None:
            figure_names = [*FIGURES, *(outside.figures if outside is not None else ())]
            raise Misuse(
                f"no figure is called '{printable(figure)}'", hint=suggest_name(figure, figure_names)
            )
        model: Any = opened
        if opened.format == "torch.export" or hasattr(opened, "loaded"):
            return _read_program_figures(model, source, figure)
        tree = self._get_tree(result, source)
        graph: Graph | None = model.model.graph if opened.is_graph else None
        row_by_node = dict(
            _list_leaves_by_tensor(tree) if graph is None else _list_nodes_by_name(graph, tree.layers)
        )
        figure_by_node = {
            name: getattr(tree.layers[row], field) if field else (overlay_column or {}).get(row)
            for name, row in row_by_node.items()
        }
        figures = {name: value for name, value in figure_by_node.items() if value is not None}
        return NodeFigures(
            source, graph.name if graph else "", figure, figures, len(row_by_node) - len(figures)
        )

    def _get_tree(self, result: AnalysisResult, source: str) -> TreeRows:
        """Returns the rows of an analysis, cached for the next call.

        Raises:
            Misuse: It is unknown which layers read the tensors of each layer.
        """
        if self._last is None or self._last[0] is not result:
            flow = result.flow
            if flow is None:
                order = result.schedule
                reason = (
                    order.incomplete_reason or "it is unknown which layers read the tensors of each layer"
                )
                raise Misuse(reason, where=source, hint=order.hint)
            self._last = result, TreeRows(result.analysis.layers, flow)
        return self._last[1]


_NODE_FIGURES = frozenset({"macs", "params", "activations", "weights", "ops"})
"""Figures that the nodes of a torch.export program have."""


def _read_program_figures(model: Any, source: str, figure: str) -> NodeFigures:
    """Returns a figure of the nodes of a torch.export program.

    Raises:
        Misuse: Nodes do not have this figure, or the model is not opened as Model Explorer shows it.
    """
    if figure not in _NODE_FIGURES:
        message = f"the nodes of a program have no '{printable(figure)}'"
        raise Misuse(message, where="--color", hint="pass one of macs, params, activations, weights and ops")
    if model.options.past is not None:
        raise Misuse("node data describes a full pass", where="--decode", hint="leave it out")
    if model.format == "torch.export":
        if model.options.dims or model.options.input_shapes:
            raise Misuse("the figures of a program's nodes are those at the exported sizes", where=source)
        nodes = read_node_figures(source)
    elif model.format == "torchscript":
        raise Misuse(
            "Model Explorer does not show TorchScript, only exported programs",
            where=source,
            hint="explorer convert MODEL -o OUT.onnx, then explorer graph OUT.onnx",
        )
    else:
        nodes = model.node_figures()
    known_figures = {
        name: value for name, node_figures in nodes.items() if (value := node_figures[figure]) is not None
    }
    return NodeFigures(source, "graph", figure, known_figures, len(nodes) - len(known_figures))


def _list_nodes_by_name(graph: Graph, layers: Sequence[Layer]) -> Iterator[tuple[str, int]]:
    """Yields the name that Model Explorer gives to each node of an ONNX graph, and the row of the node.

    For a node without a name, it is the name of the first output tensor, which is also the path of the row.
    """
    names = {node.name or node.label for node in graph.nodes}
    for layer in layers:
        if layer.path in names:
            yield layer.path, layer.id


def _list_leaves_by_tensor(tree: TreeRows) -> Iterator[tuple[str, int]]:
    """Yields the name of the first tensor that each operator computes, and the row of the operator.

    Model Explorer names the operators of TensorFlow Lite models in this way.
    """
    for row, values in tree.flow.made.items():
        if tree.ends[row] == row + 1:
            yield values[0].info().name, row
