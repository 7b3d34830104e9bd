"""Flame: what of the model takes most, as boxes that the arrow keys walk."""

from __future__ import annotations

from explorer.report.flame.layout import COUNTED, MEASURED, counted_figure, measured_figure
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.plots.flame_view import FlameView


class FlameCommand(ScreenCommand):
    """By measured time where the model was timed, and by what is counted."""

    def run(self) -> None:
        """Draw it."""
        if self.context.ready():
            self.context.start("Flame", self._show())

    async def _show(self) -> None:
        store, model = self.store, self.tree.model
        assert store.analysis is not None
        totals, found, profile = store.analysis.info.totals, model.structure, store.profile
        counted = [name for name, of in COUNTED.items() if max(found.columns[of], default=0) > 0]
        figures = [counted_figure(name, found, totals) for name in counted]
        if profile is not None:
            seconds = await self.jobs.ask("column", MEASURED)
            figures.insert(0, measured_figure(found, seconds, profile))
        if not figures:
            store.say("there is nothing to draw: no row has a figure")
            return
        layer = self.tree.current_layer
        view = FlameView(
            figures, model.layers, store.stem, -1 if layer is None else layer.id, exact=store.exact
        )
        self.context.ask(view, self._chosen)

    def _chosen(self, row: int | None) -> None:
        if row is not None:
            self.panes.to_layer(row)
