"""Save and export: the model as ONNX, the layers as a table, and the tilings as rules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from explorer.base.units import many_text
from explorer.report.table_file import write_layers
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def write_file(
    context: CommandContext, title: str, path: str, question: str, method: str, **options: Any
) -> None:
    """Ask for a path, and let a method of the session write the file."""

    async def write(chosen_path: str, overwrite: bool) -> None:
        written_path = await context.jobs.run("writing", method, chosen_path, overwrite=overwrite, **options)
        context.store.say(f"written to {escape_name(written_path)}")

    context.ask_path(title, path, question, write)


def save(context: CommandContext) -> None:
    """Ask for a path, and save the current model."""
    store, entry = context.store, context.store.entry
    if not context.ready():
        return

    async def write(path: str, overwrite: bool) -> None:
        saved = await context.jobs.run("saving", "save", path, overwrite=overwrite)
        await context.load_history()
        store.notify("history", "answers")
        store.say(f"saved as {saved}")

    ending = "_changed" if entry is None or entry.record is None else entry.record.ending
    tail = ending if store.can_compare else ("_copy" if store.source.endswith(".onnx") else "")
    context.ask_path("Save as ONNX", f"{store.stem}{tail}.onnx", "The current model, written to", write)


def export(context: CommandContext) -> None:
    """Ask for a path, and write the layer table."""
    if not context.ready():
        return

    async def write(path: str, overwrite: bool) -> None:
        analysis = context.store.analysis
        assert analysis is not None
        await asyncio.to_thread(write_layers, analysis, path, context.tree.model.overlay)
        context.store.say(f"{many_text(len(analysis.layers), 'layer')} written to {path}")

    question = "All layers with their figures; the file name's ending selects .csv or .json"
    context.ask_path("Export the layers", f"{context.store.stem}_layers.csv", question, write)


def keep_choices(context: CommandContext) -> None:
    """Ask for a path, and write the tilings as a file for `--config`."""
    if not context.ready():
        return
    if not context.store.can_compare:
        context.store.say("no tiling yet: t tiles a layer")
        return
    question = "How each matmul was tiled, as rules for --config, written to"
    write_file(context, "Keep the tilings", f"{context.store.stem}.toml", question, "keep_choices")
