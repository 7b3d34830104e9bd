"""Recovers the plan from the metadata of a tiled file, so that `verify` needs no other file."""

from __future__ import annotations

import json

import msgspec
from msgspec.structs import replace

from explorer.base.compat import build_type
from explorer.engine.costs.layer_tree import sum_if_all_known
from explorer.engine.graph.model import Model
from explorer.engine.graph.tile_metadata import PLAN_KEY, read_earlier_plans
from explorer.facts import Plan, SitePlan

_UNKNOWN_TOTALS = {"sites": (), "products": None, "macs": None, "macs_total": None}
"""Fields of a plan that are computed from its sites or stay unknown."""


def recover_plan(model: Model) -> Plan | None:
    """Returns the plan in the metadata of a tiled file, or None if the file has no readable plan.

    If the model was tiled several times, the plan also has the sites of the earlier plans. The file may be
    wrong about its own plan. Therefore the proof uses the plan only to select the sites that it checks.
    """
    plan = _parse_plan(model.metadata.get(PLAN_KEY, ""))
    return None if plan is None else merge_earlier_plans(plan, model)


def merge_earlier_plans(plan: Plan, model: Model) -> Plan:
    """Returns a plan with the sites, sizes and decompositions of the earlier plans in the model's metadata.

    Earlier plans without a readable text are skipped. A size in `plan` takes precedence over an earlier one.
    """
    for earlier in filter(None, map(_parse_plan, read_earlier_plans(model))):
        plan = replace(
            plan,
            sites=plan.sites + earlier.sites,
            products=sum_if_all_known((plan.products, earlier.products)),
            macs=sum_if_all_known((plan.macs, earlier.macs)),
            dims={**earlier.dims, **plan.dims},
            free=tuple(dict.fromkeys(plan.free + earlier.free)),
            decomposed=tuple(dict.fromkeys(plan.decomposed + earlier.decomposed)),
        )
    return plan


def _parse_plan(text: str) -> Plan | None:
    """Returns the plan in a JSON text, or None if the text is not a valid plan."""
    try:
        fields = json.loads(text)
        # a site without a tile of its own has the tile of the plan
        site_records = [
            {
                "tile": fields["tile"],
                **{key: value for key, value in site.items() if key in SitePlan.__struct_fields__},
            }
            for site in fields["sites"]
        ]
        sites = msgspec.convert(site_records, build_type(tuple[SitePlan, ...]), strict=False)
        plan_fields = {
            key: fields[key]
            for key in ("tile", "edges", "form", "dims", "free", "decomposed")
            if key in fields
        }
        plan = msgspec.convert({**_UNKNOWN_TOTALS, **plan_fields}, build_type(Plan), strict=False)
        products = sum_if_all_known(site.products_total for site in sites)
        macs = sum_if_all_known(site.macs_total for site in sites)
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError):
        return None
    if min(*plan.tile, *(size for site in sites for size in site.tile)) < 1:
        return None  # every axis of a tile has at least one element
    if any(times < 0 for site in sites for times in (site.calls or 0, *(times for times, _ in site.rows))):
        return None
    return replace(plan, sites=sites, products=products, macs=macs)
