"""The saved view: writes the state of the main screen to the session's folder, and restores it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from explorer.base.errors import Cancelled, ExplorerError
from explorer.process.screen_choices import ScreenChoices
from explorer.tui.tabs import TABS
from explorer.tui.tree.model import TreeShape

if TYPE_CHECKING:
    from textual.screen import Screen
    from textual.timer import Timer

    from explorer.process.saved_sessions import ScreenState
    from explorer.tui.models.open_models import SessionKeeper
    from explorer.tui.screen.model_loader import ModelLoader
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tabs.panes import Panes
    from explorer.tui.tree.filter_line import FilterLine

_SAVE_DELAY = 0.5
"""Seconds between a change and saving it. Changes in this time are saved together."""


class SavedView:
    """Saves the state of the screen, so that it survives a disconnect.

    Args:
        screen: The main screen.
        store: State of the screen.
        panes: The tree and the tabs.
        filter_line: The filter line.
        loader: Loads the current model.
        keeper: Writes the state, or None if the session is not saved.
        resumed: State of the resumed session, or None.
    """

    def __init__(
        self,
        screen: Screen[None],
        store: ScreenStore,
        panes: Panes,
        filter_line: FilterLine,
        loader: ModelLoader,
        keeper: SessionKeeper | None = None,
        resumed: ScreenState | None = None,
    ) -> None:
        self._screen, self._store, self._panes, self._filter = screen, store, panes, filter_line
        self._loader, self._keeper, self._resumed = loader, keeper, resumed
        self._save_timer: Timer | None = None
        self._saved_choices = ScreenChoices() if keeper is None else keeper.choices()
        panes.apply_choices(self._saved_choices)
        if keeper is not None:
            store.watch(
                self._schedule_save, "model", "history", "numbers", "layer", "query", "tab", "focus", "jobs"
            )

    # saving

    def view(self) -> ScreenState | None:
        """Return the state of the screen, or the state being restored; None before the model is open."""
        store, tree = self._store, self._panes.layer_tree
        if store.analysis is None or self._resumed is not None:
            return self._resumed
        from explorer.process.saved_sessions import ScreenState  # imported after the first paint

        shape, layer = tree.model.shape, tree.current_layer
        return ScreenState(
            tab=store.tab,
            exact=store.exact,
            metric=shape.metric,
            by_cost=shape.by_cost,
            query=store.query,
            cursor=layer.path if layer is not None else "",
            opened=tuple(sorted(shape.open_rows)),
            zoom=self._panes.zoom,
            light=not self._screen.app.current_theme.dark,
            machine=store.machine,
            hardware=store.hardware,
            turned=shape.turned,
            columns=shape.columns,
            flat=shape.flat,
            constants=shape.constants,
            bookmarks=tuple(store.bookmarks),
            in_tabs=self._panes.in_tabs,
            overlays=store.overlays,
            beside=store.beside,
            splits=(
                *store.saved_splits.values(),
                *(plan.saved(state) for state, plan in store.splits.items()),
            ),
        )

    def _schedule_save(self) -> None:
        """Schedule saving after a change."""
        is_running = self._screen.is_running  # a job that ends after the model was closed also calls this
        if is_running and self._save_timer is None and self._store.analysis is not None:
            self._save_timer = self._screen.set_timer(_SAVE_DELAY, self._save)

    async def _save(self) -> None:
        self._save_timer = None
        view = self.view()
        if self._keeper is None or view is None:
            return
        await asyncio.to_thread(self._keeper.keep, view)
        choices = self._panes.choices()
        if choices != self._saved_choices:
            self._saved_choices = choices
            await asyncio.to_thread(self._keeper.keep_choices, choices)

    # restoring

    async def take_up(self) -> None:
        """Show the current model, and restore the state of a resumed session.

        Raises:
            ExplorerError: The model as opened cannot be loaded.
        """
        store, resumed = self._store, self._resumed
        if resumed is None:
            await self._loader.reload()
            await self._remember_model()
            if self._keeper is not None and (notice := await asyncio.to_thread(self._keeper.notice)):
                store.say(notice)
            return
        store.history, store.overlays = await store.jobs.ask("history"), resumed.overlays
        store.beside = resumed.beside
        load_error = await self._load_newest_state()
        try:
            await self._restore(resumed)
        finally:
            self._resumed = None
        store.say(f"resumed; {load_error}" if load_error else "resumed")

    async def _remember_model(self) -> None:
        if self._keeper is not None and self._store.analysis is not None:
            await asyncio.to_thread(self._keeper.remember, self._store.analysis.info)

    async def _load_newest_state(self) -> str:
        """Undo states until one can be loaded, and show it. Returns the last error, or ''."""
        problem = ""
        while True:
            try:
                await self._loader.reload()
                return problem
            except Cancelled:
                raise
            except ExplorerError as error:
                if not self._store.can_compare:
                    raise
                problem = str(error)
                self._store.history = await self._store.jobs.ask("undo")

    async def _restore(self, view: ScreenState) -> None:
        """Apply the state of a resumed session to the screen of the loaded model."""
        store, panes, tree = self._store, self._panes, self._panes.layer_tree
        if view.light == self._screen.app.current_theme.dark:
            await self._screen.app.run_action("theme")
        from explorer.tui.state.hardware import restore_machine  # imported after the first paint

        restore_machine(store, view.hardware, view.machine)
        store.exact = view.exact
        store.saved_splits = {split.state: split for split in view.splits}
        order = (view.by_cost, frozenset(view.opened), view.turned, view.columns, view.flat, view.constants)
        shape = TreeShape(view.metric, *order)
        tree.model.apply_shape(shape)
        store.bookmarks = list(view.bookmarks)
        store.query = view.query
        try:
            await self._filter.filter_again()
        except ExplorerError:  # this version cannot parse the query
            store.query = ""
        rows, layers = tree.model.rows, tree.model.layers
        cursor = next(
            (i for i, r in enumerate(rows) if layers[tree.model.find_first_layer(r)].path == view.cursor), 0
        )
        tree.refresh_rows()
        tree.move_to(cursor)
        if view.zoom:
            panes.zoom = view.zoom
        if view.tab in {tab.id for tab in TABS}:
            panes.tabs.open(view.tab, focus=view.in_tabs)
        store.notify("model", "numbers")
