"""Effective tiling settings: the settings of every site and their origins (`explorer settings`)."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.base.errors import find_near_name
from explorer.engine.tiling.rules import SiteRule, choose_settings, prepare_tile_rules
from explorer.facts import SitePlan, TileSpec
from explorer.facts.settings import Settings, SiteSettings, UnusedRule

DEFAULT = "default"
_OPEN_SIZES = "open sizes"
"""Origin of padded edges that symbolic sizes require."""


def list_effective_settings(
    spec: TileSpec, all_sites: Sequence[SitePlan], chosen_sites: Sequence[SitePlan]
) -> Settings:
    """Returns the settings that `spec` gives all sites.

    Args:
        spec: Specification of the user.
        all_sites: All sites.
        chosen_sites: Sites that `spec.sites` selects.

    Raises:
        Misuse: A rule's condition on the shape is invalid.
    """
    spec_origins = dict(spec.origins)
    chosen_outputs = {site.output for site in chosen_sites}
    sites = []
    for site in all_sites:
        choice = choose_settings(spec, site.name, site.op, (site.M, site.K, site.N))
        origins = {name: origin or DEFAULT for name, origin in choice.origins.items()}
        is_on = choice.on and site.output in chosen_outputs
        # the list of sites decides, unless a rule decided about a site in the list
        if site.output not in chosen_outputs or (spec.sites and origins["on"] == DEFAULT):
            origins["on"] = spec_origins.get("sites", DEFAULT)
        edges = choice.edges
        if site.dynamic and edges != "padded":
            edges, origins["edges"] = "padded", _OPEN_SIZES
        settings = choice.tile, edges, choice.form, is_on, origins
        sites.append(SiteSettings(site.name, site.op, site.M, site.K, site.N, *settings))
    rules = prepare_tile_rules(spec.rules)
    used_rules = {
        index
        for site in all_sites
        for index, _ in rules.find_matching(site.name, site.op, (site.M, site.K, site.N))
    }
    unused_rules = [
        describe_unused_rule(rule, [site.name for site in all_sites])
        for index, rule in enumerate(spec.rules)
        if index not in used_rules
    ]
    return Settings(spec.grouped, spec_origins.get("grouped", DEFAULT), tuple(sites), tuple(unused_rules))


def describe_unused_rule(rule: SiteRule, names: Sequence[str]) -> UnusedRule:
    """Returns the record of a rule that matches no name in `names`, with the most similar name."""
    similar_name = find_near_name(rule.site, names)
    conditions = (("site", rule.site), ("op", rule.op), ("shape", rule.shape))
    text = ", ".join(f"{name} {value}" for name, value in conditions if value)
    return UnusedRule(rule.origin, text, similar_name if similar_name != rule.site else "")
