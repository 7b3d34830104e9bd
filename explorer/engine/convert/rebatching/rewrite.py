"""Batch rewriting: changes the fixed batch of a graph to another size or an open one.

The batch is traced from the inputs, node by node (`rules`). Target shapes that contain it are replaced;
stored values that must grow with it (a class token, the first state of an LSTM) are expanded. If a Reshape of
a batch of 1 leaves several axes that could be the batch, the likeliest one that all later nodes accept is
taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.engine.convert.rebatching.batch_axis import BatchAxis, RewriteError, Rewriting, first_axes
from explorer.engine.convert.rebatching.rules import RULES
from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Graph, Model, Node, Tensor, Value, subgraphs, tensor_from_array
from explorer.engine.graph.repeated_nodes import value_names
from explorer.engine.shapes import captured_names, infer

_TRIES = 400
"""The most combinations of options at ambiguous Reshapes that are tried."""

_SIZES = ("Shape", "Size")
_DOMAINS = ("", "com.microsoft")


class RebatchedModel(Struct, frozen=True):
    """A model for another batch.

    Attributes:
        model: The new model.
        old: The original batch size.
        batched: The batch axes of inputs, values and outputs.
        changed: Names of the nodes and values that were rewritten.
    """

    model: Model
    old: int
    batched: Mapping[str, BatchAxis]
    changed: tuple[str, ...]


def rebatched(model: Model, batch: int | str, axes: Mapping[str, int] | None = None) -> RebatchedModel:
    """Rewrites a model for another batch.

    Args:
        model: The original.
        batch: The new size, or a name for an open one.
        axes: The batch axis of each input; empty for the first axis of every input.

    Raises:
        Misuse: The model cannot be rewritten safely; the message names the node and the reason.
    """
    feeds = {value.name: value.shape for value in model.graph.feeds}
    first, old = first_axes(feeds, axes or {})
    declared = {
        d for v in (*model.graph.feeds, *model.graph.values, *model.graph.outputs) for d in v.shape or ()
    }
    if batch in declared and isinstance(batch, str):
        raise Misuse(f"a dimension is called '{batch}' already", where="rebatch", hint="take another name")
    shapes = infer(model)
    taken = {*value_names(model.graph), *(node.name for node in model.graph.nodes)}
    choices: list[int] = []
    deepest: RewriteError | None = None
    for _ in range(_TRIES):
        work = Rewriting(
            old, batch, shapes, dict(first), dict(model.graph.initializers), set(taken), choices,
            source=next(iter(first)), opset=model.opset,
        )  # fmt: skip
        try:
            return _run(model, work)
        except RewriteError as refused:
            if deepest is None or refused.place > deepest.place:
                deepest = refused
        ways = work.ways
        choices = [*choices, *[0] * (len(ways) - len(choices))][: len(ways)]
        while choices and choices[-1] + 1 >= ways[len(choices) - 1]:
            choices.pop()
        if not choices:
            break
        choices[-1] += 1
    assert deepest is not None
    hint = "" if axes else "if the batch is another axis of an input, name it: --axis INPUT:AXIS"
    raise Misuse(f"the batch cannot be rewritten: {deepest.why}", where="rebatch", hint=hint)


def _run(model: Model, r: Rewriting) -> RebatchedModel:
    """Rewrites the whole graph, with one combination of options at its ambiguous Reshapes.

    Raises:
        RewriteError: The graph cannot be rewritten in this way.
    """
    graph = model.graph
    for place, node in enumerate(graph.nodes):
        try:
            r.nodes.append(_rewrite_node(model, r, node))
        except RewriteError as refused:
            raise RewriteError(f"{node.op} '{printable(node.label)}': {refused.why}", place) from None
    for value in graph.outputs:
        if value.name in r.sized:
            raise RewriteError(
                f"output '{printable(value.name)}' tells the size of the batch", len(graph.nodes)
            )
    nodes, initializers = _without_unused(r.nodes, r.initializers, graph)
    rewritten = Graph(
        name=graph.name,
        nodes=nodes,
        inputs=tuple(_redeclare(r, value) for value in graph.inputs),
        outputs=tuple(_redeclare(r, value) for value in graph.outputs),
        initializers=initializers,
        values=tuple(_redeclare(r, value) for value in graph.values),
        extra=graph.extra,
    )
    return RebatchedModel(
        replace(model, graph=rewritten, path=""), r.old, r.batched, tuple(dict.fromkeys(r.changed))
    )


def _rewrite_node(model: Model, r: Rewriting, node: Node) -> Node:
    """The node for the new batch; also records the batch axes of its outputs."""
    captured = {n for _, body in subgraphs(node) for n in captured_names(body)}
    if captured & (r.batched.keys() | r.sized):
        r.refuse("a body reads values of the batch")
    if node.op in _SIZES and not node.domain and node.inputs[0] in r.batched:
        r.sized.update(node.outputs)
        return node
    node = _with_known_sizes(r, node)
    if not any(name in r.batched for name in node.inputs):
        if any(name in r.sized for name in node.inputs):
            r.sized.update(node.outputs)
        return node
    rule = RULES.get(node.op) if node.domain in _DOMAINS else None
    if rule is None or node.key in model.functions:
        r.refuse("where its batch goes is not known")
    return rule(r, node)


def _with_known_sizes(r: Rewriting, node: Node) -> Node:
    """Replaces inputs that are computed from the batch size by their values, which rules can rewrite.

    A node that only continues to compute sizes stays as it is, if its results are known.
    """
    if not any(name in r.sized for name in node.inputs):
        return node
    all_known = all(r.contents(name) is not None for name in node.outputs if name)
    if all_known and not any(name in r.batched for name in node.inputs):
        return node
    inputs = list(node.inputs)
    for at, name in enumerate(inputs):
        if name in r.sized:
            array = r.contents(name)
            if array is None:
                r.refuse(f"'{name}' is computed from the size of the batch")
            inputs[at] = r.fresh(name)
            r.initializers[inputs[at]] = tensor_from_array(inputs[at], array)
    return node.with_values(inputs, node.outputs)


def _redeclare(r: Rewriting, value: Value) -> Value:
    shape = None if value.shape is None else r.declared(value.name, value.shape)
    return value if shape == value.shape else Value(value.name, value.dtype, shape)


def _without_unused(
    nodes: Sequence[Node], initializers: Mapping[str, Tensor], graph: Graph
) -> tuple[list[Node], dict[str, Tensor]]:
    """The nodes and initializers without those that only computed shapes which are now constants."""
    needed = {value.name for value in graph.outputs} | {value.name for value in graph.inputs}
    before = {name for node in graph.nodes for name in node.inputs}
    # nodes that were unused before stay
    idle = {id(node) for node in graph.nodes if before.isdisjoint(node.outputs)}
    used = []
    for node in reversed(nodes):
        if id(node) in idle or any(name in needed for name in node.outputs):
            used.append(node)
            needed.update(reads(node))
    unread = {name for name in graph.initializers if name not in before and name not in needed}
    stays = {name: tensor for name, tensor in initializers.items() if name in needed or name in unread}
    return used[::-1], stays
