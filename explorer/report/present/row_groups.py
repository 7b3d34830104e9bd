"""Grouping of equal rows: a model of 12 equal layers has 97 matmuls, but only eight kinds of them.

Grouped tables are readable; the JSON documents contain all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

MAX_UNGROUPED = 24
"""Maximum number of rows that are shown without grouping."""

Row = TypeVar("Row")


def group_rows(rows: Sequence[Row], make_key: Callable[[Row], Hashable]) -> list[list[Row]]:
    """Group rows with equal keys, in order of first occurrence. Few rows are not grouped."""
    if len(rows) <= MAX_UNGROUPED:
        return [[row] for row in rows]
    groups: dict[Hashable, list[Row]] = {}
    for row in rows:
        groups.setdefault(make_key(row), []).append(row)
    return list(groups.values())


def list_first_names(names: Sequence[str]) -> str:
    """Return the first of several names, and the number of the others: 'fc1 and 3 more'."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1:,} more"
