"""Bookmarks: layers to come back to, as long as the session lives."""

from __future__ import annotations

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import MenuItem, PickDialog
from explorer.tui.text.lines import safe


class BookmarkCommand(ScreenCommand):
    """Sets a bookmark on the chosen layer, or takes it away."""

    def run(self) -> None:
        """Do it."""
        layer, marks = self.tree.current_layer, self.store.bookmarks
        if layer is None:
            return
        if layer.path in marks:
            marks.remove(layer.path)
            self.store.say(f"no bookmark on {safe(layer.path)} any more")
        else:
            marks.append(layer.path)
            self.store.say(f"bookmark on {safe(layer.path)} · ' lists all {len(marks):,}")
        self.store.notify("focus")


class BookmarksCommand(ScreenCommand):
    """Lists the bookmarks."""

    def run(self) -> None:
        """Ask for one, and go there."""
        if not self.store.bookmarks:
            self.store.say("no bookmarks yet: M sets one on the chosen layer")
            return
        choices = [MenuItem(path, str(at), path) for at, path in enumerate(self.store.bookmarks, 1)]
        self.context.ask(PickDialog("Bookmarks", choices), self._go)

    def _go(self, path: str | None) -> None:
        if path is not None:
            self.context.screen.run_worker(self.context.go_to_layer(path), exit_on_error=False)
