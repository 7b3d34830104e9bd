"""Search: what of a model somebody may mean by a few letters: layers, tensors, attributes.

Words that are there as they were typed go first; letters that are there in this order, with others between
them, come behind, those that lie close together first. Textual's own fuzzy search tries every way in which
the letters may lie, which takes for ever for a name that somebody wrote into a file for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING

from msgspec import Struct, field

from explorer.report.present.figures import value_text

if TYPE_CHECKING:
    from explorer.facts import Layer

SHOWN = 60
"""What is found that is listed, best first; the rest is counted."""
WALKED = 10_000
"""Layers of one find that `n` and `N` walk along."""


class SearchResult(Struct):
    """Something that was looked for.

    Attributes:
        kind: 'layer', 'tensor', 'attr'.
        text: As it is shown, and looked through.
        rank: The less, the better.
        layers: Where it is, in the order of the tree.
    """

    kind: str
    text: str
    rank: float
    layers: list[int] = field(default_factory=list)


class Query:
    """What was typed."""

    def __init__(self, text: str) -> None:
        self.text = text
        # a graph has dots where a file has slashes
        self.words = text.lower().replace("/", ".").split()
        self._letters = "".join(self.words)

    def rank(self, text: str, name: int | None = None) -> float | None:
        """How well a text fits: below 1 if all words are in it, from 1 on if the letters are; else None.

        Below 0.5 if they are in its first `name` characters: 'conv2' means a name before a Conv2d.
        """
        lowered = text.lower().replace("/", ".")
        if all(word in lowered for word in self.words):
            behind = name is not None and not all(word in lowered[:name] for word in self.words)
            return (behind + min(len(text), 999) / 1000) / 2
        first = at = lowered.find(self._letters[0])
        for letter in self._letters[1:]:
            at = lowered.find(letter, at + 1)
            if at < 0:
                break
        return None if at < 0 else 1 + min(at - first, 999) / 1000


class Search:
    """Collects what fits a query, layer by layer."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self._found: dict[tuple[str, str], SearchResult | None] = {}

    def look(self, layer: Layer) -> None:
        """Look through a layer, its tensors and its attributes."""
        self._note("layer", f"{layer.path}  {layer.kind}", layer.id, len(layer.path))
        if layer.group:
            return
        for tensor in (*layer.outputs, *layer.inputs, *layer.weights):
            self._note("tensor", tensor.name, layer.id)
        for name, value in layer.attributes.items():
            self._note("attr", f"{name} {value_text(value, most=8)[:80]}", layer.id)

    def _note(self, kind: str, text: str, layer: int, name: int | None = None) -> None:
        key = kind, text
        if key not in self._found:
            rank = self.query.rank(text, name)
            self._found[key] = None if rank is None else SearchResult(kind, text, rank)
        result = self._found[key]
        if result is not None and len(result.layers) < WALKED and result.layers[-1:] != [layer]:
            result.layers.append(layer)

    @property
    def found(self) -> list[SearchResult]:
        """All of it."""
        return [found for found in self._found.values() if found is not None]

    def best(self) -> list[SearchResult]:
        """The best of it; of what fits alike layers go first."""
        order = {"layer": 0, "tensor": 1, "attr": 2}
        return nsmallest(SHOWN, self.found, key=lambda one: (int(one.rank), order[one.kind], one.rank))

    def walk(self, chosen: SearchResult) -> list[int]:
        """The layers that `n` and `N` walk along once something was chosen: all that were meant as well."""
        if chosen.kind != "layer":
            return chosen.layers
        exact = next((most for most in (0.5, 1.0) if chosen.rank < most), 2.0)
        return sorted(_layers(f for f in self.found if f.kind == "layer" and f.rank < exact))[:WALKED]


def _layers(found: Iterable[SearchResult]) -> set[int]:
    return {layer for one in found for layer in one.layers}
