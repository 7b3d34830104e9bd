"""Tiling settings: a tile for all sites (matrix products) and rules for single sites, from TOML and options.

    [tile]
    tile = "64x64x64"         # or 64, or [64, 64, 64]: rows x depth x columns
    edges = "partial"
    form = "auto"
    grouped = "leave"
    accumulator = 24          # bits; sites whose integer sums do not fit are listed
    sites = ["*classifier*"]  # tile only these sites

    [[site]]                  # each value is from the first matching table that sets it
    site = "*fc2*"            # a name or a glob
    op = "Gemm"               # a glob
    shape = "M>=64 N<=1000"   # conditions on the sizes
    tile = 32
    on = false                # leave the site unchanged

The command line overrides the file, and the file overrides the defaults. The origin of every value is
recorded: the command line, or the line of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.facts import Plan, TileRule, TileSpec
from explorer.settings.option_values import apply_typed
from explorer.settings.tables import read_content, read_spec, write_spec


def build_spec(path: str | None, typed: Mapping[str, Any]) -> TileSpec:
    """Builds the effective specification: defaults, then the file, then the command line.

    A value from the command line holds for every site and overrides all tables of the file. `sites` from the
    command line also overrides tables that switch sites on or off.

    Args:
        path: Path of the file, or None.
        typed: Values typed on the command line, by field of `TileSpec`.

    Raises:
        Misuse: The file cannot be read or is invalid. The message names file and line.
    """
    return apply_typed(TileSpec() if path is None else read(path), typed)


def read(path: str) -> TileSpec:
    """Reads a file: the table `[tile]`, with defaults, and the tables `[[site]]`.

    Raises:
        Misuse: The file cannot be read, is not TOML, or is invalid.
    """
    return read_text(read_content(path), path)


def read_text(data: bytes | str, path: str) -> TileSpec:
    """Reads settings from the contents of the file `path`. See `read`."""
    return read_spec(data, path, TileSpec, TileRule, table="tile", rules=("site",))


def write_toml(spec: TileSpec, heading: Sequence[str] = ()) -> str:
    """Writes a specification as a file: the values that differ from the defaults, and the rules.

    Args:
        spec: Specification.
        heading: Lines of comment at the top.
    """
    return write_spec(spec, table="tile", rules=("site",), heading=heading)


def write_rules(plans: Sequence[Plan], all_sites: Sequence[str]) -> TileSpec:
    """Builds, for `write_toml`, a specification with the tilings of a session as rules by site name.

    Args:
        plans: Plans in the order in which they were applied. A later plan replaces an earlier one for the
            same site.
        all_sites: Names of all sites of the model as opened. A rule switches off the sites without a plan.
    """
    rule_by_site: dict[str, TileRule] = {}
    for plan in plans:
        for site in plan.sites:
            # a rule omits values that equal the defaults; a site in the batched form has no edges of its own
            edges = site.edges if site.form != "batched" else plan.edges
            rule_by_site[site.name] = TileRule(
                escape_glob(site.name),
                tile=site.tile,
                edges=edges if edges != TileSpec().edges else None,  # type: ignore[arg-type]
                form=site.form if plan.form != "auto" else None,  # type: ignore[arg-type]
            )
    skipped_sites = set(all_sites) - rule_by_site.keys()
    rules = (
        [replace(rule, on=True) for rule in rule_by_site.values()]
        if skipped_sites
        else list(rule_by_site.values())
    )
    return TileSpec(rules=(*rules, TileRule("*", on=False)) if skipped_sites else tuple(rules))


def escape_glob(name: str) -> str:
    """Makes a glob that matches only the site `name`."""
    return re.sub(r"([*?[])", r"[\1]", name)
