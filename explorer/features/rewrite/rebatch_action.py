"""Action of the key `*`: asks for a batch and a file, rewrites the model, and shows the compared rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from textual.app import ComposeResult

from explorer.base.verdicts import VERDICTS
from explorer.report.present.compare.convert import conversion
from explorer.settings.parse import parse_axes, parse_batch
from explorer.tui.dialogs.dialogs import FormDialog, PageDialog
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.drawing import draw

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion
    from explorer.tui.commands.context import CommandContext


class _Batch(NamedTuple):
    """New batch size, or a name that leaves it open, and the batch axis of each input by name."""

    size: int | str
    axes: Mapping[str, int]


class RebatchDialog(FormDialog[_Batch]):
    """Ask for the new batch size and the batch axes of the inputs."""

    TITLE_TEXT = "Another batch size"
    HINT = "Enter choose the file · Esc cancel"

    def compose_fields(self) -> ComposeResult:
        """Yield the fields."""
        yield from self.compose_row("batch", "", "8, or a name such as N: open", "batch")
        yield from self.compose_row("batch axis", "", "the first axis of each input, or x:1", "axes")

    def describe(self) -> Sequence[tuple[str, str]]:
        """Say what is written and compared."""
        if not self.get_text("batch").strip():
            return [("The model is written to an ONNX file with another batch size.", "dim")]
        size, axes = self.read_answer()
        batch = f"batch {size:,}" if isinstance(size, int) else f"an open batch, {size}"
        inputs = ", ".join(f"axis {axis} of {name}" for name, axis in axes.items())
        where = inputs or "the first axis of each input"
        return [
            (f"The model is written with {batch}: {where}.", "dim"),
            ("Each row of its outputs is compared with a run of the current model on that row.", "dim"),
        ]

    def read_answer(self) -> _Batch:
        """Return the batch that the fields describe."""
        size = parse_batch(self.get_text("batch").strip(), "batch")
        return _Batch(size, parse_axes(self.get_text("axes").split(), "batch axis"))


def rebatch(context: CommandContext) -> None:
    """Ask for the batch and the file, then write the model."""
    if context.ready():
        context.ask(RebatchDialog(), partial(_ask_path, context))


def _ask_path(context: CommandContext, batch: _Batch | None) -> None:
    if batch is None:
        return
    stem = os.path.splitext(os.path.basename(context.store.source.rstrip(os.sep)))[0].replace(":", "_")
    question = "The model with the other batch size is an ONNX file. Written to"
    write = partial(_write, context, batch)
    context.ask_path("Another batch size", f"{stem}_{batch.size}.onnx", question, write)


async def _write(context: CommandContext, batch: _Batch, path: str, overwrite: bool) -> None:
    size, axes = batch
    fact: Conversion = await context.jobs.run(
        "changing the batch", "rebatch", size, path, axes=axes, overwrite=overwrite
    )
    context.store.last_command = fact.command
    refusal = VERDICTS[fact.verdict_kind].capitalize()
    title = f"Written to {os.path.basename(fact.output)}" if fact.output else refusal
    tone = verdict_tone(fact.verdict_kind)
    page = PageDialog(title, lambda width: draw(conversion(fact), width - 1), tone=tone, copy=fact.command)
    context.app.push_screen(page)
