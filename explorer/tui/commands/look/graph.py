"""Graph command: what feeds what in the chosen group, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.report.present.look.layers import outside_fields
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.graph_view import GraphRequest, GraphView
from explorer.tui.tabs.layer import layer_page
from explorer.tui.text.lines import Line

if TYPE_CHECKING:
    from explorer.facts.graph.drawing import GraphDrawing


class GraphCommand(ScreenCommand):
    """The inside of the chosen group, or the group around the chosen layer."""

    def run(self) -> None:
        """Draw it."""
        if self.context.ready():
            self.context.start("Graph", self._show())

    async def _show(self) -> None:
        layer = self.tree.current_layer
        if layer is None:
            return
        request = GraphRequest(layer.id if layer.group else layer.parent)
        drawing: GraphDrawing = await self.jobs.run("drawing the graph", "graph", request.row, depth=1)
        view = GraphView(
            drawing,
            request,
            None if layer.group else layer.id,
            self._ask,
            self.tree.model.layers,
            self._about,
        )
        self.context.ask(view, self._chosen)

    async def _ask(self, request: GraphRequest) -> GraphDrawing:
        row, steps, unfold, between = request
        drawing: GraphDrawing = await self.jobs.ask(
            "graph", row, depth=1, steps=steps, unfold=unfold, between=between
        )
        return drawing

    def _about(self, row: int, width: int) -> list[Line]:
        assert self.store.analysis is not None
        totals, model = self.store.analysis.info.totals, self.tree.model
        outside = outside_fields(model.overlay, row)
        return layer_page([model.layers[row]], totals, width, self.store.exact, outside=outside)

    def _chosen(self, row: int | None) -> None:
        if row is not None:
            self.panes.to_layer(row)
