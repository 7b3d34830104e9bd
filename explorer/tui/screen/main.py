"""The main screen: the layer tree on the left, the tabs on the right, and the status line below.

The screen only arranges widgets. Its state is in the store, which the widgets subscribe to. User actions are
commands.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Region
from textual.screen import Screen
from textual.strip import Strip

from explorer.base.errors import Cancelled, ExplorerError
from explorer.host.gc_pause import freeze_once
from explorer.tui.commands.context import CommandContext
from explorer.tui.commands.key_table import COMMANDS, find_command, has_command, run_command
from explorer.tui.pages.header import has_open_sizes, header_lines, shorten_source
from explorer.tui.screen.model_loader import ModelLoader
from explorer.tui.screen.saved_view import SavedView
from explorer.tui.state.store import OPENING, ScreenStore
from explorer.tui.tabs.panes import Panes
from explorer.tui.terminal.slices import MAX_PAINT_SECONDS, call_after_paint
from explorer.tui.text.keys import bindings
from explorer.tui.tree.filter_line import FilterLine
from explorer.tui.widgets.status_line import StatusLine
from explorer.tui.widgets.strips import FooterKey, KeyBar, TitleBar, render_uniform_lines

if TYPE_CHECKING:
    from explorer.process.client import EngineProcess
    from explorer.process.saved_sessions import ScreenState
    from explorer.tui.models.open_models import SessionKeeper

STACKED_BELOW = 80
"""Terminal width below which only one pane is shown at a time. Side by side, each has at least 40 cells."""
_FIRST_MODULE = "explorer.tui.tabs.layer"
"""Module that draws the first tab, imported while the engine starts."""
_LATER_MODULES = ("explorer.tui.tabs.model", "explorer.tui.tabs.operators", "explorer.tui.tabs.diff")
"""Modules imported while the engine opens the model."""
_CACHED_OPEN_SECONDS = 0.5
"""Seconds within which a cached model usually opens. Background imports start only after that."""


def _import_dialogs() -> None:
    """Import the modules that the first key presses need."""
    for module in _LATER_MODULES:
        import_module(module)
    if has_command("tile"):
        find_command("tile")


class MainScreen(Screen[None]):
    """Shows one model.

    Args:
        source: Source of the model, as typed by the user.
        engine: Engine process of the model.
        remote: Whether the terminal is connected over SSH.
        keeper: Saves the session, or None for a session that is not saved.
        resumed: State of the screen in the resumed session, or None.
        place: Function that returns the position of this model among the open models, such as '2/3', or ''.
        overlays: Paths of files with external figures.
        beside: Source of another model to compare with once this one is open, or None.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(COMMANDS)
    AUTO_FOCUS = "#tree"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 (Textual declares it an instance variable)
        (0, "-stacked"),
        (STACKED_BELOW, "-beside"),
    ]

    def __init__(
        self,
        source: str,
        engine: EngineProcess,
        *,
        remote: bool = False,
        keeper: SessionKeeper | None = None,
        resumed: ScreenState | None = None,
        place: Callable[[], str] = str,
        overlays: tuple[str, ...] = (),
        beside: str | None = None,
    ) -> None:
        super().__init__()
        self._place = place
        self.store = ScreenStore(source, engine, remote=remote)
        self.store.overlays, self.store.beside = overlays, beside or ""
        self._painted, self._answered = asyncio.Event(), asyncio.Event()
        self.panes = Panes(self.store, lambda id: self.call_later(self.action_command, id))
        self._filter = FilterLine(self.store, self.panes.layer_tree)
        self._loader = ModelLoader(self.store, self.panes, self._filter)
        self._saved = SavedView(self, self.store, self.panes, self._filter, self._loader, keeper, resumed)
        self._command_context = CommandContext(
            self, self.store, self.panes, self._filter, self._loader.reload, self._reopen
        )

    def compose(self) -> ComposeResult:
        """Yield the widgets."""
        yield TitleBar()
        yield self.panes
        yield self._filter
        yield StatusLine(self.store)
        yield KeyBar(self._list_keys())

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render the lines in a region."""
        return render_uniform_lines(super().render_lines, crop)

    def on_mount(self) -> None:
        """Draw the name at once, and start opening the model."""
        self.store.watch(self._draw_header, "model", "history", "numbers", "focus")
        self.store.watch(self._draw_keys, "focus", "tab", "model")
        self._draw_header()
        self.run_worker(self._open(), group="model", exit_on_error=False)
        self.run_worker(self._loader.preview(), group="preview", exit_on_error=False)
        call_after_paint(self, lambda: self.run_worker(self._import_later(), exit_on_error=False))

    async def _import_later(self) -> None:
        """Import the modules of the dialogs in the background, without delaying a cached model."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._answered.wait(), _CACHED_OPEN_SECONDS)
        await asyncio.to_thread(_import_dialogs)
        # the modules stay in memory; excluding them from garbage collection saves 20 ms per collection
        freeze_once()

    async def _open(self) -> None:
        """Open the model after the first paint, and restore the session; show an error in a dialog."""
        store = self.store
        call_after_paint(self, self._painted.set)
        # Textual does not refresh a screen that has nothing to repaint
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._painted.wait(), MAX_PAINT_SECONDS)
        try:
            opened = asyncio.ensure_future(store.jobs.run("opening", "open"))
            await asyncio.sleep(0)
            import_module(_FIRST_MODULE)
            await opened
            await self._saved.take_up()
            if store.beside and has_command("pair"):
                find_command("pair")(self._command_context).beside(store.beside)
        except Cancelled:
            store.note = "stopped · o opens it again"
        except ExplorerError as error:
            store.note, store.failure = "could not be opened · o tries again", str(error)
            self._command_context.fail(
                "Cannot open this model", error, hint="o tries again · y copy · Esc close"
            )
        self._answered.set()
        store.notify("model")

    def _reopen(self) -> None:
        self.store.note, self.store.failure = OPENING, ""
        self.store.notify("model")
        self.run_worker(self._open(), group="model", exit_on_error=False)

    def fail(self, error: ExplorerError) -> None:
        """Show an error of a background task."""
        self._command_context.fail("Error", error)

    def forget_message(self) -> None:
        """Remove the message about the key before this one."""
        self.store.forget_message()

    def view(self) -> ScreenState | None:
        """Return the state of the screen, for resuming it, or None before anything is shown."""
        return self._saved.view()

    def _draw_header(self) -> None:
        store = self.store
        name, note = shorten_source(store.source), store.note or store.state_note
        name = " ".join(filter(None, (self._place(), name)))
        info, exact = store.analysis.info if store.analysis else None, store.exact
        self.query_one(TitleBar).show(lambda width: header_lines(name, info, note, exact, width))

    def _list_keys(self) -> list[FooterKey]:
        """Return the most important keys for the pane in use."""
        pane = self.store.tab if self.panes.in_tabs else "tree"
        shown_commands = [c for c in COMMANDS if c.footer and pane in (c.where or (pane,))]
        keys = [FooterKey(c.shown.split()[-1], c.footer, c.action) for c in shown_commands]
        if pane == "layer":
            keys.insert(1, FooterKey("Enter", "follow", "focused.follow"))
        analysis = self.store.analysis
        if pane != "model" and analysis is not None and has_open_sizes(analysis.info):
            keys[1:1] = [FooterKey(c.shown, c.footer, c.action) for c in COMMANDS if c.id == "sizes"]
        return keys

    def _draw_keys(self) -> None:
        self.query_one(KeyBar).show_keys(self._list_keys())

    def on_resize(self) -> None:
        """Redraw the headings for the new width. After the first layout, this also releases `_open`."""
        self.store.notify("focus")
        self.call_later(self._painted.set)

    def on_screen_resume(self) -> None:
        """Redraw the header and the status line, which may have changed below another screen."""
        self._draw_header()
        self.query_one(StatusLine).draw_status()

    def on_descendant_focus(self) -> None:
        """Redraw the headings, because the heading of the pane in use is highlighted."""
        self.store.notify("focus")

    async def action_command(self, id: str) -> None:
        """Run a command."""
        await run_command(id, self._command_context)
