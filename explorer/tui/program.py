"""The Textual application: theme, remote mode, and the one main screen."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from textual import events
from textual.app import App
from textual.driver import Driver
from textual.screen import Screen

from explorer.tui.actions.jobs import Door
from explorer.tui.main_screen.main import MainScreen
from explorer.tui.terminal.console import is_console
from explorer.tui.text.theme import ALL_THEMES, pair

if TYPE_CHECKING:
    from explorer.process.saved_sessions import View
    from explorer.tui.main_screen.remembering import Keeper

__all__ = ["ExplorerApp"]


class ExplorerApp(App[int]):
    """Shows one model.

    Args:
        source: What the user asked for; its name is on the first paint.
        engine: Started or not, it answers when it can.
        opening: The job that opens the model, if it was asked for already.
        remote: Over SSH: nothing moves by itself, and only cells that changed are sent.
        keeper: Told what is on show, whenever that has changed.
        view: What a session showed that is resumed.
    """

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    TITLE = "explorer"

    def __init__(
        self,
        source: str,
        engine: Door,
        *,
        opening: Any = None,
        remote: bool = False,
        keeper: Keeper | None = None,
        view: View | None = None,
    ) -> None:
        self.last_key = 0.0
        super().__init__(driver_class=_driver(remote))
        self.source, self.engine, self.opening, self.remote = source, engine, opening, remote
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
            self.source,
            self.engine,
            opening=self.opening,
            remote=self.remote,
            keeper=self._keeper,
            resumed=self._view,
        )

    def view(self) -> View | None:
        """What is on show, to be resumed; None while nothing is."""
        main = self.screen_stack[0] if self.screen_stack else None
        return main.view() if isinstance(main, MainScreen) else None


def _driver(remote: bool) -> type[Driver] | None:
    """The driver that saves bytes or knows the terminal, where there is one; None for Textual's own."""
    console = is_console(os.environ.get("TERM", ""))
    if sys.platform == "win32" or not (remote or console):
        return None
    from explorer.tui.terminal import remote as drivers

    return drivers.ConsoleDriver if console else drivers.RemoteDriver
