"""Finds Pareto fronts: the mappings that no other mapping undercuts in all figures."""

from __future__ import annotations

import numpy as np

from explorer.engine.mapping.tile_figures import Numbers

_TOLERANCE = 1.01
"""Factor by which a mapping on the front must undercut every other mapping in some figure. It keeps fronts
small."""


def find_front(points: Numbers) -> list[int]:
    """Finds the points that no other point undercuts in all figures.

    Of several points within 1 % of each other in every figure, only the first remains.

    Args:
        points: A row for each point, with figures of which smaller ones are better.

    Returns:
        Indices of the points, ordered by their figures.
    """
    remaining = np.lexsort(points.T[::-1])
    front = []
    while len(remaining):
        first = int(remaining[0])
        front.append(first)
        remaining = remaining[~is_undercut(points[remaining], points[first : first + 1])]
    return front


def is_undercut(points: Numbers, front: Numbers) -> Numbers:
    """Returns for each point whether a point of the front is at most 1 % above it in every figure."""
    undercut = np.zeros(len(points), dtype=bool)
    for row in front:
        undercut |= (row <= points * _TOLERANCE).all(axis=1)
    return undercut
