"""Tiling file: tilings in a file of the user's own: a tile for all sites, and what is asked of some of them.

    [tile]
    tile = "64x64x64"         # or 64, or [64, 64, 64]: rows x depth x columns
    edges = "ragged"
    form = "auto"
    grouped = "leave"
    accumulator = 24          # bits: sums of integers that do not fit are named
    sites = ["*classifier*"]  # only these; all without it

    [[site]]                  # the first table that means a site and has a value decides that value
    site = "*fc2*"            # a name or a glob; so is op
    op = "Gemm"
    shape = "M>=64 N<=1000"   # conditions on the sizes
    tile = 32
    on = false                # leave it as it is

Precedence: the defaults, then the file, then what was typed on the command line. Every value knows where it
was said, down to the line.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import Edges, Form, Plan, TileRule, TileSpec
from explorer.facts.tiling import Grouped
from explorer.settings.parse import parse_tile
from explorer.settings.tables import (
    SettingsFile,
    accumulator_bits,
    content,
    flag,
    one_of,
    shape,
    text,
    texts,
    written,
)

COMMAND_LINE = "command line"
"""Origin of what was typed."""

_ASKS = frozenset({"tile", "edges", "form", "on"})
"""What a rule can ask for; one that asks for nothing is none."""


def spec_of(path: str | None, typed: Mapping[str, Any]) -> TileSpec:
    """The specification that holds: default < file < command line.

    What was typed holds for every site, over the file's own tables too; so does `sites`, which decides what
    is switched on.

    Args:
        path: Of the file; None for none.
        typed: Fields of `TileSpec` that were really typed.

    Raises:
        Misuse: The file cannot be read, or says something that cannot be; file and line are named.
    """
    spec = TileSpec() if path is None else read(path)
    unset = {value: None for value in ("tile", "edges", "form") if value in typed}
    if "sites" in typed:
        unset["on"] = None
    rules = tuple(replace(rule, **unset) for rule in spec.rules)
    said = {**dict(spec.origins), **dict.fromkeys(typed, COMMAND_LINE)}
    return replace(spec, **typed, rules=rules, origins=tuple(said.items()))


def read(path: str) -> TileSpec:
    """What a file says: its `[tile]`, with the defaults where it says nothing, and its `[[site]]` tables.

    Raises:
        Misuse: It cannot be read, is no TOML, or says something that cannot be.
    """
    return read_text(content(path), path)


def read_text(data: bytes | str, path: str) -> TileSpec:
    """As `read`, of what stands in the file `path`."""
    file = SettingsFile(data, path)
    values = file.values(("tile",), file.table("tile"), _GENERAL)
    rules = file.rules(("site",), file.content.get("site", []), _PARTICULAR, _ASKS)
    origins = tuple((name, file.origin(("tile", name))) for name in values)
    made = tuple(TileRule(**rule) for rule in rules)
    return TileSpec(**values, rules=made, origins=origins, config=path)


# values


def _tile(value: Any, where: str) -> tuple[int, int, int]:
    sizes = value if isinstance(value, list) else [value]
    if isinstance(value, str):
        return parse_tile(value, where)
    if all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return parse_tile("x".join(map(str, sizes)), where)
    raise Misuse(f"'{value}' is not a tile size", where=where, hint='write 64, "64x32x16" or [64, 32, 16]')


_BOTH: Mapping[str, Any] = {"tile": _tile, "edges": one_of(get_args(Edges)), "form": one_of(get_args(Form))}
_GENERAL: Mapping[str, Any] = {
    **_BOTH,
    "grouped": one_of(get_args(Grouped)),
    "accumulator": accumulator_bits,
    "sites": texts,
}
_PARTICULAR: Mapping[str, Any] = {"site": text, "op": text, "shape": shape, **_BOTH, "on": flag}


# writing


def as_toml(spec: TileSpec, heading: Sequence[str] = ()) -> str:
    """A file that says what `spec` says: only what differs from the defaults, and the rules.

    Args:
        spec: The specification.
        heading: Lines of comment above it.
    """
    general = {
        name: _plain(name, value)
        for name in _GENERAL
        if (value := getattr(spec, name)) != getattr(TileSpec(), name)
    }
    rules = [
        {
            name: _plain(name, value)
            for name in _PARTICULAR
            if (value := getattr(rule, name)) not in (None, "")
        }
        for rule in spec.rules
        if any(getattr(rule, name) is not None for name in _ASKS)
    ]
    return written({"tile": general, "site": rules}, heading)


def chosen_by_hand(plans: Sequence[Plan], every: Sequence[str]) -> TileSpec:
    """What was tiled, one plan after the other, as rules by the names of sites.

    Args:
        plans: What was done; a site that stands in two is as in the later one.
        every: All sites of the model as it was opened; those that no plan has are switched off.
    """
    chosen: dict[str, TileRule] = {}
    for plan in plans:
        for site in plan.sites:
            # what is the default anyway is left out; so are the edges of the batched form, which has one kind
            edges = site.edges if site.form != "batched" else plan.edges
            chosen[site.name] = TileRule(
                escape_glob(site.name),
                tile=site.tile,
                edges=edges if edges != TileSpec().edges else None,  # type: ignore[arg-type]
                form=site.form if plan.form != "auto" else None,  # type: ignore[arg-type]
            )
    rest = set(every) - chosen.keys()
    rules = [replace(rule, on=True) for rule in chosen.values()] if rest else list(chosen.values())
    return TileSpec(rules=(*rules, TileRule("*", on=False)) if rest else tuple(rules))


def _plain(name: str, value: Any) -> Any:
    return "x".join(map(str, value)) if name == "tile" else value


def escape_glob(name: str) -> str:
    """A glob that means the site `name` and no other."""
    return re.sub(r"([*?[])", r"[\1]", name)
