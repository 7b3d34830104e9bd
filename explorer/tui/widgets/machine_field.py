"""Machine field of a dialog: those that have a name, the user's own first, and the one that was typed."""

from __future__ import annotations

from explorer.base.errors import ExplorerError
from explorer.facts.cost import Hardware
from explorer.settings import machines
from explorer.tui.text.lines import safe
from explorer.tui.widgets.option_field import OptionField

TYPED = "as typed"


class MachineField(OptionField):
    """One machine of those that are known; the same list in every dialog.

    Args:
        label: Before it.
        used: The machine that was chosen or typed last, wherever that was. Where none was and the
            configuration file has one machine and no other, it is that one.
        nothing: The word for no machine of these.
        id: For queries and styles.

    Attributes:
        own: Those of the configuration file.
        complaint: Why it cannot be read.
    """

    def __init__(self, label: str, used: Hardware | None, *, nothing: str = "none", id: str) -> None:
        self.own: list[Hardware] = []
        self.complaint = ""
        self._machines: dict[str, Hardware | None] = {nothing: None}
        try:
            self._machines.update(machines.known_hardware())
            self.own = list(machines.hardware_profiles().values())
        except ExplorerError as error:
            self.complaint = str(error)
        super().__init__(label, [safe(name) for name in self._machines], id=id)
        if used is None and len(self.own) == 1:
            used = self.own[0]
        if used is not None:
            self.take(used)

    @property
    def hardware(self) -> Hardware | None:
        """The machine that is chosen."""
        return list(self._machines.values())[self.index]

    def take(self, machine: Hardware) -> None:
        """Choose a machine; one that is not in the list comes into it, by its name or as typed."""
        if machine not in self._machines.values():
            self._machines[machine.name or TYPED] = machine
            self.set_words([safe(name) for name in self._machines])
        self.index = list(self._machines.values()).index(machine)

    def named(self, name: str) -> Hardware | None:
        """The machine of that name, in whichever case it is written."""
        found = {known.lower(): machine for known, machine in self._machines.items() if machine is not None}
        return found.get(name.lower())

    def leave(self) -> None:
        """Choose none of them."""
        self.index = 0
        self.refresh()
