"""The Textual application: theme, remote mode, and the one main screen."""

from __future__ import annotations

from textual.app import App
from textual.screen import Screen

from explorer.tui.jobs import Door
from explorer.tui.screens.main import MainScreen
from explorer.tui.theme import THEMES

__all__ = ["ExplorerApp"]


class ExplorerApp(App[int]):
    """Shows one model.

    Args:
        source: What the user asked for; its name is on the first paint.
        engine: Started or not, it answers when it can.
        remote: Over SSH: nothing moves by itself, and only cells that changed are sent.
    """

    CSS_PATH = "app.tcss"
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    TITLE = "explorer"

    def __init__(self, source: str, engine: Door, *, remote: bool = False) -> None:
        super().__init__()
        self.source, self.engine, self.remote = source, engine, remote
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        # nothing here is better for moving: a list that jumps can be read at once
        self.animation_level = "none"

    def get_default_screen(self) -> Screen[None]:
        """The one main screen."""
        return MainScreen(self.source, self.engine, remote=self.remote)
