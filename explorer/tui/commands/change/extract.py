"""Extracting the layers under the cursor: they become the model, a state of the history as any other change.

A state, and no file at once: it can be looked at, tiled and compared before `w` writes it, and `u` leads back
to the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts.split.part import PartSpec
from explorer.report.present.split.extract import part_blocks
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.terminal.slices import after_paint
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.part import Extraction


class ExtractCommand(ScreenCommand):
    """Makes a model of the chosen layers alone."""

    def run(self) -> None:
        """Do it."""
        if self.context.ready():
            self.context.with_layers(*self.tree.cursor_range, lambda layer: True, self._begin)

    def _begin(self, chosen: list[Layer]) -> None:
        inside = {layer.id for layer in chosen}
        paths = tuple([layer.path for layer in chosen if layer.parent not in inside])
        if paths:
            self.context.start("Extract", self._extract(PartSpec(paths)))

    async def _extract(self, spec: PartSpec) -> None:
        fact: Extraction = await self.jobs.run("extracting", "extract", spec)
        title, tone = "Not extracted: it gives other numbers", "bad"
        if fact.output:
            title, tone = "Extracted: the whole's own numbers", "good"
            if fact.exact is None:
                title, tone = "Extracted: random numbers make it, which no two runs share", "warn"
            await self.context.take_history()
            await self.context.show_current("undo")
            history = self.store.history
            self.store.say("", history.entries[history.current].command if history is not None else "")
            await after_paint(self.context.screen)  # two paints of the whole screen in one go hold keys up
        page = PageDialog(title, lambda width: draw(part_blocks(fact), width - 1), tone=tone)
        self.context.app.push_screen(page)
