"""Bookmarks: layers to come back to, as long as the session lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.dialogs import MenuItem, PickDialog
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def bookmark(context: CommandContext) -> None:
    """Set a bookmark on the chosen layer, or take it away."""
    layer, store = context.tree.current_layer, context.store
    if layer is None:
        return
    if layer.path in store.bookmarks:
        store.bookmarks.remove(layer.path)
        store.say(f"no bookmark on {safe(layer.path)} any more")
    else:
        store.bookmarks.append(layer.path)
        store.say(f"bookmark on {safe(layer.path)} · ' lists all {len(store.bookmarks):,}")
    store.notify("focus")


def list_bookmarks(context: CommandContext) -> None:
    """Ask for one of the bookmarks, and go there."""
    if not context.store.bookmarks:
        context.store.say("no bookmarks yet: M sets one on the chosen layer")
        return
    choices = [MenuItem(path, str(at), path) for at, path in enumerate(context.store.bookmarks, 1)]
    context.ask(PickDialog("Bookmarks", choices), context.go_to_layer)
