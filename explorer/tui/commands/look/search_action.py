"""Search: whatever there is by a few letters, and the next and the one before of what was found."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from explorer.report.present.shell.history_words import state_name
from explorer.tui.commands.change.history_action import HistoryCommand
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.key_table import COMMANDS, command_of, has_command
from explorer.tui.commands.program import run_picked
from explorer.tui.dialogs.dialogs import MenuItem
from explorer.tui.dialogs.search_dialog import SearchDialog


class SearchCommand(ScreenCommand):
    """Commands, states, bookmarks, layers, tensors and attributes."""

    def run(self) -> None:
        """Ask."""
        store = self.store
        choices = [
            MenuItem(f"command:{c.id}", c.shown, c.title, c.tip) for c in COMMANDS if c.id != "palette"
        ]
        choices += [MenuItem(f"mark:{path}", "mark", path, "a bookmark") for path in store.bookmarks]
        history = store.history
        if history is not None and len(history.entries) > 1:
            choices += [
                MenuItem(f"state:{at}", "state", state_name(entry, at), "go to this state")
                for at, entry in enumerate(history.entries)
            ]
        dialog = SearchDialog(choices, self.tree.model.layers)
        self.context.ask(dialog, lambda id: self._chosen(dialog, id))

    def _chosen(self, dialog: SearchDialog, id: str | None) -> None:
        if id is None:
            return
        kind, _, key = id.partition(":")
        if kind == "command":
            run_picked(self.context, key)
        elif kind == "state":
            HistoryCommand(self.context).go(int(key))
        elif kind == "mark":
            self.context.go_to_layer(key)
        elif dialog.search is not None:
            result = dialog.listed[id]
            self.store.on_demand.found = dialog.search.walk(result)
            self.panes.to_layer(result.layers[0])
            NextCommand(self.context).tell()


class NextCommand(ScreenCommand):
    """The next layer that was found, or that the filter shows; without one the numbers in the weights."""

    @property
    def layers(self) -> list[int]:
        """What was found."""
        shown = self.tree.model.matches
        return sorted(shown) if shown else self.store.on_demand.found

    def run(self, step: str = "1") -> None:
        """Go there, round and round."""
        layers, here = self.layers, self.tree.current_layer
        if not layers or here is None:
            if step == "1" and has_command("weights"):
                command_of("weights")(self.context).run()
            else:
                self.store.say("nothing was searched for: / and Ctrl+P do")
            return
        forward = step == "1"
        at = bisect_right(layers, here.id) if forward else bisect_left(layers, here.id) - 1
        self.panes.show_layer(layers[at % len(layers)])
        self.tell()

    def tell(self) -> None:
        """Say which of how many this is."""
        layers, here = self.layers, self.tree.current_layer
        if here is not None and layers:
            at = bisect_left(layers, here.id) + 1
            self.store.say(f"{at:,} of {len(layers):,} found · n N next and before · Esc ends it")
