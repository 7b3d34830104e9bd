"""Sensitivity from the screen: which number formats were tried layer by layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from explorer.features.quantize.quantize_action import QuantizeCommand
from explorer.features.quantize.records import QuantizationRecord
from explorer.features.sweep.sensitivity_view import SensitivityScreen, SensitivityState

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def sensitivity(context: CommandContext) -> None:
    """Show which formats were tried layer by layer, or ask; of a quantized state on what it was made of."""
    if not context.ready():
        return
    history, state = context.store.history, context.store.history_place
    if history is not None:
        line = history.line_to(state)
        # also of what was tiled after it: layers take formats before that
        first = next((at for at in line if isinstance(history.entries[at].record, QuantizationRecord)), None)
        state = state if first is None else history.parent(first) or 0
    found = context.store.sensitivity.setdefault(state, SensitivityState())
    screen = SensitivityScreen(context.store.source, context.jobs.engine, found, state)
    context.ask(screen, partial(QuantizeCommand(context).make, state))
