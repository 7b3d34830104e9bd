"""Bookmarks: layers that the user wants to return to in this session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.dialogs import MenuItem, PickDialog
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def toggle_bookmark(context: CommandContext) -> None:
    """Set or remove the bookmark of the current layer."""
    layer, store = context.tree.current_layer, context.store
    if layer is None:
        return
    if layer.path in store.bookmarks:
        store.bookmarks.remove(layer.path)
        store.say(f"bookmark removed from {escape_name(layer.path)}")
    else:
        store.bookmarks.append(layer.path)
        store.say(f"bookmark on {escape_name(layer.path)} · ' lists all {len(store.bookmarks):,}")
    store.notify("focus")


def list_bookmarks(context: CommandContext) -> None:
    """Ask for a bookmark, and go to its layer."""
    if not context.store.bookmarks:
        context.store.say("no bookmarks yet: M sets one on the current layer")
        return
    choices = [MenuItem(path, str(number), path) for number, path in enumerate(context.store.bookmarks, 1)]
    context.ask(PickDialog("Bookmarks", choices), context.go_to_layer)
