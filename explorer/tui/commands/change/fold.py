"""Folding from the screen: what would go and what stays, then a state for each kind of rewrite."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.report.present.split.fold import fold_blocks
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.terminal.slices import after_paint
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts.split.fold import Fold


class FoldCommand(ScreenCommand):
    """Folds batch normalization, constants and what does nothing away."""

    def run(self) -> None:
        """Say what would go, and do it if that is wanted."""
        if self.context.ready():
            self.context.start("Fold", self._choose())

    async def _choose(self) -> None:
        fact: Fold = await self.jobs.run("looking for what folds", "fold_choice")
        if not fact.steps:
            self.context.ask(_page("Nothing to fold", fact), lambda _: None)
            return
        hint = "Enter folds · ↑↓ scroll · Esc close"
        self.context.ask(_page("Fold", fact, hint=hint), lambda yes: self._begin() if yes else None)

    def _begin(self) -> None:
        self.context.start_next("Fold", self._fold())

    async def _fold(self) -> None:
        before = self.store.history_place
        fact: Fold = await self.jobs.run("folding", "fold")
        await self.context.take_history()
        proof = fact.steps[-1].verification
        if self.store.history_place != before:
            await self.context.show_current("go", before)
            self.store.say("", fact.command)
            await after_paint(self.context.screen)  # two paints of the screen in one go would hold keys up
        title = "Folded" if fact.output else "Folding refused"
        tone = "" if proof is None else verdict_tone(proof.verdict_kind)
        self.context.ask(_page(title, fact, tone=tone), lambda _: None)


def _page(title: str, fact: Fold, *, hint: str = "", tone: str = "") -> PageDialog:
    return PageDialog(title, lambda width: draw(fold_blocks(fact), width - 1), hint=hint, tone=tone)
