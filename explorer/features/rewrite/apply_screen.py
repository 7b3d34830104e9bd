"""Dialog for a pass of the user's own, and the job that it starts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace
from textual.app import ComposeResult

from explorer.base.errors import Misuse
from explorer.facts.user_pass import PassSpec
from explorer.features.rewrite.apply_words import build_applied_pass
from explorer.features.rewrite.result_view import show_result
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.dialogs.record_form import RecordForm
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts.user_pass import AppliedPass
    from explorer.tui.commands.context import CommandContext


class PassDialog(RecordForm[PassSpec]):
    """Ask for a pass, its file and its options."""

    TITLE_TEXT = "Apply a pass"

    def compose_fields(self) -> ComposeResult:
        """Yield a field for the name, and one for each option."""
        yield from self.compose_row("pass", self._last.name, "its declared name", "name")
        yield from super().compose_fields()

    def read_answer(self) -> PassSpec:
        """Return the pass that the fields describe.

        Raises:
            Misuse: The pass has no name, or an option is invalid.
        """
        name = self.get_text("name").strip()
        if not name:
            raise Misuse("the pass has no name", where="pass")
        return replace(super().read_answer(), name=name)


def apply(context: CommandContext) -> None:
    """Ask for the pass, then apply it."""
    if context.ready():
        context.ask(PassDialog(PassSpec()), partial(_on_answer, context))


def _on_answer(context: CommandContext, spec: PassSpec | None) -> None:
    if spec is not None:
        context.start("Apply a pass", _apply(context, spec))


async def _apply(context: CommandContext, spec: PassSpec) -> None:
    previous_state = context.store.history_place
    fact: AppliedPass = await context.jobs.run("applying the pass", "apply_pass", spec)
    proof = fact.verification
    is_kept = proof is None or proof.passed
    tone = "" if proof is None else verdict_tone(proof.verdict_kind)
    title = f"Pass {fact.name}" if is_kept else f"Pass {fact.name} refused"
    page = PageDialog(title, lambda width: draw(build_applied_pass(fact), width - 1), tone=tone)
    await show_result(context, previous_state, fact.command, page)
