"""Rules for sites: resolves the settings of a site from the matching rules and the specification.

The first matching rule that sets a value decides it. Without such a rule, the specification decides. So one
rule may set the tile of all convolutions, and another rule, before or after it, may exclude one convolution.
"""

from __future__ import annotations

import fnmatch
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, get_args

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
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
        tile, edges, form: Requested values.
        on: Whether the site is tiled at all.
        origins: Origin of each value: 'npu.toml:12', 'command line', or '' for the default.
    """

    tile: tuple[int, int, int]
    edges: Edges
    form: Form
    on: bool
    origins: Mapping[str, str]


_SEARCH_SECONDS = 1.0
"""Time limit in seconds for a regular expression on one name, because some expressions never end."""

SiteRule = TileRule | QuantizeRule
Rule = TypeVar("Rule", bound=SiteRule)


def make_name_matcher(pattern: str, where: str) -> Callable[[str], Any]:
    """Returns a function that tests a name against a glob, or a regular expression after 're:'.

    A regular expression may match any part of a name. A glob must match the whole name.

    Raises:
        Misuse: The expression is invalid. The returned function raises it if the match takes too long.
    """
    if not pattern.startswith("re:"):
        return re.compile(fnmatch.translate(pattern)).match
    import regex  # imported here because it takes 30 ms and few patterns need it

    try:
        search = regex.compile(pattern[3:]).search
    except regex.error as error:
        raise Misuse(f"'{pattern}' is not a regular expression ({error})", where=where) from None

    def matches(name: str) -> Any:
        try:
            # keep the GIL, because waiting for it again takes longer than a few matches
            return search(name, timeout=_SEARCH_SECONDS, concurrent=False)
        except TimeoutError:
            raise Misuse(
                f"'{pattern}' takes more than {_SEARCH_SECONDS:g} s on one name",
                where=where,
                hint="write it without repetitions inside repetitions, such as (a+)+",
            ) from None

    return matches


class Rules(Generic[Rule]):
    """Rules prepared for matching many sites.

    A rule file written by the program has one rule for each site name. These rules are looked up by name.
    Only globs, regular expressions and rules without a site name are tested one by one.

    Args:
        rules: Rules of a specification.

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
                self._globs.append((index, make_name_matcher(rule.site or "*", rule.origin or "site")))

    def find_matching(
        self, name: str, op: str, sizes: tuple[int, int, int] | None
    ) -> Iterator[tuple[int, Rule]]:
        """Yields the rules that match a site, each with its index; `sizes` are M, K and N of the site.

        A complete name matches itself, even if it contains glob characters. Without sizes, no condition on
        the shape matches.
        """
        indices = {index for index, matches in self._globs if matches(name)}
        indices.update(self._named.get(name, ()))
        size_by_axis = dict(zip("MKN", sizes or (), strict=False))
        for index in sorted(indices):
            rule = self.rules[index]
            if rule.op and not fnmatch.fnmatchcase(op, rule.op):
                continue
            if all(
                axis in size_by_axis and _SIGNS[sign](size_by_axis[axis], size)
                for axis, sign, size in self._conditions[index]
            ):
                yield index, rule


def prepare_tile_rules(rules: Sequence[TileRule]) -> Rules[TileRule]:
    """Prepares the rules of a tiling.

    Raises:
        Misuse: A rule has an impossible value; or see `Rules`.
    """
    for rule in rules:
        _check_rule(rule)
    return Rules(rules)


def _check_rule(rule: TileRule) -> None:
    """Rejects impossible values, with the rule's origin. Rules from Python are first checked here."""
    where = rule.origin or "a rule"
    for name, value, choices in (("form", rule.form, get_args(Form)), ("edges", rule.edges, get_args(Edges))):
        if value is not None and value not in choices:
            raise Misuse(f"{name} '{value}' is not known", where=where, hint=suggest_name(value, choices))
    if rule.tile is not None:
        check_tile(rule.tile, where)


def check_tile(tile: Sequence[int], where: str = "--tile") -> tuple[int, int, int]:
    """Returns `tile` as (TM, TK, TN) after checking it.

    Raises:
        Misuse: The tile is not three integers from 1 to 65,536.
    """
    if len(tile) != 3 or not all(isinstance(t, int) and 0 < t <= MAX_TILE for t in tile):
        hint = f"give three sizes from 1 to {MAX_TILE:,}"
        raise Misuse(f"a tile of {'x'.join(map(str, tile))} is not possible", where=where, hint=hint)
    return tile[0], tile[1], tile[2]


_last: tuple[Sequence[TileRule], Rules[TileRule]] = ((), Rules(()))
"""Cache of the last rules and their prepared form, because all sites of a plan use the same rules."""


def choose_settings(spec: TileSpec, name: str, op: str, sizes: tuple[int, int, int]) -> SiteChoice:
    """Returns the settings that `spec` gives a site; `sizes` are M, K and N of the site.

    Raises:
        Misuse: A rule is invalid.
    """
    values: dict[str, Any] = {"tile": spec.tile, "edges": spec.edges, "form": spec.form, "on": True}
    rules = _prepare_rules(spec.rules).find_matching(name, op, sizes) if spec.rules else ()
    return SiteChoice(**values | {"origins": apply_rules(values, spec.origins, rules)})


def apply_rules(
    values: dict[str, Any], spec_origins: Iterable[tuple[str, str]], rules: Iterable[tuple[int, SiteRule]]
) -> dict[str, str]:
    """Sets each of `values` from the first rule that has it. Returns the origin of each value.

    Args:
        values: Defaults by name, which this function replaces.
        spec_origins: Pairs of a name and its origin, for values that the specification sets.
        rules: Matching rules in order, each with its index.
    """
    origins = dict.fromkeys(values, "") | {name: origin for name, origin in spec_origins if name in values}
    undecided = set(values)
    for _, rule in rules:
        for name in [field for field in undecided if getattr(rule, field) is not None]:
            values[name], origins[name] = getattr(rule, name), rule.origin
            undecided.discard(name)
    return origins


def _prepare_rules(rules: Sequence[TileRule]) -> Rules[TileRule]:
    global _last
    last_rules, prepared_rules = _last
    if last_rules is not rules:
        prepared_rules = prepare_tile_rules(rules)
        _last = (rules, prepared_rules)
    return prepared_rules


def make_packing(spec: TileSpec) -> Callable[[str, str, tuple[int, int, int]], tuple[int, int]]:
    """Returns a function that gives (TK, TN) of a convolution's tile by `spec`, for packing groups."""

    def pack(name: str, op: str, sizes: tuple[int, int, int]) -> tuple[int, int]:
        _, depth, columns = choose_settings(spec, name, op, sizes).tile
        return depth, columns

    return pack
