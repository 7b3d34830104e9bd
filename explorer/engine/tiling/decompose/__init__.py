"""Decomposes operators that contain matmuls into simpler nodes, so that the matmuls become separate nodes.

An LSTM multiplies twice in each step, with activations between. It is not a matmul itself, but the graph of
its definition contains two matmuls, which can be tiled. The decomposition also drops nodes, initializers and
inputs that no node reads any more. The proof of a tiling repeats the decomposition and compares the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.repeated_nodes import list_value_names
from explorer.engine.tiling.builder import Emission, GraphBuilder
from explorer.engine.tiling.decompose import recurrent
from explorer.engine.tiling.sites import REPLACEABLE, NoSite, SiteContext
from explorer.facts import TensorInfo

DECOMPOSITIONS = recurrent.DECOMPOSITIONS
"""For (domain, operator), the function that writes the nodes of the operator's definition."""


def decompose(
    model: Model,
    shapes: Mapping[str, TensorInfo],
    declared: Mapping[str, TensorInfo] | None = None,
    only: Sequence[str] | None = None,
) -> tuple[Model, tuple[str, ...], dict[str, str]]:
    """Decomposes operators of the main graph.

    Args:
        model: The model.
        shapes: Shapes of all values, with a number for every open dimension.
        declared: The shapes with open dimensions left symbolic.
        only: Names of the nodes to decompose, or None for all possible nodes.

    Returns:
        The new model, or `model` if no node was decomposed; the names of the decomposed nodes; and the reason
        for each node that cannot be decomposed, by its name.
    """
    if not any((node.domain, node.op) in DECOMPOSITIONS for node in model.graph.nodes):
        return model, (), {}
    context = SiteContext(model, shapes, declared=declared)
    emission = Emission(opset=model.opset, used_names=set(list_value_names(model.graph)))
    nodes: list[Node] = []
    decomposed: list[str] = []
    weight_nodes: set[int] = set()
    refused: dict[str, str] = {}
    for node in model.graph.nodes:
        write = DECOMPOSITIONS.get((node.domain, node.op))
        if write is None or node.key in model.functions or (only is not None and node.label not in only):
            nodes.append(node)
            continue
        builder = GraphBuilder(emission, emission.create_prefix(f"{node.label}/parts"), "", f"{node.label}/")
        context.constants.has_replaceable = False  # set if a weight is an input that a caller can replace
        try:
            write(builder, node, context)
        except NoSite as why:
            refused[node.label] = REPLACEABLE if context.constants.has_replaceable else str(why)
            nodes.append(node)
            continue
        decomposed.append(node.label)
        nodes += builder.nodes
        weight_nodes |= {
            id(source) for name in node.inputs for source in recurrent.list_nodes_before(name, context)
        }
    if not decomposed:
        return model, (), refused
    nodes = _drop_unused(nodes, weight_nodes, [v.name for v in model.graph.outputs])
    read_names = {name for node in nodes for name in list_reads(node)} | {v.name for v in model.graph.outputs}
    initializers = {**model.graph.initializers, **emission.initializers}
    stored = {name: tensor for name, tensor in initializers.items() if name in read_names}
    graph = replace(model.graph, nodes=tuple(nodes), initializers=stored)
    inputs = tuple(v for v in graph.inputs if v.name in stored or v.name not in model.graph.initializers)
    return replace(model, graph=replace(graph, inputs=inputs)), tuple(decomposed), refused


def _drop_unused(nodes: Sequence[Node], weight_nodes: set[int], outputs: Sequence[str]) -> list[Node]:
    """Removes the unused nodes among `weight_nodes`, ids of nodes between a weight and its former reader."""
    needed = set(outputs)
    remaining: list[Node] = []
    for node in reversed(nodes):
        if id(node) not in weight_nodes or not needed.isdisjoint(node.outputs):
            needed.update(list_reads(node))
            remaining.append(node)
    return remaining[::-1]
