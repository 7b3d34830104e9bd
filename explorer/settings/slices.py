"""Slices of a tensor as numpy writes them: '[0:1, :8]', '3, ..., ::2', '-1'."""

from __future__ import annotations

import re
from typing import NamedTuple

from explorer.base.errors import Misuse
from explorer.base.units import shape_text

_INDEX = re.compile(r"[+-]?[0-9]{1,18}\Z")
_HINT = "as numpy has it: '0:1, :8', '3, ..., ::2', '-1'"


class Selection(NamedTuple):
    """Which indices of each axis are meant, and which axes numpy would leave out of the result."""

    indices: tuple[tuple[int, ...] | range, ...]
    dropped: frozenset[int] = frozenset()

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many indices of each axis."""
        return tuple(len(axis) for axis in self.indices)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return tuple(size for at, size in enumerate(self.sizes) if at not in self.dropped)


def parse_slice(text: str, shape: tuple[int, ...], where: str = "--slice") -> Selection:
    """What a slice means of a tensor of this shape; axes that it does not name are whole.

    Raises:
        Misuse: It cannot be read, names more axes than there are, an index that there is not, or nothing of
            an axis that has something.
    """
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1]
    words = [word.strip() for word in inner.split(",")]
    if words[-1] == "":
        words.pop()
    dots = words.count("...")
    named = len(words) - dots
    if dots > 1 or named > len(shape):
        fault = f"{shape_text(shape)} has {len(shape)} axes" if dots < 2 else "only one '...' has a meaning"
        raise Misuse(f"'{text}' does not fit: {fault}", where=where, hint=_HINT)
    at = words.index("...") if dots else len(words)
    words[at : at + dots] = [":"] * (len(shape) - named)
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
        indices.append(range(size)[_slice(word, text, where)])
        if size and not indices[-1]:
            raise Misuse(f"'{word}' of axis {axis} holds nothing: its size is {size:,}", where=where)
    return Selection(tuple(indices), frozenset(dropped))


def _slice(word: str, text: str, where: str) -> slice:
    ends = [end.strip() for end in word.split(":")]
    if len(ends) not in (2, 3) or not all(not end or _INDEX.match(end) for end in ends):
        raise Misuse(f"'{word or text}' is no slice", where=where, hint=_HINT)
    numbers = [int(end) if end else None for end in ends]
    if len(numbers) == 3 and numbers[2] == 0:
        raise Misuse(f"the step of '{word}' is 0", where=where, hint=_HINT)
    return slice(*numbers)


def edges(selection: Selection, most: int, outer: int) -> Selection:
    """A selection with the middle of long axes left out: first and last indices only.

    Args:
        selection: What is wanted.
        most: Indices that one of the last two axes keeps.
        outer: Indices that any other axis keeps.
    """
    last = len(selection.indices) - 2

    def cut(axis: tuple[int, ...] | range, many: int) -> tuple[int, ...] | range:
        if len(axis) <= many:
            return axis
        half = many // 2
        return (*axis[: many - half], *axis[len(axis) - half :])

    cuts = (cut(axis, most if at >= last else outer) for at, axis in enumerate(selection.indices))
    return Selection(tuple(cuts), selection.dropped)
