"""Tiles a graph: writes the sites of a plan as tile products.

Other nodes keep their bytes. Unused weights are dropped. New weights are computed while the file is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import (
    Function,
    Graph,
    Inline,
    Model,
    Node,
    Tensor,
    Value,
    list_bodies,
    replace_bodies,
)
from explorer.engine.graph.repeated_nodes import (
    NodeRun,
    Tensors,
    combine_nodes,
    create_free_name,
    list_stored_nodes,
    list_value_names,
)
from explorer.engine.graph.tile_metadata import DOMAIN, add_plan
from explorer.engine.tiling.builder import Emission
from explorer.engine.tiling.emit.forms import emit
from explorer.engine.tiling.sites import Site
from explorer.facts import Plan, SitePlan, TensorInfo


def tile(model: Model, plan: Plan, sites: Sequence[Site]) -> Model:
    """Returns the model with every planned site written as tile products.

    Args:
        model: The original, with dimensions bound by `bind_dims` as in the plan.
        plan: The plan.
        sites: Sites of the plan in the plan's order, found in `model`.

    Returns:
        A new model; `model` is not changed.
    """
    is_quantized = any(
        node.op == "DequantizeLinear"
        for nodes in (model.graph.nodes, *(f.nodes for f in model.functions.values()))
        for node in _list_all_nodes(nodes)
    )
    value_names = set(list_value_names(model.graph))
    emission = Emission(opset=model.opset, used_names=value_names, is_quantized=is_quantized)
    # keep the functions of an earlier tiling: the same name implies the same body
    emission.functions.update({f.name: f for f in model.functions.values() if f.domain == DOMAIN})
    planned = {id(s.node): (s, p) for s, p in zip(sites, plan.sites, strict=True)}
    droppable = {id(n) for s in sites if s.weight is not None for n in s.weight.chain}
    droppable |= {id(n) for s in sites for n in s.absorbed}
    graph = model.graph
    nodes, used_names = drop_unused_nodes(
        _replace_nodes(graph.nodes, planned, droppable, emission), [v.name for v in graph.outputs], droppable
    )
    functions = {
        key: _tile_function(f, planned, droppable, emission)
        for key, f in model.functions.items()
        if f.domain != DOMAIN
    }
    new_graph = Graph(
        name=graph.name,
        nodes=combine_nodes(nodes),
        # up to IR version 3, inputs list all stored tensors; later, only replaceable ones
        inputs=tuple(
            v
            for v in graph.inputs
            if v.name not in graph.initializers or (v.name in used_names and v.name in model.defaults)
        ),
        outputs=graph.outputs,
        initializers=_find_used_weights(
            {**graph.initializers, **emission.initializers}, emission, used_names
        ),
        # declarations of the remaining values are still valid
        values=graph.values,
        extra=graph.extra,
    )
    return replace(
        model,
        graph=new_graph,
        opsets={**model.opsets, DOMAIN: 1},
        ir_version=max(model.ir_version, 8),  # local functions came with IR version 8
        # onnx's own evaluator needs functions before their callers
        functions={**{f.key: f for f in emission.functions.values()}, **functions},
        metadata=add_plan(model.metadata, plan),
        path="",
    )


def _find_used_weights(
    tensors: Mapping[str, Tensor], emission: Emission, used_names: set[str]
) -> Mapping[str, Tensor]:
    """Returns the stored tensors among `tensors` and the bundles of `emission` that are used."""
    used_tensors = {name: tensor for name, tensor in tensors.items() if name in used_names}
    bundles = [bundle for bundle in emission.bundles.values() if bundle.names[0] in used_names]
    return Tensors(used_tensors, bundles) if bundles else used_tensors


Planned = Mapping[int, tuple[Site, SitePlan]]
"""Planned sites with their plans, by the id of the node that a site replaces."""


def _replace_nodes(
    nodes: Sequence[Node], planned: Planned, droppable: set[int], emission: Emission
) -> list[Node]:
    """Returns the nodes of a graph and its bodies, with tile products in place of the planned nodes."""
    new_nodes: list[Node] = []
    # runtimes require unique node names in a graph
    names = {node.name for node in nodes if id(node) not in planned}
    for node in nodes:
        if id(node) in planned:
            site, site_plan = planned[id(node)]
            tile_nodes = emit(site, site_plan, emission)
            # torch's exporter records the module as metadata: one node keeps it, because a site may have
            # thousands of nodes
            exporter_metadata = {
                key: text for key, text in node.metadata.items() if key.startswith("pkg.torch.onnx.")
            }
            tile_nodes[0].metadata = {**exporter_metadata, **tile_nodes[0].metadata}
            for tile_node in tile_nodes:
                if isinstance(tile_node, NodeRun) and names.isdisjoint(tile_node.names):
                    names.update(tile_node.names)
                elif isinstance(tile_node, NodeRun):
                    tile_node.names = [create_free_name(name, names) for name in tile_node.names]
                else:
                    tile_node.name = create_free_name(tile_node.name, names)
            new_nodes += tile_nodes
        else:
            new_nodes.append(_tile_bodies(node, planned, droppable, emission))
    return new_nodes


def _tile_bodies(node: Node, planned: Planned, droppable: set[int], emission: Emission) -> Node:
    """Returns the node with tiled bodies, or the node itself if no body has a planned node."""
    tiled_bodies: dict[str, Graph] = {}
    for name, body in list_bodies(node):
        if any(id(inner) in planned for inner in _list_all_nodes(body.nodes)):
            nodes = _replace_nodes(body.nodes, planned, droppable, emission)
            remaining, used_names = drop_unused_nodes(nodes, [v.name for v in body.outputs], droppable)
            initializers = {n: t for n, t in body.initializers.items() if n in used_names}
            tiled_bodies[name] = replace(body, nodes=combine_nodes(remaining), initializers=initializers)
    return replace_bodies(node, tiled_bodies) if tiled_bodies else node


def _tile_function(function: Function, planned: Planned, droppable: set[int], emission: Emission) -> Function:
    """Returns the function with a tiled body, or the function itself without a planned node.

    A function cannot read initializers, so its weights become Constants.
    """
    nodes = function.nodes
    if not any(id(node) in planned for node in _list_all_nodes(nodes)):
        return function
    names = {*function.inputs, *(o for node in _list_all_nodes(nodes) for o in node.outputs)}
    function_emission = Emission(
        function.opsets.get("", emission.opset),
        names,
        functions=emission.functions,
        function_names=emission.function_names,
        is_quantized=emission.is_quantized,
    )
    body_nodes, _ = drop_unused_nodes(
        _replace_nodes(nodes, planned, droppable, function_emission), function.outputs, droppable
    )
    new_tensors = Tensors(function_emission.initializers, list(function_emission.bundles.values()))
    constants = [
        Node("Constant", (), (name,), name=name, attributes={"value": _materialize(tensor)})
        for name, tensor in new_tensors.items()
    ]
    opsets = {**function.opsets, DOMAIN: 1}
    return replace(
        function, nodes=combine_nodes((*constants, *body_nodes)), opsets=opsets, record=None, values=()
    )


def _materialize(tensor: Tensor) -> Tensor:
    """Returns a tensor with its bytes in memory, as attributes require."""
    assert tensor.payload is not None
    return replace(tensor, name="", payload=Inline(b"".join(tensor.payload.read_pieces())))


def _list_all_nodes(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields nodes and the nodes in their bodies. A `NodeRun` counts as one node."""
    for node in list_stored_nodes(nodes):
        yield node
        for _, body in list_bodies(node):
            yield from _list_all_nodes(body.nodes)


def drop_unused_nodes(
    nodes: list[Node], outputs: Sequence[str], droppable: set[int]
) -> tuple[list[Node], set[str]]:
    """Drops droppable nodes whose outputs are unused. Returns the remaining nodes and the used names.

    Args:
        nodes: Nodes of a graph, in order.
        outputs: Names that always count as used.
        droppable: Ids of the nodes that may be dropped.
    """
    used_names = set(outputs)
    remaining: list[Node] = []
    for node in reversed(nodes):
        if id(node) in droppable and not any(o in used_names for o in node.outputs):
            continue
        used_names.update(list_reads(node))
        remaining.append(node)
    remaining.reverse()
    return remaining, used_names


def bind_dims(model: Model, shapes: Mapping[str, TensorInfo]) -> Model:
    """Declares the model's inputs and outputs at the bound sizes.

    Args:
        model: The model.
        shapes: Every value of the main graph, inferred at the bound sizes.

    Returns:
        The model without declared intermediate shapes, which apply only to the symbolic model; or `model`
        itself if no declaration changes.
    """
    graph = model.graph
    required = [info for value in graph.required_inputs if (info := shapes.get(value.name)) is not None]
    names = {size for info in required for size in info.shape or () if isinstance(size, str)}

    def bind_value(value: Value) -> Value:
        info = shapes.get(value.name)
        if value.shape is None or info is None or info.shape is None:
            return value
        shape = info.shape
        if len(shape) == len(value.shape):
            # inference may lose the name of an open size
            shape = tuple(
                declared_size if size is None and declared_size in names else size
                for declared_size, size in zip(value.shape, shape, strict=True)
            )
        return value if shape == value.shape else Value(value.name, value.dtype, shape)

    inputs, outputs = tuple(map(bind_value, graph.inputs)), tuple(map(bind_value, graph.outputs))
    if (inputs, outputs) == (graph.inputs, graph.outputs):
        return model
    return replace(model, graph=replace(graph, inputs=inputs, outputs=outputs, values=()))
