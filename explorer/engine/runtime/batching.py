"""Batches of work that fit: values that are held in memory together, nodes that are run in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def batches(
    items: Iterable[_T], size: Callable[[_T], int], most: int, *, count: int | None = None
) -> Iterator[list[_T]]:
    """The items in order, in groups.

    Args:
        items: What is grouped.
        size: Of an item.
        most: What the sizes in a group may add up to; an item above it stands alone.
        count: How many items a group may have.
    """
    group: list[_T] = []
    total = 0
    for element in items:
        element_size = size(element)
        if group and (total + element_size > most or len(group) == count):
            yield group
            group, total = [], 0
        group.append(element)
        total += element_size
    if group:
        yield group
