"""Commands of the program: menus, copying, Esc, opening again, leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.dialogs.dialogs import ConfirmDialog, MenuItem, PickDialog
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext
    from explorer.tui.models.open_models import OpenModel


def actions(context: CommandContext) -> None:
    """What can be done to the model; what is chosen is done."""
    choices = [MenuItem(c.id, c.shown, c.title, c.tip) for c in COMMANDS if c.menu]
    heads = ("key", "action", "what it does")
    context.ask(PickDialog("Actions", choices, heads=heads), lambda id: run_picked(context, id))


def run_picked(context: CommandContext, id: str | None) -> None:
    """Run the command that was chosen."""
    for action in (c.action for c in COMMANDS if c.id == id):
        context.screen.run_worker(context.screen.run_action(action), exit_on_error=False)


def copy(context: CommandContext) -> None:
    """Send the command on show, or the path of the layer, to the terminal."""
    store, layer = context.store, context.tree.current_layer
    text = store.last_command or (layer.path if layer else "")
    if text:
        context.app.copy_to_clipboard(text)
        store.say("sent to terminal: " + text)


def escape(context: CommandContext) -> None:
    """Close the filter's line; else stop the job, clear the filter, the status line, the zoom."""
    filter_line, store = context.filter_line, context.store
    if filter_line.is_open:
        filter_line.close(clear=True)  # its line covers the job's: Esc means what is seen
    elif context.jobs.stop() or filter_line.close(clear=True):
        return
    elif store.last_command or store.message or store.on_demand.found:
        store.on_demand.found = []
        store.say("")
    else:
        context.panes.zoom = ""


def reopen(context: CommandContext) -> None:
    """Open the model after all: its opening was stopped, or failed for a reason that is gone."""
    if context.store.analysis is not None:
        context.store.say("the model is open")
    elif context.jobs.current is None:
        context.reopen()


def leave(context: CommandContext) -> None:
    """Leave; asks for each open model of which something would be lost, and shows it meanwhile."""
    models = context.host.models
    _ask(context, sorted(models.open, key=lambda model: model is not models.current))


def _ask(context: CommandContext, models: list[OpenModel]) -> None:
    """Ask for the first of these of which something would be lost; then for those behind it."""
    host, app = context.host, context.app
    at = next((at for at, model in enumerate(models) if model.question("quit")), None)
    if at is None:
        app.exit(0)
        return
    model, rest = models[at], models[at + 1 :]
    named = f"{safe(model.source)}: " if len(host.models.open) > 1 else ""
    host.show_model(model)
    question = ConfirmDialog("Quit?", named + model.question("quit"))
    app.push_screen(question, lambda yes: _ask(context, rest) if yes else None, mode=model.mode)
