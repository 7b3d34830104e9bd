"""From a proof that failed, or from any two states, to the layer that departs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explorer.tui.main_screen.converting import Converting
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.facts import TileSpec
    from explorer.facts.blame import Blame

__all__ = ["Blaming"]


class Blaming(Converting):
    """The part of the main screen that looks for the layer in which two models part."""

    def action_blame(self) -> None:
        """Where the current model departs from the one opened."""
        if not self._ready():
            return
        if not self.can_compare():
            self.say("nothing to compare with: this is the model as it was opened")
            return
        self._start("Blame", self._do_blame())

    def blame(self, spec: TileSpec | None = None, *, before: int = 0, after: int | None = None) -> None:
        """Show where a tiling that was refused departs, or one state from another."""
        how = {"before": before, "after": after} if spec is None else {"spec": spec}
        self._start("Blame", self._do_blame(**how))

    async def _do_blame(self, **how: Any) -> None:
        from explorer.tui.dialogs.blame import BlameScreen

        fact: Blame = await self.jobs.run("looking for the layer that departs", "blame", **how)
        self.app.push_screen(BlameScreen(fact), self._to_blamed)

    def _to_blamed(self, layer: str | None) -> None:
        """Put the tree's cursor on a layer, if the current model has it."""
        if layer is not None:
            self.run_worker(self._go_to_layer(layer), exit_on_error=False)

    async def _go_to_layer(self, path: str) -> None:
        from explorer.tui.tree.widget import LayerTree

        tree = self.query_one(LayerTree)
        found = (await self.locate(tree.model.layers, [path])).get(path)
        if found is None:
            self.say(f"the current model has no layer {safe(path)}")
            return
        row = tree.model.reveal(found)
        tree.rows_changed()
        tree.move_to(row)
        self.go_to(tree)
