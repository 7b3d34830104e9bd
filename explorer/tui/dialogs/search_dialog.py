"""The search dialog: finds commands, states, layers, tensors and attributes by a few letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.tui.dialogs.dialogs import MenuItem, PickDialog
from explorer.tui.terminal.slices import Slices
from explorer.tui.tree.search import Query, Search, SearchResult

if TYPE_CHECKING:
    from textual.worker import Worker

    from explorer.facts import Layer

_AT_A_TIME = 32
"""Number of layers between two checks of the time."""
_PROGRESS = 0.5
"""Seconds between two reports of the progress."""


class SearchDialog(PickDialog):
    """Searches by a few letters.

    Args:
        choices: Commands, states and bookmarks, which are matched at once.
        layers: Layers of the model, which are searched in the background.

    Attributes:
        search: Results in the model for the current text, or None while the search is running.
        listed: Listed results of the model by menu ID.
    """

    def __init__(self, choices: Sequence[MenuItem], layers: Sequence[Layer]) -> None:
        super().__init__("Search", choices, typed=True)
        self.HINT = "↑↓ move · Enter choose · n N next · Esc close"
        self.search: Search | None = None
        self.listed: dict[str, SearchResult] = {}
        self._layers = layers
        self._progress_due = 0.0
        self._search_worker: Worker[None] | None = None

    def narrow(self, text: str) -> None:
        """Show the matching commands, states and bookmarks, and start the search in the model."""
        self._typed_text = text
        self.search = None
        self.listed = {}
        self.show_choices(self._find_matching_choices(text))
        if text.strip() and (self._search_worker is None or self._search_worker.is_finished):
            self._search_worker = self.run_worker(self._search_layers(), exit_on_error=False)

    def empty_note(self) -> str:
        """Return the line that is shown if there are no results, or no results yet."""
        is_searching = self.search is None and bool(self._typed_text.strip())
        return f"searching {len(self._layers):,} layers…" if is_searching else super().empty_note()

    def _find_matching_choices(self, text: str) -> list[MenuItem]:
        """Return the choices that contain all words, or else all letters of the text in their title."""
        query = Query(text)
        if not query.words:
            return list(self.choices)
        ranked: list[tuple[float, int, MenuItem]] = []
        for index, choice in enumerate(self.choices):
            rank = query.rank(choice.title)
            if rank is None or rank >= 1:
                is_in_text = all(w in f"{choice.title} {choice.tip} {choice.id}".lower() for w in query.words)
                rank = 0.9995 if is_in_text else rank  # after titles with all words, before fuzzy matches
            if rank is not None:
                ranked.append((rank, index, choice))
        return [choice for _, _, choice in sorted(ranked, key=lambda entry: entry[:2])]

    async def _search_layers(self) -> None:
        """Search the layers, and search again if the text changed meanwhile."""
        searched_text = None
        while searched_text != self._typed_text:
            searched_text = self._typed_text
            if not searched_text.strip():
                break
            search, slices = Search(Query(searched_text)), Slices(self.app)
            self._progress_due = time.monotonic() + _PROGRESS
            await asyncio.sleep(0)
            for start in range(0, len(self._layers), _AT_A_TIME):
                for layer in self._layers[start : start + _AT_A_TIME]:
                    search.match_layer(layer)
                if slices.is_over():
                    self._show_progress(start)
                    await slices.pause()
                    if self._typed_text != searched_text:
                        break
            else:
                self._show(search)

    def _show_progress(self, searched: int) -> None:
        """Say in the lower border how many layers were searched, from time to time."""
        if (now := time.monotonic()) >= self._progress_due:
            self._progress_due = now + _PROGRESS
            self.show_hint(f"searching: {searched:,} of {len(self._layers):,} ")

    def _show(self, search: Search) -> None:
        self.search = search
        best = search.best()
        self.listed = {f"found:{index}": result for index, result in enumerate(best)}
        choices = self._find_matching_choices(search.query.text)
        fuzzy_choices = [c for c in choices if (search.query.rank(c.title) or 0) >= 1]
        items = [_build_item(id, result) for id, result in self.listed.items()]
        exact = [menu_item for menu_item, result in zip(items, best, strict=True) if result.rank < 1]
        fuzzy = items[len(exact) :]
        self.show_choices([*(c for c in choices if c not in fuzzy_choices), *exact, *fuzzy_choices, *fuzzy])
        unlisted_count = len(search.results) - len(best)
        self.show_hint(f"and {unlisted_count:,} more " if unlisted_count > 0 else "")


def _build_item(id: str, result: SearchResult) -> MenuItem:
    layer_count = (
        f"{len(result.layers):,} layers" if result.kind != "layer" and len(result.layers) > 1 else ""
    )
    text = result.text
    if result.kind == "layer":
        path, _, kind = text.rpartition("  ")
        text = path if path.endswith(f"/{kind}") else text  # the path of an ONNX node ends with its kind
    return MenuItem(id, result.kind, text, layer_count)
