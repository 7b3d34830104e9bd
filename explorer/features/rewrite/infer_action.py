"""Action of the key `_`: shows which shapes would be declared, then declares them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.features.rewrite.infer_words import build_inference
from explorer.features.rewrite.result_view import show_result
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts.split.infer import InferenceResult
    from explorer.tui.commands.context import CommandContext


def infer(context: CommandContext) -> None:
    """Show what the inference finds, and declare it if the user agrees."""
    context.open_view("Declare shapes", _choose(context), takes_keys=False)


async def _choose(context: CommandContext) -> None:
    fact: InferenceResult = await context.jobs.run("inferring shapes", "infer_choice")

    def on_answer(agreed: bool | None) -> None:
        if agreed:
            context.start_next("Declare shapes", _declare(context))

    hint = "Enter declares them · ↑↓ scroll · Esc close"
    context.ask(_build_page("Declare shapes", fact, hint=hint), on_answer)


async def _declare(context: CommandContext) -> None:
    previous_state = context.store.history_place
    fact: InferenceResult = await context.jobs.run("declaring shapes", "infer")
    await show_result(context, previous_state, fact.command, _build_page("Shapes declared", fact))


def _build_page(title: str, fact: InferenceResult, *, hint: str = "") -> PageDialog:
    return PageDialog(title, lambda width: draw(build_inference(fact), width - 1), hint=hint)
