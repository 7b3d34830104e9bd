"""Undo and redo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def undo(context: CommandContext) -> None:
    """Go back by one state."""
    if not context.store.can_compare:
        context.store.say("nothing to undo: no change yet")
    else:
        context.start("Undo", _go(context, "undo"))


def redo(context: CommandContext) -> None:
    """Go forward by one state."""
    history = context.store.history
    if history is None or not history.redoable:
        context.store.say("nothing to redo: u undoes first")
    else:
        context.start("Redo", _go(context, "redo"))


async def _go(context: CommandContext, direction: Literal["undo", "redo"]) -> None:
    """Undo or redo in the engine, and show the new current state."""
    store, old_history = context.store, context.store.history
    store.history = new_history = await context.jobs.run(direction, direction)
    assert old_history is not None
    entry = old_history.entries[max(old_history.current, new_history.current)]
    await context.show_current("redo" if direction == "undo" else "undo")
    store.say(f"{'undone' if direction == 'undo' else 'redone'}: {entry.label}")
    if store.tab == "diff":
        context.panes.tabs.open("diff", focus=False)
