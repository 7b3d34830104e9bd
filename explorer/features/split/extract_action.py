"""Extracting the layers under the cursor: they become the model, a state of the history as any other change.

A state, and no file at once: it can be looked at, tiled and compared before `w` writes it, and `u` leads back
to the whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.facts.split.part import PartSpec
from explorer.features.split.extract_words import part_blocks
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts import Layer
    from explorer.facts.split.part import Extraction
    from explorer.tui.commands.context import CommandContext


def extract(context: CommandContext) -> None:
    """Make a model of the chosen layers alone."""

    def begin(chosen: list[Layer]) -> None:
        inside = {layer.id for layer in chosen}
        paths = tuple([layer.path for layer in chosen if layer.parent not in inside])
        if paths:
            context.start("Extract", _extract(context, PartSpec(paths)))

    if context.ready():
        context.with_layers(*context.tree.cursor_range, begin)


async def _extract(context: CommandContext, spec: PartSpec) -> None:
    fact: Extraction = await context.jobs.run("extracting", "extract", spec)
    title, tone = "Not extracted: it gives other numbers", "bad"
    if fact.output:
        title, tone = "Extracted: the whole's own numbers", "good"
        if fact.exact is None:
            title, tone = "Extracted: random numbers make it, which no two runs share", "warn"
        await context.take_history()
        entry = context.store.entry
        await context.show_made("undo", command=entry.command if entry is not None else "")
    page = PageDialog(title, lambda width: draw(part_blocks(fact), width - 1), tone=tone)
    context.app.push_screen(page)
