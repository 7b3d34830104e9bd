"""Machine field: a dialog field for one of the user's machines, a built-in machine or a typed machine."""

from __future__ import annotations

from explorer.base.errors import ExplorerError
from explorer.facts.cost import Hardware
from explorer.settings import machines
from explorer.tui.text.lines import escape_name
from explorer.tui.widgets.option_field import OptionField

TYPED = "as typed"  # word for a typed machine without a name


class MachineField(OptionField):
    """A choice between the user's machines and the built-in machines. All dialogs show the same list.

    Args:
        label: Label before the field.
        hardware: Machine that was chosen or typed last in any dialog, or None. With None and exactly one
            machine in the configuration file, that machine is chosen.
        nothing: Word for no machine.
        id: ID of the widget.

    Attributes:
        own: Machines of the configuration file.
        complaint: Error of the configuration file, or ''.
    """

    def __init__(self, label: str, hardware: Hardware | None, *, nothing: str = "none", id: str) -> None:
        self.own: list[Hardware] = []
        self.complaint = ""
        self._machines: dict[str, Hardware | None] = {nothing: None}
        try:
            self._machines.update(machines.load_hardware())
            self.own = list(machines.read_hardware_profiles().values())
        except ExplorerError as error:
            self.complaint = str(error)
        super().__init__(label, [escape_name(name) for name in self._machines], id=id)
        if hardware is None and len(self.own) == 1:
            hardware = self.own[0]
        if hardware is not None:
            self.choose(hardware)

    @property
    def hardware(self) -> Hardware | None:
        """The chosen machine, or None."""
        return list(self._machines.values())[self.index]

    def choose(self, machine: Hardware) -> None:
        """Choose a machine, adding it to the list by its name or as "as typed" if necessary."""
        if machine not in self._machines.values():
            self._machines[machine.name or TYPED] = machine
            self.set_words([escape_name(name) for name in self._machines])
        self.index = list(self._machines.values()).index(machine)

    def find_named(self, name: str) -> Hardware | None:
        """Return the listed machine with a name, ignoring case, or None."""
        machines_by_name = {
            known_name.lower(): machine
            for known_name, machine in self._machines.items()
            if machine is not None
        }
        return machines_by_name.get(name.lower())

    def choose_nothing(self) -> None:
        """Choose the word for no machine."""
        self.index = 0
        self.refresh()
