"""Function calls inlined: each call is replaced by the nodes of the function's body, under the call's name.

Code that looks only at the main graph then sees every layer. Functions for tiles or number formats count as
single operators and stay. The model also stays as it is if inlining makes too many nodes, or if operator sets
differ.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, Value, subgraphs, with_bodies
from explorer.engine.graph.repeated_nodes import free_name, gathered, node_sequence, value_names
from explorer.engine.shapes.bodies import substituted

MOST = 100_000
"""The most nodes that inlining may make: a file of a few hundred bytes can describe billions."""

Key = tuple[str, str, str]


def opened(model: Model, domains: Collection[str]) -> Model:
    """Inlines all function calls except those in the domains `domains`.

    A node or value of a body is named after the call, a slash, and its own name.

    Args:
        model: The model.
        domains: Domains whose functions are not inlined.

    Returns:
        The new model; `model` itself if it has no calls, or if they cannot be inlined.
    """
    functions = {key: function for key, function in model.functions.items() if key[0] not in domains}
    calls = [node for node in node_sequence(model.graph.nodes) if node.key in functions]
    opsets, taken = _merged_opsets(model, functions), set(value_names(model.graph))
    sizes: dict[Key, int] = {}
    if (
        not calls
        or opsets is None
        or sum(_expanded_size(functions, node.key, sizes) for node in calls) > MOST
    ):
        return model
    inside = [body for function in functions.values() for body in _bodies(function.nodes)]
    if any(name in taken for body in inside for name in _own_names(body)):
        return model  # names inside the body would clash
    to = _Opening(functions, taken)
    for node in node_sequence(model.graph.nodes):
        to.add(node)
    called = any(node.key in functions for body in _bodies(to.nodes) for node in node_sequence(body.nodes))
    functions_left = {
        key: function for key, function in model.functions.items() if called or key not in functions
    }
    graph = replace(model.graph, nodes=gathered(to.nodes))
    return replace(model, graph=graph, opsets=opsets, functions=functions_left)


def _merged_opsets(model: Model, functions: Mapping[Key, Function]) -> Mapping[str, int] | None:
    """The operator sets of the model and its functions together; None if two of them differ."""
    opsets = dict(model.opsets)
    for function in functions.values():
        for domain, version in function.opsets.items():
            if opsets.setdefault("" if domain == "ai.onnx" else domain, version) != version:
                return None
    return opsets


def _expanded_size(functions: Mapping[Key, Function], key: Key, sizes: dict[Key, int]) -> int:
    """The number of nodes that a call expands to; more than `MOST` for a function that calls itself."""
    if key not in sizes:
        sizes[key] = MOST + 1
        inner = (node.key for node in functions[key].nodes)
        sizes[key] = sum(
            _expanded_size(functions, callee, sizes) if callee in functions else 1 for callee in inner
        )
    return sizes[key]


class _Opening:
    """Collects the inlined nodes, and the names in use."""

    def __init__(self, functions: Mapping[Key, Function], taken: set[str]) -> None:
        self.functions, self.taken = functions, taken
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Adds a node, or the nodes of the function that it calls."""
        function = self.functions.get(node.key)
        if function is None:
            self.nodes.append(node)
            return
        names = dict(zip(function.inputs, node.inputs, strict=False))
        names |= dict.fromkeys(function.inputs[len(node.inputs) :], "")
        passed = [name for name in function.outputs if name in names]
        outer_of = dict(zip(function.outputs, node.outputs, strict=False))
        names |= {inner: outer for inner, outer in outer_of.items() if outer and inner not in passed}
        values = {**function.defaults, **node.attributes}
        for inner in node_sequence(function.nodes):
            called_node = substituted(inner, values)
            for output in called_node.outputs:
                if output and output not in names:
                    names[output] = free_name(f"{node.label}/{output}", self.taken)
            name = f"{node.label}/{called_node.label}"
            read = [names.get(value, "") for value in called_node.inputs]
            new = called_node.with_values(read, [names.get(value, "") for value in called_node.outputs], name)
            self.add(with_bodies(new, {at: _rename_outer(body, names) for at, body in subgraphs(new)}))
        for value in passed:  # an input that is an output as well
            if outer := outer_of.get(value):
                self.nodes.append(Node("Identity", (names[value],), (outer,), name=f"{node.label}/{value}"))


def _rename_outer(body: Graph, names: Mapping[str, str]) -> Graph:
    """A body with new names for the values that it takes from around it."""
    own_names = {*_own_names(body)}
    outer = {name: outer_name for name, outer_name in names.items() if name not in own_names}
    nodes = []
    for node in node_sequence(body.nodes):
        new = node.with_values([outer.get(value, value) for value in node.inputs], node.outputs)
        nodes.append(with_bodies(new, {at: _rename_outer(inner, outer) for at, inner in subgraphs(new)}))
    outputs = (
        Value(outer[value.name], value.dtype, value.shape) if value.name in outer else value
        for value in body.outputs
    )
    return replace(body, nodes=gathered(nodes), outputs=tuple(outputs))


def _own_names(body: Graph) -> Iterator[str]:
    """Names of the values that a body defines."""
    yield from (value.name for value in body.inputs)
    yield from body.initializers
    yield from (name for node in node_sequence(body.nodes) for name in node.outputs if name)


def _bodies(nodes: Sequence[Node]) -> Iterator[Graph]:
    """All bodies inside nodes, nested ones included."""
    for node in node_sequence(nodes):
        for _, body in subgraphs(node):
            yield body
            yield from _bodies(body.nodes)
