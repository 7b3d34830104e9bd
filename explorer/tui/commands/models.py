"""Several models: another one is opened, and one of those that are open is shown or closed."""

from __future__ import annotations

from explorer.tui.commands.context import ScreenCommand
from explorer.tui.models.chooser import ChooserScreen
from explorer.tui.models.open_list import OpenListScreen
from explorer.tui.models.open_models import ModelChoice


class OpenCommand(ScreenCommand):
    """Opens another model beside those that are open."""

    def run(self) -> None:
        """Let the user choose one."""
        host = self.context.host

        def answer(choice: ModelChoice | None) -> None:
            model = host.begin_model(choice) if choice is not None else None
            chooser.dismiss(None)
            if model is not None:
                host.show_model(model)

        chooser = ChooserScreen("", answer)
        self.context.app.push_screen(chooser)


class OpenModelsCommand(ScreenCommand):
    """Lists the models that are open."""

    def run(self) -> None:
        """Show them."""
        context, host = self.context, self.context.host

        def answered(wish: tuple[str, int] | None) -> None:
            if wish is None:
                return
            what, at = wish
            if what == "open":
                OpenCommand(context).run()
            elif what == "show":
                host.show_model(host.models.open[at])

        context.app.push_screen(OpenListScreen(host), answered)
