"""What is asked of one site: the specification, and the rules that speak of this site in particular.

A value is decided by the first rule that speaks of it and means the site; else by the specification. So a
rule may set the tile of all convolutions while another, above or below it, switches one of them off.
"""

from __future__ import annotations

import fnmatch
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from msgspec import Struct

from explorer.arguments import parse_conditions
from explorer.facts import Edges, Form, TileRule, TileSpec

__all__ = ["Choice", "choose", "means"]

_SIGNS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_VALUES = ("tile", "edges", "form", "on")


class Choice(Struct, frozen=True):
    """What holds for a site.

    Attributes:
        tile, edges, form: As asked for.
        on: Whether it is tiled at all.
        origins: For each of these who said so: 'npu.toml:12', 'command line', or '' for the default.
    """

    tile: tuple[int, int, int]
    edges: Edges
    form: Form
    on: bool
    origins: Mapping[str, str]


def choose(spec: TileSpec, name: str, op: str, sizes: tuple[int, int, int]) -> Choice:
    """What `spec` asks of the site `name`, an `op` of `sizes` (M, K, N).

    Raises:
        Misuse: A rule's conditions on the shape cannot be read.
    """
    values: dict[str, Any] = {"tile": spec.tile, "edges": spec.edges, "form": spec.form, "on": True}
    said = dict(spec.origins)
    origins = {value: said.get(value, "") for value in _VALUES}
    open_values = set(_VALUES)
    for rule in spec.rules:
        speaks = [value for value in _VALUES if value in open_values and getattr(rule, value) is not None]
        if not speaks or not means(rule, name, op, sizes):
            continue
        for value in speaks:
            values[value], origins[value] = getattr(rule, value), rule.origin
        open_values.difference_update(speaks)
        if not open_values:
            break
    return Choice(**values, origins=origins)


def means(rule: TileRule, name: str, op: str, sizes: tuple[int, int, int]) -> bool:
    """Whether `rule` speaks of the site `name`, an `op` of `sizes` (M, K, N).

    A name that is written out in full means itself, whatever signs of a glob it holds.

    Raises:
        Misuse: Its conditions on the shape cannot be read.
    """
    if rule.site and rule.site != name and not fnmatch.fnmatchcase(name, rule.site):
        return False
    if rule.op and not fnmatch.fnmatchcase(op, rule.op):
        return False
    if not rule.shape:
        return True
    of = dict(zip("MKN", sizes, strict=True))
    return all(_SIGNS[sign](of[axis], size) for axis, sign, size in _conditions(rule.shape, rule.origin))


@lru_cache(maxsize=256)
def _conditions(text: str, where: str) -> tuple[tuple[str, str, int], ...]:
    return parse_conditions(text, where or "shape")
