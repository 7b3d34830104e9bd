"""Commands for several models: opening another model, and listing the open models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.commands.key_table import find_command, has_command
from explorer.tui.dialogs.states.figures_screen import FigureScreen
from explorer.tui.models.chooser import ChooserScreen
from explorer.tui.models.open_list import OpenListRequest, OpenListScreen
from explorer.tui.state.hardware import find_machine

if TYPE_CHECKING:
    from explorer.tui.commands.context import CommandContext
    from explorer.tui.models.open_models import ModelChoice


def open_another(context: CommandContext) -> None:
    """Let the user choose another model, and open it in addition to the open models."""
    host = context.host

    def answer(choice: ModelChoice | None) -> None:
        model = host.begin_model(choice) if choice is not None else None
        chooser.dismiss(None)
        if model is not None:
            host.show_model(model)

    chooser = ChooserScreen("", answer)
    context.app.push_screen(chooser)


class OpenModelsCommand(ScreenCommand):
    """Lists the open models."""

    def run(self) -> None:
        """Show the list."""
        self.context.app.push_screen(OpenListScreen(self.context.host), self._handle_answer)

    def _handle_answer(self, request: OpenListRequest | None) -> None:
        context = self.context
        if request is None:
            return
        if request.action == "open":
            open_another(context)
        elif request.action == "show":
            context.host.show_model(request.models[0])
        elif request.action == "pair":
            if has_command("pair"):
                find_command("pair")(context).beside(request.models[0].source, self.run)
        else:
            context.start("Figures", self._show_figures([model.source for model in request.models]), self.run)

    async def _show_figures(self, other_sources: list[str]) -> None:
        store = self.store
        find_machine(store)
        state_indices = [store.history_place]
        table = await self.jobs.run(
            "comparing", "beside", state_indices, others=other_sources, hardware=store.hardware
        )
        self.context.ask(FigureScreen(table, "models", exact=store.exact), lambda _: self.run())
