"""Rules for sites: the settings of one site, from the rules that match it and the specification.

The first matching rule that sets a value decides it; else the specification does. So one rule may set the
tile of all convolutions while another, above or below it, switches one of them off.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_args

from msgspec import Struct

from explorer.base.errors import Misuse, nearest
from explorer.facts import Edges, Form, TileRule, TileSpec
from explorer.facts.quantize import QuantizeRule
from explorer.facts.tiling import MAX_TILE
from explorer.settings.parse import parse_conditions

_SIGNS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


class SiteChoice(Struct, frozen=True):
    """The settings of a site.

    Attributes:
        tile, edges, form: The requested values.
        on: Whether it is tiled at all.
        origins: The source of each value: 'npu.toml:12', 'command line', or '' for the default.
    """

    tile: tuple[int, int, int]
    edges: Edges
    form: Form
    on: bool
    origins: Mapping[str, str]


_SEARCH_SECONDS = 1.0
"""Seconds that a user's regular expression may take on a name: some would take forever."""

SiteRule = TileRule | QuantizeRule
Rule = TypeVar("Rule", bound=SiteRule)


def name_matcher(pattern: str, where: str) -> Callable[[str], Any]:
    """A function that tests whether a name matches a glob, or 're:' with a regular expression.

    A regular expression may match any part of a name; a glob must match all of it.

    Raises:
        Misuse: The expression is invalid, or takes too long (raised when names are tested).
    """
    if not pattern.startswith("re:"):
        return re.compile(fnmatch.translate(pattern)).match
    import regex  # takes 30 ms, and few patterns need it

    try:
        search = regex.compile(pattern[3:]).search
    except regex.error as error:
        raise Misuse(f"'{pattern}' is no regular expression ({error})", where=where) from None

    def matches(name: str) -> Any:
        try:
            # keep the GIL: waiting for other threads takes longer than testing a few names
            return search(name, timeout=_SEARCH_SECONDS, concurrent=False)
        except TimeoutError:
            raise Misuse(
                f"'{pattern}' takes more than {_SEARCH_SECONDS:g} s on one name",
                where=where,
                hint="write it without repetitions inside repetitions, such as (a+)+",
            ) from None

    return matches


class Rules(Generic[Rule]):
    """Rules prepared for many sites.

    A file written by the program has a rule with the name of every site; those are looked up, and only globs
    are tested one by one.

    Args:
        rules: The rules of a specification.

    Raises:
        Misuse: A condition on the shape, or a regular expression, is invalid.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._named: dict[str, list[int]] = {}
        self._globs: list[tuple[int, Callable[[str], Any]]] = []
        self._conditions = [parse_conditions(rule.shape, rule.origin or "shape") for rule in rules]
        for index, rule in enumerate(rules):
            self._named.setdefault(rule.site, []).append(index)
            if not rule.site or rule.site.startswith("re:") or any(sign in rule.site for sign in "*?["):
                self._globs.append((index, name_matcher(rule.site or "*", rule.origin or "site")))

    def matching(self, name: str, op: str, sizes: tuple[int, int, int] | None) -> Iterator[tuple[int, Rule]]:
        """The rules that match a site, with their places; `sizes` are its (M, K, N).

        A complete name matches itself, even if it contains glob characters. Without sizes, no condition on
        the shape matches.
        """
        places = {index for index, matches in self._globs if matches(name)}
        places.update(self._named.get(name, ()))
        size_by_axis = dict(zip("MKN", sizes or (), strict=False))
        for index in sorted(places):
            rule = self.rules[index]
            if rule.op and not fnmatch.fnmatchcase(op, rule.op):
                continue
            if all(
                axis in size_by_axis and _SIGNS[sign](size_by_axis[axis], size)
                for axis, sign, size in self._conditions[index]
            ):
                yield index, rule


def tile_rules(rules: Sequence[TileRule]) -> Rules[TileRule]:
    """Prepares the rules of a tiling.

    Raises:
        Misuse: A rule has an impossible value; or see `Rules`.
    """
    for rule in rules:
        _check_rule(rule)
    return Rules(rules)


def _check_rule(rule: TileRule) -> None:
    """Refuses impossible values, with the rule's origin; rules from Python were not checked before."""
    where = rule.origin or "a rule"
    for name, value, choices in (("form", rule.form, get_args(Form)), ("edges", rule.edges, get_args(Edges))):
        if value is not None and value not in choices:
            raise Misuse(f"{name} '{value}' is not known", where=where, hint=nearest(value, choices))
    if rule.tile is not None:
        check_tile(rule.tile, where)


def check_tile(tile: Sequence[int], where: str = "--tile") -> tuple[int, int, int]:
    """`tile` as (TM, TK, TN).

    Raises:
        Misuse: It is not three integers from 1 to 65,536.
    """
    if len(tile) != 3 or not all(isinstance(t, int) and 0 < t <= MAX_TILE for t in tile):
        hint = f"give three sizes from 1 to {MAX_TILE:,}"
        raise Misuse(f"a tile of {'x'.join(map(str, tile))} cannot be", where=where, hint=hint)
    return tile[0], tile[1], tile[2]


_last: tuple[Sequence[TileRule], Rules[TileRule]] = ((), Rules(()))
"""The last rules and their prepared form: a plan uses the same rules for every site."""


def choose(spec: TileSpec, name: str, op: str, sizes: tuple[int, int, int]) -> SiteChoice:
    """The settings that `spec` gives a site; `sizes` are its (M, K, N).

    Raises:
        Misuse: See `tile_rules`.
    """
    values: dict[str, Any] = {"tile": spec.tile, "edges": spec.edges, "form": spec.form, "on": True}
    rules = _prepared_rules(spec.rules).matching(name, op, sizes) if spec.rules else ()
    return SiteChoice(**values | {"origins": decide(values, spec.origins, rules)})


def decide(
    values: dict[str, Any], spec_origins: Iterable[tuple[str, str]], rules: Iterable[tuple[int, SiteRule]]
) -> dict[str, str]:
    """Sets each value from the first rule that has it; returns the origin of each, '' for the default."""
    origins = dict.fromkeys(values, "") | {name: origin for name, origin in spec_origins if name in values}
    undecided = set(values)
    for _, rule in rules:
        for name in [field for field in undecided if getattr(rule, field) is not None]:
            values[name], origins[name] = getattr(rule, name), rule.origin
            undecided.discard(name)
    return origins


def _prepared_rules(rules: Sequence[TileRule]) -> Rules[TileRule]:
    global _last
    last_rules, ready = _last
    if last_rules is not rules:
        ready = tile_rules(rules)
        _last = (rules, ready)
    return ready


def packing(spec: TileSpec) -> Callable[[str, str, tuple[int, int, int]], tuple[int, int]]:
    """The tiles for packing the groups of a convolution: (TK, TN) of the tile that `spec` gives it."""

    def pack(name: str, op: str, sizes: tuple[int, int, int]) -> tuple[int, int]:
        _, depth, columns = choose(spec, name, op, sizes).tile
        return depth, columns

    return pack
