"""A training step: what its backward pass, gradients and optimizer cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.training import TrainingDialog, TrainingRequest

if TYPE_CHECKING:
    from explorer.facts.training import Optimizer


class TrainingCommand(ScreenCommand):
    """Asks for batch size and optimizer, and tells what a step costs."""

    def run(self) -> None:
        """Ask."""
        store = self.store
        if self.context.ready():
            dialog = TrainingDialog(store.batch, store.optimizer, blink=not store.remote)
            self.context.ask(dialog, self._take)

    def _take(self, request: TrainingRequest | None) -> None:
        if request is not None:
            self.store.batch, batch, self.store.optimizer = request
            self.context.start("Training", self._count(batch, self.store.optimizer))

    async def _count(self, batch: int | None, optimizer: Optimizer) -> None:
        seen, tabs = self.store.on_demand, self.panes.tabs
        seen.training = await self.jobs.run(
            "counting a training step", "training", batch=batch, optimizer=optimizer
        )
        if self.store.tab not in ("layer", "model"):
            tabs.open("model")
        self.store.notify("found")
        tabs.reveal("Training")
