"""Finds the matmuls of a graph.

For each node, the function of its operator (see `kinds`) returns a site, or raises `NoSite` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import AttributeRef, Model, Node
from explorer.engine.graph.tile_metadata import SITE_KEY
from explorer.engine.shapes.subgraphs import join_path
from explorer.engine.tiling.kinds import KINDS
from explorer.engine.tiling.sites import REPLACEABLE, NoSite, RunCounts, Site, SiteContext, TileChooser
from explorer.facts import SkippedSite, TensorInfo
from explorer.facts.tiling import Grouped


def find_sites(
    model: Model,
    shapes: Mapping[str, TensorInfo],
    grouped: Grouped = "leave",
    declared: Mapping[str, TensorInfo] | None = None,
    pack: TileChooser | None = None,
    *,
    graph_nodes: Sequence[Node] | None = None,
    place: Sequence[str] = (),
    runs: Callable[[Node], RunCounts] = lambda node: RunCounts(),
    defaults: Collection[str] | None = None,
) -> tuple[list[Site], list[SkippedSite]]:
    """Finds the tileable matmuls of one graph, and the other matmuls, each with the reason to skip it.

    Args:
        model: The model.
        shapes: Shape and dtype of every value of the main graph, with dimensions bound.
        grouped: The treatment of grouped convolutions.
        declared: The shapes with symbolic dimensions where they stay open in the tiled graph, or None if all
            are bound.
        pack: Returns the tiles into which groups are packed, or None for tiles of 64.
        graph_nodes: The nodes to search, or None for the nodes of the main graph.
        place: Path of the nodes' graph; `model` is then the view of it (see `subgraphs.list_subgraphs`).
        runs: Returns how often a node runs in one pass, and its MACs.
        defaults: Names of the stored tensors that a caller may replace, or None for the model's.

    Returns:
        Sites and skipped sites, both in execution order.
    """
    context = SiteContext(model, shapes, grouped, declared, pack, defaults)
    sites: list[Site] = []
    skipped: list[SkippedSite] = []
    tiled: set[str] = set()
    for node in model.graph.nodes if graph_nodes is None else graph_nodes:
        tiled_site = node.metadata.get(SITE_KEY)
        build_site = KINDS.get((node.domain, node.op))
        if tiled_site is not None:
            if tiled_site not in tiled:
                skipped.append(SkippedSite(tiled_site, node.op, "tiled already", runs(node).macs))
            tiled.add(tiled_site)
        elif build_site is not None and node.key not in model.functions:
            context.constants.has_replaceable = False  # becomes True if the function reads such a constant
            try:
                if any(isinstance(value, AttributeRef) for value in node.attributes.values()):
                    raise NoSite("its attributes depend on the call of the function that contains it")
                site = build_site(node, context)
                if context.constants.has_replaceable:
                    raise NoSite
                sites.append(replace(site, place=tuple(place), runs=runs(node)))
            except NoSite as why:
                reason = REPLACEABLE if context.constants.has_replaceable else str(why)
                skipped.append(SkippedSite(join_path(place, node.label), node.op, reason, runs(node).macs))
    return sites, skipped
