"""A sweep over tilings, and from it back to one of them."""

from __future__ import annotations

from explorer.facts import TileSpec
from explorer.tui.commands.change.tile import TileCommand
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.sweep.screen import SweepScreen, SweepState
from explorer.tui.state.hardware import use_hardware


class SweepCommand(ScreenCommand):
    """Many tilings of the current model beside each other."""

    def run(self) -> None:
        """Show those that were weighed, or ask which are to be."""
        if not self.context.ready():
            return
        store = self.store
        found: SweepState = store.on_demand.answers.setdefault("sweep", SweepState())
        screen = SweepScreen(store.source, self.jobs.engine, found, TileSpec(), hardware=store.hardware)

        def answered(spec: TileSpec | None) -> None:
            if screen.hardware != store.hardware:
                use_hardware(store, screen.hardware)
            if spec is not None:
                TileCommand(self.context).begin(spec)

        self.context.ask(screen, answered)
