"""Overlay: shows figures from external files as columns of the layer tree."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.tui.dialogs.dialogs import EntryDialog
from explorer.tui.tree.overlay_rows import overlay_text, show_overlay

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext

_QUESTION = (
    "A CSV or JSON file with figures for each layer. The file gives a layer by its name, its path or a glob."
    " Its columns are added to the tree. Leave the path empty to remove the columns of all files."
)


def ask_overlay(context: CommandContext) -> None:
    """Ask for a file of figures, and add its columns to the tree."""

    def handle_answer(typed: str | None) -> None:
        if typed is not None and (typed or context.store.overlays):
            context.start("Figures from a file", _load_overlay(context, os.path.expanduser(typed)))

    title, texts = "Figures from a file", {"placeholder": "profile.csv", "hint": "add columns"}
    context.ask(EntryDialog(title, "", _QUESTION, **texts, required=False), handle_answer)


async def _load_overlay(context: CommandContext, path: str) -> None:
    store = context.store
    files = tuple(dict.fromkeys((*store.overlays, path))) if path else ()
    overlay = await context.jobs.ask("overlay", files) if files else None
    store.overlays = files
    context.panes.rearrange(lambda model: show_overlay(model, overlay))
    removed_message = "external figures removed"
    store.say(removed_message if overlay is None else overlay_text(overlay))
