"""Editing by hand: a name, an attribute, an operator of the layer under the cursor, or the layer away."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explorer.features.rewrite.edit_dialog import EditDialog
from explorer.features.rewrite.edit_words import edit_blocks
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.edit import Edit, EditStep


class EditCommand(ScreenCommand):
    """Changes the chosen layer."""

    def run(self) -> None:
        """Ask what, then do it."""
        if not self.context.ready():
            return
        layers, (first, stop) = self.tree.model.layers, self.tree.cursor_range
        if first == stop or layers[first].group:
            self.store.say("put the cursor on one layer: a group is no node")
            return
        self._ask(layers[first], None)

    def _ask(self, layer: Layer, last: EditStep | None) -> None:
        dialog = EditDialog(layer, last)
        self.context.ask(dialog, partial(self._take, layer))

    def _take(self, layer: Layer, step: EditStep | None) -> None:
        if step is not None:
            self.context.start("Edit", self._edit(step), partial(self._ask, layer, step))

    async def _edit(self, step: EditStep) -> None:
        fact: Edit = await self.jobs.run("editing", "edit", (step,))
        await self.context.take_history()
        await self.context.show_made("undo", command=fact.command)
        page = PageDialog(
            "Edited",
            lambda width: draw(edit_blocks(fact), width - 1),
            hint="Enter diff · y copy command · Esc close",
            copy=fact.command,
        )
        self.context.ask(page, lambda more: self.panes.tabs.open("diff") if more else None)
