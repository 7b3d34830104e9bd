"""Undo and redo: one step back, and forward again."""

from __future__ import annotations

from typing import Literal

from explorer.tui.commands.context import ScreenCommand


class _Step(ScreenCommand):
    """Goes to the state beside."""

    async def go(self, way: Literal["undo", "redo"]) -> None:
        """Ask the engine, and show the model that it leads to."""
        before = self.store.history
        self.store.history = after = await self.jobs.run(way, way)
        assert before is not None
        changed = before.entries[max(before.current, after.current)]
        await self.context.show_current("redo" if way == "undo" else "undo")
        self.store.say(f"{'undone' if way == 'undo' else 'redone'}: {changed.label}")
        if self.store.tab == "diff":
            self.panes.tabs.open("diff", focus=False)


class UndoCommand(_Step):
    """One step back."""

    def run(self) -> None:
        """Go there."""
        if not self.store.can_compare:
            self.store.say("nothing to undo")
        else:
            self.context.start("Undo", self.go("undo"))


class RedoCommand(_Step):
    """One step forward."""

    def run(self) -> None:
        """Go there."""
        history = self.store.history
        if history is None or not history.redoable:
            self.store.say("nothing to redo")
        else:
            self.context.start("Redo", self.go("redo"))
