"""Search by a few letters, and going to the next or previous match."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from explorer.report.present.shell.history_words import state_name
from explorer.tui.commands.change.history_action import HistoryCommand
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.key_table import COMMANDS, find_command, has_command
from explorer.tui.commands.program import run_picked
from explorer.tui.dialogs.dialogs import MenuItem
from explorer.tui.dialogs.search_dialog import SearchDialog


class SearchCommand(ScreenCommand):
    """Searches commands, states, bookmarks, layers, tensors and attributes."""

    def run(self) -> None:
        """Open the search dialog."""
        store = self.store
        choices = [
            MenuItem(f"command:{c.id}", c.shown, c.title, c.tip) for c in COMMANDS if c.id != "palette"
        ]
        choices += [MenuItem(f"mark:{path}", "mark", path, "a bookmark") for path in store.bookmarks]
        history = store.history
        if history is not None and len(history.entries) > 1:
            choices += [
                MenuItem(f"state:{index}", "state", state_name(entry, index), "go to this state")
                for index, entry in enumerate(history.entries)
            ]
        dialog = SearchDialog(choices, self.tree.model.layers)
        self.context.ask(dialog, lambda id: self._run_choice(dialog, id))

    def _run_choice(self, dialog: SearchDialog, id: str | None) -> None:
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
            self.store.on_demand.search_results = dialog.search.list_visited_layers(result)
            self.panes.move_to_layer(result.layers[0])
            NextCommand(self.context).report_position()


class NextCommand(ScreenCommand):
    """Goes to the next match of the search or the filter; without matches, shows the weights' values."""

    @property
    def layers(self) -> list[int]:
        """IDs of the matching layers in tree order."""
        filter_matches = self.tree.model.matches
        return sorted(filter_matches) if filter_matches else self.store.on_demand.search_results

    def run(self, step: str = "1") -> None:
        """Go to the next match (`step` '1') or the previous one ('-1'), wrapping around."""
        layers, current_layer = self.layers, self.tree.current_layer
        if not layers or current_layer is None:
            if step == "1" and has_command("weights"):
                find_command("weights")(self.context).run()
            else:
                self.store.say("no search yet: / or Ctrl+P searches")
            return
        forward = step == "1"
        index = (
            bisect_right(layers, current_layer.id) if forward else bisect_left(layers, current_layer.id) - 1
        )
        self.panes.show_layer(layers[index % len(layers)])
        self.report_position()

    def report_position(self) -> None:
        """Report the number of the current match."""
        layers, current_layer = self.layers, self.tree.current_layer
        if current_layer is not None and layers:
            number = bisect_left(layers, current_layer.id) + 1
            self.store.say(f"{number:,} of {len(layers):,} found · n N next and before · Esc ends it")
