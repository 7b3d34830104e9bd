"""The machine in use, which all dialogs and tabs share."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from explorer.base.errors import ExplorerError
from explorer.facts.roofline import Machine
from explorer.settings import machines

if TYPE_CHECKING:
    from explorer.facts.cost import Hardware
    from explorer.tui.state.store import ScreenStore


def use_hardware(store: ScreenStore, hardware: Hardware | None) -> None:
    """Set the machine in use, or None. The roofline has no machine if this one has no rates per second."""
    store.hardware = hardware
    machine: Machine | None = None
    if hardware is not None and hardware.peak_macs is not None and hardware.bandwidth is not None:
        machine = Machine(hardware.name, hardware.peak_macs, hardware.bandwidth, hardware.origin)
    if machine != store.machine:
        store.use_machine(machine)


def restore_machine(store: ScreenStore, hardware: Hardware | None, machine: Machine | None) -> None:
    """Restore the machine of a resumed session. Sessions of older versions contain only its rates."""
    if hardware is None and machine is not None:
        hardware = machines.find_roofline_hardware(machine)
    if hardware is not None:
        use_hardware(store, hardware)


def find_machine(store: ScreenStore) -> Machine | None:
    """Return the chosen machine, or the only machine of the configuration file, or None."""
    if store.hardware is None:
        with suppress(ExplorerError):  # the dialog reports the error
            profiles = list(machines.read_hardware_profiles().values())
            if len(profiles) == 1:
                use_hardware(store, profiles[0])
    return store.machine
