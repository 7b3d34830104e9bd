"""Graph command: what feeds what in the chosen group, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.graph_view import GraphView

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
        row = layer.id if layer.group else layer.parent
        drawing: GraphDrawing = await self.jobs.run("drawing the graph", "graph", row, depth=1)
        view = GraphView(drawing, row, None if layer.group else layer.id, self._ask, self._around)
        self.context.ask(view, self._chosen)

    async def _ask(self, row: int | None) -> GraphDrawing:
        drawing: GraphDrawing = await self.jobs.ask("graph", row, depth=1)
        return drawing

    def _around(self, row: int) -> int | None:
        return self.tree.model.layers[row].parent

    def _chosen(self, row: int | None) -> None:
        if row is not None:
            self.panes.to_layer(row)
