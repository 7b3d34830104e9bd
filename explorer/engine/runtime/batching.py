"""Batches within a size limit, for values held in memory together or nodes run in one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_T = TypeVar("_T")


def split_into_batches(
    items: Iterable[_T], size: Callable[[_T], int], max_total: int, *, count: int | None = None
) -> Iterator[list[_T]]:
    """Splits items into groups whose total size stays within a limit, in order.

    Args:
        items: The items to group.
        size: Function that returns the size of an item.
        max_total: Maximum total size of a group. A larger item forms its own group.
        count: Maximum number of items in a group, or None for no maximum.
    """
    group: list[_T] = []
    total = 0
    for item in items:
        item_size = size(item)
        if group and (total + item_size > max_total or len(group) == count):
            yield group
            group, total = [], 0
        group.append(item)
        total += item_size
    if group:
        yield group
