"""End of a change on the screen: shows the new state, if the change made one, and a page with the result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext
    from explorer.tui.dialogs.dialogs import PageDialog


async def show_result(context: CommandContext, previous_state: Any, command: str, page: PageDialog) -> None:
    """Show the state that a change made, then a page.

    Args:
        context: Context of the command.
        previous_state: Place in the history before the change.
        command: Shell command that makes the same change.
        page: Page with the result.
    """
    await context.load_history()
    if context.store.history_place != previous_state:
        await context.show_new_state("go", previous_state, command=command)
    context.ask(page, lambda _: None)
