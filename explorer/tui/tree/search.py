"""Search: finds layers, tensors and attributes of a model by a few letters.

Texts that contain the typed words come first. Texts that contain the typed letters in order, with other
letters between them, come next: the fewer other letters, the earlier. Textual's fuzzy search tries all
positions of the letters, which takes exponential time for names crafted for this purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest
from typing import TYPE_CHECKING

from msgspec import Struct, field

from explorer.report.present.figures import value_text

if TYPE_CHECKING:
    from explorer.facts import Layer

MAX_LISTED_RESULTS = 60
"""Maximum number of results that are listed, best first. The others are only counted."""
MAX_VISITED_LAYERS = 10_000
"""Maximum number of layers of a result that `n` and `N` visit."""


class SearchResult(Struct):
    """A text that matches the query, and the layers that contain it.

    Attributes:
        kind: Kind of the result: 'layer', 'tensor' or 'attr'.
        text: Text that is shown and matched.
        rank: Quality of the match; smaller is better. See `Query.rank`.
        layers: IDs of the layers that contain the text, in tree order.
    """

    kind: str
    text: str
    rank: float
    layers: list[int] = field(default_factory=list)


class Query:
    """A query as typed, split into words."""

    def __init__(self, text: str) -> None:
        self.text = text
        # paths use dots in a graph and slashes in a file
        self.words = text.lower().replace("/", ".").split()
        self._letters = "".join(self.words)

    def rank(self, text: str, name: int | None = None) -> float | None:
        """Return how well a text matches, or None if it does not; smaller is better.

        A rank below 1 means that the text contains all words; below 0.5, that its first `name` characters
        contain them, so that 'conv2' prefers a layer name to the class Conv2d. A rank from 1 on means that
        the text contains the letters in order.
        """
        lowered = text.lower().replace("/", ".")
        if all(word in lowered for word in self.words):
            is_outside_name = name is not None and not all(word in lowered[:name] for word in self.words)
            return (is_outside_name + min(len(text), 999) / 1000) / 2  # below 1 for any length
        first = position = lowered.find(self._letters[0])
        for letter in self._letters[1:]:
            position = lowered.find(letter, position + 1)
            if position < 0:
                break
        return None if position < 0 else 1 + min(position - first, 999) / 1000


class Search:
    """Collects the results of a query, layer by layer."""

    def __init__(self, query: Query) -> None:
        self.query = query
        # result by kind and text; None for a text that does not match
        self._results: dict[tuple[str, str], SearchResult | None] = {}

    def match_layer(self, layer: Layer) -> None:
        """Match a layer, its tensors and its attributes against the query."""
        self._match_text("layer", f"{layer.path}  {layer.kind}", layer.id, len(layer.path))
        if layer.group:
            return
        for tensor in (*layer.outputs, *layer.inputs, *layer.weights):
            self._match_text("tensor", tensor.name, layer.id)
        for name, value in layer.attributes.items():
            self._match_text("attr", f"{name} {value_text(value, max_items=8)[:80]}", layer.id)

    def _match_text(self, kind: str, text: str, layer: int, name: int | None = None) -> None:
        """Match a text of a layer and store the result. The first `name` characters are the layer's name."""
        key = kind, text
        if key not in self._results:
            rank = self.query.rank(text, name)
            self._results[key] = None if rank is None else SearchResult(kind, text, rank)
        result = self._results[key]
        if result is not None and len(result.layers) < MAX_VISITED_LAYERS and result.layers[-1:] != [layer]:
            result.layers.append(layer)

    @property
    def results(self) -> list[SearchResult]:
        """All results, unordered."""
        return [result for result in self._results.values() if result is not None]

    def best(self) -> list[SearchResult]:
        """Return the best results: those with all words, then the others; in both, layers, then tensors."""
        order = {"layer": 0, "tensor": 1, "attr": 2}
        return nsmallest(MAX_LISTED_RESULTS, self.results, key=lambda r: (int(r.rank), order[r.kind], r.rank))

    def list_visited_layers(self, result: SearchResult) -> list[int]:
        """Return the layers that `n` and `N` visit after `result` was chosen.

        For a layer these are all layers that match the query in the same way: in the name, in another part of
        the text, or only letter by letter (see `Query.rank`).
        """
        if result.kind != "layer":
            return result.layers
        limit = next((limit for limit in (0.5, 1.0) if result.rank < limit), 2.0)
        results = (other for other in self.results if other.kind == "layer" and other.rank < limit)
        return sorted(_list_layers(results))[:MAX_VISITED_LAYERS]


def _list_layers(results: Iterable[SearchResult]) -> set[int]:
    return {layer for result in results for layer in result.layers}
