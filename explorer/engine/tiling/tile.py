"""Tiling of a graph: a model and a plan in, the tiled model out.

Nodes that are no site keep their bytes; weights that nothing uses any more are left out; what is new
comes as payloads that are computed while the file is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import (
    Function,
    Graph,
    Inline,
    Model,
    Node,
    Tensor,
    Value,
    subgraphs,
    with_bodies,
)
from explorer.engine.graph.repeated_nodes import (
    NodeRun,
    Tensors,
    free_name,
    gathered,
    node_sequence,
    value_names,
)
from explorer.engine.graph.tile_metadata import DOMAIN, with_plan
from explorer.engine.tiling.builder import Emission
from explorer.engine.tiling.emit.forms import emit
from explorer.engine.tiling.sites import Site
from explorer.facts import Plan, SitePlan, TensorInfo


def tile(model: Model, plan: Plan, sites: Sequence[Site]) -> Model:
    """The model with every planned site written as tile products.

    Args:
        model: The original, its dimensions bound as the plan says (`bind_dims`).
        plan: What to tile.
        sites: The plan's sites, in its order, found in `model`.

    Returns:
        A new model; `model` is untouched.
    """
    quantized = any(
        node.op == "DequantizeLinear"
        for nodes in (model.graph.nodes, *(f.nodes for f in model.functions.values()))
        for node in _inner(nodes)
    )
    emission = Emission(opset=model.opset, taken=set(value_names(model.graph)), quantized=quantized)
    # functions of an earlier tiling stay; the same name stands for the same body
    emission.functions.update({f.name: f for f in model.functions.values() if f.domain == DOMAIN})
    planned = {id(s.node): (s, p) for s, p in zip(sites, plan.sites, strict=True)}
    bypassed = {id(n) for s in sites if s.weight is not None for n in s.weight.chain}
    bypassed |= {id(n) for s in sites for n in s.absorbed}
    graph = model.graph
    nodes, used = pruned(
        _replaced(graph.nodes, planned, bypassed, emission), [v.name for v in graph.outputs], bypassed
    )
    functions = {
        key: _function(f, planned, bypassed, emission)
        for key, f in model.functions.items()
        if f.domain != DOMAIN
    }
    new_graph = Graph(
        name=graph.name,
        nodes=gathered(nodes),
        # up to IR version 3 all stored tensors are listed, later those that a caller may replace
        inputs=tuple(
            v
            for v in graph.inputs
            if v.name not in graph.initializers or (v.name in used and v.name in model.defaults)
        ),
        outputs=graph.outputs,
        initializers=_stored({**graph.initializers, **emission.initializers}, emission, used),
        # what was declared about values that stay is still true
        values=graph.values,
        extra=graph.extra,
    )
    return replace(
        model,
        graph=new_graph,
        opsets={**model.opsets, DOMAIN: 1},
        ir_version=max(model.ir_version, 8),  # local functions came with IR version 8
        # what is called stands before what calls it, which onnx's own evaluator wants
        functions={**{f.key: f for f in emission.functions.values()}, **functions},
        metadata=with_plan(model.metadata, plan),
        path="",
    )


def _stored(single: Mapping[str, Tensor], emission: Emission, used: set[str]) -> Mapping[str, Tensor]:
    """The weights that are used."""
    used_tensors = {name: tensor for name, tensor in single.items() if name in used}
    bundles = [bundle for bundle in emission.bundles.values() if bundle.names[0] in used]
    return Tensors(used_tensors, bundles) if bundles else used_tensors


Planned = Mapping[int, tuple[Site, SitePlan]]


def _replaced(nodes: Sequence[Node], planned: Planned, bypassed: set[int], emission: Emission) -> list[Node]:
    """The nodes of one graph with the planned ones written as tile products, in its bodies too."""
    out: list[Node] = []
    # a runtime asks that no two nodes of a graph have one name
    names = {node.name for node in nodes if id(node) not in planned}
    for node in nodes:
        if id(node) in planned:
            site, site_plan = planned[id(node)]
            tile_nodes = emit(site, site_plan, emission)
            # which module it belonged to, by torch's exporter: one node says it for the site, not 14,336
            origin = {key: text for key, text in node.metadata.items() if key.startswith("pkg.torch.onnx.")}
            tile_nodes[0].metadata = {**origin, **tile_nodes[0].metadata}
            for tile_node in tile_nodes:
                if isinstance(tile_node, NodeRun) and names.isdisjoint(tile_node.names):
                    names.update(tile_node.names)
                elif isinstance(tile_node, NodeRun):
                    tile_node.names = [free_name(name, names) for name in tile_node.names]
                else:
                    tile_node.name = free_name(tile_node.name, names)
            out += tile_nodes
        else:
            out.append(_with_bodies(node, planned, bypassed, emission))
    return out


def _with_bodies(node: Node, planned: Planned, bypassed: set[int], emission: Emission) -> Node:
    """A node whose bodies are tiled; the node itself if nothing is planned in them."""
    changed: dict[str, Graph] = {}
    for name, body in subgraphs(node):
        if any(id(inner) in planned for inner in _inner(body.nodes)):
            nodes = _replaced(body.nodes, planned, bypassed, emission)
            remaining, used = pruned(nodes, [v.name for v in body.outputs], bypassed)
            initializers = {n: t for n, t in body.initializers.items() if n in used}
            changed[name] = replace(body, nodes=gathered(remaining), initializers=initializers)
    return with_bodies(node, changed) if changed else node


def _function(function: Function, planned: Planned, bypassed: set[int], emission: Emission) -> Function:
    """A function whose body is tiled; the function itself if nothing is planned in it.

    A body of a function sees no initializers: its weights become Constants of its own.
    """
    nodes = function.nodes
    if not any(id(node) in planned for node in _inner(nodes)):
        return function
    names = {*function.inputs, *(o for node in _inner(nodes) for o in node.outputs)}
    inner = Emission(
        function.opsets.get("", emission.opset),
        names,
        functions=emission.functions,
        named=emission.named,
        quantized=emission.quantized,
    )
    body_nodes, _ = pruned(_replaced(nodes, planned, bypassed, inner), function.outputs, bypassed)
    constants = [
        Node("Constant", (), (name,), name=name, attributes={"value": _materialised(tensor)})
        for name, tensor in Tensors(inner.initializers, list(inner.bundles.values())).items()
    ]
    opsets = {**function.opsets, DOMAIN: 1}
    return replace(function, nodes=gathered((*constants, *body_nodes)), opsets=opsets, record=None)


def _materialised(tensor: Tensor) -> Tensor:
    """A tensor with its bytes in memory, as an attribute holds them."""
    assert tensor.payload is not None
    return replace(tensor, name="", payload=Inline(b"".join(tensor.payload.pieces())))


def _inner(nodes: Sequence[Node]) -> Iterator[Node]:
    """Nodes, and those in their bodies; what is held as one is one."""
    for node in node_sequence(nodes):
        yield node
        for _, body in subgraphs(node):
            yield from _inner(body.nodes)


def pruned(nodes: list[Node], outputs: Sequence[str], bypassed: set[int]) -> tuple[list[Node], set[str]]:
    """Drops the bypassed nodes whose outputs nobody uses; also says which names are used.

    Args:
        nodes: Of a graph, in order.
        outputs: What of it is used in any case.
        bypassed: Ids of the nodes that may go.
    """
    used = set(outputs)
    remaining: list[Node] = []
    for node in reversed(nodes):
        if id(node) in bypassed and not any(o in used for o in node.outputs):
            continue
        used.update(reads(node))
        remaining.append(node)
    remaining.reverse()
    return remaining, used


def bind_dims(model: Model, shapes: Mapping[str, TensorInfo]) -> Model:
    """The model with its inputs and outputs declared at the sizes that were bound.

    Args:
        model: The model.
        shapes: Every value of the main graph as inferred with `dims`.

    Returns:
        A model whose declared intermediate shapes are dropped: they speak of the symbolic model.
    """
    graph = model.graph
    feeds = [info for value in graph.feeds if (info := shapes.get(value.name)) is not None]
    names = {size for info in feeds for size in info.shape or () if isinstance(size, str)}

    def bound(value: Value) -> Value:
        info = shapes.get(value.name)
        if value.shape is None or info is None or info.shape is None:
            return value
        shape = info.shape
        if len(shape) == len(value.shape):
            # inference may lose the name of a size that is still open
            shape = tuple(
                declared_size if size is None and declared_size in names else size
                for declared_size, size in zip(value.shape, shape, strict=True)
            )
        return value if shape == value.shape else Value(value.name, value.dtype, shape)

    inputs, outputs = tuple(map(bound, graph.inputs)), tuple(map(bound, graph.outputs))
    if (inputs, outputs) == (graph.inputs, graph.outputs):
        return model
    return replace(model, graph=replace(graph, inputs=inputs, outputs=outputs, values=()))
