"""Layered layout (Sugiyama): boxes in ranks, few crossings, edges through the gaps between boxes.

This module computes ranks and the chains of long edges. grandalf computes the order within ranks and the
positions; it is pure Python and takes 0.1 s for 300 boxes. It makes a point for every rank of every edge,
which is quadratic where every layer reads all earlier ones (DenseNet). So here all edges of one box share one
chain, and the total length of the chains is limited.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from grandalf.graphs import Edge, Vertex, graph_core
from grandalf.layouts import Layer, SugiyamaLayout
from msgspec import Struct

MAX_CHAIN = 4_000
"""Most points of long edges in total; the longest edges beyond it are not routed."""
GAP_X, GAP_Y = 3, 3
_ROUNDS = 3
_RECURSION = 20_000
"""Deeper than grandalf recurses: once for every box and point at most."""


class BoxPlace(Struct, frozen=True):
    """The position of a box."""

    rank: int
    order: int
    x: int
    y: int


class Layout(Struct, frozen=True):
    """Positions of the boxes, points of the edges (none: no room), and the total size."""

    places: tuple[BoxPlace, ...]
    routes: tuple[tuple[tuple[int, int], ...], ...]
    width: int
    height: int


class _Point:
    """A box for grandalf: it reads the size and sets the position of the center."""

    __slots__ = ("h", "w", "xy")

    def __init__(self, width: int, height: int) -> None:
        self.w, self.h = width, height
        self.xy = (0.0, 0.0)


def laid_out(sizes: Sequence[tuple[int, int]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Lays boxes out.

    Args:
        sizes: Width and height of every box, in cells. Boxes are in reading order: an edge to an earlier box
            goes back up.
        edges: Source and target, as indices into `sizes`; each pair once, no loops.
    """
    down = [(min(edge), max(edge)) for edge in edges]
    ranks = _ranks(len(sizes), down)
    chains = _chains(ranks, down)
    items = [*sizes]
    at_rank = [*ranks]
    links: dict[tuple[int, int], None] = {}
    through: dict[tuple[int, int], int] = {}
    for source, last in chains.items():
        before = source
        for rank in range(ranks[source] + 1, last):
            through[source, rank] = len(items)
            links[before, len(items)] = None
            before = len(items)
            items.append((1, 1))
            at_rank.append(rank)
    for source, target in down:
        before = through.get((source, ranks[target] - 1), source)
        if ranks[target] == ranks[source] + 1 or before != source:
            links[before, target] = None
    middles, orders = _place(items, at_rank, [*links])
    tops, bottoms, height = _levels(items, at_rank)
    places = tuple(
        BoxPlace(ranks[at], orders[at], round(middles[at] - sizes[at][0] / 2), tops[ranks[at]])
        for at in range(len(sizes))
    )
    routes: list[tuple[tuple[int, int], ...]] = []
    for original, (source, target) in zip(edges, down, strict=True):
        between = range(ranks[source] + 1, ranks[target])
        if between and (source, between[-1]) not in through:
            routes.append(())
            continue
        points = [(int(middles[source]), tops[ranks[source]] + sizes[source][1])]
        for step in (through[source, rank] for rank in between):
            points += [
                (int(middles[step]), tops[at_rank[step]]),
                (int(middles[step]), bottoms[at_rank[step]]),
            ]
        points.append((int(middles[target]), tops[ranks[target]] - 1))
        routes.append(tuple(points if original == (source, target) else points[::-1]))
    width = max((place.x + size[0] for place, size in zip(places, sizes, strict=True)), default=0)
    width = max([width, *(x + 1 for route in routes for x, _ in route)])
    return Layout(places, tuple(routes), width, height)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The length of the longest path to each box; a box without inputs stands just above its first reader."""
    ranks = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        readers[source].append(target)
    for source in range(count):
        for target in readers[source]:
            ranks[target] = max(ranks[target], ranks[source] + 1)
    fed = {target for _, target in edges}
    for source in range(count):
        if source not in fed and readers[source]:
            ranks[source] = min(ranks[target] for target in readers[source]) - 1
    return ranks


def _chains(ranks: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """For every box with a long edge the rank of its furthest reader; the shortest chains that have room."""
    last: dict[int, int] = {}
    for source, target in edges:
        if ranks[target] > ranks[source] + 1:
            last[source] = max(last.get(source, 0), ranks[target])
    room = MAX_CHAIN
    chains = {}
    for source in sorted(last, key=lambda source: last[source] - ranks[source]):
        room -= last[source] - ranks[source] - 1
        if room < 0:
            break
        chains[source] = last[source]
    return chains


def _levels(items: Sequence[tuple[int, int]], ranks: Sequence[int]) -> tuple[list[int], list[int], int]:
    """The top and the bottom of every rank, and the total height."""
    heights = [1] * (max(ranks, default=-1) + 1)
    for (_, height), rank in zip(items, ranks, strict=True):
        heights[rank] = max(heights[rank], height)
    tops, y = [], 0
    for height in heights:
        tops.append(y)
        y += height + GAP_Y
    return tops, [top + height for top, height in zip(tops, heights, strict=True)], max(y - GAP_Y, 0)


def _place(
    items: Sequence[tuple[int, int]], ranks: Sequence[int], links: Sequence[tuple[int, int]]
) -> tuple[list[float], list[int]]:
    """The center of every item, and its index in its rank; unconnected parts stand side by side."""
    middles = [0.0] * len(items)
    orders = [0] * len(items)
    left = 0.0
    for members, within in _parts(len(items), links):
        _arrange(members, within, ranks, items, middles)
        low = min(middles[at] - items[at][0] / 2 for at in members)
        for at in members:
            middles[at] += left - low
        left = max(middles[at] + items[at][0] / 2 for at in members) + GAP_X
    by_rank: dict[int, list[int]] = {}
    for at, rank in enumerate(ranks):
        by_rank.setdefault(rank, []).append(at)
    for row in by_rank.values():
        for place, at in enumerate(sorted(row, key=lambda at: middles[at])):
            orders[at] = place
    return middles, orders


def _parts(count: int, links: Sequence[tuple[int, int]]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Connected components: items and links. grandalf computes them, too, in quadratic time."""
    head = [*range(count)]

    def root(at: int) -> int:
        while head[at] != at:
            head[at] = at = head[head[at]]
        return at

    for a, b in links:
        low, high = sorted((root(a), root(b)))
        head[high] = low
    members: dict[int, list[int]] = {}
    within: dict[int, list[tuple[int, int]]] = {}
    for at in range(count):
        members.setdefault(root(at), []).append(at)
    for link in links:
        within.setdefault(root(link[0]), []).append(link)
    for at, some in members.items():
        yield some, within.get(at, [])


class _RankedLayout(SugiyamaLayout):  # type: ignore[misc]
    """Grandalf's layout with given ranks: every edge leads from one rank to the next."""

    def __init__(self, part: Any, ranks: Sequence[int]) -> None:
        super().__init__(part)
        self.xspace = GAP_X
        self._known = ranks

    def rank_all(self, roots: Any, optimize: bool = False) -> None:
        """Keeps the given ranks."""
        first = min(self._known[vertex.data] for vertex in self.g.sV)
        last = max(self._known[vertex.data] for vertex in self.g.sV)
        self.layers = [Layer() for _ in range(first, last + 1)]
        for vertex in self.g.sV:
            rank = self.grx[vertex].rank = self._known[vertex.data] - first
            self.layers[rank].append(vertex)


def _arrange(
    members: Sequence[int],
    links: Sequence[tuple[int, int]],
    ranks: Sequence[int],
    items: Sequence[tuple[int, int]],
    middles: list[float],
) -> None:
    """Sets the centers of connected items."""
    together = object()
    vertices = {at: Vertex(at) for at in members}
    for at, vertex in vertices.items():
        vertex.view = _Point(*items[at])
        vertex.c = together  # otherwise grandalf compares all joined components at every edge
    edges = [Edge(vertices[a], vertices[b]) for a, b in links]
    layout = _RankedLayout(graph_core([*vertices.values()], edges), ranks)
    with _recursion():
        layout.init_all(roots=[], inverted_edges=[])
        for _ in range(_ROUNDS):
            for _ in layout.ordering_step():
                pass
        layout.setxy()
    for layer in layout.layers:
        # compaction may make items overlap
        edge = -math.inf
        for at, middle in sorted(((v.data, v.view.xy[0]) for v in layer), key=lambda pair: pair[1]):
            half = items[at][0] / 2
            middles[at] = max(middle, edge + half)
            edge = middles[at] + half + (GAP_X if items[at][0] > 1 else 1)


@contextmanager
def _recursion() -> Iterator[None]:
    """Raises the recursion limit for grandalf, which recurses from box to box."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
