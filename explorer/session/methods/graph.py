"""Edges of a session's models: which layer feeds which, and the drawing of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.session.methods.parts import SessionParts
from explorer.session.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.graph.connections import Connections
    from explorer.facts.graph.drawing import GraphDrawing, NodeFigures
    from explorer.facts.graph.edges import RowEdges


class GraphMethods(SessionParts):
    """What feeds what."""

    def connections(self, layer: str | int, index: int | None = None) -> Connections:
        """Which layers feed a layer or group, and which ones read what it makes.

        Args:
            layer: Its path, its name or a glob where that is enough, or its id.
            index: Which model of the history; None is the current one.

        Raises:
            Misuse: There is no such layer, or there are several.
        """
        return self._figures.connections(layer, index)

    def edges(self, index: int | None = None) -> RowEdges:
        """Which rows of the layer tree feed which further down, by their ids."""
        return self._figures.edges(index)

    def graph(
        self,
        layer: str | int | None = None,
        *,
        depth: int | None = None,
        nested: bool = False,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> GraphDrawing:
        """A model as a graph, laid out: which layer feeds which, with groups folded.

        Args:
            layer: A group, whose inside is drawn, or a layer, which is drawn with what feeds and reads it:
                its path, its name, a glob or a filter that only one has, or its id. None: the whole model.
            depth: How many levels of groups are opened (1: none); of a layer, how many edges away. None: as
                many as a readable drawing has room for.
            nested: Groups stay closed, and every one brings a drawing of its inside.
            index: Which model of the history; None is the current one.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops.

        Raises:
            Misuse: There is no such layer, or nobody knows what feeds what: a file of tensors.
        """
        examined = self._models.examined(self._models.at(index), on_progress, cancel)
        row = None if layer is None else self._figures.row(layer, index)
        return self._graphs.draw(examined, self._models.source, row, depth, nested, cancel)

    def node_figures(
        self,
        figure: str = "macs",
        *,
        index: int | None = None,
        on_progress: OnProgress = None,
        cancel: Cancel = None,
    ) -> NodeFigures:
        """A figure of every node of the graph, by the names that Model Explorer knows nodes by.

        Args:
            figure: One of `explorer.facts.graph.drawing.FIGURES`: 'macs', 'params', 'activations', ...
            index: Which model of the history; None is the current one.
            on_progress: Told where the analysis stands.
            cancel: Asked meanwhile; True stops.

        Raises:
            Misuse: There is no such figure, or the model has no nodes with names: an nn.Module.
        """
        at = self._models.at(index)
        examined = self._models.examined(at, on_progress, cancel)
        return self._graphs.node_figures(examined, self._models.opened(at), self._models.source, figure)
