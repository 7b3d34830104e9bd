"""Batches within a size limit, for values held in memory together or nodes run in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def batches(
    items: Iterable[_T], size: Callable[[_T], int], most: int, *, count: int | None = None
) -> Iterator[list[_T]]:
    """Splits items into groups whose total size stays within a limit, in order.

    Args:
        items: The items to group.
        size: Function that returns the size of an item.
        most: Maximum total size of a group. A larger item forms its own group.
        count: Maximum number of items in a group, or None for no maximum.
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
