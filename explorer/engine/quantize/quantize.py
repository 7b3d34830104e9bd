"""Quantization of a graph: builds the quantized model from a model and a choice for each layer.

Nodes without a choice keep their bytes, unless they read a value of a chain. Weights that no node reads any
more are removed. Integer codes of weights are computed while the file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.engine.graph.repeated_nodes import NodeRun, combine_nodes, list_stored_nodes
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.grids import Grids
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.write import nbits, qdq, qoperator
from explorer.engine.quantize.write.additions import Additions
from explorer.engine.tiling.tile import drop_unused_nodes
from explorer.facts import TensorInfo

_IR_VERSIONS = ((21, 10), (19, 9), (13, 7), (10, 5))
"""Pairs of an operator set version and the ONNX IR version released with it."""

_WRITERS: Mapping[str, Callable[[LayerChoice, Grids, Additions], None]] = {
    "nbits": nbits.write,
    "qoperator": qoperator.write,
}
"""Writers by the form of a choice. `qdq.write` writes all other forms."""


def quantize_model(
    model: Model, choices: Sequence[LayerChoice], grids: Grids, shapes: Mapping[str, TensorInfo]
) -> Model:
    """Returns the model with every chosen layer in its number formats.

    Args:
        model: The original, in an operator set that has the operators of the choices.
        choices: Choices for the layers of the model.
        grids: Grids of the operands of these layers.
        shapes: Type and shape of every value of the main graph.

    Returns:
        A new model; `model` is unchanged.

    Raises:
        BadModel: A weight or a bias holds NaN or infinity.
    """
    additions, graph = Additions(model, shapes), model.graph
    choice_by_node = {id(choice.layer.node): choice for choice in choices if not choice.reason}
    choice_by_rounded_value = {
        value: choice for choice in choice_by_node.values() for value in choice.rounded_values
    }
    for node in list_stored_nodes(graph.nodes):
        choice = choice_by_node.get(id(node))
        if choice is None:
            additions.nodes.append(_read_rounded_inputs(node, choice_by_rounded_value, grids, additions))
        else:
            _WRITERS.get(choice.form, qdq.write)(choice, grids, additions)
    bypassed = _list_bypassed_nodes(choice_by_node)
    nodes, names = drop_unused_nodes(additions.nodes, [value.name for value in graph.outputs], bypassed)
    initializers = {
        name: tensor for name, tensor in {**graph.initializers, **additions.stored}.items() if name in names
    }
    kept_inputs = tuple(
        value
        for value in graph.inputs
        if value.name not in graph.initializers or (value.name in names and value.name in model.defaults)
    )
    values = (*graph.values, *additions.values)
    if additions.functions:
        values += _declare_missing_values(graph, nodes, values, shapes)
    needed_version = max((ir for opset, ir in _IR_VERSIONS if model.opset >= opset), default=model.ir_version)
    return replace(
        model,
        graph=replace(
            graph, nodes=combine_nodes(nodes), inputs=kept_inputs, initializers=initializers, values=values
        ),
        opsets={**additions.opsets, **model.opsets},
        ir_version=max(model.ir_version, needed_version, 8 if additions.functions else 0),
        functions={**additions.functions, **model.functions},
        path="",
    )


def _read_rounded_inputs(
    node: Node, choice_by_rounded_value: Mapping[str, LayerChoice], grids: Grids, additions: Additions
) -> Node:
    """Makes a node between two layers of a chain read the rounded values."""
    if isinstance(node, NodeRun) or choice_by_rounded_value.keys().isdisjoint(node.inputs):
        return node
    inputs = list(node.inputs)
    for index, value in enumerate(inputs):
        choice = choice_by_rounded_value.get(value)
        if choice is not None and choice.input is not None:
            grid = grids.find_value_grid(choice, value)
            inputs[index] = qdq.write_activation(
                Operand("input", index, value), choice.input, grid, additions
            )
    return node.replace_values(inputs, node.outputs)


def collect_kept_names(model: Model, choices: Sequence[LayerChoice]) -> frozenset[str]:
    """Returns the names of the model's outputs, and of all values that some node reads unquantized."""
    choice_by_node = {id(choice.layer.node): choice for choice in choices if not choice.reason}
    nodes = [
        _drop_rounded_inputs(node, choice_by_node[id(node)]) if id(node) in choice_by_node else node
        for node in list_stored_nodes(model.graph.nodes)
    ]
    bypassed = _list_bypassed_nodes(choice_by_node)
    return frozenset(drop_unused_nodes(nodes, [value.name for value in model.graph.outputs], bypassed)[1])


def _list_bypassed_nodes(choice_by_node: Mapping[int, LayerChoice]) -> set[int]:
    """Returns the ids of the nodes between stored tensors and layers, which may no longer be read."""
    operands = [operand for choice in choice_by_node.values() for operand in choice.layer.operands]
    return {id(node) for operand in operands for node in operand.intermediates}


def _drop_rounded_inputs(node: Node, choice: LayerChoice) -> Node:
    """Returns a copy of a layer's node that reads only the operands without a format."""
    inputs = list(node.inputs)
    for operand in choice.layer.operands:
        if getattr(choice, operand.part) is not None:
            inputs[operand.input_index] = ""
    return node.replace_values(inputs, node.outputs)


def _declare_missing_values(
    graph: Graph, nodes: Sequence[Node], values: Sequence[Value], shapes: Mapping[str, TensorInfo]
) -> tuple[Value, ...]:
    """Declares the values of a graph that have no declaration yet, if all its inputs have fixed sizes.

    QONNX needs declarations to run the graph.
    """
    if not all(isinstance(size, int) for value in graph.required_inputs for size in value.shape or ("?",)):
        return ()
    declared = {value.name for value in (*graph.inputs, *graph.outputs, *values)}
    undeclared = (shapes.get(name) for node in nodes for name in node.outputs if name not in declared)
    return tuple(
        Value(info.name, info.dtype, info.shape)
        for info in undeclared
        if info is not None and info.dtype and info.shape is not None and info.origin != "bound"
    )
