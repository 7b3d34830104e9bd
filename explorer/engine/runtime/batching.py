"""Batches within a size limit: values held in memory together, nodes run in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def batches(
    items: Iterable[_T], size: Callable[[_T], int], most: int, *, count: int | None = None
) -> Iterator[list[_T]]:
    """Splits items into groups, in order.

    Args:
        items: The items to group.
        size: Returns the size of an item.
        most: Largest total size of a group; an item above it forms its own group.
        count: Most items in a group.
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
