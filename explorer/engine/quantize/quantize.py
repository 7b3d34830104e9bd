"""Quantization of a graph: a model and a choice for each layer in, the quantized model out.

Nodes that are no chosen layer keep their bytes; weights that nothing reads any more are left out; codes are
made while the file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.engine.graph.repeated_nodes import NodeRun, gathered, node_sequence
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.grids import Grids
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.write import nbits, qdq, qoperator
from explorer.engine.quantize.write.additions import Additions
from explorer.engine.tiling.tile import pruned
from explorer.facts import TensorInfo

_IR_VERSIONS = ((21, 10), (19, 9), (13, 7), (10, 5))
"""Operator sets, and the IR version that came with each."""


_WRITERS: Mapping[str, Callable[[LayerChoice, Grids, Additions], None]] = {
    "nbits": nbits.write,
    "qoperator": qoperator.write,
}


def quantized(
    model: Model, choices: Sequence[LayerChoice], grids: Grids, shapes: Mapping[str, TensorInfo]
) -> Model:
    """The model with every chosen layer in its formats.

    Args:
        model: The original, in an operator set that has the operators of the choices.
        choices: The choices for its layers.
        grids: Grids of the values that these layers read.
        shapes: Type and shape of every value of its main graph.

    Returns:
        A new model; `model` is unchanged.

    Raises:
        BadModel: A weight or a bias holds NaN or infinity.
    """
    to, graph = Additions(model, shapes), model.graph
    choice_by_node = {id(choice.layer.node): choice for choice in choices if not choice.reason}
    rounded = {value: choice for choice in choice_by_node.values() for value in choice.rounds}
    for node in node_sequence(graph.nodes):
        choice = choice_by_node.get(id(node))
        if choice is None:
            to.nodes.append(_reading_rounded(node, rounded, grids, to))
        else:
            _WRITERS.get(choice.form, qdq.write)(choice, grids, to)
    bypassed = {
        id(node) for choice in choice_by_node.values() for o in choice.layer.operands for node in o.chain
    }
    nodes, used = pruned(to.nodes, [value.name for value in graph.outputs], bypassed)
    initializers = {
        name: tensor for name, tensor in {**graph.initializers, **to.stored}.items() if name in used
    }
    listed = tuple(
        value
        for value in graph.inputs
        if value.name not in graph.initializers or (value.name in used and value.name in model.defaults)
    )
    values = (*graph.values, *to.values)
    if to.functions:
        values += _undeclared(graph, nodes, values, shapes)
    needed = max((ir for opset, ir in _IR_VERSIONS if model.opset >= opset), default=model.ir_version)
    return replace(
        model,
        graph=replace(graph, nodes=gathered(nodes), inputs=listed, initializers=initializers, values=values),
        opsets={**to.opsets, **model.opsets},
        ir_version=max(model.ir_version, needed, 8 if to.functions else 0),
        functions={**to.functions, **model.functions},
        path="",
    )


def _reading_rounded(node: Node, rounded: Mapping[str, LayerChoice], grids: Grids, to: Additions) -> Node:
    """A node between layers; it reads the rounded values of a chain."""
    if isinstance(node, NodeRun) or rounded.keys().isdisjoint(node.inputs):
        return node
    inputs = list(node.inputs)
    for at, value in enumerate(inputs):
        choice = rounded.get(value)
        if choice is not None and choice.input is not None:
            grid = grids.of_value(choice, value)
            inputs[at] = qdq.activation(Operand("input", at, value), choice.input, grid, to)
    return node.with_values(inputs, node.outputs)


def kept_names(model: Model, choices: Sequence[LayerChoice]) -> frozenset[str]:
    """Names of values that are outputs of the model, or that a node reads without a format."""
    taken = {id(choice.layer.node): choice for choice in choices if not choice.reason}
    nodes = [
        _rest(node, taken[id(node)]) if id(node) in taken else node
        for node in node_sequence(model.graph.nodes)
    ]
    bypassed = {id(node) for choice in taken.values() for o in choice.layer.operands for node in o.chain}
    return frozenset(pruned(nodes, [value.name for value in model.graph.outputs], bypassed)[1])


def _rest(node: Node, choice: LayerChoice) -> Node:
    """A copy of a layer that reads only the operands without a format."""
    inputs = list(node.inputs)
    for operand in choice.layer.operands:
        if getattr(choice, operand.part) is not None:
            inputs[operand.at] = ""
    return node.with_values(inputs, node.outputs)


def _undeclared(
    graph: Graph, nodes: Sequence[Node], values: Sequence[Value], shapes: Mapping[str, TensorInfo]
) -> tuple[Value, ...]:
    """Declarations of the undeclared values of a graph of fixed sizes: QONNX needs them to run it."""
    if not all(isinstance(size, int) for value in graph.feeds for size in value.shape or ("?",)):
        return ()
    declared = {value.name for value in (*graph.inputs, *graph.outputs, *values)}
    undeclared = (shapes.get(name) for node in nodes for name in node.outputs if name not in declared)
    return tuple(
        Value(info.name, info.dtype, info.shape)
        for info in undeclared
        if info is not None and info.dtype and info.shape is not None and info.origin != "bound"
    )
