"""Pairs of choices: of three lists, so few combinations that any two choices still meet.

A fault that shows needs hardly ever three choices at once; all combinations take three times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["pairs", "turns"]


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations of three lists in which every choice meets each one of the other two lists.

    Of the two longer lists these are all combinations; the shortest goes round.
    """
    lists: list[Sequence[Any]] = [list(axis) for axis in axes]
    few, some, many = sorted(range(3), key=lambda at: len(lists[at]))
    found = []
    for i, one in enumerate(lists[many]):
        for j, other in enumerate(lists[some]):
            third = lists[few][(i + j) % len(lists[few])]
            chosen = {many: one, some: other, few: third}
            found.append(tuple(chosen[at] for at in range(3)))
    return found


def turns(cases: Iterable[Any], *axes: Sequence[Any], times: int = 2) -> list[tuple[Any, ...]]:
    """Each case `times` times, every time with the next choice of each axis, so that the choices go round."""
    return [
        (case, *(axis[(at * times + time) % len(axis)] for axis in axes))
        for at, case in enumerate(cases)
        for time in range(times)
    ]
