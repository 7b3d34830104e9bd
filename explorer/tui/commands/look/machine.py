"""The machine of the Roofline tab, and of every tiling that is weighed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.machine import MachineDialog

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine


class MachineCommand(ScreenCommand):
    """Asks for a machine."""

    def run(self) -> None:
        """Ask."""
        self.context.ask(MachineDialog(self.store.machine, blink=not self.store.remote), self._use)

    def _use(self, machine: Machine | None) -> None:
        if machine is not None:
            self.store.hardware = None
            self.store.use_machine(machine)
            self.panes.tabs.open("roofline")
