"""Layers of a plan's sites: finds the row of the layer tree for each tiled matmul (site)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.tiling.rules import make_name_matcher
from explorer.facts import Analysis, Layer, Plan, SitePlan, TileSpec
from explorer.facts.site_names import find_scope
from explorer.settings.filter import build_matcher, is_query

_MAX_MACS = 1 << 200
"""Upper limit on MACs. No real plan exceeds it."""


def tile_arithmetic(analysis: Analysis, plan: Plan) -> Mapping[str, Mapping[int, float]]:
    """Computes the MACs of the layers that have tiled matmuls, with and without the padding of tiles.

    Returns:
        Two tables by layer id: 'tile_work' has the MACs of all tile products, with padding. 'tile_macs' has
        the MACs that the matmuls need.
    """
    tile_work: dict[int, float] = {}
    macs: dict[int, float] = {}
    for site, layer_id in zip(plan.sites, _find_layers(analysis, plan.sites), strict=True):
        # skip open sizes: the plan has example sizes, which would decide the utilization
        if layer_id is not None and not site.dynamic:
            tm, tk, tn = site.tile
            calls = 1 if site.calls is None else site.calls  # the data decides: count one run
            tile_macs = calls * site.products * tm * tk * tn
            if not (0 < tile_macs < _MAX_MACS and 0 <= site.utilisation <= 1):
                continue  # the plan in a file may be wrong
            tile_work[layer_id] = tile_work.get(layer_id, 0) + tile_macs
            macs[layer_id] = macs.get(layer_id, 0) + tile_macs * site.utilisation
    return {"tile_work": tile_work, "tile_macs": macs}


def resolve_site_filters(
    spec: TileSpec, sites: Callable[[], Sequence[SitePlan]], analysis: Callable[[], Analysis]
) -> TileSpec:
    """Replaces filters in a tiling's list of sites by the names of the matching sites.

    A filter tests the layer of a site, with the site's name and operator. M, K and N are available like
    attributes. A text that is the name of a site, or a pattern that matches one, is not treated as a filter.

    Args:
        spec: Specification of the user.
        sites: Function that returns all tileable sites.
        analysis: Function that returns the analysis of the model.

    Raises:
        Misuse: A filter cannot be parsed, or matches no site.
    """
    if not any(map(is_query, spec.sites)):
        return spec
    all_sites, analysis_result = sites(), analysis()
    layer_ids = _find_layers(analysis_result, all_sites)
    sites_by_layer: dict[int | None, list[SitePlan]] = {}
    for site, layer_id in zip(all_sites, layer_ids, strict=True):
        sites_by_layer.setdefault(layer_id, []).append(site)
    names: dict[str, None] = {}
    for pattern in spec.sites:
        matches = make_name_matcher(pattern, "--site")
        is_name = any(pattern in (site.name, site.output) or matches(site.name) for site in all_sites)
        if is_name or pattern.startswith("re:") or not is_query(pattern):
            names[pattern] = None
            continue
        is_wanted = build_matcher(pattern)
        matching_names = [
            site.output or site.name
            for site in sites_by_layer.get(None, ())
            if is_wanted(_build_site_layer(site))
        ]
        for layer in analysis_result.layers:
            layer_sites = [
                site for site in sites_by_layer.get(layer.id, ()) if is_wanted(_build_site_layer(site, layer))
            ]
            matching_names += [site.output or site.name for site in layer_sites]
            if layer.group:
                is_wanted(layer)  # the matcher must see each group before its rows
        if not matching_names:
            raise Misuse(
                f"no matmul is found by '{pattern}'", where="--site", hint="explorer plan lists them"
            )
        names.update(dict.fromkeys(matching_names))
    return replace(spec, sites=tuple(names))


def _build_site_layer(site: SitePlan, layer: Layer | None = None) -> Layer:
    """Returns the layer that a filter tests for a site: `layer` with the site's name, operator and sizes."""
    layer = layer or Layer(-1, None, site.name, site.name, site.op, 0, False, macs=site.macs)
    sizes = {"M": site.M, "K": site.K, "N": site.N}
    return replace(layer, path=site.name, kind=site.op, group=False, attributes={**layer.attributes, **sizes})


def _find_layers(analysis: Analysis, sites: Sequence[SitePlan]) -> list[int | None]:
    """Returns the layer id of each site, or None if no layer matches.

    The output value identifies a site. Tensors of an exported nn.Module have no names in the module, so the
    scope in the node's name identifies the site: /classifier/classifier.1/Gemm is classifier.1.
    """
    paths: dict[str, int] = {}
    values: dict[str, int] = {}
    for layer in analysis.layers:
        paths.setdefault(layer.path, layer.id)
        if analysis.info.model.is_graph and not layer.group:
            values.update({tensor.name: layer.id for tensor in layer.outputs if tensor.name})
    return [values.get(site.output, _find_layer_by_name(site, paths)) for site in sites]


def _find_layer_by_name(site: SitePlan, paths: Mapping[str, int]) -> int | None:
    """Returns the id of the layer with the name of a site, or of the scope around the site."""
    for name in (site.name, find_scope(site.name)):
        while name:
            if name in paths:
                return paths[name]
            name = name[: max(name.rfind("."), name.rfind("/"), 0)]
    return None
