"""Reads the plan from a tiled file's metadata, so that `verify` needs no other file."""

from __future__ import annotations

import json

import msgspec
from msgspec.structs import replace

from explorer.engine.costs.layer_tree import sum_if_all_known
from explorer.engine.graph.model import Model
from explorer.engine.graph.tile_metadata import PLAN_KEY, earlier_plans
from explorer.facts import Plan, SitePlan

_SITE = {*SitePlan.__struct_fields__} - {"at_most", "calls", "rows"}
_UNKNOWN = {"sites": (), "products": None, "macs": None, "macs_total": None}


def recover_plan(model: Model) -> Plan | None:
    """Reads the plan that a tiled file carries, or returns None if the file has no readable plan.

    If the model was tiled several times, the result is the last plan plus the sites of the earlier plans. The
    plan is only a claim: the proof takes from it which sites to check, and nothing else.
    """
    plan = _read(model.metadata.get(PLAN_KEY, ""))
    return None if plan is None else with_earlier(plan, model)


def with_earlier(plan: Plan, model: Model) -> Plan:
    """Adds to a plan the sites, sizes and decompositions of the earlier plans in the model's metadata."""
    for earlier in filter(None, map(_read, earlier_plans(model))):
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


def _read(text: str) -> Plan | None:
    try:
        fields = json.loads(text)
        # the proof uses neither the call counts of sites nor the list of skipped products
        site_fields = [
            {"tile": fields["tile"], **{k: v for k, v in s.items() if k in _SITE}} for s in fields["sites"]
        ]
        sites = msgspec.convert(site_fields, tuple[SitePlan, ...], strict=False)
        plan_fields = {
            key: fields[key]
            for key in ("tile", "edges", "form", "dims", "free", "decomposed")
            if key in fields
        }
        plan = msgspec.convert({**_UNKNOWN, **plan_fields}, Plan, strict=False)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.ValidationError):
        return None
    if min(*plan.tile, *(size for site in sites for size in site.tile)) < 1:
        return None
    macs = sum(s.batch * s.M * s.K * s.N if s.macs is None else s.macs for s in sites)
    return replace(plan, sites=sites, products=sum(s.products for s in sites), macs=macs)
