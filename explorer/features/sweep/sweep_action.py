"""A sweep over tilings, and from it back to one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts import TileSpec
from explorer.features.sweep.sweep_view import SweepScreen, SweepState
from explorer.features.tiling.tile_action import TileCommand
from explorer.tui.state.hardware import use_hardware

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def sweep(context: CommandContext) -> None:
    """Show the tilings of the current model that were weighed, or ask which are to be."""
    if not context.ready():
        return
    store = context.store
    found: SweepState = store.on_demand.answers.setdefault("sweep", SweepState())
    screen = SweepScreen(store.source, context.jobs.engine, found, TileSpec(), hardware=store.hardware)

    def answered(spec: TileSpec | None) -> None:
        if screen.hardware != store.hardware:
            use_hardware(store, screen.hardware)
        if spec is not None:
            TileCommand(context).begin(spec)

    context.ask(screen, answered)
