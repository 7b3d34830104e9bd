"""Undo and redo: one step back, and forward again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def undo(context: CommandContext) -> None:
    """One step back."""
    if not context.store.can_compare:
        context.store.say("nothing to undo")
    else:
        context.start("Undo", _go(context, "undo"))


def redo(context: CommandContext) -> None:
    """One step forward."""
    history = context.store.history
    if history is None or not history.redoable:
        context.store.say("nothing to redo")
    else:
        context.start("Redo", _go(context, "redo"))


async def _go(context: CommandContext, way: Literal["undo", "redo"]) -> None:
    """Ask the engine, and show the model that it leads to."""
    store, before = context.store, context.store.history
    store.history = after = await context.jobs.run(way, way)
    assert before is not None
    changed = before.entries[max(before.current, after.current)]
    await context.show_current("redo" if way == "undo" else "undo")
    store.say(f"{'undone' if way == 'undo' else 'redone'}: {changed.label}")
    if store.tab == "diff":
        context.panes.tabs.open("diff", focus=False)
