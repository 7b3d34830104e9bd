"""Builds a scan variant of a tiled model that has too many nodes for one session.

Creating a session takes time quadratic in the number of nodes that are ready at once: 58 s for an unrolled
AlexNet. The sites are already proved node by node. The variant serves to run the other nodes, which it
contains unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.meanings import Original
from explorer.engine.tiling.find_sites import find_sites
from explorer.engine.tiling.tile import tile
from explorer.facts import Plan, TensorInfo

_SITE = "tile_hw.site"


def build_scan_variant(
    before: Model,
    after: Model,
    plan: Plan,
    originals: Mapping[str, Original],
    shapes: Mapping[str, TensorInfo],
) -> Model | None:
    """Replaces the nodes of every planned site by the site in scan form.

    Args:
        before: Original model.
        after: Tiled model.
        plan: Tile plan of `after`.
        originals: The original's product for every site of the plan, by site key, which is the output name
            for a site of the main graph.
        shapes: Shapes of the inputs and outputs of the sites.

    Returns:
        A model whose new weights are computed when it is written, or None if the sites cannot be separated
        from the other nodes.
    """
    depths = {s.name: (s.K, s.N) for s in plan.sites}

    def compute_packed_size(name: str, op: str, size: tuple[int, int, int]) -> tuple[int, int]:
        # packs as many groups into one product as the plan does
        return depths.get(name, (1, 1))

    sites_by_output = {s.output: s for s in find_sites(before, shapes, "pack", pack=compute_packed_size)[0]}
    if not all(s.output in sites_by_output and s.output in originals for s in plan.sites):
        return None
    scanned = replace(plan, form="scan", sites=tuple(replace(s, form="scan") for s in plan.sites))
    scan_model = tile(before, scanned, [sites_by_output[s.output] for s in plan.sites])
    replaced: dict[int, list[Node]] = {}
    wiring = Wiring.from_graph(after.graph)
    for site in plan.sites:
        needed_nodes, _ = wiring.find_needed_nodes([site.output], stop=originals[site.output].inputs)
        site_nodes = [n for n in needed_nodes if n.metadata.get(_SITE) == site.name]
        if not site_nodes or site.output not in site_nodes[-1].outputs:
            return None
        replaced.update((id(n), []) for n in site_nodes)
        replaced[id(site_nodes[-1])] = [
            n for n in scan_model.graph.nodes if n.metadata.get(_SITE) == site.name
        ]
    nodes = [n for old in after.graph.nodes for n in replaced.get(id(old), [old])]
    constants = {**scan_model.graph.initializers, **after.graph.initializers}
    live_nodes, read = Wiring(nodes).find_needed_nodes([v.name for v in after.graph.outputs])
    graph = replace(
        after.graph,
        nodes=tuple(live_nodes),
        initializers={name: tensor for name, tensor in constants.items() if name in read},
    )
    # if both have a function of the same name, the tiled model's function is used
    return replace(after, graph=graph, functions={**scan_model.functions, **after.functions}, path="")
