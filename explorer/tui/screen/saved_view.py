"""The saved view: what the main screen shows, as a record that outlives it, and taken up again from one."""

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

_AFTER = 0.5
"""Seconds after a change when it is written down; a burst of keys is written once."""


class SavedView:
    """What a dropped line does not lose.

    Args:
        screen: Whose timer and theme.
        store: What is on show.
        panes: Where it is shown.
        filter_line: What is looked for.
        loader: Shows the current model.
        keeper: Told what is on show, whenever that has changed.
        resumed: What a session showed that is resumed.
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
        self._soon: Timer | None = None
        self._chosen = ScreenChoices() if keeper is None else keeper.choices()
        panes.take_choices(self._chosen)
        if keeper is not None:
            store.watch(
                self._remember, "model", "history", "numbers", "layer", "query", "tab", "focus", "jobs"
            )

    # writing down

    def view(self) -> ScreenState | None:
        """What is on show, or is about to be shown again; None while the model is not open."""
        store, tree = self._store, self._panes.layer_tree
        if store.analysis is None or self._resumed is not None:
            return self._resumed
        from explorer.process.saved_sessions import ScreenState  # with its files, not before the first paint

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

    def _remember(self) -> None:
        """Something has changed: write it down soon."""
        if self._soon is None and self._store.analysis is not None:
            self._soon = self._screen.set_timer(_AFTER, self._write_down)

    async def _write_down(self) -> None:
        self._soon = None
        view = self.view()
        if self._keeper is None or view is None:
            return
        await asyncio.to_thread(self._keeper.keep, view)
        choices = self._panes.choices()
        if choices != self._chosen:
            self._chosen = choices
            await asyncio.to_thread(self._keeper.keep_choices, choices)

    # taking up

    async def take_up(self) -> None:
        """Show the current model, and if a session is resumed, all that it showed.

        Raises:
            ExplorerError: The model as it was opened cannot be had.
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
        lost = await self._show_what_is_left()
        try:
            await self._show_again(resumed)
        finally:
            self._resumed = None
        store.say(f"resumed; {lost}" if lost else "resumed")

    async def _remember_model(self) -> None:
        if self._keeper is not None and self._store.analysis is not None:
            await asyncio.to_thread(self._keeper.remember, self._store.analysis.info)

    async def _show_what_is_left(self) -> str:
        """Show the newest model that can be read; says if that is not the one that was on show."""
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

    async def _show_again(self, view: ScreenState) -> None:
        store, panes, tree = self._store, self._panes, self._panes.layer_tree
        if view.light == self._screen.app.current_theme.dark:
            await self._screen.app.run_action("theme")
        from explorer.tui.state.hardware import machine_again  # with the settings, not before the first paint

        machine_again(store, view.hardware, view.machine)
        store.exact = view.exact
        store.saved_splits = {split.state: split for split in view.splits}
        order = (view.by_cost, frozenset(view.opened), view.turned, view.columns, view.flat, view.constants)
        shape = TreeShape(view.metric, *order)
        tree.model.take_shape(shape)
        store.bookmarks = list(view.bookmarks)
        store.query = view.query
        try:
            await self._filter.filter_again()
        except ExplorerError:  # a query that this program cannot read
            store.query = ""
        rows, layers = tree.model.rows, tree.model.layers
        at = next((i for i, r in enumerate(rows) if layers[tree.model.first(r)].path == view.cursor), 0)
        tree.rows_changed()
        tree.move_to(at)
        if view.zoom:
            panes.zoom = view.zoom
        if view.tab in {tab.id for tab in TABS}:
            panes.tabs.open(view.tab, focus=view.in_tabs)
        store.notify("model", "numbers")
