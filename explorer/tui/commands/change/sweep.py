"""A sweep over tilings, and from it back to one of them."""

from __future__ import annotations

from explorer.facts import TileSpec
from explorer.tui.commands.change.hardware import hardware_in_use, use_hardware
from explorer.tui.commands.change.tile import TileCommand
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.sweep_table import SweepScreen, SweepState


class SweepCommand(ScreenCommand):
    """Many tilings of the current model beside each other."""

    def run(self) -> None:
        """Show those that were weighed, or ask which are to be."""
        if not self.context.ready():
            return
        store = self.store
        found: SweepState = store.on_demand.answers.setdefault("sweep", SweepState())
        hardware = hardware_in_use(store)

        def answered(spec: TileSpec | None) -> None:
            asked = found.request
            if asked is not None and asked.hardware is not None:
                use_hardware(store, asked.hardware)
            if spec is not None:
                TileCommand(self.context).begin(spec)

        screen = SweepScreen(
            store.source, self.jobs.engine, found, TileSpec(), hardware=hardware, remote=store.remote
        )
        self.context.ask(screen, answered)
