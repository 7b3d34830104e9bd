"""Commands of the program: menus, copying, Esc, opening again, leaving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.dialogs.dialogs import ConfirmDialog, MenuItem, PickDialog
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from explorer.tui.models.open_models import OpenModel


class ActionsCommand(ScreenCommand):
    """What can be done to the model."""

    def run(self) -> None:
        """Show it."""
        choices = [MenuItem(c.id, c.shown, c.title, c.tip) for c in COMMANDS if c.menu]
        self.context.ask(
            PickDialog("Actions", choices, heads=("key", "action", "what it does")), self._run_picked
        )

    def _run_picked(self, id: str | None) -> None:
        """Run the command that was chosen."""
        screen = self.context.screen
        for action in (c.action for c in COMMANDS if c.id == id):
            screen.run_worker(screen.run_action(action), exit_on_error=False)


class CopyCommand(ScreenCommand):
    """The command on show, or the path of the layer."""

    def run(self) -> None:
        """Send it to the terminal."""
        store, layer = self.store, self.tree.current_layer
        text = store.last_command or (layer.path if layer else "")
        if text:
            self.context.app.copy_to_clipboard(text)
            store.say("sent to terminal: " + text)


class EscapeCommand(ScreenCommand):
    """Closes the filter's line; else stops the job, clears the filter, the status line, the zoom."""

    def run(self) -> None:
        """Do the first of these that is to be done."""
        filter_line, store = self.context.filter_line, self.store
        if filter_line.is_open:
            filter_line.close(clear=True)  # its line covers the job's: Esc means what is seen
        elif self.jobs.stop() or filter_line.close(clear=True):
            return
        elif store.last_command or store.message or store.on_demand.found:
            store.on_demand.found = []
            store.say("")
        else:
            self.panes.zoom = ""


class ReopenCommand(ScreenCommand):
    """Opens the model after all: its opening was stopped, or failed for a reason that is gone."""

    def run(self) -> None:
        """Open it."""
        if self.store.analysis is not None:
            self.store.say("the model is open")
        elif self.jobs.current is None:
            self.context.reopen()


class QuitCommand(ScreenCommand):
    """Leaves; asks for each open model of which something would be lost, and shows it meanwhile."""

    def run(self) -> None:
        """Leave."""
        models = self.context.host.models
        self._ask(sorted(models.open, key=lambda model: model is not models.current))

    def _ask(self, models: list[OpenModel]) -> None:
        """Ask for the first of these of which something would be lost; then for those behind it."""
        host, app = self.context.host, self.context.app
        at = next((at for at, model in enumerate(models) if model.question("quit")), None)
        if at is None:
            app.exit(0)
            return
        model, rest = models[at], models[at + 1 :]
        named = f"{safe(model.source)}: " if len(host.models.open) > 1 else ""
        host.show_model(model)
        question = ConfirmDialog("Quit?", named + model.question("quit"))
        app.push_screen(question, lambda yes: self._ask(rest) if yes else None, mode=model.mode)
