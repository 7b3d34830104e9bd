"""Settings in force: the settings of every site and their origins (`explorer settings`)."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from explorer.engine.tiling.rules import SiteRule, choose, tile_rules
from explorer.facts import SitePlan, TileSpec
from explorer.facts.settings import Settings, SiteSettings, UnusedRule

DEFAULT = "default"
OPEN = "open sizes"
"""The origin of padded edges at open sizes."""


def in_force(spec: TileSpec, every: Sequence[SitePlan], chosen_sites: Sequence[SitePlan]) -> Settings:
    """The settings that `spec` gives all sites.

    Args:
        spec: The specification.
        every: All sites.
        chosen_sites: The sites that `spec.sites` selects.

    Raises:
        Misuse: A rule's condition on the shape is invalid.
    """
    spec_origins = dict(spec.origins)
    meant = {site.output for site in chosen_sites}
    sites = []
    for site in every:
        choice = choose(spec, site.name, site.op, (site.M, site.K, site.N))
        origins = {value: origin or DEFAULT for value, origin in choice.origins.items()}
        on = choice.on and site.output in meant
        if site.output not in meant or (spec.sites and origins["on"] == DEFAULT):
            origins["on"] = spec_origins.get("sites", DEFAULT)
        edges = choice.edges
        if site.dynamic and edges != "padded":
            edges, origins["edges"] = "padded", OPEN
        values = choice.tile, edges, choice.form, on, origins
        sites.append(SiteSettings(site.name, site.op, site.M, site.K, site.N, *values))
    rules = tile_rules(spec.rules)
    used = {at for site in every for at, _ in rules.of(site.name, site.op, (site.M, site.K, site.N))}
    unused = [
        unused_rule(rule, [site.name for site in every])
        for at, rule in enumerate(spec.rules)
        if at not in used
    ]
    return Settings(spec.grouped, spec_origins.get("grouped", DEFAULT), tuple(sites), tuple(unused))


def unused_rule(rule: SiteRule, names: Sequence[str]) -> UnusedRule:
    """A rule that matches none of these names, with the most similar name."""
    near = difflib.get_close_matches(rule.site, names, n=1, cutoff=0.6)
    conditions = (("site", rule.site), ("op", rule.op), ("shape", rule.shape))
    says = ", ".join(f"{name} {value}" for name, value in conditions if value)
    return UnusedRule(rule.origin, says, near[0] if near and near[0] != rule.site else "")
