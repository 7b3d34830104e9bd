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
from typing import Any

from msgspec.structs import replace

from explorer.facts import Plan, TileRule, TileSpec
from explorer.settings.option_values import with_typed
from explorer.settings.tables import content, read_spec, written_spec


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
    return with_typed(TileSpec() if path is None else read(path), typed)


def read(path: str) -> TileSpec:
    """What a file says: its `[tile]`, with the defaults where it says nothing, and its `[[site]]` tables.

    Raises:
        Misuse: It cannot be read, is no TOML, or says something that cannot be.
    """
    return read_text(content(path), path)


def read_text(data: bytes | str, path: str) -> TileSpec:
    """As `read`, of what stands in the file `path`."""
    return read_spec(data, path, TileSpec, TileRule, table="tile", rules=("site",))


def as_toml(spec: TileSpec, heading: Sequence[str] = ()) -> str:
    """A file that says what `spec` says: only what differs from the defaults, and the rules.

    Args:
        spec: The specification.
        heading: Lines of comment above it.
    """
    return written_spec(spec, table="tile", rules=("site",), heading=heading)


def chosen_by_hand(plans: Sequence[Plan], every: Sequence[str]) -> TileSpec:
    """What was tiled, one plan after the other, as rules by the names of sites.

    Args:
        plans: What was done; a site that stands in two is as in the later one.
        every: All sites of the model as it was opened; those that no plan has are switched off.
    """
    rule_by_site: dict[str, TileRule] = {}
    for plan in plans:
        for site in plan.sites:
            # what is the default anyway is left out; so are the edges of the batched form, which has one kind
            edges = site.edges if site.form != "batched" else plan.edges
            rule_by_site[site.name] = TileRule(
                escape_glob(site.name),
                tile=site.tile,
                edges=edges if edges != TileSpec().edges else None,  # type: ignore[arg-type]
                form=site.form if plan.form != "auto" else None,  # type: ignore[arg-type]
            )
    rest = set(every) - rule_by_site.keys()
    rules = (
        [replace(rule, on=True) for rule in rule_by_site.values()] if rest else list(rule_by_site.values())
    )
    return TileSpec(rules=(*rules, TileRule("*", on=False)) if rest else tuple(rules))


def escape_glob(name: str) -> str:
    """A glob that means the site `name` and no other."""
    return re.sub(r"([*?[])", r"[\1]", name)
