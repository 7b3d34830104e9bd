"""Blame: from a proof that failed, or from any two states, to the layer that departs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.features.compare.blame_view import BlameScreen
from explorer.features.quantize.quantize_action import QuantizeCommand
from explorer.features.quantize.records import QuantizationRecord
from explorer.tui.commands.context import ScreenCommand

if TYPE_CHECKING:
    from explorer.facts.blame import Blame


class BlameCommand(ScreenCommand):
    """Where one model departs from another."""

    def run(self) -> None:
        """The current model from the one opened."""
        if not self.context.ready():
            return
        if not self.store.can_compare:
            self.store.say(
                "nothing to compare with: this is the model as it was opened; = sets another beside it"
            )
        else:
            self.begin()

    def begin(self, **how: Any) -> None:
        """The current model, two states (`before`, `after`), or a tiling that was refused (`spec`)."""
        self.context.start("Blame", self._blame(**how))

    async def _blame(self, **how: Any) -> None:
        fact: Blame = await self.jobs.run("looking for the layer that departs", "blame", **how)
        at, entry = self.store.history_place, self.store.entry
        # a layer of another state, or of a tiling that was refused, cannot be had otherwise
        here = "spec" not in how and how.get("after", at) == at
        record = entry.record if entry is not None and here else None
        layers = record.quantization.layers if isinstance(record, QuantizationRecord) else ()
        self.context.ask(BlameScreen(fact, layers), QuantizeCommand(self.context).take)
