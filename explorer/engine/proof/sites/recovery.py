"""Plan recovery: read back from a tiled file's metadata, so that the file can be verified by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import whole
from explorer.engine.graph.model import Model
from explorer.engine.graph.tile_metadata import PLAN_KEY, earlier_plans
from explorer.facts import Plan, SitePlan


def recover_plan(model: Model) -> Plan | None:
    """The plan that a tiled file carries; None if it carries none that can be read.

    Of a model that was tiled several times it is the last one, with what the earlier ones did behind it.
    What a file says is a claim: the proof takes from it which sites to look at, and nothing else for
    granted.
    """
    plan = _read(model.metadata.get(PLAN_KEY, ""))
    return None if plan is None else with_earlier(plan, model)


def with_earlier(plan: Plan, model: Model) -> Plan:
    """A plan with the sites, sizes and parts of those that a model carries from before it."""
    for other in filter(None, map(_read, earlier_plans(model))):
        plan = replace(
            plan,
            sites=plan.sites + other.sites,
            products=whole((plan.products, other.products)),
            macs=whole((plan.macs, other.macs)),
            dims={**other.dims, **plan.dims},
            free=tuple(dict.fromkeys(plan.free + other.free)),
            decomposed=tuple(dict.fromkeys(plan.decomposed + other.decomposed)),
        )
    return plan


def _read(text: str) -> Plan | None:
    if not text:
        return None
    try:
        said = json.loads(text)
        tile = _tile(said["tile"])
        sites = tuple(_site_plan(s, tile) for s in said["sites"])
        return Plan(
            tile=tile,
            edges=str(said["edges"]),
            form=str(said["form"]),
            sites=sites,
            products=sum(s.products for s in sites),
            macs=sum(s.batch * s.M * s.K * s.N if s.macs is None else s.macs for s in sites),
            macs_total=None,
            dims={str(k): int(v) for k, v in said.get("dims", {}).items()},
            free=tuple(str(name) for name in said.get("free", ())),
            decomposed=tuple(str(name) for name in said.get("decomposed", ())),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _tile(said: Sequence[Any]) -> tuple[int, int, int]:
    tm, tk, tn = (int(t) for t in said)
    if min(tm, tk, tn) < 1:
        raise ValueError(said)
    return tm, tk, tn


def _site_plan(said: Mapping[str, Any], tile: tuple[int, int, int]) -> SitePlan:
    m, k, n = (int(v) for v in said["grid"])
    return SitePlan(
        name=str(said["name"]),
        op=str(said["op"]),
        M=int(said["M"]),
        K=int(said["K"]),
        N=int(said["N"]),
        grid=(m, k, n),
        products=int(said["products"]),
        utilisation=float(said["utilisation"]),
        form=str(said["form"]),
        edges=str(said["edges"]),
        output=str(said["output"]),
        weight=str(said.get("weight", "")),
        bias=bool(said.get("bias", False)),
        tile=_tile(said["tile"]) if "tile" in said else tile,
        batch=int(said.get("batch", 1)),
        dtype=str(said.get("dtype", "float32")),
        accumulator=str(said.get("accumulator", "float32")),
        dynamic=tuple(str(axis) for axis in said.get("dynamic", ())),
        place=tuple(str(name) for name in said.get("place", ())),
        macs=int(said["macs"]) if said.get("macs") is not None else None,
    )
