"""The machine of the Roofline tab, and of every tiling that is weighed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.machine import MachineDialog
from explorer.tui.state.hardware import use_hardware

if TYPE_CHECKING:
    from explorer.facts.cost import Hardware


class MachineCommand(ScreenCommand):
    """Asks for a machine."""

    def run(self) -> None:
        """Ask."""
        self.context.ask(MachineDialog(self.store.hardware), self._use)

    def _use(self, hardware: Hardware | None) -> None:
        if hardware is not None:
            use_hardware(self.store, hardware)
            self.panes.tabs.open("roofline")
