"""Statistics by choice: of all weights, or of what the layers put out, as a table."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.features.values.statistics_view import (
    WEIGHTS,
    StatisticsDialog,
    StatisticsRequest,
    StatisticsScreen,
)
from explorer.tui.commands.context import ScreenCommand

if TYPE_CHECKING:
    from explorer.facts.values import Activations, Weights


class StatisticsCommand(ScreenCommand):
    """Asks which, and shows them."""

    def run(self) -> None:
        """Ask."""
        if self.context.ready():
            last = StatisticsRequest(*self.store.asked_statistics)
            self.context.ask(StatisticsDialog(last), self._take)

    def _take(self, request: StatisticsRequest | None) -> None:
        if request is not None:
            self.store.asked_statistics = tuple(request)
            self.context.start("Statistics", self._find(request), self.run)

    async def _find(self, request: StatisticsRequest) -> None:
        globs, told = request.arguments()
        if "input" in told:
            told["input"] = os.path.expanduser(told["input"])
        doing = "reading weights" if request.of == WEIGHTS else "running the model"
        found: Weights | Activations = await self.jobs.run(doing, request.of, globs, **told)
        if not found.statistics:
            self.store.say(f"no {request.of} to tell statistics of")
            return
        page = StatisticsScreen(request, found.statistics, notes=found.notes, exact=self.store.exact)
        self.context.ask(page, self._then)

    def _then(self, layer: str | None) -> None:
        if layer == "":
            self.run()
        else:
            self.context.go_to_layer(layer)
