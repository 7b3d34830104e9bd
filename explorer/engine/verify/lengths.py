"""Which sizes a proof tries where a model leaves them open.

A tiled graph that takes every size pads by as much as a run needs: a fault in it may show at one size only.
Tried are 1, one below a tile, a tile, one above it, and one that is large, as far as the model runs at them.
"""

from __future__ import annotations

from collections.abc import Mapping

from explorer.engine.graph import Model
from explorer.facts import Plan

__all__ = ["bindings"]

_MACS = 4 << 30
"""Multiply-accumulates of the sites in one try; more than that is left to sizes that are bound."""


def bindings(model: Model, plan: Plan | None, dims: Mapping[str, int]) -> list[dict[str, int]]:
    """Sizes of symbolic dimensions to try, one after the other; the first are those of the figures.

    Args:
        model: The original.
        plan: What was tiled; None or without open sizes: there is one try.
        dims: Sizes that are bound, and those that figures are for.
    """
    base = {**(plan.dims if plan is not None else {}), **dims}
    tiles = [t for site in plan.sites if site.dynamic for t in site.tile] if plan is not None else []
    if plan is None or not plan.free or not tiles:
        return [base]
    tile = max(tiles)
    batches = {v.shape[0] for v in model.graph.feeds if v.shape}
    tried = [base]
    for at, length in enumerate((1, tile - 1, tile, tile + 1, 2 * tile + tile // 2 + 1)):
        sizes = dict(base)
        for name in plan.free:
            # a batch multiplies everything: small ones that are not powers of two show as much
            sizes[name] = (1, 3, 2, 5, 7)[at] if name in batches and len(plan.free) > 1 else max(length, 1)
        if sizes not in tried and _macs(plan, sizes) <= _MACS:
            tried.append(sizes)
    return tried


def _macs(plan: Plan, sizes: Mapping[str, int]) -> float:
    """About how much there is to multiply at these sizes: in proportion to each that is open."""
    growth = 1.0
    for name in plan.free:
        growth *= sizes[name] / max(plan.dims.get(name, 1), 1)
    return plan.macs * growth
