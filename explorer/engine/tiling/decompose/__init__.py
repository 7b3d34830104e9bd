"""Decomposition of operators that contain products into simpler nodes, so that the products stand alone.

An LSTM multiplies twice in each step, with activations in between. It is no single product, but the graph of
its definition contains two, which are tiled like any other. The decomposition changes nothing else; the proof
repeats it and compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.repeated_nodes import value_names
from explorer.engine.tiling.builder import Emission, GraphBuilder
from explorer.engine.tiling.decompose import recurrent
from explorer.engine.tiling.sites import REPLACEABLE, NoSite, SiteContext
from explorer.facts import TensorInfo

DECOMPOSITIONS = recurrent.DECOMPOSITIONS
"""(domain, operator) -> the function that writes the nodes of its definition, with its output names."""


def decompose(
    model: Model,
    shapes: Mapping[str, TensorInfo],
    declared: Mapping[str, TensorInfo] | None = None,
    only: Sequence[str] | None = None,
) -> tuple[Model, tuple[str, ...], dict[str, str]]:
    """Decomposes operators of the main graph.

    Args:
        model: The model.
        shapes: Shapes of all values, at the sizes that figures are for.
        declared: The shapes with open dimensions left symbolic.
        only: Names of the nodes to decompose; None for all possible ones.

    Returns:
        The model, the names of the decomposed nodes, and the reasons why others were not.
    """
    if not any((node.domain, node.op) in DECOMPOSITIONS for node in model.graph.nodes):
        return model, (), {}
    context = SiteContext(model, shapes, declared=declared)
    emission = Emission(opset=model.opset, taken=set(value_names(model.graph)))
    nodes: list[Node] = []
    done: list[str] = []
    led: set[int] = set()
    refused: dict[str, str] = {}
    for node in model.graph.nodes:
        take = DECOMPOSITIONS.get((node.domain, node.op))
        if take is None or node.key in model.functions or (only is not None and node.label not in only):
            nodes.append(node)
            continue
        builder = GraphBuilder(emission, emission.prefix(f"{node.label}/parts"), "", f"{node.label}/")
        context.constants.replaceable = False
        try:
            take(builder, node, context)
        except NoSite as why:
            refused[node.label] = REPLACEABLE if context.constants.replaceable else str(why)
            nodes.append(node)
            continue
        done.append(node.label)
        nodes += builder.nodes
        led |= {id(leading) for name in node.inputs for leading in recurrent.led_by(name, context)}
    if not done:
        return model, (), refused
    nodes = _without_idle(nodes, led, [v.name for v in model.graph.outputs])
    used = {name for node in nodes for name in reads(node)} | {v.name for v in model.graph.outputs}
    initializers = {**model.graph.initializers, **emission.initializers}
    used_initializers = {name: tensor for name, tensor in initializers.items() if name in used}
    graph = replace(model.graph, nodes=tuple(nodes), initializers=used_initializers)
    inputs = tuple(
        v for v in graph.inputs if v.name in used_initializers or v.name not in model.graph.initializers
    )
    return replace(model, graph=replace(graph, inputs=inputs)), tuple(done), refused


def _without_idle(nodes: Sequence[Node], led: set[int], outputs: Sequence[str]) -> list[Node]:
    """The nodes without unused nodes of `led`, which lie between a stored weight and its reader."""
    needed = set(outputs)
    remaining: list[Node] = []
    for node in reversed(nodes):
        if id(node) not in led or not needed.isdisjoint(node.outputs):
            needed.update(reads(node))
            remaining.append(node)
    return remaining[::-1]
