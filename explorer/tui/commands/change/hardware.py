"""Hardware, the machine for which tilings are weighed: what was chosen in one place holds in all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts.roofline import Machine
from explorer.settings import machines

if TYPE_CHECKING:
    from explorer.facts.cost import Hardware
    from explorer.tui.state.store import ScreenStore


def hardware_in_use(store: ScreenStore) -> Hardware | None:
    """The machine that was chosen or typed last."""
    known, machine = store.hardware, store.machine
    return machines.as_hardware(machine) if known is None and machine is not None else known


def use_hardware(store: ScreenStore, hardware: Hardware | None) -> None:
    """Take a machine for all that is weighed from now on; one without rates for the tilings only."""
    store.hardware = hardware
    if hardware is None or hardware.peak_macs is None or hardware.bandwidth is None:
        return
    machine = Machine(hardware.name, hardware.peak_macs, hardware.bandwidth, hardware.origin)
    if machine != store.machine:
        store.use_machine(machine)
