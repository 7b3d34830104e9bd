"""Builds the edges of an ONNX model: which node produces each value, and which nodes read it.

A value keeps its identity inside a function that receives it. The input of a branch or loop body comes from
the control flow node, and the output of the body goes to that node.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial

from explorer.engine.costs.layer_tree import Scope
from explorer.engine.costs.onnx.boundaries import restore_original_name
from explorer.engine.costs.onnx.leaves import OperatorFigures, OperatorLeaf
from explorer.engine.costs.onnx.state import VisitResult
from explorer.engine.costs.onnx.values import GraphContext, list_parameters
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.graph.model import Graph
from explorer.facts import Layer, TensorInfo
from explorer.facts.graph.connections import InputSource


def build_value_flow(
    graph: Graph, visited: VisitResult, layers: Sequence[Layer], rows_of: Sequence[int]
) -> ValueFlow:
    """Builds the edges between the rows of a visited model.

    Args:
        graph: Main graph.
        visited: Result of the visit.
        layers: Rows of the tree.
        rows_of: Row id of each leaf.
    """
    flow, context = ValueFlow(), visited.context
    assert context is not None
    groups = {layer.path: layer.id for layer in layers if layer.group}
    for value in graph.required_inputs:
        flow.add_producer(-1, context.get_key(value.name), partial(context.get_info, value.name), "input")
    leaf_index = 0
    for entry in visited.node_values:
        if isinstance(entry, OperatorLeaf):
            # `node_values` and `leaves` list the leaves in the same order, also those that do not count
            _add_operator(flow, entry, rows_of[leaf_index])
            leaf_index += 1
            continue
        row = _find_row(entry.scopes, groups)
        for key, info in zip(entry.input_keys, entry.inputs, strict=True):
            flow.add_reader(row, key, partial(_keep_info, info))
        for key, info in zip(entry.output_keys, entry.outputs, strict=True):
            flow.add_producer(row, key, partial(_keep_info, info))
    for scopes, keys in visited.body_outputs:
        for key in filter(flow.has_value, keys):
            # each graph of a node with several graphs is a group inside the node's group
            owner_scopes = scopes[:-1] if scopes[-1].kind in _MULTI_GRAPH_KINDS else scopes
            flow.add_reader(_find_row(owner_scopes, groups), key, partial(_keep_info, _NOTHING))
    for value in graph.outputs:
        flow.mark_output(context.get_key(value.name))
    for value in (*graph.values, *graph.outputs, *graph.inputs):
        if value.shape is not None and not all(isinstance(size, int) for size in value.shape):
            flow.declared[value.name] = value.shape
    return flow


def _add_operator(flow: ValueFlow, leaf: OperatorLeaf, row: int) -> None:
    """Records the inputs and outputs of an operator. A parameter gets no edge: the row lists it as weight."""
    context, node, figures = leaf.context, leaf.node, leaf.figures
    parameter_names: set[str] = set()
    if isinstance(figures, OperatorFigures):
        parameter_names = list_parameters(context, node, figures.parameters)[1]
    for name in node.inputs:
        if not name or name in leaf.constants:
            continue
        key = context.get_key(name)
        if flow.has_value(key) and not (name in parameter_names and flow.is_stored(key)):
            flow.add_reader(row, key, partial(_get_info, context, key, name))
        elif name not in parameter_names:
            source: InputSource = "stored" if name in context.stored else "unknown"
            flow.add_reader(row, key, partial(_get_info, context, key, name), source)
    for name in node.outputs:
        if name:
            key = context.get_key(name)
            flow.add_producer(row, key, partial(_get_info, context, key, name))


def _find_row(scopes: Sequence[Scope], groups: dict[str, int]) -> int:
    """Returns the row of the innermost group that has one, or -1."""
    return next((groups[scope.path] for scope in reversed(scopes) if scope.path in groups), -1)


def _get_info(context: GraphContext, key: Hashable, name: str) -> TensorInfo:
    return restore_original_name(key, context.get_info(name))


def _keep_info(info: TensorInfo) -> TensorInfo:
    return info


_MULTI_GRAPH_KINDS = frozenset(("branch", "modifier"))
"""Kinds of groups for one graph of several: a branch of an If, or a change of the scores of attention."""
_NOTHING = TensorInfo("", None, None)
"""Placeholder description for a value that exists already."""
