"""The filter's line: the tree follows what is typed, and a query that cannot be read says why beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from explorer.errors import ExplorerError
from explorer.tui.screens.changing import Changing
from explorer.tui.slices import Slices
from explorer.tui.widgets.layer_tree import LayerTree
from explorer.tui.widgets.strips import Status

if TYPE_CHECKING:
    from explorer.tui.jobs import Door
    from explorer.tui.treemodel import TreeModel

__all__ = ["Filtering"]

_TYPING = 0.12
"""Seconds without a key before the tree follows."""


class Filtering(Changing):
    """The part of the main screen that finds layers.

    Args:
        source: What the user asked for.
        door: The engine.
        remote: Over SSH.
    """

    def __init__(self, source: str, door: Door, *, remote: bool = False) -> None:
        super().__init__(source, door, remote=remote)
        self.query_text = ""
        self.complaint = ""

    def show_layer(self) -> None:
        """Draw the layer under the cursor."""
        raise NotImplementedError

    async def action_filter(self) -> None:
        """Open the filter's line."""
        from textual.widgets import Static

        from explorer.tui.screens.dialogs import text_input

        row = self.query_one("#filter-row")
        if not row.children:
            entry = text_input(
                placeholder="words, op:Conv, macs>1e6, -term", blink=not self.remote, id="filter"
            )
            said = Static("", id="filter-said", markup=False)
            await row.mount(Static(" / ", id="filter-mark", markup=False), entry, said)
        row.add_class("open")
        self.query_one(Status).display = False
        self.query_one("#filter").focus()

    def close_filter(self, *, clear: bool) -> bool:
        """Leave the filter's line, and with `clear` the filter. Returns whether there was one."""
        row = self.query_one("#filter-row")
        was = row.has_class("open") or bool(self.query_text)
        row.remove_class("open")
        self.query_one(Status).display = True
        if clear and was:
            from textual.widgets import Input

            self.workers.cancel_group(self, "filter")
            for entry in row.query(Input):
                entry.value = ""
            self._complain("")
            self.query_text = ""
            self._show_all()
        if was:
            self.query_one(LayerTree).focus()
        return was

    async def on_input_changed(self, event: object) -> None:
        """The filter follows what is typed."""
        text: str = event.value  # type: ignore[attr-defined]
        # not begun before its turn: of keys that come together only the last one's is
        soon: Callable[[], Awaitable[None]] = partial(self._filter_soon, text)
        self.run_worker(soon, group="filter", exclusive=True, exit_on_error=False)

    async def on_input_submitted(self, event: object) -> None:
        """Enter keeps the filter and goes back to the tree; what cannot be read stays to be mended."""
        text: str = event.value.strip()  # type: ignore[attr-defined]
        if text != self.query_text:
            self.run_worker(self._filter_by(text), group="filter", exclusive=True, exit_on_error=False)
        if self._fault(text):
            self.app.bell()
        else:
            self.close_filter(clear=not text)

    async def _filter_soon(self, text: str) -> None:
        if text.strip():
            await asyncio.sleep(_TYPING)
        await self._filter_by(text.strip())

    async def _filter_by(self, text: str) -> None:
        fault = self._fault(text)
        self._complain(fault)
        # half a query is no error: the tree stays as it is while the line is being written
        if not fault and text != self.query_text:
            await self._narrow_by(text)

    def _fault(self, text: str) -> str:
        """Why a query cannot be read; empty if it can."""
        from explorer import query  # with its parser, only when somebody searches

        try:
            query.matcher(text)
        except ExplorerError as error:
            return ": ".join(filter(None, (error.what, error.hint)))
        return ""

    async def filter_again(self) -> None:
        """Another model is on show: what was looked for is looked for in it."""
        text, self.query_text = self.query_text, ""
        if text:
            self.workers.cancel_group(self, "filter")
            await self._narrow_by(text)

    async def _narrow_by(self, text: str) -> None:
        """Show what a query finds, as it is found; the keys come first."""
        from explorer import query

        self.query_text = text
        if not text:
            self._show_all()
            return
        model, wanted, pause = self.query_one(LayerTree).model, query.matcher(text), Slices(self.app)
        found: list[int] = []
        shown = False
        for layer in model.layers:
            if wanted(layer):
                found.append(layer.id)
            if pause.due():
                if found or not shown:
                    self._show_found(model, found, more=shown)
                    found, shown = [], True
                await pause.rest()
                if self.query_one(LayerTree).model is not model or self.query_text != text:
                    return
        self._show_found(model, found, more=shown)

    def _complain(self, said: str) -> None:
        if said == self.complaint:
            return
        from textual.widgets import Static

        self.complaint = said
        for place in self.query("#filter-said").results(Static):
            place.update(f" {said} " if said else "")

    def _show_all(self) -> None:
        tree = self.query_one(LayerTree)
        layer, model = tree.current_layer, tree.model
        model.set_filter(None)
        tree.cursor = model.reveal(layer.id) if layer is not None else 0
        self._shown()

    def _show_found(self, model: TreeModel, found: Sequence[int], *, more: bool) -> None:
        """Show what was found, or (`more`) what was found beyond what is on show."""
        tree = self.query_one(LayerTree)
        if not more:
            model.set_filter(found)
        elif found:
            model.add_matches(found)
        if model.matches and (not more or tree.cursor == 0):
            tree.cursor = next((i for i, row in enumerate(model.rows) if row in model.matches), 0)
        self._shown()

    def _shown(self) -> None:
        self.query_one(LayerTree).rows_changed()
        self.show_layer()
        self.show_heads()
