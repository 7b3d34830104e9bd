"""Flame: what of the model takes most, as boxes that the arrow keys walk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.graph.flame_view import FlameView
from explorer.report.flame_layout import COUNTED, MEASURED, counted_figure, measured_figure

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def flame(context: CommandContext) -> None:
    """Draw it: by measured time where the model was timed, and by what is counted."""
    context.start("Flame", _show(context))


async def _show(context: CommandContext) -> None:
    store, model = context.store, context.tree.model
    assert store.analysis is not None
    totals, found, profile = store.analysis.info.totals, model.structure, store.profile
    counted = [name for name, of in COUNTED.items() if max(found.columns[of], default=0) > 0]
    figures = [counted_figure(name, found, totals) for name in counted]
    if profile is not None:
        seconds = await context.jobs.ask("column", MEASURED)
        figures.insert(0, measured_figure(found, seconds, profile))
    if not figures:
        store.say("there is nothing to draw: no row has a figure")
        return
    layer = context.tree.current_layer
    view = FlameView(figures, model.layers, store.stem, -1 if layer is None else layer.id, exact=store.exact)
    context.ask(view, context.to_row)
