"""The plan of a tiled file, read back from its metadata, so that the file can be verified by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from explorer.engine.graph import Model
from explorer.facts import Plan, SitePlan

__all__ = ["recover_plan"]


def recover_plan(model: Model) -> Plan | None:
    """The plan that a tiled file carries; None if it carries none that can be read.

    What a file says is a claim: the proof takes from it which sites to look at, and nothing else for
    granted.
    """
    text = model.metadata.get("tile_hw.plan")
    if not text:
        return None
    try:
        said = json.loads(text)
        sites = tuple(_site_plan(s) for s in said["sites"])
        tile = tuple(int(t) for t in said["tile"])
        if len(tile) != 3 or min(tile) < 1:
            return None
        return Plan(
            tile=(tile[0], tile[1], tile[2]),
            edges=str(said["edges"]),
            form=str(said["form"]),
            sites=sites,
            products=sum(s.products for s in sites),
            macs=sum(s.M * s.K * s.N for s in sites),
            macs_total=None,
            dims={str(k): int(v) for k, v in said.get("dims", {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _site_plan(said: Mapping[str, Any]) -> SitePlan:
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
    )
