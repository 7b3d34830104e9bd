"""Overlay: figures from outside as columns of the layer tree."""

from __future__ import annotations

import os

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import EntryDialog
from explorer.tui.tree.overlay import overlay_text, show_overlay

_SAID = (
    "A CSV or JSON file of figures by the name, path or glob of a layer; its columns come beside those that"
    " there are. Nothing typed takes all of them away."
)


class OverlayCommand(ScreenCommand):
    """Asks for a file of figures, and lays them over the layers."""

    def run(self) -> None:
        """Ask."""
        dialog = EntryDialog(
            *("Figures from outside", "", _SAID),
            placeholder="profile.csv",
            hint="lay over",
            required=False,
        )
        self.context.ask(dialog, self._answered)

    def _answered(self, typed: str | None) -> None:
        if typed is not None and (typed or self.store.overlays):
            self.context.start("Figures from outside", self._lay(os.path.expanduser(typed)))

    async def _lay(self, path: str) -> None:
        files = (*self.store.overlays, path) if path else ()
        files = tuple(dict.fromkeys(files))
        overlay = await self.jobs.ask("overlay", files) if files else None
        self.store.overlays = files
        self.panes.rearrange(lambda model: show_overlay(model, overlay))
        taken = "figures from outside are taken away"
        self.store.say(taken if overlay is None else overlay_text(overlay))
