"""Action of the key `&`: shows which nodes can be folded and which stay, then folds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.rewrite.result_view import show_result
from explorer.features.rewrite.rewrite_words import build_fold_blocks
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts.split.fold import Fold
    from explorer.tui.commands.context import CommandContext


def fold(context: CommandContext) -> None:
    """Show the nodes that can be folded, and fold them if the user agrees."""
    context.open_view("Fold", _choose(context), takes_keys=False)


async def _choose(context: CommandContext) -> None:
    fact: Fold = await context.jobs.run("looking for what folds", "fold_choice")
    if not fact.steps:
        context.ask(_build_page("Nothing to fold", fact))
        return

    def on_answer(agreed: bool | None) -> None:
        if agreed:
            context.start_next("Fold", _fold(context))

    context.ask(_build_page("Fold", fact, hint="Enter folds · ↑↓ scroll · Esc close"), on_answer)


async def _fold(context: CommandContext) -> None:
    previous_state = context.store.history_place
    fact: Fold = await context.jobs.run("folding", "fold")
    proof = fact.steps[-1].verification
    title = "Folded" if fact.output else "Folding refused"
    tone = "" if proof is None else verdict_tone(proof.verdict_kind)
    await show_result(context, previous_state, fact.command, _build_page(title, fact, tone=tone))


def _build_page(title: str, fact: Fold, *, hint: str = "", tone: str = "") -> PageDialog:
    return PageDialog(title, lambda width: draw(build_fold_blocks(fact), width - 1), hint=hint, tone=tone)
