"""Finds the matmuls of a model that can be tiled, at chosen sizes of its symbolic dimensions.

The search needs shape inference and an analysis, so it happens once. Planning is cheap and happens at every
key press in the tile dialog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine import shapes
from explorer.engine.costs import layer_tree
from explorer.engine.costs.onnx import visitor
from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.scopes import find_module_path
from explorer.engine.graph.model import Model, Node, list_bodies
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.graph.tile_metadata import DOMAIN, SITE_KEY
from explorer.engine.operators.call import Rules
from explorer.engine.shapes import InputShapes
from explorer.engine.shapes.subgraphs import SubgraphView, list_subgraphs
from explorer.engine.tiling.decompose import decompose
from explorer.engine.tiling.find_sites import find_sites
from explorer.engine.tiling.sites import RunCounts, Site, TileChooser
from explorer.engine.tiling.tile import bind_dims
from explorer.facts import Dim, Shape, SkippedSite
from explorer.facts.tiling import Grouped
from explorer.host.gc_pause import pause_garbage_collector

_EXAMPLE_LENGTH = 64
"""Example size of an open dimension other than the batch."""


class Products(Struct, frozen=True):
    """Tileable and other products of one model.

    Attributes:
        bound_model: Model at the bound sizes, after the decomposition.
        sites: Tileable products, in execution order.
        skipped: Products that cannot be tiled, with the reason.
        macs_total: MACs of the whole model at the sizes in `dims`, or None if any are unknown.
        dims: Sizes of symbolic dimensions to which the figures apply.
        free: Names of the dimensions in `dims` that stay open.
        undecomposed_model: Model at the bound sizes, without decomposition.
        decomposed: Names of the nodes that are decomposed in `bound_model`.
    """

    bound_model: Model
    sites: list[Site]
    skipped: list[SkippedSite]
    macs_total: int | None
    dims: dict[str, int]
    free: tuple[str, ...]
    undecomposed_model: Model
    decomposed: tuple[str, ...] = ()

    def find_decomposed_layers(self) -> dict[str, str]:
        """Finds the path of the module of each decomposed node, or '', by the node's name."""
        nodes = self.undecomposed_model.graph.nodes if self.decomposed else ()
        names = set(self.decomposed)
        paths = {node.label: find_module_path(node) for node in nodes if node.label in names}
        return dict.fromkeys(self.decomposed, "") | paths


def has_groups(model: Model) -> bool:
    """Whether a convolution of the model has several groups, so that their treatment matters."""
    nodes = [*list_stored_nodes(model.graph.nodes)]
    for function in model.functions.values():
        nodes += function.nodes
    while nodes:
        node = nodes.pop()
        if "Conv" in node.op and node.attributes.get("group", 1) != 1:
            return True
        for _, inner in list_bodies(node):
            nodes += list_stored_nodes(inner.nodes)
    return False


def find_products(
    model: Model,
    dims: Mapping[str, int],
    input_shapes: InputShapes,
    rules: Rules | None = None,
    grouped: Grouped = "leave",
    pack: TileChooser | None = None,
    decomposable: Sequence[str] | None = None,
) -> Products:
    """Finds the products of a model.

    Args:
        model: The model.
        dims: Sizes of symbolic dimensions to bind. Other dimensions stay open in the tiled graph.
        input_shapes: Element type (or None) and shape by input name. They override the model's.
        rules: Rules of the user.
        grouped: Treatment of grouped convolutions.
        pack: Function that returns the tile into which groups are packed.
        decomposable: Names of the nodes that may be decomposed, or None for all.
    """
    examples, inputs = _choose_example_sizes(model, dims, input_shapes)
    sizes = {**dims, **examples}
    opened, inferred = _infer_shapes(model, dims, sizes, inputs)
    undecomposed = bind_dims(model, opened.main.values)
    declared = opened.main.values if examples else None
    model, decomposed, refused = decompose(model, inferred.main.values, declared, decomposable)
    if decomposed:
        opened, inferred = _infer_shapes(model, dims, sizes, inputs)
    bound_model = bind_dims(model, opened.main.values)
    with pause_garbage_collector():
        # the figures may use replaceable defaults, but the tiled graph may not
        figure_shapes = shapes.Inference(model, sizes, inputs) if model.defaults else inferred
        visited = visitor.visit(model, figure_shapes, user_rules=rules)
        totals = layer_tree.compute_totals(visited.leaves, groups=visited.groups)
    runs_by_node = _count_runs(model, visited.leaves)
    sites: list[Site] = []
    skipped: list[SkippedSite] = []
    for place, symbolic in zip(
        list_subgraphs(model, inferred, _is_tiled), list_subgraphs(model, opened, _is_tiled), strict=True
    ):
        place_sites, place_skipped = find_sites(
            place.view if place.path else bound_model,
            place.example,
            grouped,
            symbolic.shapes if place.path or examples else None,
            pack,
            graph_nodes=place.nodes if place.path else None,
            place=place.path,
            runs=partial(_get_run_counts, runs_by_node, place),
            defaults=model.defaults,
        )
        if place.view.opset != model.opset:
            # all parts of a model share the tile functions, which support one operator set
            reason = f"its function has opset {place.view.opset}, but the model has opset {model.opset}"
            place_skipped += [SkippedSite(s.name, s.node.op, reason, s.runs.macs) for s in place_sites]
            place_sites = []
        sites += place_sites
        skipped += place_skipped
    skipped = [replace(s, reason=refused.get(s.name, s.reason)) for s in skipped]
    # with an incomplete total, the share on tiles would be too high
    total = totals.macs if totals.coverage == 1.0 else None
    return Products(bound_model, sites, skipped, total, sizes, tuple(examples), undecomposed, decomposed)


class _Runs(Struct, frozen=True):
    """Runs of a node at one of its call sites.

    Attributes:
        trips: Number of runs.
        macs: MACs of all runs, or None if unknown.
        may_end_early: Whether the data may end a loop early or take another branch.
    """

    trips: Dim
    macs: int | None
    may_end_early: bool = False


RunsByNode = dict[int | str, list[_Runs]]
"""Runs and MACs at every call site, by the id of the node or the name of the tiled site."""


def _count_runs(model: Model, leaves: Sequence[OperatorLeaf]) -> RunsByNode:
    """Collects the runs of every node at each of its call sites, from the analysis of the model."""
    only_node_by_function: dict[str, Node] = {}
    for function in model.functions.values():
        # the analysis lists a function with one computing node under the node that calls it
        computing_nodes = [node for node in function.nodes if node.op != "Constant"]
        if len(computing_nodes) == 1:
            only_node_by_function[function.name] = computing_nodes[0]
    tiled_sites = {
        node.metadata[SITE_KEY] for node in list_stored_nodes(model.graph.nodes) if SITE_KEY in node.metadata
    }
    runs_by_node: RunsByNode = {}
    for leaf in leaves:
        context, node = leaf.context, leaf.node
        may_run_less = bool(context.early_end_reason) or context.is_uncertain_branch
        runs = _Runs(context.trips, leaf.figures.macs, may_run_less) if leaf.counted else _Runs(0, 0)
        runs_by_node.setdefault(id(only_node_by_function.get(leaf.function, node)), []).append(runs)
        if tiled_sites:
            outer_sites = (scope.path for scope in context.scopes if scope.path in tiled_sites)
            site_name = node.metadata.get(SITE_KEY) or next(outer_sites, "")
            runs_by_node.setdefault(site_name, []).append(runs)
    return runs_by_node


def _get_run_counts(runs_by_node: RunsByNode, place: SubgraphView, node: Node) -> RunCounts:
    """Returns how often a node runs. A node without an entry in the analysis gets the runs of its place."""
    node_runs = runs_by_node.get(node.metadata.get(SITE_KEY, id(node)))
    if node_runs is None:
        return RunCounts(place.calls)
    macs = layer_tree.sum_if_all_known([runs.macs for runs in node_runs])
    if macs is None or not all(isinstance(runs.trips, int) for runs in node_runs):
        return RunCounts(None)
    runs_by_macs = Counter[int]()
    for runs in node_runs:
        if isinstance(runs.trips, int) and runs.trips and runs.macs is not None:
            runs_by_macs[runs.macs // runs.trips] += runs.trips
    by_size = tuple((run_count, macs_of_run) for macs_of_run, run_count in runs_by_macs.items())
    return RunCounts(runs_by_macs.total(), macs, by_size, any(runs.may_end_early for runs in node_runs))


def _infer_shapes(
    model: Model,
    dims: Mapping[str, int],
    sizes: Mapping[str, int],
    inputs: Mapping[str, tuple[str | None, Shape]],
) -> tuple[shapes.Inference, shapes.Inference]:
    """Infers shapes twice: with symbolic open dimensions, and at the sizes to which the figures apply."""
    if model.defaults:
        # the sizes of the tiled graph must not depend on a replaceable default
        initializers = {n: t for n, t in model.graph.initializers.items() if n not in model.defaults}
        model = replace(model, graph=replace(model.graph, initializers=initializers))
    opened = shapes.Inference(model, dims, inputs)
    return opened, opened if sizes == dims else shapes.Inference(model, sizes, inputs)


def _is_tiled(node: Node) -> bool:
    return SITE_KEY in node.metadata or node.domain == DOMAIN


def _choose_example_sizes(
    model: Model, dims: Mapping[str, int], input_shapes: InputShapes
) -> tuple[dict[str, int], dict[str, tuple[str | None, Shape]]]:
    """Returns example sizes for open dimensions, and input shapes that bind unnamed batch dimensions.

    The first dimension of an input is its batch.
    """
    examples: dict[str, int] = {}
    overrides: dict[str, tuple[str | None, Shape]] = dict(input_shapes)
    inputs = [value for value in model.graph.required_inputs if value.shape and value.name not in overrides]
    for value in inputs:
        first, *inner_sizes = value.shape or ()
        if isinstance(first, str) and first not in dims:
            examples[first] = 1
        elif first is None:
            overrides[value.name] = (None, (1, *inner_sizes))
    for value in inputs:
        for dim in (value.shape or ())[1:]:
            if isinstance(dim, str) and dim not in dims:
                examples.setdefault(dim, _EXAMPLE_LENGTH)
    return examples, overrides
