"""Grouping of equal rows: a model of 12 equal layers has 97 matmuls, and eight kinds of them.

A table of 97 rows is read by nobody; its JSON has every row.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

MANY = 24
"""Rows that are shown as they are."""

Row = TypeVar("Row")


def alike(rows: Sequence[Row], sort: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Rows of one sort together, in the order of the first of each; every row by itself if there are few."""
    if len(rows) <= MANY:
        return [[row] for row in rows]
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(sort(row), []).append(row)
    return list(groups.values())


def and_more(names: Sequence[str]) -> str:
    """The first of several names, and how many there are beside it."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
