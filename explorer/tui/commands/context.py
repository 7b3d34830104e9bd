"""Command context, what a command works with: the store, the panes, and the job that it may begin.

One job runs at a time. Who asks for another is told so, and what goes wrong is told in a dialog of one line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.terminal.slices import Slices, after_paint
from explorer.tui.text.lines import safe

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

    from explorer.facts import Layer
    from explorer.tui.models.open_models import ModelHost
    from explorer.tui.state.jobs import Jobs
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tabs.panes import Panes
    from explorer.tui.tree.filter_line import FilterLine
    from explorer.tui.tree.widget import LayerTree

T = TypeVar("T")

Write = Callable[[str, bool], Coroutine[Any, Any, None]]
"""Writes a file; the second argument is whether one may be replaced."""

AT_ONCE = 1_000
"""Layers that can be looked through while a key waits."""
_AT_A_TIME = 128
"""Layers between two looks at the clock."""


class CommandContext:
    """What the main screen lends to its commands.

    Args:
        screen: It.
        store: Its state.
        panes: The tree and the tabs.
        filter_line: The filter.
        reload: Asks for everything that is known of the current model, and shows it.
        reopen: Opens the model again.
    """

    def __init__(
        self,
        screen: Screen[None],
        store: ScreenStore,
        panes: Panes,
        filter_line: FilterLine,
        reload: Callable[[], Awaitable[None]],
        reopen: Callable[[], None],
    ) -> None:
        self.screen, self.store, self.panes, self.filter_line = screen, store, panes, filter_line
        self._reload, self.reopen = reload, reopen

    @property
    def app(self) -> App[Any]:
        """The program."""
        return self.screen.app

    @property
    def host(self) -> ModelHost:
        """The program, which shows other models, too."""
        return cast("ModelHost", self.app)

    @property
    def jobs(self) -> Jobs:
        """The engine's jobs."""
        return self.store.jobs

    @property
    def tree(self) -> LayerTree:
        """The layers."""
        return self.panes.layer_tree

    # jobs

    def ready(self) -> bool:
        """Whether a job can begin; says why not."""
        if self.jobs.current is not None:
            self.store.refused_job = self.jobs.current
            self.app.bell()
            self.store.notify("said")
            return False
        if self.store.analysis is None:
            self.store.say("the model is not open; o opens it")
            return False
        return True

    def start(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None = None
    ) -> None:
        """Run a job unless one runs; tell what goes wrong, and then call `failed`."""
        if self.ready():
            self.start_next(title, work, failed)
        else:
            work.close()

    def start_next(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None = None
    ) -> None:
        """Run a job, whatever runs."""
        self.screen.run_worker(self._guarded(title, work, failed), group="job", exit_on_error=False)

    async def _guarded(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None
    ) -> None:
        try:
            await work
        except Cancelled:
            self.store.say(f"{title}: stopped, nothing was changed")
        except ExplorerError as error:
            self.fail(title, error, failed)

    def fail(
        self, title: str, error: ExplorerError, then: Callable[[], None] | None = None, *, hint: str = ""
    ) -> None:
        """The one line of an error, in a dialog; `then` follows when it is closed."""
        from explorer.tui.dialogs.dialogs import (  # with what they need, when a dialog opens
            MessageDialog,
            without_options,
        )

        message = MessageDialog(title, without_options(error), hint=hint)
        self.app.push_screen(message, lambda _: then() if then is not None else None)

    def ask(self, dialog: Screen[T], then: Callable[[T | None], None]) -> None:
        """Open a dialog; `then` is handed its answer."""
        self.app.push_screen(dialog, then)

    def ask_path(self, title: str, path: str, question: str, write: Write) -> None:
        """Ask where to write, ask before a file is lost, and ask again where it cannot be written."""
        from explorer.tui.dialogs.dialogs import ask_path  # see `fail`

        def start(chosen_path: str, overwrite: bool, again: Callable[[], None]) -> None:
            self.start(title, write(chosen_path, overwrite), again)

        ask_path(self.app, title, path, question, start)

    # the model

    async def take_history(self) -> None:
        """What the engine knows of what was done."""
        self.store.history = await self.jobs.ask("history")

    async def show_current(self, *way_back: Any) -> None:
        """Show the model that a step led to, or go back: the next step starts from what is on show."""
        try:
            await self._reload()
        except ExplorerError as error:
            self.store.history = await self.jobs.ask(*way_back)
            self.store.notify("history")
            raise ExplorerError(
                "the model cannot be read again, so the step was taken back", hint=str(error)
            ) from error

    async def show_made(self, *way_back: Any, command: str) -> None:
        """Show the state that a job has made, and the command that makes it again."""
        await self.show_current(*way_back)
        self.store.say("", command)
        await after_paint(self.screen)  # two paints of the whole screen in one go would hold keys up

    # the layers

    def with_layers(
        self,
        first: int,
        stop: int,
        then: Callable[[list[Layer]], None],
        is_match: Callable[[Layer], object] = lambda layer: True,
    ) -> None:
        """Hand on the layers from `first` to before `stop` that are wanted.

        Very many are looked through between the keys, and handed on when that is done.
        """
        layers = self.tree.model.layers
        if stop - first <= AT_ONCE:
            then([layer for layer in layers[first:stop] if is_match(layer)])
            return

        async def look_through() -> None:
            matches: list[Layer] = []
            pause = Slices(self.app)
            for at in range(first, stop, _AT_A_TIME):
                matches += [layer for layer in layers[at : min(stop, at + _AT_A_TIME)] if is_match(layer)]
                if pause.due():
                    await pause.rest()
            if self.tree.model.layers is layers and self.ready():
                then(matches)

        self.store.say(f"looking through {stop - first:,} layers…")
        self.screen.run_worker(look_through(), group="inside", exclusive=True, exit_on_error=False)

    def go_to_layer(self, path: str | None) -> None:
        """Put the tree's cursor on a layer, if one was chosen and the current model has it."""

        async def go(path: str) -> None:
            if (layer_id := await self.located(path)) is not None:
                self.panes.to_layer(layer_id)

        if path is not None:
            self.screen.run_worker(go(path), exit_on_error=False)

    def to_row(self, row: int | None) -> None:
        """Put the tree's cursor on a row, if one was chosen."""
        if row is not None:
            self.panes.to_layer(row)

    async def located(self, path: str) -> int | None:
        """Where the current model has a layer; says so if it has none."""
        found = (await self.jobs.locate(self.tree.model.layers, [path])).get(path)
        if found is None:
            self.store.say(f"the current model has no layer {safe(path)}")
        return found


class ScreenCommand:
    """One thing that a user can do, where a function is too little; its line in the registry says its key.

    Args:
        context: What it works with.
    """

    def __init__(self, context: CommandContext) -> None:
        self.context, self.store, self.jobs = context, context.store, context.jobs
        self.panes, self.tree = context.panes, context.tree

    def run(self) -> Awaitable[None] | None:
        """Do it."""
        raise NotImplementedError
