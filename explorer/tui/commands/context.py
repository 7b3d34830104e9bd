"""Command context: the store, the panes and the jobs that commands work with.

Only one job runs at a time. The request for a second job is refused with a message. A dialog shows the errors
of a job.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.commands.pending_view import PendingView
from explorer.tui.terminal.slices import Slices, wait_for_paint
from explorer.tui.text.lines import escape_name

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
"""Function that writes a file. Its arguments are the path and whether a file may be replaced."""

MAX_WITHOUT_PAUSE = 1_000
"""Maximum number of layers that are searched without a pause for key presses."""
_LAYERS_PER_CHECK = 128
"""Number of layers between two checks of the time."""


class CommandContext:
    """The parts of the main screen that commands use.

    Args:
        screen: The main screen.
        store: State of the screen.
        panes: The tree and the tabs.
        filter_line: The filter line.
        reload: Function that requests all facts about the current model and shows them.
        reopen: Function that opens the model again.
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
        self._changes = 0
        self._pending_view: PendingView | None = None
        store.watch(self._draw_progress, "jobs")

    @property
    def app(self) -> App[Any]:
        """The application."""
        return self.screen.app

    @property
    def host(self) -> ModelHost:
        """The application as the host of all open models."""
        return cast("ModelHost", self.app)

    @property
    def jobs(self) -> Jobs:
        """The jobs of the engine."""
        return self.store.jobs

    @property
    def tree(self) -> LayerTree:
        """The layer tree."""
        return self.panes.layer_tree

    # jobs

    def ready(self) -> bool:
        """Whether a job can start. If not, reports why."""
        if self.jobs.refuse():
            self.app.bell()
            return False
        if self.store.analysis is None:
            self.store.say(
                "the model is being opened: press the key again when its figures are here"
                if self.store.is_opening
                else "the model is not open; o opens it"
            )
            return False
        if self._changes:
            # the history already has the new state, while the layers are still from the old state
            self.app.bell()
            self.store.say("the new state is being read: press the key again")
            return False
        return True

    @contextmanager
    def _block_jobs(self) -> Iterator[None]:
        """Let `ready` refuse jobs while the history and the layers may belong to different states."""
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1

    def start(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None = None
    ) -> None:
        """Run a job unless another job is running. If the job fails, show the error and call `failed`."""
        if self.ready():
            self.start_next(title, work, failed)
        else:
            work.close()

    def start_next(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None = None
    ) -> None:
        """Run a job at once, even if another job is running. See `start` for `failed`."""
        self.screen.run_worker(self._show_errors(title, work, failed), group="job", exit_on_error=False)

    def open_view(
        self,
        title: str,
        work: Coroutine[Any, Any, None],
        failed: Callable[[], None] | None = None,
        *,
        takes_keys: bool = True,
    ) -> None:
        """Run a job that ends with `ask`, and let its screen have the keys that are typed before it opens.

        If the answer of the engine takes long, a dialog shows the progress meanwhile.

        Args:
            title: Title of the job.
            work: Coroutine that opens the screen, or reports why there is none.
            failed: Function that is called after an error was shown.
            takes_keys: Whether the screen gets the keys that were typed before it was visible.
        """
        if not self.ready():
            work.close()
            return
        pending = self._pending_view
        if pending is None or pending.has_ended:
            pending = PendingView(self.screen, self.host, self.store, takes_keys=takes_keys)
            self._pending_view = pending
        pending.title = title
        pending.running_count += 1
        worker = self.screen.run_worker(
            self._open_pending(pending, title, work, failed), group="job", exit_on_error=False
        )
        pending.workers.append(worker)

    async def _open_pending(
        self,
        pending: PendingView,
        title: str,
        work: Coroutine[Any, Any, None],
        failed: Callable[[], None] | None,
    ) -> None:
        try:
            await self._show_errors(title, work, failed)
        finally:
            pending.running_count -= 1
            if not pending.running_count:
                pending.end()

    def _draw_progress(self) -> None:
        if self._pending_view is not None:
            self._pending_view.draw()

    def _end_pending(self, *, opens: bool) -> None:
        if self._pending_view is not None:
            self._pending_view.end(opens=opens)
            self._pending_view = None

    async def _show_errors(
        self, title: str, work: Coroutine[Any, Any, None], failed: Callable[[], None] | None
    ) -> None:
        try:
            await work
        except Cancelled:
            self.store.say(f"{title}: stopped, no change was made")
        except ExplorerError as error:
            self.fail(title, error, failed)

    def fail(
        self, title: str, error: ExplorerError, then: Callable[[], None] | None = None, *, hint: str = ""
    ) -> None:
        """Show an error in a dialog, and call `then` when the user closes the dialog."""
        from explorer.tui.dialogs.dialogs import (  # imported when a dialog opens
            MessageDialog,
            format_without_options,
        )

        self._end_pending(opens=False)
        message = MessageDialog(title, format_without_options(error), hint=hint)
        self.app.push_screen(message, lambda _: then() if then is not None else None)

    def ask(self, dialog: Screen[T], then: Callable[[T | None], None] | None = None) -> None:
        """Open a dialog, and call `then` with its answer."""
        self._end_pending(opens=True)
        self.app.push_screen(dialog, then)

    def ask_path(self, title: str, path: str, question: str, write: Write) -> None:
        """Ask for a path to write to, confirm before a file is replaced, and ask again after a failure."""
        from explorer.tui.dialogs.dialogs import ask_path  # imported when a dialog opens

        def start(chosen_path: str, overwrite: bool, ask_again: Callable[[], None]) -> None:
            self.start(title, write(chosen_path, overwrite), ask_again)

        self._end_pending(opens=True)
        ask_path(self.app, title, path, question, start)

    # the model

    async def load_history(self) -> None:
        """Request the history from the engine and store it."""
        with self._block_jobs():
            self.store.history = await self.jobs.ask("history")

    async def show_current(self, *way_back: Any) -> None:
        """Show the current state of the engine.

        If the state cannot be loaded, the engine returns to the previous state, so that it agrees with the
        screen.

        Args:
            way_back: Name of the session method that returns to the previous state, and its arguments.

        Raises:
            ExplorerError: The state cannot be loaded.
        """
        with self._block_jobs():
            try:
                await self._reload()
            except ExplorerError as error:
                self.store.history = await self.jobs.ask(*way_back)
                self.store.notify("history")
                if isinstance(error, Cancelled):
                    raise
                raise ExplorerError(
                    "the new model cannot be read, so the step was undone", hint=str(error)
                ) from error

    async def show_new_state(self, *way_back: Any, command: str) -> None:
        """Show the state that a job made, and the command that makes it again.

        `way_back` as for `show_current`.
        """
        await self.show_current(*way_back)
        self.store.say("", command)
        # a dialog that opened before the paint would be painted again with it, which delays key presses
        await wait_for_paint(self.screen)

    # the layers

    def call_with_layers(
        self,
        first: int,
        stop: int,
        then: Callable[[list[Layer]], None],
        is_match: Callable[[Layer], object] = lambda layer: True,
    ) -> None:
        """Call `then` with the layers from `first` (included) to `stop` (excluded) that match.

        Many layers are searched in the background, and `then` is called at the end.
        """
        layers = self.tree.model.layers
        if stop - first <= MAX_WITHOUT_PAUSE:
            then([layer for layer in layers[first:stop] if is_match(layer)])
            return

        async def search_layers() -> None:
            matches: list[Layer] = []
            slices = Slices(self.app)
            for start in range(first, stop, _LAYERS_PER_CHECK):
                matches += [
                    layer for layer in layers[start : min(stop, start + _LAYERS_PER_CHECK)] if is_match(layer)
                ]
                if slices.is_over():
                    await slices.pause()
            if self.tree.model.layers is layers and self.ready():
                then(matches)

        self.open_view(f"Looking through {stop - first:,} layers", search_layers())

    def go_to_layer(self, path: str | None) -> None:
        """Move the tree's cursor to a layer, if a path was chosen and the current model has it."""

        async def go(path: str) -> None:
            if (layer_id := await self.find_layer(path)) is not None:
                self.panes.move_to_layer(layer_id)

        if path is not None:
            self.screen.run_worker(go(path), exit_on_error=False)

    def move_to_row(self, row: int | None) -> None:
        """Move the tree's cursor to a layer by its ID, if one was chosen."""
        if row is not None:
            self.panes.move_to_layer(row)

    async def find_layer(self, path: str) -> int | None:
        """Return the ID of a layer in the current model. If the model lacks it, say so and return None."""
        layer_id = (await self.jobs.locate(self.tree.model.layers, [path])).get(path)
        if layer_id is None:
            self.store.say(f"the current model has no layer {escape_name(path)}")
        return layer_id


class ScreenCommand:
    """Base class of commands that need more than one function. The key table contains their keys.

    Args:
        context: Context of the command.
    """

    def __init__(self, context: CommandContext) -> None:
        self.context, self.store, self.jobs = context, context.store, context.jobs
        self.panes, self.tree = context.panes, context.tree

    def run(self) -> Awaitable[None] | None:
        """Run the command."""
        raise NotImplementedError
