"""A model and a plan in, the tiled model out.

Nodes that are no site keep their bytes; weights that nothing uses any more are left out; what is new
comes as payloads that are computed while the file is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph import Graph, Model, Node, Value, subgraphs
from explorer.engine.transforms.forms import emit
from explorer.engine.transforms.region import DOMAIN, Emission
from explorer.engine.transforms.sites import Site
from explorer.facts import Plan, TensorInfo, to_json

__all__ = ["PLAN_KEY", "bind_dims", "tile"]

PLAN_KEY = "tile_hw.plan"
"""Model metadata that holds the plan as JSON, so that a tiled file can be verified by itself."""


def tile(model: Model, plan: Plan, sites: Sequence[Site]) -> Model:
    """The model with every planned site written as tile products.

    Args:
        model: The original, its dimensions bound as the plan says (`bind_dims`).
        plan: What to tile.
        sites: The plan's sites, in its order, found in `model`.

    Returns:
        A new model; `model` is untouched.
    """
    emission = Emission(opset=model.opset, taken=set(_names(model.graph)))
    # functions of an earlier tiling stay; the same name stands for the same body
    emission.functions.update({f.name: f for f in model.functions.values() if f.domain == DOMAIN})
    planned = {id(s.node): (s, p) for s, p in zip(sites, plan.sites, strict=True)}
    nodes: list[Node] = []
    for node in model.graph.nodes:
        if id(node) in planned:
            site, site_plan = planned[id(node)]
            made = emit(site, site_plan, emission)
            # which module the product belonged to: one node says it for the site, 14,336 need not repeat it
            made[0].metadata = {**_origin(node), **made[0].metadata}
            nodes += made
        else:
            nodes.append(node)
    bypassed = {id(n) for s in sites if s.weight is not None for n in s.weight.chain}
    nodes, used = _prune(nodes, model.graph.outputs, bypassed)
    graph = model.graph
    new_graph = Graph(
        name=graph.name,
        nodes=tuple(nodes),
        inputs=tuple(v for v in graph.inputs if v.name in used or v.name not in graph.initializers),
        outputs=graph.outputs,
        initializers={
            name: tensor
            for name, tensor in {**graph.initializers, **emission.initializers}.items()
            if name in used
        },
        # what was declared about values that stay is still true
        values=graph.values,
        extra=graph.extra,
    )
    functions = {k: f for k, f in model.functions.items() if f.domain != DOMAIN}
    functions.update({f.key: f for f in emission.functions.values()})
    return replace(
        model,
        graph=new_graph,
        opsets={**model.opsets, DOMAIN: 1},
        ir_version=max(model.ir_version, 8),  # local functions came with IR version 8
        functions=functions,
        metadata={**model.metadata, PLAN_KEY: json.dumps(to_json(plan), separators=(",", ":"))},
        path="",
    )


def _origin(node: Node) -> dict[str, str]:
    """What torch's exporter wrote of where a node comes from."""
    return {key: said for key, said in node.metadata.items() if key.startswith("pkg.torch.onnx.")}


def _names(graph: Graph) -> Iterator[str]:
    """Every value name in a graph and the graphs inside it."""
    yield from graph.initializers
    for value in (*graph.inputs, *graph.outputs, *graph.values):
        yield value.name
    for node in graph.nodes:
        yield from node.outputs
        for _, inner in subgraphs(node):
            yield from _names(inner)


def _uses(node: Node) -> Iterator[str]:
    """Value names that a node needs, those captured by its subgraphs included."""
    yield from node.inputs
    for _, graph in subgraphs(node):
        for value in graph.outputs:
            yield value.name
        for inner in graph.nodes:
            yield from _uses(inner)


def _prune(nodes: list[Node], outputs: Sequence[Value], bypassed: set[int]) -> tuple[list[Node], set[str]]:
    """Drops the bypassed nodes whose outputs nobody uses; also says which names are used."""
    used = {value.name for value in outputs}
    kept: list[Node] = []
    for node in reversed(nodes):
        if id(node) in bypassed and not any(o in used for o in node.outputs):
            continue
        used.update(_uses(node))
        kept.append(node)
    kept.reverse()
    return kept, used


def bind_dims(model: Model, shapes: Mapping[str, TensorInfo]) -> Model:
    """The model with its inputs and outputs declared at the sizes that were bound.

    Args:
        model: The model.
        shapes: Every value of the main graph as inferred with `dims`.

    Returns:
        A model whose declared intermediate shapes are dropped: they speak of the symbolic model.
    """
    graph = model.graph
    changed = False

    def bound(value: Value) -> Value:
        nonlocal changed
        info = shapes.get(value.name)
        if value.shape is None or info is None or info.shape is None or info.shape == value.shape:
            return value
        changed = True
        return Value(value.name, value.dtype, info.shape)

    inputs = tuple(bound(v) for v in graph.inputs)
    outputs = tuple(bound(v) for v in graph.outputs)
    if not changed:
        return model
    return replace(model, graph=replace(graph, inputs=inputs, outputs=outputs, values=()))
