"""Columns of the layer tree as a table."""

from __future__ import annotations

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.columns import ColumnsDialog
from explorer.tui.tree.rows import columns_of


class ColumnsCommand(ScreenCommand):
    """Asks which columns the tree has."""

    def run(self) -> None:
        """Ask."""

        def answered(columns: tuple[str, ...] | None) -> None:
            if columns is not None:
                self.panes.rearrange(lambda model: model.set_columns(columns))
                for complaint in filter(None, map(self.panes.asked.complaint, columns)):
                    self.store.say(complaint)

        self.context.ask(ColumnsDialog(self.tree.model.columns, columns_of(self.tree.model)), answered)
