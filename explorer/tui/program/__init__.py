"""Textual application: theme, remote mode, and a main screen for each model that is open."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.driver import Driver
from textual.screen import Screen

from explorer.base.errors import Misuse
from explorer.base.version_notes import internal_error
from explorer.tui.compat import ReportingApp, asking_node, watch_workers
from explorer.tui.models.open_models import Begin, ModelChoice, OpenModel, OpenModels
from explorer.tui.screen.main import MainScreen
from explorer.tui.terminal import clipboard
from explorer.tui.terminal.console import is_console
from explorer.tui.terminal.key_order import KeysInOrder
from explorer.tui.text.stylesheet import ParsedStylesheet
from explorer.tui.text.theme import ALL_THEMES, pair
from explorer.tui.widgets.line_view import ROLE_CLASSES

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess
    from explorer.process.saved_sessions import ScreenState
    from explorer.tui.models.open_models import SessionKeeper

_HOME = "home"
"""The stack of screens that Textual begins with."""


def _nothing_begins(choice: ModelChoice) -> OpenModel:
    raise Misuse("this program opens one model", where=choice.source)


class ExplorerApp(ReportingApp[int]):
    """Shows models, each in a stack of screens (a mode of Textual's) of its own.

    Args:
        source: What the user asked for; its name is on the first paint. Empty for the chooser.
        engine: Started or not, it answers when it can; None for the chooser.
        remote: Over SSH: nothing moves by itself, and only cells that changed are sent.
        keeper: Told what is on show, whenever that has changed.
        view: What a session showed that is resumed.
        begin: Begins the session of another model.
        memory: Most bytes that the engines may hold together.
        folder: Whose models the chooser lists.
        overlays: Files of figures from outside for the model.
        beside: Another model, which is set beside it.
    """

    CSS_PATH = "../app.tcss"
    COMPONENT_CLASSES: ClassVar[set[str]] = ROLE_CLASSES
    DEFAULT_MODE = _HOME
    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    TITLE = "explorer"

    def __init__(
        self,
        source: str,
        engine: EngineProcess | None,
        *,
        remote: bool = False,
        keeper: SessionKeeper | None = None,
        view: ScreenState | None = None,
        begin: Begin = _nothing_begins,
        memory: int | None = None,
        folder: str = "",
        overlays: tuple[str, ...] = (),
        beside: str | None = None,
    ) -> None:
        self.last_key = 0.0
        self._opened: set[str] = set()
        super().__init__(driver_class=_driver(remote))
        watch_workers(self, self._work_failed)
        self._told: set[str] = set()
        self._keys = KeysInOrder(self, self._hand_on)
        self.remote, self._folder = remote, folder
        self.models = OpenModels(begin, memory)
        for theme in ALL_THEMES:
            self.register_theme(theme)
        self.themes = tuple(theme.name for theme in pair(self.console.color_system))
        self.theme = self.themes[0]
        self.stylesheet = ParsedStylesheet(variables=self.get_css_variables())
        self.set_class(remote, "remote")
        # nothing here is better for moving: a list that jumps can be read at once
        self.animation_level = "none"
        if engine is not None:
            first = self.models.add(OpenModel(source, engine, keeper, view))
            first.mode, first.overlays, first.beside = _HOME, overlays, beside
            self.models.show(first)

    def get_default_screen(self) -> Screen[None]:
        """The model that was named, or the chooser.

        A mode that is known before the program runs is painted twice: 8 KB over SSH.
        """
        return self._screen_of(self.models.open[0]) if self.models.open else self._chooser()

    def on_mount(self) -> None:
        """The first stack is one that is switched to and taken away like the others."""
        self.add_mode(_HOME, self.get_default_screen)

    def _work_failed(self, error: Exception) -> None:
        """An error in the background is told once, and what is on show stays; who looks for it has it end."""
        if self.main is None or os.environ.get("EXPLORER_TRACEBACK"):
            self.fail_with(error)
        elif repr(error) not in self._told:
            self._told.add(repr(error))
            self.main.fail(internal_error(error))

    def copy_to_clipboard(self, text: str) -> None:
        """Send a text to the clipboard of the terminal, through the multiplexer that stands before it."""
        self.keep_clipboard(text)
        if self.driver is not None:
            clipboard.send(text, os.environ, self.driver.write)

    async def on_event(self, event: events.Event) -> None:
        """A key goes before whatever else is to be done; one behind the last is for nobody."""
        if self.is_leaving and isinstance(event, events.InputEvent):
            return
        if isinstance(event, events.Key):
            self.last_key = time.monotonic()
        if isinstance(event, (events.Key, events.Paste)) and not event.is_forwarded:
            await self._keys.take(event)
        else:
            await super().on_event(event)

    async def _hand_on(self, event: events.Event) -> None:
        if not self.is_leaving:
            await super().on_event(event)

    def on_resize(self) -> None:
        """A terminal that was resized may show anything."""
        forget = getattr(self.driver, "forget", None)
        if forget is not None:
            forget()

    def push_screen(
        self, screen: Any, callback: Any = None, wait_for_dismiss: Any = False, *, mode: str | None = None
    ) -> Any:
        """A dialog goes over the screen of the model that it is about, which need not be on show."""
        mode = mode or self._asking_mode()
        return super().push_screen(screen, callback, wait_for_dismiss, mode=mode)

    def _asking_mode(self) -> str | None:
        """The stack whose screen asks for something; None for the one on show."""
        asking = asking_node()
        while asking is not None and not isinstance(asking, Screen):
            asking = getattr(asking, "parent", None)
        for mode in self._opened:
            with contextlib.suppress(KeyError):  # a mode that was not switched to has no stack
                if asking in self.get_screen_stack(mode):
                    return mode
        return None

    def add_mode(self, mode: str, base_screen: str | Callable[[], Screen[Any]]) -> None:
        """A stack of screens more."""
        super().add_mode(mode, base_screen)
        self._opened.add(mode)

    def remove_mode(self, mode: str) -> AwaitComplete:
        """A stack of screens less."""
        self._opened.discard(mode)
        return super().remove_mode(mode)

    # models

    def _screen_of(self, model: OpenModel) -> MainScreen:
        main = MainScreen(
            model.source,
            model.engine,
            remote=self.remote,
            keeper=model.keeper,
            resumed=model.resumed,
            overlays=model.overlays,
            place=lambda: self._place(model),
            beside=model.beside,
        )
        model.main = main
        return main

    def _place(self, model: OpenModel) -> str:
        """Which of how many it is, if there are several."""
        models = self.models.open
        return f"{models.index(model) + 1}/{len(models)}" if len(models) > 1 and model in models else ""

    def begin_model(self, choice: ModelChoice) -> OpenModel:
        """Another model, or the same one if it is open; `show_model` shows it.

        Raises:
            ExplorerError: There are too many, or the session to resume is gone.
        """
        model = self.models.begin(choice)
        if model.mode not in self._opened:
            self.add_mode(model.mode, lambda: self._screen_of(model))
        return model

    def show_model(self, model: OpenModel) -> None:
        """Show an open model."""
        self.models.show(model)
        self.switch_mode(model.mode)

    def close_model(self, model: OpenModel) -> None:
        """Close one, whatever is not saved; without another the chooser comes."""
        following = self.models.remove(model)
        if self.current_mode == model.mode:
            if following is not None:
                self.show_model(following)
            else:
                self.show_chooser()
        self.remove_mode(model.mode)
        self.run_worker(lambda: model.close(properly=True), thread=True, exit_on_error=False)

    def show_chooser(self) -> None:
        """No model is open: choose one."""
        mode = next(f"choose-{n}" for n in range(1000) if f"choose-{n}" not in self._opened)
        self.add_mode(mode, self._chooser)
        self.switch_mode(mode)

    def _chooser(self) -> Screen[None]:
        from explorer.tui.models.chooser import ChooserScreen  # with what it needs: a model opens without

        return ChooserScreen(self._folder, self._chosen, home=True)

    def _chosen(self, choice: ModelChoice | None) -> None:
        """What the chooser answers that is there while no model is open."""
        if choice is None:
            self.exit(0)
            return
        before = self.current_mode
        self.show_model(self.begin_model(choice))
        self.remove_mode(before)

    @property
    def main(self) -> MainScreen | None:
        """The main screen of the model on show, once it is there."""
        main = self.screen_stack[0] if self.screen_stack else None
        return main if isinstance(main, MainScreen) else None

    def action_theme(self) -> None:
        """The light theme, or the dark one."""
        dark, light = self.themes
        self.theme = light if self.theme == dark else dark

    def action_help(self) -> None:
        """All keys."""
        from explorer.tui.commands.help_action import help_dialog  # with the dialogs, after the first paint

        self.push_screen(help_dialog(self.screen))

    async def action_picture(self) -> None:
        """A picture of whatever is on top."""
        if self.main is not None:
            await self.main.run_action("command('picture')")

    async def action_copy_as(self) -> None:
        """A copy of whatever is on top."""
        if self.main is not None:
            await self.main.run_action("command('copy_as')")

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
    from explorer.tui.terminal import remote as drivers  # no other terminal needs one

    return drivers.ConsoleDriver if console else drivers.RemoteDriver
