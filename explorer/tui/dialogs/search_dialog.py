"""The search dialog: commands, states, layers, tensors and attributes by a few letters of their names."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.content import Content

from explorer.tui.dialogs.dialogs import MenuItem, PickDialog, key_hint
from explorer.tui.terminal.slices import Slices
from explorer.tui.tree.search import Query, Search, SearchResult

if TYPE_CHECKING:
    from textual.worker import Worker

    from explorer.facts import Layer

_AT_A_TIME = 32
"""Layers between two looks at the clock."""


class SearchDialog(PickDialog):
    """Whatever there is, by a few letters.

    Args:
        choices: What is found at once: commands, states, bookmarks.
        layers: What is looked through as letters are typed.

    Attributes:
        search: What was found in the model.
    """

    def __init__(self, choices: Sequence[MenuItem], layers: Sequence[Layer]) -> None:
        super().__init__("Search", choices, typed=True)
        self.HINT = "↑↓ Enter · n N the next · Esc close"
        self.search: Search | None = None
        self.listed: dict[str, SearchResult] = {}
        self._layers = layers
        self._typed_text = ""
        self._looking: Worker[None] | None = None

    def narrow(self, text: str) -> None:
        """Show what fits at once, and look through the model."""
        self._typed_text = text
        self.search = None
        self.listed = {}
        self.show_choices(self._fitting(text))
        if text.strip() and (self._looking is None or self._looking.is_finished):
            self._looking = self.run_worker(self._look(), exit_on_error=False)

    def _fitting(self, text: str) -> list[MenuItem]:
        """Commands, states and bookmarks: by words anywhere, else by letters of the title."""
        query = Query(text)
        if not query.words:
            return list(self.choices)
        ranked: list[tuple[float, int, MenuItem]] = []
        for at, choice in enumerate(self.choices):
            rank = query.rank(choice.title)
            if rank is None or rank >= 1:
                mentioned = all(w in f"{choice.title} {choice.tip} {choice.id}".lower() for w in query.words)
                rank = 0.9995 if mentioned else rank
            if rank is not None:
                ranked.append((rank, at, choice))
        return [choice for _, _, choice in sorted(ranked, key=lambda entry: entry[:2])]

    async def _look(self) -> None:
        """Look through the layers; again if something else was typed meanwhile."""
        done = None
        while done != self._typed_text:
            done = self._typed_text
            if not done.strip():
                break
            search, pause = Search(Query(done)), Slices(self.app)
            await asyncio.sleep(0)
            for at in range(0, len(self._layers), _AT_A_TIME):
                for layer in self._layers[at : at + _AT_A_TIME]:
                    search.look(layer)
                if pause.due():
                    await pause.rest()
                    if self._typed_text != done:
                        break
            else:
                self._show(search)

    def _show(self, search: Search) -> None:
        self.search = search
        best = search.best()
        self.listed = {f"found:{at}": result for at, result in enumerate(best)}
        choices = self._fitting(search.query.text)
        loose = [c for c in choices if (search.query.rank(c.title) or 0) >= 1]
        items = [_item(id, result) for id, result in self.listed.items()]
        exact = [menu_item for menu_item, result in zip(items, best, strict=True) if result.rank < 1]
        fuzzy = items[len(exact) :]
        self.show_choices([*(c for c in choices if c not in loose), *exact, *loose, *fuzzy])
        if (more := len(search.found) - len(best)) > 0:
            self.query_one("#box").border_subtitle = Content(f"and {more:,} more ") + key_hint(self.HINT)


def _item(id: str, found: SearchResult) -> MenuItem:
    many = f"{len(found.layers):,} layers" if found.kind != "layer" and len(found.layers) > 1 else ""
    return MenuItem(id, found.kind, found.text, many)
