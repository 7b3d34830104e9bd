"""Computes small values that depend on constants only, such as the number of rows of a stored table.

`deciding_numbers` finds the limits of comparisons among stored tensors. A limit can also be computed from
constants, so this module stores such results as tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.model import (
    Function,
    Graph,
    Model,
    Node,
    Tensor,
    Value,
    build_int64_tensor,
    build_tensor,
    list_bodies,
    replace_bodies,
)
from explorer.engine.graph.random_operators import any_draws_random
from explorer.engine.graph.repeated_nodes import combine_nodes, list_stored_nodes
from explorer.engine.runtime.onnxruntime import RuntimeSession

_MAX_RESULT = 64
"""Maximum number of elements of a result that becomes a stored tensor."""

_MAX_OPERAND = 1 << 12
"""Maximum number of elements of a stored tensor that is computed with. Larger tensors are weights."""

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


def store_computed_constants(model: Model, fixed_shapes: Shapes | None = None) -> Model:
    """Replaces the nodes whose small results depend on constants only by these results.

    Args:
        model: Model, or a region as a model.
        fixed_shapes: Shapes of the values whose size is the same in every run, by name. A Shape or Size of
            such a value in the main graph or in a body is a constant.
    """
    graph = _fold_graph(model, model.graph, {}, fixed_shapes or {})
    functions = {key: _fold_function(model, function) for key, function in model.functions.items()}
    is_same = graph is model.graph and all(functions[key] is model.functions[key] for key in functions)
    return model if is_same else replace(model, graph=graph, functions=functions)


def _fold_graph(model: Model, graph: Graph, outer: Tensors, shapes: Shapes) -> Graph:
    """Folds the nodes of a graph and of its bodies; returns `graph` itself if no node was replaced."""
    constants = {**outer, **graph.initializers}
    outputs = {value.name for value in graph.outputs}
    nodes, results = _fold_nodes(model, graph.nodes, constants, outputs, shapes)
    if nodes is graph.nodes:
        return graph
    return replace(graph, nodes=combine_nodes(nodes), initializers={**graph.initializers, **results})


def _fold_function(model: Model, function: Function) -> Function:
    """Folds the nodes of a function. The results become Constant nodes."""
    inner = replace(model, opsets={**model.opsets, **function.opsets})
    nodes, results = _fold_nodes(inner, function.nodes, {}, set(function.outputs), {})
    if nodes is function.nodes:
        return function
    constants = [Node("Constant", (), (name,), attributes={"value": t}) for name, t in results.items()]
    return replace(function, nodes=combine_nodes((*constants, *nodes)), record=None)


def _fold_nodes(
    model: Model, nodes: Sequence[Node], constants: Tensors, outputs: Collection[str], shapes: Shapes
) -> tuple[Sequence[Node], Tensors]:
    """Replaces nodes by their stored results. A node that computes an output of the graph stays.

    Returns:
        The remaining nodes, or `nodes` itself if neither a node nor a body changed; and the results by name.
    """
    ordered = list_stored_nodes(nodes)
    stored = {**constants}
    for node in ordered:
        if (tensor := read_constant(node)) is not None:  # the tensor of an attribute has no name of its own
            stored[node.outputs[0]] = replace(tensor, name=node.outputs[0], record=None)
    all_nodes: list[Node] = []
    candidates: list[Node] = []
    computed_names: set[str] = set()
    has_new_bodies = False
    for node in ordered:
        bodies = {name: _fold_graph(model, body, stored, shapes) for name, body in list_bodies(node)}
        if any(bodies[name] is not body for name, body in list_bodies(node)):
            node, has_new_bodies = replace_bodies(node, bodies), True
        all_nodes.append(node)
        is_fixed_size = _is_size(node) and node.inputs[0] in shapes
        if not bodies and (is_fixed_size or _depends_on_constants(model, node, stored, computed_names)):
            candidates.append(node)
            computed_names.update(node.outputs)
    values = dict(_compute_results(model, candidates, stored, shapes)) if candidates else {}
    replaced = [
        node for node in candidates if all(name in values and name not in outputs for name in node.outputs)
    ]
    if not replaced and not has_new_bodies:
        return nodes, {}
    replaced_ids = set(map(id, replaced))
    results = {name: values[name] for node in replaced for name in node.outputs}
    return [node for node in all_nodes if id(node) not in replaced_ids], results


def _depends_on_constants(model: Model, node: Node, stored: Tensors, computed_names: Collection[str]) -> bool:
    """Whether a standard operator reads only computed values and small stored tensors."""
    if node.domain or node.key in model.functions or not any(node.inputs) or any_draws_random(model, [node]):
        return False
    limit = math.inf if node.op in ("Shape", "Size") else _MAX_OPERAND
    return all(
        not name or name in computed_names or (name in stored and stored[name].elements <= limit)
        for name in node.inputs
    )


def _is_size(node: Node) -> bool:
    return node.op in ("Shape", "Size") and not node.domain


def _compute_results(
    model: Model, nodes: Sequence[Node], stored: Tensors, shapes: Shapes
) -> Iterator[tuple[str, Tensor]]:
    """Yields the small results of nodes, by name."""
    tensors = dict(stored)
    pending: list[Node] = []
    for node in nodes:
        operand = stored.get(node.inputs[0])
        shape = operand.shape if operand is not None else shapes.get(node.inputs[0])
        if _is_size(node) and shape is not None:
            tensors[node.outputs[0]] = _compute_size(node, shape)  # a weight is not passed to the runtime
            yield node.outputs[0], tensors[node.outputs[0]]
        else:
            pending.append(node)
    try:
        yield from _run_nodes(model, pending, tensors).items()
    except BadModel:
        for node in pending:  # a node that cannot run must not hide the results of the others
            if all(not name or name in tensors for name in node.inputs):
                try:
                    results = _run_nodes(model, [node], tensors)
                except BadModel:
                    continue
                tensors.update(results)
                yield from results.items()


def _compute_size(node: Node, shape: tuple[int, ...]) -> Tensor:
    """Computes a Shape or Size of a value with the given shape."""
    if node.op == "Size":
        return build_tensor(node.outputs[0], np.asarray(math.prod(shape), np.int64))
    sizes = shape[slice(node.attributes.get("start", 0), node.attributes.get("end"))]
    return build_int64_tensor(node.outputs[0], sizes)


def _run_nodes(model: Model, nodes: Sequence[Node], constants: Tensors) -> dict[str, Tensor]:
    """Runs nodes on `constants`, and returns their small numeric results by name.

    Raises:
        BadModel: The runtime cannot run the nodes.
    """
    names = [name for node in nodes for name in node.outputs if name]
    if not names:
        return {}
    tensors = {name: constants[name] for node in nodes for name in node.inputs if name in constants}
    graph = Graph("constants", tuple(nodes), (), tuple(Value(name, None, None) for name in names), tensors)
    constants_model = replace(model, graph=graph, functions={}, extra=())
    values = RuntimeSession(constants_model, label="the constants", optimize=False).run({})
    return {
        name: build_tensor(name, value)
        for name, value in values.items()
        if isinstance(value, np.ndarray) and value.size <= _MAX_RESULT and value.dtype.kind in "biuf"
    }
