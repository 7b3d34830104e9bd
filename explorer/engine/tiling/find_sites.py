"""Matmul search: the kind of each node's operator (`kinds`) turns it into a site, or says why not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import AttributeRef, Model, Node
from explorer.engine.graph.tile_metadata import SITE_KEY
from explorer.engine.tiling.kinds import KINDS
from explorer.engine.tiling.sites import REPLACEABLE, NoSite, PackedTile, RunCounts, Site, SiteContext
from explorer.facts import SkippedSite, TensorInfo
from explorer.facts.tiling import Grouped


def find_sites(
    model: Model,
    shapes: Mapping[str, TensorInfo],
    grouped: Grouped = "leave",
    declared: Mapping[str, TensorInfo] | None = None,
    pack: PackedTile | None = None,
    *,
    graph_nodes: Sequence[Node] | None = None,
    place: Sequence[str] = (),
    runs: Callable[[Node], RunCounts] = lambda node: RunCounts(),
    defaults: Collection[str] | None = None,
) -> tuple[list[Site], list[SkippedSite]]:
    """Finds the tileable products of one graph, and the other products with the reason.

    Args:
        model: The model.
        shapes: Shape and dtype of every value of the main graph, dimensions bound.
        grouped: How to treat grouped convolutions.
        declared: The shapes with those dimensions symbolic that stay open in the tiled graph; None if none
            does.
        pack: The tiles that groups are packed into; None for tiles of 64.
        graph_nodes: The nodes to search; None for all of the main graph.
        place: The path of the nodes' graph (see `places.Place`, whose `view` is then the model).
        runs: Returns how often a node runs in one pass, and its MACs.
        defaults: Stored tensors that a caller may replace; None for the model's.

    Returns:
        Sites and skipped sites, both in execution order.
    """
    context = SiteContext(model, shapes, grouped, declared, pack, defaults)
    sites: list[Site] = []
    skipped: list[SkippedSite] = []
    tiled: set[str] = set()
    for node in model.graph.nodes if graph_nodes is None else graph_nodes:
        done = node.metadata.get(SITE_KEY)
        kind = KINDS.get((node.domain, node.op))
        if done is not None:
            if done not in tiled:
                skipped.append(SkippedSite(done, node.op, "tiled already", runs(node).macs))
            tiled.add(done)
        elif kind is not None and node.key not in model.functions:
            context.constants.replaceable = False
            try:
                if any(isinstance(value, AttributeRef) for value in node.attributes.values()):
                    raise NoSite("its attributes are those of the call of the function around it")
                site = kind(node, context)
                if context.constants.replaceable:
                    raise NoSite
                sites.append(replace(site, place=tuple(place), runs=runs(node)))
            except NoSite as why:
                reason = REPLACEABLE if context.constants.replaceable else str(why)
                skipped.append(SkippedSite("/".join((*place, node.label)), node.op, reason, runs(node).macs))
    return sites, skipped
