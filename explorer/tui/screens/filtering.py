"""The filter's line: the tree follows what is typed, and a query that cannot be read says why beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from explorer.errors import ExplorerError
from explorer.tui.screens.changing import Changing
from explorer.tui.widgets.layer_tree import LayerTree
from explorer.tui.widgets.strips import Status

if TYPE_CHECKING:
    from explorer.tui.jobs import Door

__all__ = ["IN_ONE_GO", "Filtering"]

IN_ONE_GO = 20_000
"""Layers that can be searched or laid out between two key presses."""
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
            self._narrow(None)
        if was:
            self.query_one(LayerTree).focus()
        return was

    async def on_input_changed(self, event: object) -> None:
        """The filter follows what is typed."""
        text: str = event.value  # type: ignore[attr-defined]
        self.run_worker(self._filter_soon(text), group="filter", exclusive=True, exit_on_error=False)

    async def on_input_submitted(self, event: object) -> None:
        """Enter keeps the filter and goes back to the tree; what cannot be read stays to be mended."""
        self.workers.cancel_group(self, "filter")
        await self._filter_by(event.value)  # type: ignore[attr-defined]
        if self.complaint:
            self.app.bell()
        else:
            self.close_filter(clear=not self.query_text)

    async def _filter_soon(self, text: str) -> None:
        if text.strip():
            await asyncio.sleep(_TYPING)
        await self._filter_by(text)

    async def _filter_by(self, text: str) -> None:
        if self.analysis is None:
            return
        text = text.strip()
        if text == self.query_text:
            self._complain("")
            return
        try:
            found = await self._search(text) if text else None
        except ExplorerError as error:
            # half a query is no error: the tree stays as it is while the line is being written
            self._complain(": ".join(filter(None, (error.what, error.hint))))
            return
        self._complain("")
        self.query_text = text
        self._narrow(found)

    async def filter_again(self) -> None:
        """Another model is on show: what was looked for is looked for in it."""
        if self.query_text:
            self._narrow(await self._search(self.query_text))

    async def _search(self, text: str) -> tuple[int, ...]:
        from explorer import query  # with its parser, only when somebody searches

        assert self.analysis is not None
        layers = self.analysis.layers
        if len(layers) > IN_ONE_GO:
            return await asyncio.to_thread(query.search, layers, text)
        return query.search(layers, text)

    def _complain(self, said: str) -> None:
        if said == self.complaint:
            return
        from textual.widgets import Static

        self.complaint = said
        for place in self.query("#filter-said").results(Static):
            place.update(f" {said} " if said else "")

    def _narrow(self, found: tuple[int, ...] | None) -> None:
        tree = self.query_one(LayerTree)
        layer, model = tree.current_layer, tree.model
        model.set_filter(found)
        if found is None:
            tree.cursor = model.reveal(layer.id) if layer is not None else 0
        elif found:
            chosen = set(found)
            tree.cursor = next((i for i, row in enumerate(model.rows) if row in chosen), 0)
        tree.rows_changed()
        self.show_layer()
        self.show_heads()
