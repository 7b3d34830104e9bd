"""A training step: what its backward pass, gradients and optimizer cost."""

from __future__ import annotations

from msgspec.structs import astuple

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.training import TrainingDialog, TrainingRequest


class TrainingCommand(ScreenCommand):
    """Asks for batch sizes, optimizer and card, and tells what a step costs and holds."""

    def run(self) -> None:
        """Ask."""
        store = self.store
        if self.context.ready():
            dialog = TrainingDialog(TrainingRequest(*store.training_asked), blink=not store.remote)
            self.context.ask(dialog, self._take)

    def _take(self, request: TrainingRequest | None) -> None:
        if request is not None:
            self.store.training_asked = astuple(request)
            self.context.start("Training", self._count(request))

    async def _count(self, request: TrainingRequest) -> None:
        seen, tabs = self.store.on_demand, self.panes.tabs
        seen.training = await self.jobs.run(
            "counting a training step",
            "training_over_time",
            batches=request.batches,
            optimizer=request.optimizer,
            checkpoint=request.globs,
            card=request.limit,
        )
        if self.store.tab not in ("layer", "model"):
            tabs.open("model")
        self.store.notify("found")
        tabs.reveal("Training")
