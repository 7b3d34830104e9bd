"""Textual application: theme, remote mode, and the one main screen."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import App
from textual.driver import Driver
from textual.screen import Screen

from explorer.tui.screen.main import MainScreen
from explorer.tui.terminal.console import is_console
from explorer.tui.text.theme import ALL_THEMES, pair
from explorer.tui.widgets.line_view import ROLE_CLASSES

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess
    from explorer.process.saved_sessions import ScreenState
    from explorer.tui.screen.saved_view import ViewKeeper


class ExplorerApp(App[int]):
    """Shows one model.

    Args:
        source: What the user asked for; its name is on the first paint.
        engine: Started or not, it answers when it can.
        remote: Over SSH: nothing moves by itself, and only cells that changed are sent.
        keeper: Told what is on show, whenever that has changed.
        view: What a session showed that is resumed.
    """

    CSS_PATH = "app.tcss"
    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    TITLE = "explorer"

    def __init__(
        self,
        source: str,
        engine: EngineProcess,
        *,
        remote: bool = False,
        keeper: ViewKeeper | None = None,
        view: ScreenState | None = None,
    ) -> None:
        self.last_key = 0.0
        super().__init__(driver_class=_driver(remote))
        self.source, self.engine, self.remote = source, engine, remote
        self._keeper, self._view = keeper, view
        for theme in ALL_THEMES:
            self.register_theme(theme)
        self.themes = tuple(theme.name for theme in pair(self.console.color_system))
        self.theme = self.themes[0]
        self.set_class(remote, "remote")
        # nothing here is better for moving: a list that jumps can be read at once
        self.animation_level = "none"

    def copy_to_clipboard(self, text: str) -> None:
        """Send a text to the clipboard of the terminal, through the multiplexer that stands before it."""
        self._clipboard = text
        if self._driver is not None:
            from explorer.tui.terminal.clipboard import send

            send(text, os.environ, self._driver.write)

    async def on_event(self, event: events.Event) -> None:
        """A key goes before whatever else is to be done."""
        if isinstance(event, events.Key):
            self.last_key = time.monotonic()
        await super().on_event(event)

    def on_resize(self) -> None:
        """A terminal that was resized may show anything."""
        forget = getattr(self._driver, "forget", None)
        if forget is not None:
            forget()

    def get_default_screen(self) -> Screen[None]:
        """The one main screen."""
        return MainScreen(
            self.source, self.engine, remote=self.remote, keeper=self._keeper, resumed=self._view
        )

    @property
    def main(self) -> MainScreen | None:
        """The main screen, once it is there."""
        main = self.screen_stack[0] if self.screen_stack else None
        return main if isinstance(main, MainScreen) else None

    def view(self) -> ScreenState | None:
        """What is on show, to be resumed; None while nothing is."""
        return self.main.view() if self.main is not None else None

    def action_theme(self) -> None:
        """The light theme, or the dark one."""
        dark, light = self.themes
        self.theme = light if self.theme == dark else dark

    def action_help(self) -> None:
        """All keys."""
        from explorer.tui.commands.help import help_dialog  # with the dialogs, after the first paint

        self.push_screen(help_dialog())

    async def action_reopen(self) -> None:
        """Open a model that is not open, whatever the dialog on top said of it."""
        main = self.main
        if main is not None and main.store.analysis is None:
            self.screen.dismiss(None)
            self.call_later(main.run_action, "command('reopen')")


def _driver(remote: bool) -> type[Driver] | None:
    """The driver that saves bytes or knows the terminal, where there is one; None for Textual's own."""
    console = is_console(os.environ.get("TERM", ""))
    if sys.platform == "win32" or not (remote or console):
        return None
    from explorer.tui.terminal import remote as drivers

    return drivers.ConsoleDriver if console else drivers.RemoteDriver
