"""Save and export: the current model as ONNX, its layers as a table, how it was tiled as rules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from explorer.report.table_file import write_layers
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def write_file(context: CommandContext, title: str, path: str, said: str, method: str, **how: Any) -> None:
    """Ask where, and have a method of the session write it."""

    async def write(chosen: str, overwrite: bool) -> None:
        written = await context.jobs.run("writing", method, chosen, overwrite=overwrite, **how)
        context.store.say(f"written to {safe(written)}")

    context.ask_path(title, path, said, write)


class SaveCommand(ScreenCommand):
    """Writes the current model."""

    def run(self) -> None:
        """Ask where, and write it."""
        store = self.store
        if self.context.ready():
            history = store.history
            entry = history.entries[history.current] if history is not None else None
            made = "_tiled" if entry is None or entry.quantization is None else "_quantized"
            if entry is not None and entry.words:
                made = {"edit": "_edited", "extract": "_part"}.get(entry.words[0], "_changed")
            tail = made if store.can_compare else ("_copy" if store.source.endswith(".onnx") else "")
            path = f"{store.stem}{tail}.onnx"
            self.context.ask_path("Save as ONNX", path, "The current model, written to", self._save)

    async def _save(self, path: str, overwrite: bool) -> None:
        saved = await self.jobs.run("saving", "save", path, overwrite=overwrite)
        await self.context.take_history()
        self.store.notify("history", "found")
        self.store.say(f"saved as {saved}")


class ExportCommand(ScreenCommand):
    """Writes the layer table."""

    def run(self) -> None:
        """Ask where, and write it."""
        if self.context.ready():
            said = "All layers with their figures; the ending says the format, .csv or .json"
            self.context.ask_path("Export the layers", f"{self.store.stem}_layers.csv", said, self._export)

    async def _export(self, path: str, overwrite: bool) -> None:
        analysis = self.store.analysis
        assert analysis is not None
        await asyncio.to_thread(write_layers, analysis, path, self.tree.model.overlay)
        self.store.say(f"{len(analysis.layers):,} layers written to {path}")


class KeepTilingsCommand(ScreenCommand):
    """Writes what was tiled as a file for --config."""

    def run(self) -> None:
        """Ask where, and write it."""
        if not self.context.ready():
            return
        if not self.store.can_compare:
            self.store.say("nothing was tiled yet; t tiles a layer")
            return
        said = "How each matmul was tiled, as rules for --config, written to"
        write_file(self.context, "Keep the tilings", f"{self.store.stem}.toml", said, "keep_choices")
