"""Graph command: what feeds what in the chosen group, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.graph.graph_view import GraphRequest, GraphView
from explorer.report.present.look.layers import outside_fields
from explorer.tui.tabs.layer import layer_page

if TYPE_CHECKING:
    from explorer.facts.graph.drawing import GraphDrawing
    from explorer.tui.commands.context import CommandContext
    from explorer.tui.text.lines import Line


def draw_graph(context: CommandContext) -> None:
    """Draw the inside of the chosen group, or the group around the chosen layer."""
    context.start("Graph", _show(context))


async def _show(context: CommandContext) -> None:
    layer, store, tree = context.tree.current_layer, context.store, context.tree
    if layer is None:
        return

    async def ask(request: GraphRequest) -> GraphDrawing:
        row, steps, unfold, between = request
        how = {"steps": steps, "unfold": unfold, "between": between}
        drawing: GraphDrawing = await context.jobs.ask("graph", row, depth=1, **how)
        return drawing

    def about(row: int, width: int) -> list[Line]:
        assert store.analysis is not None
        outside, totals = outside_fields(tree.model.overlay, row), store.analysis.info.totals
        return layer_page([tree.model.layers[row]], totals, width, store.exact, outside=outside)

    request = GraphRequest(layer.id if layer.group else layer.parent)
    drawing: GraphDrawing = await context.jobs.run("drawing the graph", "graph", request.row, depth=1)
    chosen = None if layer.group else layer.id
    context.ask(GraphView(drawing, request, chosen, ask, tree.model.layers, about), context.to_row)
