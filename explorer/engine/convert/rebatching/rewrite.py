"""Batch rewriting: changes the fixed batch of a graph to another size or an open size.

The rewriter follows the batch axis from the inputs, node by node (`rules`). It replaces target shapes that
contain the batch size. It expands stored values that must grow with the batch, such as a class token or the
first state of an LSTM. After a Reshape of a batch of 1, several axes can be the batch axis. The rewriter then
takes the likeliest axis that all later nodes accept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.engine.convert.rebatching.batch_axis import (
    BatchAxis,
    RewriteError,
    Rewriting,
    find_input_batches,
)
from explorer.engine.convert.rebatching.rules import RULES
from explorer.engine.graph.interpreter import list_reads
from explorer.engine.graph.model import Graph, Model, Node, Tensor, Value, build_tensor, list_bodies
from explorer.engine.graph.repeated_nodes import list_value_names
from explorer.engine.shapes import find_captured_names, infer

_MAX_TRIES = 400
"""Maximum number of combinations of batch axes that are tried at ambiguous Reshapes."""

_SIZE_OPERATORS = ("Shape", "Size")
"""Operators whose result contains the batch size, if their input has a batch."""
_DOMAINS = ("", "com.microsoft")
"""Domains of the operators that `RULES` contains."""


class RebatchedModel(Struct, frozen=True):
    """A model for another batch.

    Attributes:
        model: New model.
        old_batch: Batch size of the original.
        batched: Batch axes of inputs, values and outputs.
        changed: Names of the nodes and values that were rewritten.
    """

    model: Model
    old_batch: int
    batched: Mapping[str, BatchAxis]
    changed: tuple[str, ...]


def rewrite_batch(model: Model, batch: int | str, axes: Mapping[str, int] | None = None) -> RebatchedModel:
    """Rewrites a model for another batch.

    Args:
        model: Original model.
        batch: New batch size, or a name for an open batch dimension.
        axes: Batch axis by input name; an input without an entry has no batch. Empty for the first axis of
            every input.

    Raises:
        Misuse: The model cannot be rewritten safely; the message names the node and the reason.
    """
    inputs = {value.name: value.shape for value in model.graph.required_inputs}
    input_axes, old_batch = find_input_batches(inputs, axes or {})
    declared = {
        d
        for v in (*model.graph.required_inputs, *model.graph.values, *model.graph.outputs)
        for d in v.shape or ()
    }
    if batch in declared and isinstance(batch, str):
        raise Misuse(f"a dimension is called '{batch}' already", where="rebatch", hint="take another name")
    shapes = infer(model)
    used_names = {*list_value_names(model.graph), *(node.name for node in model.graph.nodes)}
    choices: list[int] = []
    last_error: RewriteError | None = None
    for _ in range(_MAX_TRIES):
        state = Rewriting(
            old_batch=old_batch,
            new_batch=batch,
            shapes=shapes,
            batched=dict(input_axes),
            initializers=dict(model.graph.initializers),
            used_names=set(used_names),
            choices=choices,
            source=next(iter(input_axes)),
            opset=model.opset,
        )
        try:
            return _rewrite_graph(model, state)
        except RewriteError as error:
            if last_error is None or error.node_index > last_error.node_index:
                last_error = error
        # next combination, as an odometer counts: a choice at its last option is dropped, and the choice
        # before it advances
        option_counts = state.option_counts
        choices = [*choices, *[0] * (len(option_counts) - len(choices))][: len(option_counts)]
        while choices and choices[-1] + 1 >= option_counts[len(choices) - 1]:
            choices.pop()
        if not choices:
            break
        choices[-1] += 1
    assert last_error is not None
    hint = "" if axes else "if the batch is another axis of an input, name it: --axis INPUT:AXIS"
    raise Misuse(f"the batch cannot be rewritten: {last_error.reason}", where="rebatch", hint=hint)


def _rewrite_graph(model: Model, rewriting: Rewriting) -> RebatchedModel:
    """Rewrites the whole graph with one combination of options at its ambiguous Reshapes.

    Raises:
        RewriteError: The graph cannot be rewritten with this combination.
    """
    graph = model.graph
    for node_index, node in enumerate(graph.nodes):
        try:
            rewriting.nodes.append(_rewrite_node(model, rewriting, node))
        except RewriteError as error:
            raise RewriteError(f"{node.op} '{printable(node.label)}': {error.reason}", node_index) from None
    for value in graph.outputs:
        if value.name in rewriting.size_values:
            raise RewriteError(
                f"output '{printable(value.name)}' contains the size of the batch", len(graph.nodes)
            )
    nodes, initializers = _drop_unused(rewriting.nodes, rewriting.initializers, graph)
    rewritten = Graph(
        name=graph.name,
        nodes=nodes,
        inputs=tuple(_update_shape(rewriting, value) for value in graph.inputs),
        outputs=tuple(_update_shape(rewriting, value) for value in graph.outputs),
        initializers=initializers,
        values=tuple(_update_shape(rewriting, value) for value in graph.values),
        extra=graph.extra,
    )
    return RebatchedModel(
        replace(model, graph=rewritten, path=""),
        rewriting.old_batch,
        rewriting.batched,
        tuple(dict.fromkeys(rewriting.changed)),
    )


def _rewrite_node(model: Model, rewriting: Rewriting, node: Node) -> Node:
    """Returns the node for the new batch, and records the batch axes of its outputs."""
    captured_values = {n for _, body in list_bodies(node) for n in find_captured_names(body)}
    if captured_values & (rewriting.batched.keys() | rewriting.size_values):
        rewriting.refuse("its body (a loop or branch) reads tensors that have a batch axis")
    if node.op in _SIZE_OPERATORS and not node.domain and node.inputs[0] in rewriting.batched:
        rewriting.size_values.update(node.outputs)
        return node
    node = _replace_known_sizes(rewriting, node)
    if not any(name in rewriting.batched for name in node.inputs):
        if any(name in rewriting.size_values for name in node.inputs):
            rewriting.size_values.update(node.outputs)
        return node
    rule = RULES.get(node.op) if node.domain in _DOMAINS else None
    if rule is None or node.key in model.functions:
        rewriting.refuse("the place of the batch in its outputs is not known")
    return rule(rewriting, node)


def _replace_known_sizes(rewriting: Rewriting, node: Node) -> Node:
    """Replaces inputs that are computed from the batch size by their values, which rules can rewrite.

    A node whose results are known and that has no batched input stays unchanged.
    """
    if not any(name in rewriting.size_values for name in node.inputs):
        return node
    all_known = all(rewriting.read_array(name) is not None for name in node.outputs if name)
    if all_known and not any(name in rewriting.batched for name in node.inputs):
        return node
    inputs = list(node.inputs)
    for index, name in enumerate(inputs):
        if name in rewriting.size_values:
            array = rewriting.read_array(name)
            if array is None:
                rewriting.refuse(f"'{name}' is computed from the size of the batch")
            inputs[index] = rewriting.create_name(name)
            rewriting.initializers[inputs[index]] = build_tensor(inputs[index], array)
    return node.replace_values(inputs, node.outputs)


def _update_shape(rewriting: Rewriting, value: Value) -> Value:
    shape = None if value.shape is None else rewriting.compute_new_shape(value.name, value.shape)
    return value if shape == value.shape else Value(value.name, value.dtype, shape)


def _drop_unused(
    nodes: Sequence[Node], initializers: Mapping[str, Tensor], graph: Graph
) -> tuple[list[Node], dict[str, Tensor]]:
    """Removes nodes and initializers that only computed shapes which are now constants."""
    needed = {value.name for value in graph.outputs} | {value.name for value in graph.inputs}
    read_before = {name for node in graph.nodes for name in node.inputs}
    # nodes and tensors that the original does not use either stay
    unused_ids = {id(node) for node in graph.nodes if read_before.isdisjoint(node.outputs)}
    used_nodes = []
    for node in reversed(nodes):
        if id(node) in unused_ids or any(name in needed for name in node.outputs):
            used_nodes.append(node)
            needed.update(list_reads(node))
    unread_before = {name for name in graph.initializers if name not in read_before and name not in needed}
    used_initializers = {
        name: tensor for name, tensor in initializers.items() if name in needed or name in unread_before
    }
    return used_nodes[::-1], used_initializers
