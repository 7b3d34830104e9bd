"""Slices of a tensor in numpy's syntax: '[0:1, :8]', '3, ..., ::2', '-1'."""

from __future__ import annotations

import re
from typing import NamedTuple

from explorer.base.errors import Misuse
from explorer.base.units import shape_text

_INDEX = re.compile(r"[+-]?[0-9]{1,18}\Z")
_HINT = "write numpy notation: '0:1, :8', '3, ..., ::2', '-1'"


class Selection(NamedTuple):
    """Selection of a part of a tensor.

    Attributes:
        indices: Selected indices of each axis.
        dropped: Axes with a single index instead of a range; numpy removes them from the result.
    """

    indices: tuple[tuple[int, ...] | range, ...]
    dropped: frozenset[int] = frozenset()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of selected indices of each axis."""
        return tuple(len(axis) for axis in self.indices)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(size for axis, size in enumerate(self.sizes) if axis not in self.dropped)


def parse_slice(text: str, shape: tuple[int, ...], where: str = "--slice") -> Selection:
    """Parses a slice of a tensor with this shape. Axes that the slice omits are selected completely.

    Raises:
        Misuse: The text is invalid, has too many axes or an index out of range, or selects nothing from a
            nonempty axis.
    """
    content = text.strip()
    if content.startswith("[") and content.endswith("]"):
        content = content[1:-1]
    words = [word.strip() for word in content.split(",")]
    if words[-1] == "":
        words.pop()
    dots = words.count("...")
    axis_count = len(words) - dots
    if dots > 1 or axis_count > len(shape):
        fault = f"{shape_text(shape)} has {len(shape)} axes" if dots < 2 else "only one '...' has a meaning"
        raise Misuse(f"'{text}' does not fit: {fault}", where=where, hint=_HINT)
    dots_index = words.index("...") if dots else len(words)
    words[dots_index : dots_index + dots] = [":"] * (len(shape) - axis_count)
    indices: list[range] = []
    dropped = set()
    for axis, (word, size) in enumerate(zip(words, shape, strict=True)):
        if _INDEX.match(word):
            index = int(word)
            if not -size <= index < size:
                raise Misuse(f"axis {axis} has no index {index}: its size is {size:,}", where=where)
            indices.append(range(index % size, index % size + 1))
            dropped.add(axis)
            continue
        indices.append(range(size)[_parse_range(word, text, where)])
        if size and not indices[-1]:
            raise Misuse(f"'{word}' of axis {axis} holds nothing: its size is {size:,}", where=where)
    return Selection(tuple(indices), frozenset(dropped))


def _parse_range(word: str, text: str, where: str) -> slice:
    """Parses the range of one axis, such as '0:8' or '::2'; `text` is the complete slice, for errors."""
    ends = [end.strip() for end in word.split(":")]
    if len(ends) not in (2, 3) or not all(not end or _INDEX.match(end) for end in ends):
        raise Misuse(f"'{word or text}' is not a slice", where=where, hint=_HINT)
    numbers = [int(end) if end else None for end in ends]
    if len(numbers) == 3 and numbers[2] == 0:
        raise Misuse(f"the step of '{word}' is 0", where=where, hint=_HINT)
    return slice(*numbers)


def select_edges(selection: Selection, inner: int, outer: int) -> Selection:
    """Shortens long axes of a selection to their first and last indices.

    Args:
        selection: Selected indices.
        inner: Largest number of indices of each of the last two axes.
        outer: Largest number of indices of every other axis.
    """
    first_inner_axis = len(selection.indices) - 2

    def cut_axis(axis: tuple[int, ...] | range, limit: int) -> tuple[int, ...] | range:
        if len(axis) <= limit:
            return axis
        half = limit // 2
        return (*axis[: limit - half], *axis[len(axis) - half :])

    cut_axes = [
        cut_axis(axis, inner if index >= first_inner_axis else outer)
        for index, axis in enumerate(selection.indices)
    ]
    return Selection(tuple(cut_axes), selection.dropped)
