"""Actions of the keys `v` and `d`: prove the current model equal to the opened one, and show the diff."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.compare.blame_screen import BlameCommand
from explorer.tui.dialogs.proof import proof_dialog
from explorer.tui.terminal.slices import call_after_paint

if TYPE_CHECKING:
    from explorer.facts import Verification
    from explorer.tui.commands.context import CommandContext


def verify(context: CommandContext) -> None:
    """Prove the current model equal to the opened one."""
    if not context.ready():
        return
    if not context.store.can_compare:
        context.store.say("nothing to prove: this is the model as it was opened")
        return
    context.start("Verify", _verify(context))


async def _verify(context: CommandContext) -> None:
    proof: Verification = await context.jobs.run("verifying", "verify")
    blame = BlameCommand(context)
    context.ask(proof_dialog(proof), lambda more: blame.begin() if more and not proof.passed else None)


def diff(context: CommandContext) -> None:
    """Open the diff tab. Compare the current model with the opened one first if that is not done yet."""
    if not context.store.can_compare or context.store.changes is not None:
        context.panes.tabs.open("diff")
    else:
        context.start("Diff", _compare(context))


async def _compare(context: CommandContext) -> None:
    context.store.changes = await context.jobs.run("comparing", "diff")
    tabs = context.panes.tabs
    tabs.open("diff")
    # a pane that was hidden until now has no height before it is laid out
    call_after_paint(context.panes, tabs.tab("diff").view.move_to_first_foldable)
