"""Chooses the machine for the roofline and for tilings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.machine_dialog import MachineDialog
from explorer.tui.state.hardware import use_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.facts.cost import Hardware
    from explorer.facts.roofline import Machine
    from explorer.tui.commands.context import CommandContext


def ask_machine(context: CommandContext, then: Callable[[Machine | None], object]) -> None:
    """Ask for a machine, store it, and call `then` with its rates (None if unknown)."""

    def handle_answer(hardware: Hardware | None) -> None:
        if hardware is not None:
            use_hardware(context.store, hardware)
            then(context.store.machine)

    context.ask(MachineDialog(context.store.hardware), handle_answer)


def choose_machine(context: CommandContext) -> None:
    """Ask for a machine, and show its roofline."""
    ask_machine(context, lambda _: context.panes.tabs.open("roofline"))
