"""The filter's line: the tree follows what is typed, and a query that cannot be read says why beside it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from textual.containers import Horizontal

from explorer.base.errors import ExplorerError
from explorer.tui.terminal.slices import Slices
from explorer.tui.widgets.strips import Status

if TYPE_CHECKING:
    from textual.worker import Worker

    from explorer.facts import Layer
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tree.model import TreeModel
    from explorer.tui.tree.widget import LayerTree

_LONGEST = 1_001
"""Characters that the line takes: one more than a filter may have, and so it says what is wrong."""
_TYPING = 0.12
"""Seconds without a key before the tree follows."""


class FilterLine(Horizontal):
    """Finds layers.

    Args:
        store: Keeps the query.
        tree: Shows what is found.
    """

    def __init__(self, store: ScreenStore, tree: LayerTree) -> None:
        super().__init__(id="filter-row")
        self._store, self._tree = store, tree
        self._complaint, self._told = "", False
        self._typed, self._typed_at = "", 0.0
        self._finding: Worker[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the line is there to be written in."""
        return self.has_class("open")

    async def open(self) -> None:
        """Show the line and go there."""
        from textual.widgets import Static

        from explorer.tui.widgets.text_input import text_input  # Textual's Input, not before the first paint

        if not self.children:
            entry = text_input(
                placeholder="words, op:Conv, macs>1e6, out:[*,64,...], kernel=3x3, OR, NOT",
                id="filter",
                longest=_LONGEST,
            )
            complaint = Static("", id="filter-said", markup=False)
            await self.mount(Static(" / ", id="filter-mark", markup=False), entry, complaint)
        self.add_class("open")
        self.screen.query_one(Status).display = False
        self.query_one("#filter").focus()

    def close(self, *, clear: bool) -> bool:
        """Leave the line, and with `clear` the filter. Returns whether there was one."""
        was = self.is_open or bool(self._store.query)
        self.remove_class("open")
        self.screen.query_one(Status).display = True
        if clear and was:
            from textual.widgets import Input

            self._stop_finding()
            for entry in self.query(Input):
                entry.value = ""
            self._complain("")
            self._forget()
            self._store.query = ""
            self._show_all()
        if was:
            self._tree.focus()
        return was

    async def on_input_changed(self, event: object) -> None:
        """The filter follows what is typed."""
        self._typed, self._typed_at = event.value.strip(), time.monotonic()  # type: ignore[attr-defined]
        # one for all keys: Textual keeps what was cancelled before its turn, and cancels all that with each
        if self._finding is None or self._finding.is_finished:
            self._finding = self.run_worker(self._find_typed(), group="filter", exit_on_error=False)

    async def on_input_submitted(self, event: object) -> None:
        """Enter keeps the filter and goes back to the tree; what cannot be read stays to be mended."""
        text: str = event.value.strip()  # type: ignore[attr-defined]
        if text != self._store.query:
            self._stop_finding()
            self.run_worker(self._filter_by(text), group="filter", exit_on_error=False)
        if self._fault(text):
            self.app.bell()
        else:
            self.close(clear=not text)
            if text and text == self._store.query:
                self._tell_of_nothing(text)

    def _stop_finding(self) -> None:
        self.workers.cancel_group(self, "filter")
        self._finding = None  # one that was stopped before its turn never says that it is finished

    async def _find_typed(self) -> None:
        """Wait until nobody types, then find what stands there; again if somebody typed meanwhile."""
        done = None
        while done != self._typed:
            while self._typed and (remaining := self._typed_at + _TYPING - time.monotonic()) > 0:
                await asyncio.sleep(remaining)
            done = self._typed
            await self._filter_by(done)

    async def _filter_by(self, text: str) -> None:
        fault = self._fault(text)
        self._complain(fault)
        # half a query is no error: the tree stays as it is while the line is being written
        if not fault and text != self._store.query:
            await self._narrow_by(text)

    def _fault(self, text: str) -> str:
        """Why a query cannot be read; empty if it can."""
        try:
            self._matcher(text)
        except ExplorerError as error:
            place = error.where.removeprefix("filter").removeprefix(", ")
            return ": ".join(filter(None, (place, error.what, error.hint)))
        return ""

    def _matcher(self, text: str) -> Callable[[Layer], bool]:
        """What tells whether a query finds a layer."""
        from explorer.settings import filter as query  # with its parser, only when somebody searches

        model = self._tree.model
        beside = query.beside(self._tree.totals, model.overlay, model.providers, self._store.profile)
        return query.matcher(text, beside)

    async def filter_again(self) -> None:
        """Another model is on show: what was looked for is looked for in it."""
        text, self._store.query = self._store.query, ""
        if text:
            self._stop_finding()
            try:
                await self._narrow_by(text)
            except ExplorerError as error:  # it asks for figures that this model does not have
                self._show_all()
                self._store.query = ""
                self._store.say(f"the filter is taken away: {error}")

    async def _narrow_by(self, text: str) -> None:
        """Show what a query finds, as it is found; the keys come first."""
        self._store.query = text
        self._forget()
        if not text:
            self._show_all()
            return
        model, is_match, pause = self._tree.model, self._matcher(text), Slices(self.app)
        matches: list[int] = []
        is_shown, typed = False, self._typed
        for layer in model.layers:
            if is_match(layer):
                matches.append(layer.id)
            if pause.due():
                if not is_shown or self._is_worth_drawing(model, len(matches)):
                    self._show_found(model, matches, more=is_shown)
                    matches, is_shown = [], True
                await pause.rest()
                if self._tree.model is not model or self._store.query != text:
                    return
                if self._typed != typed and not self._fault(self._typed):
                    return  # what is typed now is looked for next
        self._show_found(model, matches, more=is_shown)
        self._tell_of_nothing(text)

    def _tell_of_nothing(self, text: str) -> None:
        """What is searched for is nowhere: say so beside it, or below once it is written."""
        if self._tree.row_count:
            return
        typed_ops = [word[3:].lower() for word in text.split() if word[:3].lower() == "op:" and word[3:]]
        model_ops = [stat.op for stat in self._store.ops or ()]
        near = [op for op in model_ops if any(part in op.lower() for part in typed_ops)]
        complaint = "no layer matches" + (f"; meant op:{near[0]}?" if near else "")
        if self.is_open:
            self._complain(complaint)
        else:
            self._told = True
            self._store.say(f"{complaint}  Esc shows all")

    def _forget(self) -> None:
        """That nothing matched is no word on what is searched for next."""
        if self._told:
            self._told = False
            self._store.say("")

    def _is_worth_drawing(self, model: TreeModel, found: int) -> bool:
        """Whether to show what was found: behind the last row in view, only when it is as much again."""
        in_view = len(model.rows) < self._tree.size.height or model.is_full
        return bool(found) and (in_view or found >= model.found)

    def _complain(self, complaint: str) -> None:
        if complaint == self._complaint:
            return
        from textual.widgets import Static

        self._complaint = complaint
        for place in self.query("#filter-said").results(Static):
            place.update(f" {complaint} " if complaint else "")

    def _show_all(self) -> None:
        layer, model = self._tree.current_layer, self._tree.model
        model.set_filter(None)
        self._tree.cursor = model.reveal(layer.id) if layer is not None else 0
        self._draw_tree()

    def _show_found(self, model: TreeModel, matches: Sequence[int], *, more: bool) -> None:
        """Show what was found, or (`more`) what was found beyond what is on show."""
        tree = self._tree
        if not more:
            model.set_filter(matches)
        elif not model.add_matches(matches):
            self._store.notify("query")  # how many there are
            return
        if model.matches and (not more or tree.cursor == 0):
            tree.cursor = next((i for i, row in enumerate(model.rows) if row in model.matches), 0)
        self._draw_tree()

    def _draw_tree(self) -> None:
        self._tree.rows_changed()
        self._store.notify("layer", "query")
