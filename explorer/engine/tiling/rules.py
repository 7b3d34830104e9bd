"""Rules for one site: the specification, and the rules that speak of this site in particular.

A value is decided by the first rule that speaks of it and means the site; else by the specification. So a
rule may set the tile of all convolutions while another, above or below it, switches one of them off.
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


_LONGEST_SEARCH = 1.0
"""Seconds that a user's regular expression may take on a name: some take longer than anybody lives."""

SiteRule = TileRule | QuantizeRule
Rule = TypeVar("Rule", bound=SiteRule)


def name_matcher(pattern: str, where: str) -> Callable[[str], Any]:
    """What tells the names that a glob, or 're:' and a regular expression, means.

    A regular expression may be found anywhere in a name, a glob means all of it.

    Raises:
        Misuse: The expression cannot be read; or, as names are matched, it takes too long.
    """
    if not pattern.startswith("re:"):
        return re.compile(fnmatch.translate(pattern)).match
    import regex  # 30 ms, and few patterns are regular expressions

    try:
        search = regex.compile(pattern[3:]).search
    except regex.error as error:
        raise Misuse(f"'{pattern}' is no regular expression ({error})", where=where) from None

    def matches(name: str) -> Any:
        try:
            # without other threads, which a search of a few names would wait for
            return search(name, timeout=_LONGEST_SEARCH, concurrent=False)
        except TimeoutError:
            raise Misuse(
                f"'{pattern}' takes more than {_LONGEST_SEARCH:g} s on one name",
                where=where,
                hint="write it without repetitions inside repetitions, such as (a+)+",
            ) from None

    return matches


class Rules(Generic[Rule]):
    """Rules made ready to be asked for many sites.

    A file that the program wrote has a rule for every site by its name: those are looked up, and only globs
    are tried one by one.

    Args:
        rules: As a specification has them.

    Raises:
        Misuse: Conditions on the shape, or a regular expression, cannot be read.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        self._named: dict[str, list[int]] = {}
        self._globs: list[tuple[int, Callable[[str], Any]]] = []
        self._conditions = [parse_conditions(rule.shape, rule.origin or "shape") for rule in rules]
        for at, rule in enumerate(rules):
            self._named.setdefault(rule.site, []).append(at)
            if not rule.site or rule.site.startswith("re:") or any(sign in rule.site for sign in "*?["):
                self._globs.append((at, name_matcher(rule.site or "*", rule.origin or "site")))

    def of(self, name: str, op: str, sizes: tuple[int, int, int] | None) -> Iterator[tuple[int, Rule]]:
        """The rules that mean the site `name`, an `op` of `sizes` (M, K, N), with their places.

        A name that is written out in full means itself, whatever signs of a glob it holds. Where the sizes
        are not known no condition on them holds.
        """
        places = {at for at, matches in self._globs if matches(name)}
        places.update(self._named.get(name, ()))
        of = dict(zip("MKN", sizes or (), strict=False))
        for at in sorted(places):
            rule = self.rules[at]
            if rule.op and not fnmatch.fnmatchcase(op, rule.op):
                continue
            if all(axis in of and _SIGNS[sign](of[axis], size) for axis, sign, size in self._conditions[at]):
                yield at, rule


def tile_rules(rules: Sequence[TileRule]) -> Rules[TileRule]:
    """Rules of a tiling.

    Raises:
        Misuse: One asks for what cannot be; or see `Rules`.
    """
    for rule in rules:
        _check(rule)
    return Rules(rules)


def _check(rule: TileRule) -> None:
    """Refuses what cannot be, with the place where it was said; a program's rules come unread."""
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
"""The rules that were asked for last: a plan asks with the same ones for every site."""


def choose(spec: TileSpec, name: str, op: str, sizes: tuple[int, int, int]) -> SiteChoice:
    """What `spec` asks of the site `name`, an `op` of `sizes` (M, K, N).

    Raises:
        Misuse: See `tile_rules`.
    """
    values: dict[str, Any] = {"tile": spec.tile, "edges": spec.edges, "form": spec.form, "on": True}
    rules = _ready(spec.rules).of(name, op, sizes) if spec.rules else ()
    return SiteChoice(**values | {"origins": decide(values, spec.origins, rules)})


def decide(
    values: dict[str, Any], spec_origins: Iterable[tuple[str, str]], rules: Iterable[tuple[int, SiteRule]]
) -> dict[str, str]:
    """Lets the first rule that speaks of a value decide it; gives who said each one, '' for the default."""
    origins = dict.fromkeys(values, "") | {name: who for name, who in spec_origins if name in values}
    undecided = set(values)
    for _, rule in rules:
        for name in [field for field in undecided if getattr(rule, field) is not None]:
            values[name], origins[name] = getattr(rule, name), rule.origin
            undecided.discard(name)
    return origins


def _ready(rules: Sequence[TileRule]) -> Rules[TileRule]:
    global _last
    last_rules, ready = _last
    if last_rules is not rules:
        ready = tile_rules(rules)
        _last = (rules, ready)
    return ready


def packing(spec: TileSpec) -> Callable[[str, str, tuple[int, int, int]], tuple[int, int]]:
    """What the groups of a convolution are packed into: (TK, TN) of the tile that `spec` asks for it."""

    def pack(name: str, op: str, sizes: tuple[int, int, int]) -> tuple[int, int]:
        _, depth, columns = choose(spec, name, op, sizes).tile
        return depth, columns

    return pack
