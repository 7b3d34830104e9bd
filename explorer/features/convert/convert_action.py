"""Action of the key `W`: asks for a file, converts the opened model, and shows the proof."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from explorer.base.errors import ExplorerError
from explorer.base.verdicts import VERDICTS
from explorer.report.present.compare.convert import conversion
from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.conversion import Conversion
    from explorer.tui.commands.context import CommandContext


def convert(context: CommandContext) -> None:
    """Ask for the target file, then convert."""
    if not context.ready():
        return
    if context.store.can_compare:
        context.store.say("the current model was changed here and is ONNX already, w saves it")
        return
    context.open_view("Convert", _ask(context))


async def _ask(context: CommandContext) -> None:
    formats: Sequence[tuple[str, tuple[str, ...]]] = await context.jobs.ask("conversions")
    source = context.store.source
    if not formats:
        raise ExplorerError("a model of this format cannot be converted", where=source)
    stem = os.path.splitext(os.path.basename(source.rstrip(os.sep)))[0].replace(":", "_")
    format_texts = ", ".join(f"{explanation} ({', '.join(endings)})" for explanation, endings in formats)
    file_names = [stem + ending for _, endings in formats for ending in endings]
    # never suggest the model's own file, which Enter would offer to replace
    path = next((name for name in file_names if name != os.path.basename(source)), file_names[0])
    explanation = f"The ending says what it becomes: {format_texts}. Written to"
    context.ask_path("Convert", path, explanation, partial(_convert, context))


async def _convert(context: CommandContext, path: str, overwrite: bool) -> None:
    fact: Conversion = await context.jobs.run("converting", "convert", output=path, overwrite=overwrite)
    context.store.last_command = fact.command
    refusal = VERDICTS[fact.verdict_kind].capitalize()
    title = f"Converted to {os.path.basename(fact.output)}" if fact.output else refusal
    tone = verdict_tone(fact.verdict_kind)
    page = PageDialog(title, lambda width: draw(conversion(fact), width - 1), tone=tone, copy=fact.command)
    context.app.push_screen(page)
