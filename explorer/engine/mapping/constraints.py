"""Parses the constraints of a search: limits on the tile of the first level and on the order of its loops.

A constraint is a word such as `n%32` (a multiple of 32), `k<=256`, `k>=64`, `m=128` or `order=mnk`; `m`, `k`
and `n` are the lengths of the tile. Several constraints are separated by spaces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias, get_args

import numpy as np

from explorer.base.errors import Misuse, suggest_name
from explorer.facts.mapping import LoopOrder

_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_WORD = re.compile(r"([mkn])(%|<=|>=|=)(\d{1,18})", re.ASCII)
"""Pattern of one constraint: axis, relation and number."""
_TESTS: dict[str, Callable[[_Numbers, int], _Numbers]] = {
    "%": lambda lengths, value: lengths % value == 0,
    "<=": lambda lengths, value: lengths <= value,
    ">=": lambda lengths, value: lengths >= value,
    "=": lambda lengths, value: lengths == value,
}


class Constraints(NamedTuple):
    """Limits on the mappings of a search.

    Attributes:
        limits: Axis, comparison and number of each limit on the tile of the first level.
        orders: Orders of the loops of the first level, or an empty tuple for every order.
    """

    limits: tuple[tuple[str, str, int], ...] = ()
    orders: tuple[LoopOrder, ...] = ()

    def list_masks(self, lengths: tuple[_Numbers, _Numbers, _Numbers]) -> Iterator[tuple[str, _Numbers]]:
        """Yields each limit as text, with the tiles that meet it."""
        for axis, sign, value in self.limits:
            yield f"{axis}{sign}{value}", _TESTS[sign](lengths["mkn".index(axis)], value)

    def list_axis_masks(self, lengths: list[_Numbers]) -> Iterator[tuple[str, int, _Numbers]]:
        """Yields each limit as text, with its axis and the lengths of the axis that meet it.

        The caller may shorten the lengths of an axis between two limits.
        """
        for axis, sign, value in self.limits:
            index = "mkn".index(axis)
            yield f"{axis}{sign}{value}", index, _TESTS[sign](lengths[index], value)


def parse_constraints(text: str) -> Constraints:
    """Reads constraints: 'n%32 k<=256 order=mnk'.

    Raises:
        Misuse: A word is not a constraint.
    """
    limits = []
    orders: list[LoopOrder] = []
    for word in text.split():
        match = _WORD.fullmatch(word)
        key, _, order = word.partition("=")
        if match and int(match[3]) > 0:
            limits.append((match[1], match[2], int(match[3])))
        elif key == "order" and order in get_args(LoopOrder):
            if orders:
                message = f"'{word}' is a second order after 'order={orders[0]}'"
                raise Misuse(message, where="--constrain", hint="leave one of them out")
            orders.append(order)  # type: ignore[arg-type]
        else:
            hint = "write n%32, k<=256 or order=mnk"
            if key == "order":
                hint = suggest_name(order, get_args(LoopOrder))
            raise Misuse(f"'{word}' is not a constraint", where="--constrain", hint=hint)
    return Constraints(tuple(limits), tuple(orders))
