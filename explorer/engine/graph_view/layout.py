"""Layered layout (Sugiyama): places boxes in ranks, with few crossings, and routes edges between them.

This module computes the ranks and the chains. A chain is the list of points of a long edge, with one point in
each rank that the edge passes. grandalf computes the order within ranks and the positions, in 0.1 s for 300
boxes. If every layer reads all earlier ones (DenseNet), one chain for each edge would have quadratic cost.
All edges of one box therefore share one chain, and the total length of the chains is limited.
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
"""Maximum number of points in all chains. The longest edges beyond this limit are not routed."""
GAP_X, GAP_Y = 3, 3
"""Cells between two boxes of a rank, and between two ranks."""

_ROUNDS = 3
"""Number of times that grandalf improves the order within the ranks."""

_RECURSION_LIMIT = 20_000
"""Recursion limit for grandalf, which recurses at most once for every box and point."""


class BoxPlace(Struct, frozen=True):
    """The position of a box.

    Attributes:
        rank: Index of the box's rank, from the top.
        order: Index of the box in its rank, from the left.
        x, y: Left and top edge of the box, in cells.
    """

    rank: int
    order: int
    x: int
    y: int


class Layout(Struct, frozen=True):
    """The result of a layout.

    Attributes:
        places: Position of each box.
        routes: Points (x, y) of each edge in cells, from source to target; empty for an edge beyond
            `MAX_CHAIN`.
        width, height: Size of the drawing in cells.
    """

    places: tuple[BoxPlace, ...]
    routes: tuple[tuple[tuple[int, int], ...], ...]
    width: int
    height: int


class _View:
    """A box in grandalf's form: grandalf reads its width and height, and sets the position of its center."""

    __slots__ = ("h", "w", "xy")

    def __init__(self, width: int, height: int) -> None:
        self.w, self.h = width, height
        self.xy = (0.0, 0.0)


def lay_out(sizes: Sequence[tuple[int, int]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Places boxes and routes edges.

    Args:
        sizes: Width and height of every box in cells. Boxes are in reading order, and an edge to an earlier
            box is drawn upward.
        edges: Source and target of each edge, as indices into `sizes`, without loops or duplicates.
    """
    down_edges = [(min(edge), max(edge)) for edge in edges]
    ranks = _compute_ranks(len(sizes), down_edges)
    chains = _choose_chains(ranks, down_edges)
    items = [*sizes]
    item_ranks = [*ranks]
    links: dict[tuple[int, int], None] = {}
    chain_items: dict[tuple[int, int], int] = {}
    for source, last in chains.items():
        previous = source
        for rank in range(ranks[source] + 1, last):
            chain_items[source, rank] = len(items)
            links[previous, len(items)] = None
            previous = len(items)
            items.append((1, 1))
            item_ranks.append(rank)
    for source, target in down_edges:
        previous = chain_items.get((source, ranks[target] - 1), source)
        if ranks[target] == ranks[source] + 1 or previous != source:
            links[previous, target] = None
    centers, orders = _place(items, item_ranks, [*links])
    tops, bottoms, height = _compute_levels(items, item_ranks)
    places = tuple(
        BoxPlace(ranks[index], orders[index], round(centers[index] - sizes[index][0] / 2), tops[ranks[index]])
        for index in range(len(sizes))
    )
    routes: list[tuple[tuple[int, int], ...]] = []
    for original, (source, target) in zip(edges, down_edges, strict=True):
        passed_ranks = range(ranks[source] + 1, ranks[target])
        if passed_ranks and (source, passed_ranks[-1]) not in chain_items:
            routes.append(())
            continue
        points = [(int(centers[source]), tops[ranks[source]] + sizes[source][1])]
        for point in (chain_items[source, rank] for rank in passed_ranks):
            points += [
                (int(centers[point]), tops[item_ranks[point]]),
                (int(centers[point]), bottoms[item_ranks[point]]),
            ]
        points.append((int(centers[target]), tops[ranks[target]] - 1))
        routes.append(tuple(points if original == (source, target) else points[::-1]))
    width = max((place.x + size[0] for place, size in zip(places, sizes, strict=True)), default=0)
    width = max([width, *(x + 1 for route in routes for x, _ in route)])
    return Layout(places, tuple(routes), width, height)


def _compute_ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the rank of each box: the number of edges on the longest path to it.

    A box without inputs has the rank just above its first reader.
    """
    ranks = [0] * count
    readers: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        readers[source].append(target)
    for source in range(count):
        for target in readers[source]:
            ranks[target] = max(ranks[target], ranks[source] + 1)
    targets = {target for _, target in edges}
    for source in range(count):
        if source not in targets and readers[source]:
            ranks[source] = min(ranks[target] for target in readers[source]) - 1
    return ranks


def _choose_chains(ranks: Sequence[int], edges: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Returns the rank of the farthest reader of each box that has a chain, shortest chains first.

    A box with an edge over several ranks has a chain, which ends one rank before this reader. The longest
    chains are left out if all chains together have more than `MAX_CHAIN` points.
    """
    last_rank: dict[int, int] = {}
    for source, target in edges:
        if ranks[target] > ranks[source] + 1:
            last_rank[source] = max(last_rank.get(source, 0), ranks[target])
    points_left = MAX_CHAIN
    chains = {}
    for source in sorted(last_rank, key=lambda source: last_rank[source] - ranks[source]):
        points_left -= last_rank[source] - ranks[source] - 1
        if points_left < 0:
            break
        chains[source] = last_rank[source]
    return chains


def _compute_levels(
    items: Sequence[tuple[int, int]], ranks: Sequence[int]
) -> tuple[list[int], list[int], int]:
    """Returns the tops of all ranks, their bottoms, and the total height, in cells."""
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
    """Returns the center of every item, and its index in its rank.

    Unconnected parts are placed side by side.
    """
    centers = [0.0] * len(items)
    orders = [0] * len(items)
    next_x = 0.0
    for members, part_links in _find_components(len(items), links):
        _arrange(members, part_links, ranks, items, centers)
        low = min(centers[index] - items[index][0] / 2 for index in members)
        for index in members:
            centers[index] += next_x - low
        next_x = max(centers[index] + items[index][0] / 2 for index in members) + GAP_X
    by_rank: dict[int, list[int]] = {}
    for index, rank in enumerate(ranks):
        by_rank.setdefault(rank, []).append(index)
    for row in by_rank.values():
        for order, index in enumerate(sorted(row, key=lambda index: centers[index])):
            orders[index] = order
    return centers, orders


def _find_components(
    count: int, links: Sequence[tuple[int, int]]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Yields the items and links of each connected component.

    grandalf computes components, too, but in quadratic time.
    """
    parents = [*range(count)]

    def find_root(index: int) -> int:
        while parents[index] != index:
            parents[index] = index = parents[parents[index]]
        return index

    for a, b in links:
        low, high = sorted((find_root(a), find_root(b)))
        parents[high] = low
    members: dict[int, list[int]] = {}
    links_by_root: dict[int, list[tuple[int, int]]] = {}
    for index in range(count):
        members.setdefault(find_root(index), []).append(index)
    for link in links:
        links_by_root.setdefault(find_root(link[0]), []).append(link)
    for index, items in members.items():
        yield items, links_by_root.get(index, [])


class _RankedLayout(SugiyamaLayout):  # type: ignore[misc]
    """A layout of grandalf with fixed ranks, in which every edge leads from one rank to the next."""

    def __init__(self, part: Any, ranks: Sequence[int]) -> None:
        super().__init__(part)
        self.xspace = GAP_X
        self._fixed_ranks = ranks

    def rank_all(self, roots: Any, optimize: bool = False) -> None:
        """Assigns the fixed ranks."""
        first = min(self._fixed_ranks[vertex.data] for vertex in self.g.sV)
        last = max(self._fixed_ranks[vertex.data] for vertex in self.g.sV)
        self.layers = [Layer() for _ in range(first, last + 1)]
        for vertex in self.g.sV:
            rank = self.grx[vertex].rank = self._fixed_ranks[vertex.data] - first
            self.layers[rank].append(vertex)


def _arrange(
    members: Sequence[int],
    links: Sequence[tuple[int, int]],
    ranks: Sequence[int],
    items: Sequence[tuple[int, int]],
    centers: list[float],
) -> None:
    """Sets the centers of the items of one connected component."""
    component = object()
    vertices = {index: Vertex(index) for index in members}
    for index, vertex in vertices.items():
        vertex.view = _View(*items[index])
        vertex.c = component  # with one component, grandalf does not compare components at every edge
    edges = [Edge(vertices[a], vertices[b]) for a, b in links]
    layout = _RankedLayout(graph_core([*vertices.values()], edges), ranks)
    with _raise_recursion_limit():
        layout.init_all(roots=[], inverted_edges=[])
        for _ in range(_ROUNDS):
            for _ in layout.ordering_step():
                pass
        layout.setxy()
    for layer in layout.layers:
        # grandalf's compaction can make items overlap
        right_edge = -math.inf
        for index, center in sorted(((v.data, v.view.xy[0]) for v in layer), key=lambda pair: pair[1]):
            half_width = items[index][0] / 2
            centers[index] = max(center, right_edge + half_width)
            right_edge = centers[index] + half_width + (GAP_X if items[index][0] > 1 else 1)


@contextmanager
def _raise_recursion_limit() -> Iterator[None]:
    """Raises the recursion limit for grandalf, which recurses from box to box."""
    previous_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(previous_limit, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(previous_limit)
