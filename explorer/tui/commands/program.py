"""Commands of the program: menus, copying, Esc, reopening and quitting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.dialogs.dialogs import ConfirmDialog, MenuItem, PickDialog
from explorer.tui.text.lines import escape_name

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext
    from explorer.tui.models.open_models import OpenModel


class QuitDialog(ConfirmDialog):
    """Asks whether to quit although work is not saved."""


def actions(context: CommandContext) -> None:
    """Show the menu of actions on the model, and run the chosen one."""
    choices = [MenuItem(c.id, c.shown, c.title, c.tip) for c in COMMANDS if c.menu]
    heads = ("key", "action", "what it does")
    context.ask(PickDialog("Actions", choices, heads=heads), lambda id: run_picked(context, id))


def run_picked(context: CommandContext, id: str | None) -> None:
    """Run the command with an ID, if one was chosen."""
    for action in (c.action for c in COMMANDS if c.id == id):
        context.screen.run_worker(context.screen.run_action(action), exit_on_error=False)


def copy(context: CommandContext) -> None:
    """Copy the last command, or the path of the layer, to the terminal's clipboard."""
    store, layer = context.store, context.tree.current_layer
    text = store.last_command or (layer.path if layer else "")
    if text:
        context.app.copy_to_clipboard(text)
        store.say("sent to terminal: " + text)


def escape(context: CommandContext) -> None:
    """Close the filter line, or else stop the job, clear the filter, clear the status line or end the zoom.

    Only the first possible action is done.
    """
    filter_line, store = context.filter_line, context.store
    if filter_line.is_open:
        filter_line.close(clear=True)  # the filter line hides the status line with the job
    elif context.jobs.stop() or filter_line.close(clear=True):
        return
    elif store.last_command or store.message or store.on_demand.search_results:
        store.on_demand.search_results = []
        store.say("")
    else:
        context.panes.zoom = ""


def reopen(context: CommandContext) -> None:
    """Open the model again after opening was stopped or failed."""
    if context.store.analysis is not None:
        context.store.say("the model is open")
    elif context.jobs.current is None:
        context.reopen()


def leave(context: CommandContext) -> None:
    """Quit. For each open model with a running job or unsaved states, show the model and ask first."""
    if any(isinstance(screen, QuitDialog) for screen in context.app.screen_stack):
        return
    models = context.host.models
    _ask(context, sorted(models.open, key=lambda model: model is not models.current))


def _ask(context: CommandContext, models: list[OpenModel]) -> None:
    """Ask for the models with a running job or unsaved states, one after the other, then quit."""
    host, app = context.host, context.app
    index = next((index for index, model in enumerate(models) if model.question("quit")), None)
    if index is None:
        app.exit(0)
        return
    model, remaining = models[index], models[index + 1 :]
    prefix = f"{escape_name(model.source)}: " if len(host.models.open) > 1 else ""
    host.show_model(model)
    question = QuitDialog("Quit?", prefix + model.question("quit"))
    app.push_screen(
        question, lambda is_confirmed: _ask(context, remaining) if is_confirmed else None, mode=model.mode
    )
