"""The way to the Sweep screen, and from it back to a tiling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.main_screen.recalling import Recalling

if TYPE_CHECKING:
    from explorer.facts import TileSpec

__all__ = ["Sweeps"]


class Sweeps(Recalling):
    """The part of the main screen that weighs many tilings."""

    def action_sweep(self) -> None:
        """Many tilings of the current model beside each other."""
        from explorer.facts import TileSpec
        from explorer.tui.dialogs.sweep_table import Found, SweepScreen

        if not self._ready():
            return
        if self.seen.sweep is None:
            self.seen.sweep = Found()
        hardware, found = self.hardware_in_use, self.seen.sweep
        screen = SweepScreen(
            self.source, self.jobs.door, found, TileSpec(), hardware=hardware, remote=self.remote
        )
        self.app.push_screen(screen, self._swept)

    def _swept(self, spec: TileSpec | None) -> None:
        asked = self.seen.sweep.asked if self.seen.sweep is not None else None
        if asked is not None and asked.hardware is not None:
            self.use_machine(asked.hardware)
        if spec is not None:
            self._tile(spec)
