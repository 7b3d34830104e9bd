"""The Textual application: themes, remote mode, and one main screen per open model."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.screen import Screen

from explorer.base.errors import Misuse
from explorer.base.version_notes import build_internal_error
from explorer.tui.compat import ReportingApp, find_active_node, survive_bad_input, watch_workers
from explorer.tui.models.open_models import Begin, ModelChoice, OpenModel, OpenModels
from explorer.tui.screen.main import MainScreen
from explorer.tui.terminal import clipboard
from explorer.tui.terminal.console import is_console
from explorer.tui.terminal.input_decoder import InputDecoder
from explorer.tui.terminal.key_order import KeysInOrder
from explorer.tui.text.stylesheet import ParsedStylesheet
from explorer.tui.text.theme import ALL_THEMES, pair
from explorer.tui.widgets.line_view import ROLE_CLASSES

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess
    from explorer.process.saved_sessions import ScreenState
    from explorer.tui.models.open_models import SessionKeeper
    from explorer.tui.terminal.background import LateAnswer
    from explorer.tui.text.keys import Key

_HOME = "home"
"""The mode that Textual starts in."""


def _refuse_models(choice: ModelChoice) -> OpenModel:
    raise Misuse("this program opens one model", where=choice.source)


class ExplorerApp(ReportingApp[int]):
    """Shows models, each in its own mode (Textual's term for a stack of screens).

    Args:
        source: Source of the first model, as typed by the user; '' for the chooser.
        engine: Engine process of the first model, which need not be started yet; None for the chooser.
        remote: Whether to send fewer bytes, as for SSH: only changed cells.
        keeper: Saves the session of the first model, or None.
        view: State of the screen in the resumed session, or None.
        begin: Function that begins the session of another model.
        memory: Maximum bytes of all engines together, or None for half of the machine's memory.
        folder: Folder that the chooser lists.
        overlays: Paths of files with external figures for the first model.
        beside: Source of another model to compare the first one with, or None.
        light: Whether the light theme is shown first.
        late_answer: Filter for an answer of the terminal that arrives as keys, or None.
        keep_theme: Function that saves whether the user chose the light theme, or None. Thread-safe.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,super+c", "copy_or_quit", show=False, priority=True),
        Binding("ctrl+q", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]
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
        begin: Begin = _refuse_models,
        memory: int | None = None,
        folder: str = "",
        overlays: tuple[str, ...] = (),
        beside: str | None = None,
        light: bool = False,
        late_answer: LateAnswer | None = None,
        keep_theme: Callable[[bool], object] | None = None,
    ) -> None:
        self.last_key = 0.0
        self._mode_names: set[str] = set()
        super().__init__(driver_class=_choose_driver(remote))
        watch_workers(self, self._report_failure)
        self._reported_errors: set[str] = set()
        self._keys = KeysInOrder(self, self._forward_event)
        self.driver_class = survive_bad_input(self.driver_class, lambda: InputDecoder(self._keys.expect))
        self.hold_keys, self.put_keys_first = self._keys.hold, self._keys.put_first
        self._key_screen: Screen[Any] | None = None
        self._late_answer, self._keep_theme = late_answer, keep_theme
        self.remote, self._folder = remote, folder
        self.models = OpenModels(begin, memory)
        for theme in ALL_THEMES:
            self.register_theme(theme)
        self.themes = tuple(theme.name for theme in pair(self.console.color_system))
        self.theme = self.themes[int(light)]
        self.stylesheet = ParsedStylesheet(variables=self.get_css_variables())
        self.set_class(remote, "remote")
        # animations would only delay reading
        self.animation_level = "none"
        if engine is not None:
            first = self.models.add(OpenModel(source, engine, keeper, view))
            first.mode, first.overlays, first.beside = _HOME, overlays, beside
            self.models.show(first)

    def get_default_screen(self) -> Screen[None]:
        """Return the screen of the first model, or the chooser.

        A mode that is added before the application runs would be painted twice, 8 KB over SSH.
        """
        return self._create_screen(self.models.open[0]) if self.models.open else self._create_chooser()

    def on_mount(self) -> None:
        """Add the first mode, so that it can be removed like the modes of later models."""
        self.add_mode(_HOME, self.get_default_screen)
        self.app_resume_signal.subscribe(self, self._draw_again)

    def _draw_again(self, _: object) -> None:
        """Draw the whole screen after the program was suspended, because the shell has used the terminal."""
        self.on_resize()
        self.screen.refresh(layout=True)

    def _report_failure(self, error: Exception) -> None:
        """Report an error of a background task, each message once.

        The application ends instead if EXPLORER_TRACEBACK is set, or if no model is shown.
        """
        if self.main is None or os.environ.get("EXPLORER_TRACEBACK"):
            self.fail_with(error)
        elif repr(error) not in self._reported_errors:
            self._reported_errors.add(repr(error))
            self.main.fail(build_internal_error(error))

    def copy_to_clipboard(self, text: str) -> None:
        """Copy a text to the terminal's clipboard, also through a terminal multiplexer."""
        self.keep_clipboard(text)
        if self.driver is not None:
            clipboard.send(text, os.environ, self.driver.write)

    async def on_event(self, event: events.Event) -> None:
        """Handle keys before other events, and ignore keys after the application was told to quit."""
        if self.is_leaving and isinstance(event, events.InputEvent):
            return
        if isinstance(event, events.Key):
            self.last_key = time.monotonic()
            if self._late_answer is not None and self._late_answer.contains(event):
                return
        if isinstance(event, (events.Key, events.Paste)) and not event.is_forwarded:
            await self._keys.take(event)
        elif not isinstance(event, events.Key) or self.screen is self._key_screen:
            # a key that no widget handled must not act on a screen that was opened meanwhile
            await super().on_event(event)

    async def _forward_event(self, event: events.Event) -> None:
        if self.is_leaving:
            return
        # dialogs have no `forget_message`, because they show no message about the last key
        self._key_screen = self.screen if self.screen_stack else None
        forget_message = getattr(self.screen, "forget_message", None) if self.screen_stack else None
        if isinstance(event, events.Key) and forget_message is not None:
            forget_message()
        if isinstance(event, events.Paste) and self.main is not None and not self._accepts_paste:
            self.main.store.say("pasted text is not run as keys · / opens the filter, which accepts it")
        await super().on_event(event)

    @property
    def _accepts_paste(self) -> bool:
        """Whether the focused widget accepts letters or digits as text, or the screen keeps pasted text."""
        is_input = self.focused is not None and any(self.focused.check_consume_key(key, key) for key in "a0")
        return is_input or getattr(self.screen, "keeps_keys", False)

    def on_resize(self) -> None:
        """Forget the contents of a resized terminal, so that all cells are sent again."""
        forget = getattr(self.driver, "forget", None)
        if forget is not None:
            forget()

    def push_screen(
        self, screen: Any, callback: Any = None, wait_for_dismiss: Any = False, *, mode: str | None = None
    ) -> Any:
        """Push a dialog onto the mode of the model that it belongs to, which may be invisible."""
        mode = mode or self._find_asking_mode()
        return super().push_screen(screen, callback, wait_for_dismiss, mode=mode)

    def _find_asking_mode(self) -> str | None:
        """Return the mode of the screen that opens the dialog, or None for the visible mode."""
        node = find_active_node()
        while node is not None and not isinstance(node, Screen):
            node = getattr(node, "parent", None)
        for mode in self._mode_names:
            with contextlib.suppress(KeyError):  # a mode that was never shown has no stack
                if node in self.get_screen_stack(mode):
                    return mode
        return None

    def add_mode(self, mode: str, base_screen: str | Callable[[], Screen[Any]]) -> None:
        """Add a mode and remember its name."""
        super().add_mode(mode, base_screen)
        self._mode_names.add(mode)

    def remove_mode(self, mode: str) -> AwaitComplete:
        """Remove a mode and forget its name."""
        self._mode_names.discard(mode)
        return super().remove_mode(mode)

    # models

    def _create_screen(self, model: OpenModel) -> MainScreen:
        main = MainScreen(
            model.source,
            model.engine,
            remote=self.remote,
            keeper=model.keeper,
            resumed=model.resumed,
            overlays=model.overlays,
            place=lambda: self._find_position(model),
            beside=model.beside,
        )
        model.main = main
        return main

    def _find_position(self, model: OpenModel) -> str:
        """Return the position of the model among several open models, such as '2/3', or ''."""
        models = self.models.open
        return f"{models.index(model) + 1}/{len(models)}" if len(models) > 1 and model in models else ""

    def begin_model(self, choice: ModelChoice) -> OpenModel:
        """Open a model, or return it if it is already open. `show_model` shows it.

        Raises:
            ExplorerError: Too many models are open, or the session to resume does not exist anymore.
        """
        model = self.models.begin(choice)
        if model.mode not in self._mode_names:
            self.add_mode(model.mode, lambda: self._create_screen(model))
        return model

    def show_model(self, model: OpenModel) -> None:
        """Show an open model."""
        self.models.show(model)
        self.switch_mode(model.mode)

    def close_model(self, model: OpenModel) -> None:
        """Close a model, even with unsaved states. If it was the last open model, show the chooser."""
        next_model = self.models.remove(model)
        if self.current_mode == model.mode:
            if next_model is not None:
                self.show_model(next_model)
            else:
                self.show_chooser()
        self.remove_mode(model.mode)
        self.run_worker(lambda: model.close(properly=True), thread=True, exit_on_error=False)

    def show_chooser(self) -> None:
        """Show the chooser while no model is open."""
        mode = next(f"choose-{n}" for n in range(1000) if f"choose-{n}" not in self._mode_names)
        self.add_mode(mode, self._create_chooser)
        self.switch_mode(mode)

    def _create_chooser(self) -> Screen[None]:
        # imported on demand: opening a model does not need it
        from explorer.tui.models.chooser import ChooserScreen

        return ChooserScreen(self._folder, self._open_choice, home=True)

    def _open_choice(self, choice: ModelChoice | None) -> None:
        """Open the model that the user chose while no model was open, or quit."""
        if choice is None:
            self.exit(0)
            return
        previous_mode = self.current_mode
        self.show_model(self.begin_model(choice))
        self.remove_mode(previous_mode)

    @property
    def main(self) -> MainScreen | None:
        """Main screen of the visible model, or None."""
        main = self.screen_stack[0] if self.screen_stack else None
        return main if isinstance(main, MainScreen) else None

    def action_theme(self) -> None:
        """Toggle the dark and the light theme, and save the choice."""
        dark, light = self.themes
        self.theme = light if self.theme == dark else dark
        if self._keep_theme is not None:
            save = partial(self._keep_theme, self.theme == light)
            self.run_worker(save, thread=True, exit_on_error=False)

    async def action_copy_or_quit(self) -> None:
        """Copy the selected text. Without a selection, quit as `q` does."""
        text = getattr(self.focused, "selected_text", "") or self.screen.get_selected_text()
        if text:
            self.copy_to_clipboard(text)
            for box in self.screen.query("#box"):
                box.border_subtitle = "sent to terminal"
        else:
            await self.action_quit()

    async def action_quit(self) -> None:
        """Quit. If a change is not saved, ask first, as `q` does."""
        if self.main is None:
            self.exit(0)
        else:
            await self.main.run_action("command('quit')")

    def action_help(self) -> None:
        """Show the help of the topmost screen, and run the key that the user chooses there."""
        from explorer.tui.commands.help_action import find_namespace, help_dialog  # after the first paint

        screen = self.screen

        def run_key(key: Key | None) -> None:
            node = None if key is None else find_namespace(screen, key)
            if key is not None and node is not None:
                self.run_worker(self.run_action(key.action, node), exit_on_error=False)

        self.push_screen(help_dialog(screen), run_key)

    async def action_picture(self) -> None:
        """Take a picture of the topmost screen."""
        if self.main is not None:
            await self.main.run_action("command('picture')")

    async def action_copy_as(self) -> None:
        """Copy the contents of the topmost screen in a format that the user chooses."""
        if self.main is not None:
            await self.main.run_action("command('copy_as')")

    async def action_reopen(self) -> None:
        """Close the dialog and open the model again, if it is not open."""
        main = self.main
        if main is not None and main.store.analysis is None:
            self.screen.dismiss(None)
            self.call_later(main.run_action, "command('reopen')")


def _choose_driver(remote: bool) -> type[Driver] | None:
    """Return the driver for SSH or the Linux console, or None for Textual's own."""
    console = is_console(os.environ.get("TERM", ""))
    if sys.platform == "win32" or not (remote or console):
        return None
    from explorer.tui.terminal import remote as drivers  # imported only if needed

    return drivers.ConsoleDriver if console else drivers.RemoteDriver
