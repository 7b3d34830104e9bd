"""The filter line: an input below the layer tree that filters the tree while the user types.

A query with a syntax error leaves the tree unchanged, and the error is shown beside the input.
"""

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
    from textual.events import Key
    from textual.worker import Worker

    from explorer.facts import Layer
    from explorer.settings.columns import ColumnFigures
    from explorer.tui.state.store import ScreenStore
    from explorer.tui.tree.model import TreeModel
    from explorer.tui.tree.widget import LayerTree

_MAX_LENGTH = 1_001
"""Maximum characters of the input: one more than a filter may have, so that the parser reports the error."""
_TYPING = 0.12
"""Seconds without a key press before the tree follows the input."""
_PROGRESS, _PROGRESS_REMOTE = 0.3, 2.0
"""Seconds between two reports of a search's progress."""


class FilterLine(Horizontal):
    """Input for a query, and the search that applies it to the layer tree.

    Args:
        store: Store that keeps the current query.
        tree: Layer tree that shows the matches.
    """

    def __init__(self, store: ScreenStore, tree: LayerTree) -> None:
        super().__init__(id="filter-row")
        self._store, self._tree = store, tree
        self._message, self._has_status_message = "", False
        self._typed_text, self._last_key_time = "", 0.0
        self._typing_worker: Worker[None] | None = None
        self._completions: list[str] = []
        self._search: object = None
        self._progress_due, self._is_progress_shown = 0.0, False

    @property
    def is_open(self) -> bool:
        """Whether the input is visible."""
        return self.has_class("open")

    async def open(self) -> None:
        """Show the input and focus it."""
        from textual.widgets import Static

        # this import loads Textual's Input, which the first paint does not need
        from explorer.tui.widgets.text_input import create_text_input

        if not self.children:
            entry = create_text_input(
                placeholder="words, op:Conv, macs>1e6, out:[*,64,...], kernel=3x3, OR, NOT; Tab completes",
                id="filter",
                max_length=_MAX_LENGTH,
                accepts_wildcards=True,
            )
            complaint = Static("", id="filter-said", markup=False)
            await self.mount(Static(" / ", id="filter-mark", markup=False), entry, complaint)
        self.add_class("open")
        self.screen.query_one(Status).display = False
        self.query_one("#filter").focus()

    def close(self, *, clear: bool) -> bool:
        """Hide the input, and with `clear` remove the filter. Returns whether there was anything to close."""
        was_active = self.is_open or bool(self._store.query)
        self.remove_class("open")
        self.screen.query_one(Status).display = True
        if clear and was_active:
            from textual.widgets import Input

            self._stop_typing_worker()
            for entry in self.query(Input):
                entry.value = ""
            self._show_message("")
            self._clear_report()
            self._store.query = ""
            self._show_all()
        if was_active:
            self._tree.focus()
        return was_active

    async def on_input_changed(self, event: object) -> None:
        """Apply the query as the user types."""
        self._typed_text, self._last_key_time = event.value.strip(), time.monotonic()  # type: ignore[attr-defined]
        # one worker for all keys: Textual never releases a worker that is canceled before it starts
        if self._typing_worker is None or self._typing_worker.is_finished:
            self._typing_worker = self.run_worker(self._follow_typing(), group="filter", exit_on_error=False)

    async def on_input_submitted(self, event: object) -> None:
        """Keep the filter and focus the tree. A query with an error stays in the input."""
        text: str = event.value.strip()  # type: ignore[attr-defined]
        if error_text := self._find_error(text):
            self._show_message(error_text)
            self.app.bell()
        else:
            if self._must_search(text):
                self._stop_typing_worker()
                self.run_worker(self._filter_by(text), group="filter", exit_on_error=False)
            self.close(clear=not text)
            if text and text == self._store.query:
                if self._search is None:
                    self._report_no_match(text)
                else:
                    # the search continues: report its progress in the status line at once
                    self._progress_due = 0.0

    def on_key(self, event: Key) -> None:
        """Complete the last word with Tab. Further presses show the other completions."""
        if event.key != "tab" or not self.is_open:
            return
        event.stop()
        from textual.widgets import Input

        entry = self.query_one("#filter", Input)
        if entry.value in self._completions:
            position = self._completions.index(entry.value) + 1
        else:
            self._completions, position = self._complete(entry.value), 0
        if not self._completions:
            self.app.bell()
            return
        entry.value = self._completions[position % len(self._completions)]
        entry.cursor_position = len(entry.value)

    def _complete(self, text: str) -> list[str]:
        # imported here because it loads the query parser
        from explorer.settings.columns import list_available_columns
        from explorer.settings.filter_completion import complete_filter

        operators = dict.fromkeys(stat.op for stat in self._store.ops or ())
        return complete_filter(text, list_available_columns(self._collect_figures()), operators)

    def _stop_typing_worker(self) -> None:
        self.workers.cancel_group(self, "filter")
        # a worker that was canceled before it started never reports that it is finished
        self._typing_worker = None

    async def _follow_typing(self) -> None:
        """Wait until the user stops typing, then apply the query. Repeat if the input changed meanwhile."""
        applied_text = None
        while applied_text != self._typed_text or self._must_search(self._store.query):
            while self._typed_text and (remaining := self._last_key_time + _TYPING - time.monotonic()) > 0:
                await asyncio.sleep(remaining)
            applied_text = self._typed_text
            await self._filter_by(applied_text)

    async def _filter_by(self, text: str) -> None:
        """Apply a query, or show beside the input why it cannot be parsed."""
        error_text = self._find_error(text)
        self._show_message(error_text)
        # an unfinished query is not an error: while the user types, the tree keeps the last query
        query = self._store.query if error_text else text
        if self._must_search(query):
            await self._show_matches(query)

    def _must_search(self, query: str) -> bool:
        """Whether a query must be searched: the tree shows another query, or its search was stopped."""
        return query != self._store.query or (self._tree.model.searched is not None and self._search is None)

    def _find_error(self, text: str) -> str:
        """Return the reason that a query cannot be parsed, or ''."""
        try:
            self._build_matcher(text)
        except ExplorerError as error:
            location = error.where.removeprefix("filter").removeprefix(", ")
            return ": ".join(filter(None, (location, error.what, error.hint)))
        return ""

    def _build_matcher(self, text: str) -> Callable[[Layer], bool]:
        """Return the predicate of a query over layers."""
        from explorer.settings import filter as query  # imported late: it loads the query parser

        return query.build_matcher(text, self._collect_figures())

    def _collect_figures(self) -> ColumnFigures:
        from explorer.settings import filter as query

        model = self._tree.model
        return query.collect_filter_figures(
            self._tree.totals, model.overlay, model.providers, self._store.profile
        )

    async def filter_again(self, open_rows: frozenset[int] | None = None) -> None:
        """Apply the current query to another model. See `TreeModel.set_filter` for `open_rows`."""
        text, self._store.query = self._store.query, ""
        if text:
            self._stop_typing_worker()
            try:
                await self._show_matches(text, open_rows)
            except ExplorerError as error:  # the query asks for figures that this model does not have
                self._show_all()
                self._store.query = ""
                self._store.say(f"filter removed: {error}")

    async def _show_matches(self, text: str, open_rows: frozenset[int] | None = None) -> None:
        """Show the matches of a query as the search finds them. Key presses interrupt the search.

        See `TreeModel.set_filter` for `open_rows`.
        """
        self._store.query = text
        self._clear_report()
        if not text:
            self._show_all()
            return
        search = self._search = object()
        try:
            await self._search_layers(text, open_rows)
        finally:
            if self._search is search:
                self._search = None

    async def _search_layers(self, text: str, open_rows: frozenset[int] | None) -> None:
        """Match all layers, show the matches on the way, and report the progress of a long search."""
        model, is_match, slices = self._tree.model, self._build_matcher(text), Slices(self.app)
        matches: list[int] = []
        is_shown, typed, model.searched = False, self._typed_text, 0
        self._progress_due = time.monotonic() + _PROGRESS
        try:
            for layer in model.layers:
                if is_match(layer):
                    matches.append(layer.id)
                if slices.is_over():
                    model.searched = layer.id + 1
                    if not is_shown or self._is_worth_drawing(model, len(matches)):
                        self._show_batch(model, matches, open_rows, is_continued=is_shown)
                        matches, is_shown = [], True
                    self._report_progress(model)
                    await slices.pause()
                    if self._tree.model is not model or self._store.query != text:
                        return
                    if self._typed_text != typed and not self._find_error(self._typed_text):
                        return  # the search for the new input follows
        finally:
            self._clear_progress()
        model.searched = None
        self._show_batch(model, matches, open_rows, is_continued=is_shown)
        self._report_no_match(text)

    def _report_progress(self, model: TreeModel) -> None:
        """Say how far a search is: beside the input, or in the status line if the input is closed."""
        if (now := time.monotonic()) < self._progress_due:
            return
        self._progress_due = now + (_PROGRESS_REMOTE if self._store.remote else _PROGRESS)
        self._is_progress_shown = True
        progress = f"searching: {model.searched or 0:,} of {model.count:,}"
        if self.is_open:
            self._show_message(progress)
        else:
            self._has_status_message = True
            self._store.say(f"{progress} layers")

    def _clear_progress(self) -> None:
        """Remove the report of a search that ended."""
        if self._is_progress_shown:
            self._is_progress_shown = False
            self._show_message("")
            self._clear_report()

    def _report_no_match(self, text: str) -> None:
        """If no layer matches, say so beside the input, or in the status line if the input is closed."""
        if self._tree.row_count:
            return
        typed_ops = [word[3:].lower() for word in text.split() if word[:3].lower() == "op:" and word[3:]]
        model_ops = [stat.op for stat in self._store.ops or ()]
        similar_ops = [op for op in model_ops if any(part in op.lower() for part in typed_ops)]
        complaint = "no layer matches" + (f"; meant op:{similar_ops[0]}?" if similar_ops else "")
        if self._store.analysis is None:  # later rows, and the figures, may match
            complaint = "no layer matches so far: the model is being opened"
        if self.is_open:
            self._show_message(complaint)
        else:
            self._has_status_message = True
            self._store.say(f"{complaint}  Esc shows all")

    def _clear_report(self) -> None:
        """Remove the progress, or the message that no layer matches, from the status line."""
        if self._has_status_message:
            self._has_status_message = False
            self._store.say("")

    def _is_worth_drawing(self, model: TreeModel, new_matches: int) -> bool:
        """Whether new matches are worth drawing: if they are out of view, only after their number doubled."""
        in_view = len(model.rows) < self._tree.size.height or model.is_full
        return bool(new_matches) and (in_view or new_matches >= model.match_count)

    def _show_message(self, complaint: str) -> None:
        if complaint == self._message:
            return
        from textual.widgets import Static

        self._message = complaint
        for label in self.query("#filter-said").results(Static):
            label.update(f" {complaint} " if complaint else "")

    def _show_all(self) -> None:
        layer, model = self._tree.current_layer, self._tree.model
        model.searched = None
        model.set_filter(None)
        self._tree.cursor = model.reveal(layer.id) if layer is not None else 0
        self._draw_tree()

    def _show_batch(
        self,
        model: TreeModel,
        matches: Sequence[int],
        open_rows: frozenset[int] | None,
        *,
        is_continued: bool,
    ) -> None:
        """Show a batch of matches. With `is_continued`, add it to the matches that are already shown."""
        tree = self._tree
        if not is_continued:
            model.set_filter(matches, open_rows)
        elif not model.add_matches(matches):
            self._store.notify("query")  # the heading shows the number of matches
            if not model.rows:
                self._store.notify("layer")  # the page of the layer tells whether the search has ended
            return
        if model.matches and (not is_continued or tree.cursor == 0):
            tree.cursor = next((i for i, row in enumerate(model.rows) if row in model.matches), 0)
        self._draw_tree()

    def _draw_tree(self) -> None:
        self._tree.refresh_rows()
        self._store.notify("layer", "query")
