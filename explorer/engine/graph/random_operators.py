"""Random numbers: the operators that draw them, and the model outputs that depend on them.

Random numbers differ between runs, so a difference between two runs after such an operator proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from explorer.engine.graph.interpreter import Wiring
from explorer.engine.graph.model import Model, Node, list_bodies

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
"""Operators with different results in each run. Dropout is absent: it is random in training mode only."""

RANDOM_REASON = "it draws random numbers, which differ in each run"
"""Reason, shown to the user, why a value is not compared."""


def any_draws_random(model: Model, nodes: Iterable[Node]) -> bool:
    """Whether any node draws random numbers, including nodes in bodies and functions."""
    return any(_draws_random(model, node) for node in list_all_nodes(model, nodes))


def find_random_outputs(model: Model) -> frozenset[str]:
    """Returns the names of the outputs that depend on random numbers."""
    if not any_draws_random(model, model.graph.nodes):
        return frozenset()
    wiring = Wiring.from_graph(model.graph)
    return frozenset(
        output.name
        for output in model.graph.outputs
        if any_draws_random(model, wiring.find_needed_nodes([output.name])[0])
    )


def list_all_nodes(model: Model, nodes: Iterable[Node]) -> Iterator[Node]:
    """Yields the nodes, the nodes of their bodies, and the nodes of called functions (each function once)."""
    pending, functions_visited = list(nodes), set()
    while pending:
        node = pending.pop()
        yield node
        pending += [inner for _, body in list_bodies(node) for inner in body.nodes]
        function = model.functions.get(node.key)
        if function is not None and node.key not in functions_visited:
            functions_visited.add(node.key)
            pending += function.nodes


def _draws_random(model: Model, node: Node) -> bool:
    """Whether a node draws random numbers, without the nodes in its bodies.

    A Dropout does if its training mode is true or computed.
    """
    if node.domain:
        return False
    if node.op != "Dropout" or len(node.inputs) < 3 or not node.inputs[2]:
        return node.op in RANDOM
    training = model.graph.initializers.get(node.inputs[2])
    return training is None or bool(training.array().any())
