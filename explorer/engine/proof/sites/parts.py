"""Parts of a graph in sessions of their own, with the weights that they read left where they lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.interpreter import Wiring, reads
from explorer.engine.graph.model import Function, Graph, Model, Node, Value, subgraphs
from explorer.engine.runtime.onnxruntime import Array, RuntimeSession


def run_part(
    model: Model, outputs: Sequence[str], feeds: Mapping[str, Array], what: str, threads: int
) -> dict[str, Array]:
    """Runs what lies between some values of a graph and others.

    Args:
        model: The model.
        outputs: Value names.
        feeds: Values to begin with.
        what: What it is, for messages.
        threads: For its operators.

    Raises:
        BadModel: onnxruntime cannot load or run it.
    """
    nodes, _ = Wiring.of(model.graph).needed(outputs, stop=feeds)
    return run_nodes(model, nodes, feeds, outputs, what, threads)


def run_nodes(
    model: Model,
    nodes: Sequence[Node],
    feeds: Mapping[str, Array],
    outputs: Sequence[str],
    what: str,
    threads: int | None = None,
) -> dict[str, Array]:
    """Runs some nodes of a model by themselves: see `run_part`."""
    given = tuple(Value(n, str(v.dtype), v.shape) for n, v in feeds.items())
    return part_session(model, nodes, given, outputs, what, threads).run(dict(feeds))


def part_session(
    model: Model,
    nodes: Sequence[Node],
    inputs: tuple[Value, ...],
    outputs: Sequence[str],
    what: str,
    threads: int | None,
) -> RuntimeSession:
    """A session of some nodes of a model by themselves, with the weights that they read."""
    read = {name for node in nodes for name in reads(node)} - {value.name for value in inputs}
    initializers = model.graph.initializers
    graph = Graph(
        name="part",
        nodes=tuple(nodes),
        inputs=inputs,
        outputs=tuple(Value(n, None, None) for n in outputs),
        initializers={n: initializers[n] for n in read if n in initializers},
    )
    part = replace(model, graph=graph, functions=functions_called(model, nodes), metadata={}, extra=())
    return RuntimeSession(part, what=what, optimise=False, threads=threads, sparing=True)


def functions_called(model: Model, nodes: Iterable[Node]) -> dict[tuple[str, str, str], Function]:
    """The functions that nodes call, and those that these call: a session checks all that it is given."""
    found: set[tuple[str, str, str]] = set()
    pending = list(nodes) if model.functions else []
    while pending:
        node = pending.pop()
        pending += (n for _, body in subgraphs(node) for n in body.nodes)
        if node.key in model.functions and node.key not in found:
            found.add(node.key)
            pending += model.functions[node.key].nodes
    return {key: function for key, function in model.functions.items() if key in found}  # in their order
