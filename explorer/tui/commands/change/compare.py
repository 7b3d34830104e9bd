"""Verify and diff: the proof that the current model equals the one opened, and what differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.change.blame import BlameCommand
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import TO_BLAME, verdict_lines, verdict_title, verdict_tone

if TYPE_CHECKING:
    from explorer.facts import Verification


def proof_dialog(proof: Verification, title: str = "") -> PageDialog:
    """A proof to read; of one that failed Enter leads to the layer to blame."""
    return PageDialog(
        verdict_title(proof) + title,
        lambda width: verdict_lines(proof, width),
        hint="" if proof.passed else TO_BLAME,
        tone=verdict_tone(proof.verdict_kind),
    )


class VerifyCommand(ScreenCommand):
    """Proves the current model equal to the one opened."""

    def run(self) -> None:
        """Prove it."""
        if not self.context.ready():
            return
        if not self.store.can_compare:
            self.store.say("nothing to prove: this is the model as it was opened")
            return
        self.context.start("Verify", self._verify())

    async def _verify(self) -> None:
        proof: Verification = await self.jobs.run("verifying", "verify")
        blame = BlameCommand(self.context)
        self.context.ask(
            proof_dialog(proof), lambda more: blame.begin() if more and not proof.passed else None
        )


class DiffCommand(ScreenCommand):
    """Compares with the model as opened."""

    def run(self) -> None:
        """Show what differs, if it was not shown before."""
        if not self.store.can_compare or self.store.changes is not None:
            self.panes.tabs.open("diff")
        else:
            self.context.start("Diff", self._compare())

    async def _compare(self) -> None:
        self.store.changes = await self.jobs.run("comparing", "diff")
        self.panes.tabs.open("diff")
        # a pane that was hidden until now has no height before it is laid out
        self.panes.call_after_refresh(self.panes.tabs.tab("diff").view.to_first_foldable)
