"""Writing the opened model as another kind of file, from the screen."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.base.errors import ExplorerError
from explorer.base.verdicts import VERDICTS
from explorer.tui.main_screen.tiles import Tiles
from explorer.tui.pages.conversion import conversion_lines
from explorer.tui.pages.verdict import TONES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.conversion import Conversion

__all__ = ["Converting"]


class Converting(Tiles):
    """The part of the main screen that converts."""

    def action_convert(self) -> None:
        """Ask what it is to become, then do it."""
        if not self._ready():
            return
        if self.can_compare():
            self.say("the current model was tiled: it is ONNX already, w saves it")
            return
        self._start("Convert", self._ask_conversion())

    async def _ask_conversion(self) -> None:
        kinds: Sequence[tuple[str, tuple[str, ...]]] = await self.jobs.ask("conversions")
        if not kinds:
            raise ExplorerError("a model of this format cannot be converted", where=self.source)
        stem = os.path.splitext(os.path.basename(self.source.rstrip(os.sep)))[0].replace(":", "_")
        said = ", ".join(f"{about} ({', '.join(endings)})" for about, endings in kinds)
        named = [stem + ending for _, endings in kinds for ending in endings]
        # never the model itself, which Enter would offer to replace
        path = next((name for name in named if name != os.path.basename(self.source)), named[0])
        about = f"The ending says what it becomes: {said}. Written to"
        self.ask_path("Convert", path, about, self._do_convert)

    async def _do_convert(self, path: str, overwrite: bool) -> None:
        from explorer.tui.dialogs.dialogs import Page

        fact: Conversion = await self.jobs.run("converting", "convert", output=path, overwrite=overwrite)
        self.last_command = fact.command
        refused = VERDICTS[fact.verdict_kind].capitalize()
        title = f"Converted to {os.path.basename(fact.output)}" if fact.output else refused
        self.app.push_screen(
            Page(
                title,
                lambda width: conversion_lines(fact, width),
                tone=TONES[fact.verdict_kind],
                copy=fact.command,
            )
        )
