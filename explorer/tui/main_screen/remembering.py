"""What the main screen shows, as a record that outlives it, and taken up again from one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, Protocol

from textual.timer import Timer

from explorer.base.errors import Cancelled, ExplorerError
from explorer.tui.actions.commands import TABS
from explorer.tui.actions.jobs import Door
from explorer.tui.main_screen.showing import Showing
from explorer.tui.tree.model import Shape
from explorer.tui.tree.widget import LayerTree

if TYPE_CHECKING:
    from explorer.process.saved_sessions import View

__all__ = ["Keeper", "Remembering"]

_AFTER = 0.5
"""Seconds after a change when it is written down; a burst of keys is written once."""
_ZOOMS: tuple[Literal["zoom-left", "zoom-right"], ...] = ("zoom-left", "zoom-right")


class Keeper(Protocol):
    """What the screen needs of `lifeline.Lifeline`."""

    def keep(self, view: View | None) -> None:
        """Write down where the user is; any thread may."""

    def cut_off(self) -> bool:
        """Whether another session of this model waits to be resumed; reads files."""


class Remembering(Showing):
    """The part of the main screen that a dropped line does not lose.

    Args:
        source: What the user asked for.
        door: The engine.
        remote: Over SSH.
        keeper: Told what is on show, whenever that has changed.
        resumed: What a session showed that is resumed.
    """

    def __init__(
        self,
        source: str,
        door: Door,
        *,
        remote: bool = False,
        keeper: Keeper | None = None,
        resumed: View | None = None,
    ) -> None:
        super().__init__(source, door, remote=remote)
        self._keeper, self._resumed = keeper, resumed
        self._soon: Timer | None = None

    # writing down

    def view(self) -> View | None:
        """What is on show, or is about to be shown again; None while the model is not open."""
        if self.analysis is None or self._resumed is not None:
            return self._resumed
        from explorer.process.saved_sessions import View

        tree = self.query_one(LayerTree)
        shape, layer, panes = tree.model.shape, tree.current_layer, self.query_one("#panes")
        return View(
            tab=self.tab,
            exact=self.exact,
            metric=shape.metric,
            by_cost=shape.by_cost,
            query=self.query_text,
            cursor=layer.path if layer is not None else "",
            opened=tuple(shape.opened),
            zoom=next((zoom for zoom in _ZOOMS if panes.has_class(zoom)), ""),
            light=not self.app.current_theme.dark,
            machine=self.machine,
        )

    def remember(self) -> None:
        """Something has changed: write it down soon."""
        if self._keeper is not None and self._soon is None and self.analysis is not None:
            self._soon = self.set_timer(_AFTER, self._write_down)

    async def _write_down(self) -> None:
        self._soon = None
        view = self.view()
        if self._keeper is not None and view is not None:
            await asyncio.to_thread(self._keeper.keep, view)

    def jobs_changed(self) -> None:
        """A job began or ended: it may have made a model."""
        super().jobs_changed()
        self.remember()

    def show_layer(self) -> None:
        """The cursor is on another layer."""
        super().show_layer()
        self.remember()

    def open_tab(self, tab: str, *, focus: bool = True) -> None:
        """Another tab is on show."""
        super().open_tab(tab, focus=focus)
        self.remember()

    # taking up

    async def take_up(self) -> None:
        """Show the current model, and if a session is resumed, all that it showed.

        Raises:
            ExplorerError: The model as it was opened cannot be had.
        """
        resumed = self._resumed
        if resumed is None:
            await self.reload()
            if self._keeper is not None and await asyncio.to_thread(self._keeper.cut_off):
                self.say("a session of this model was cut off: explorer --resume goes on with it")
            return
        self.history = await self.jobs.ask("history")
        lost = await self._show_what_is_left()
        try:
            await self._show_again(resumed)
        finally:
            self._resumed = None
        self.say(f"resumed; {lost}" if lost else "resumed")

    async def _show_what_is_left(self) -> str:
        """Show the newest model that can be read; says if that is not the one that was on show."""
        said = ""
        while True:
            try:
                await self.reload()
                return said
            except Cancelled:
                raise
            except ExplorerError as error:
                if not self.can_compare():
                    raise
                said = str(error)
                self.history = await self.jobs.ask("undo")

    async def _show_again(self, view: View) -> None:
        if view.light == self.app.current_theme.dark:
            await self.run_action("theme")
        self.machine = view.machine or self.machine
        self.exact = view.exact
        tree = self.query_one(LayerTree)
        tree.model.take_shape(Shape(view.metric, view.by_cost, frozenset(view.opened)))
        self.query_text = view.query
        try:
            await self.filter_again()
        except ExplorerError:  # a query that this program cannot read
            self.query_text = ""
        rows, layers = tree.model.rows, tree.model.layers
        at = next((i for i, r in enumerate(rows) if layers[tree.model.first(r)].path == view.cursor), 0)
        tree.rows_changed()
        tree.move_to(at)
        if view.zoom:
            self.query_one("#panes").add_class(view.zoom)
        if view.tab in {tab.id for tab in TABS}:
            self.open_tab(view.tab, focus=False)
        self.refresh_all()
