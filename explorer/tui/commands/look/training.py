"""A training step: what its backward pass, gradients and optimizer cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import astuple

from explorer.base.units import bytes_text
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.training import TrainingDialog, TrainingRequest

if TYPE_CHECKING:
    from explorer.facts.training import TrainingMemory


class TrainingCommand(ScreenCommand):
    """Asks for batch sizes, optimizer and card, and tells what a step costs and holds."""

    def run(self) -> None:
        """Ask."""
        store = self.store
        if self.context.ready():
            dialog = TrainingDialog(TrainingRequest(*store.training_asked))
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
        if seen.training.memory is not None:
            self.store.say(f"{_said(seen.training.memory)}; tab 2 has it over time")
        tabs.reveal("Training")


def _said(fact: TrainingMemory) -> str:
    """What a step holds, and what fits."""
    first = fact.steps[0]
    batch = "" if first.batch is None else f" of batch {first.batch:,}"
    said = f"a step{batch} holds {bytes_text(first.peak_bytes)} at most"
    if fact.largest_batch is None:
        return said
    fits = f"up to batch {fact.largest_batch:,}" if fact.largest_batch else "no batch"
    return f"{said}; {fits} fits in {bytes_text(fact.limit_bytes or 0)}"
