"""Arithmetic of a tiling by layer: the engine names matmuls (sites), the tree has layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorer.facts import Layer, Plan, SitePlan
from explorer.facts.tiling import scope_of

__all__ = ["tile_arithmetic"]


def tile_arithmetic(
    layers: Sequence[Layer], plan: Plan, *, by_value: bool
) -> Mapping[str, Mapping[int, float]]:
    """What the tiles of a plan multiply, by the id of the layer that each site is, and what of it is needed.

    A site is known by the value that it makes; one of an exported nn.Module, whose tensors have no names of
    their own, by the scope in its node's name: /classifier/classifier.1/Gemm is classifier.1.

    Args:
        layers: Rows of the tree.
        plan: The sites.
        by_value: Tensors have names of their own: it is no nn.Module.

    Returns:
        'tile_work', the MACs of all tile products, and 'tile_macs', those that the product needs.
    """
    paths: dict[str, int] = {}
    values: dict[str, int] = {}
    for layer in layers:
        paths.setdefault(layer.path, layer.id)
        if by_value and not layer.group:
            values.update({tensor.name: layer.id for tensor in layer.outputs if tensor.name})
    work: dict[int, float] = {}
    macs: dict[int, float] = {}
    for site in plan.sites:
        at = values.get(site.output, _by_name(site, paths))
        if at is not None:
            tm, tk, tn = site.tile
            calls = 1 if site.calls is None else site.calls
            spent = calls * site.products * tm * tk * tn
            work[at] = work.get(at, 0) + spent
            macs[at] = macs.get(at, 0) + spent * site.utilisation
    return {"tile_work": work, "tile_macs": macs}


def _by_name(site: SitePlan, paths: Mapping[str, int]) -> int | None:
    """The layer that is called like a site, or like what the site lies in."""
    for name in (site.name, scope_of(site.name)):
        while name:
            if name in paths:
                return paths[name]
            name = name[: max(name.rfind("."), name.rfind("/"), 0)]
    return None
