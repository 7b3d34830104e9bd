"""Chooses the columns of the layer tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.columns_dialog import ColumnsDialog
from explorer.tui.tree.rows import list_columns

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext


def choose_columns(context: CommandContext) -> None:
    """Ask which columns the tree shows."""
    panes, model = context.panes, context.tree.model

    def handle_answer(columns: tuple[str, ...] | None) -> None:
        if columns is not None:
            panes.rearrange(lambda model: model.set_columns(columns))
            for message in filter(None, map(panes.requested_columns.describe_missing_input, columns)):
                context.store.say(message)

    context.ask(ColumnsDialog(model.columns, list_columns(model)), handle_answer)
