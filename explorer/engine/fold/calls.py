"""Inlines function calls: replaces each call by the nodes of the function's body, named after the call.

Code that reads only the main graph then sees every layer. Functions for tiles and number formats count as
single operators and are not inlined. The model is not changed if inlining would produce too many nodes, or if
opset versions conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from explorer.engine.graph.model import Function, Graph, Model, Node, Value, list_bodies, replace_bodies
from explorer.engine.graph.repeated_nodes import (
    combine_nodes,
    create_free_name,
    list_stored_nodes,
    list_value_names,
)
from explorer.engine.shapes.bodies import substitute_attributes

MAX_NODES = 100_000
"""Maximum number of nodes after inlining; a file of a few hundred bytes can describe billions."""

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


def inline_calls(model: Model, domains: Collection[str]) -> Model:
    """Inlines all function calls except those in the domains `domains`.

    A node or value of a body is named after the call, a slash, and its own name.

    Args:
        model: The model.
        domains: Domains whose functions are not inlined.

    Returns:
        The new model; `model` itself if it has no calls, or if they cannot be inlined.
    """
    functions = {key: function for key, function in model.functions.items() if key[0] not in domains}
    calls = [node for node in list_stored_nodes(model.graph.nodes) if node.key in functions]
    opsets, used_names = _merge_opsets(model, functions), set(list_value_names(model.graph))
    sizes: dict[Key, int] = {}
    if (
        not calls
        or opsets is None
        or sum(_count_expanded_nodes(functions, node.key, sizes) for node in calls) > MAX_NODES
    ):
        return model
    bodies = [body for function in functions.values() for body in _list_all_bodies(function.nodes)]
    if any(name in used_names for body in bodies for name in _list_own_names(body)):
        return model  # a body's own names would hide values of the main graph
    expansion = _InlinedNodes(functions, used_names)
    for node in list_stored_nodes(model.graph.nodes):
        expansion.add(node)
    has_calls_left = any(
        node.key in functions
        for body in _list_all_bodies(expansion.nodes)
        for node in list_stored_nodes(body.nodes)
    )
    functions_left = {
        key: function for key, function in model.functions.items() if has_calls_left or key not in functions
    }
    graph = replace(model.graph, nodes=combine_nodes(expansion.nodes))
    return replace(model, graph=graph, opsets=opsets, functions=functions_left)


def _merge_opsets(model: Model, functions: Mapping[Key, Function]) -> Mapping[str, int] | None:
    """Returns the opset versions of the model and its functions; None if two of them conflict."""
    opsets = dict(model.opsets)
    for function in functions.values():
        for domain, version in function.opsets.items():
            if opsets.setdefault("" if domain == "ai.onnx" else domain, version) != version:
                return None
    return opsets


def _count_expanded_nodes(functions: Mapping[Key, Function], key: Key, sizes: dict[Key, int]) -> int:
    """Returns the number of nodes that a call expands to; more than `MAX_NODES` for a recursive function."""
    if key not in sizes:
        sizes[key] = MAX_NODES + 1
        inner = (node.key for node in functions[key].nodes)
        sizes[key] = sum(
            _count_expanded_nodes(functions, callee, sizes) if callee in functions else 1 for callee in inner
        )
    return sizes[key]


class _InlinedNodes:
    """Collects the inlined nodes and the used names."""

    def __init__(self, functions: Mapping[Key, Function], used_names: set[str]) -> None:
        self.functions, self.used_names = functions, used_names
        self.nodes: list[Node] = []

    def add(self, node: Node) -> None:
        """Adds a node, or the nodes of the function that it calls."""
        function = self.functions.get(node.key)
        if function is None:
            self.nodes.append(node)
            return
        names = dict(zip(function.inputs, node.inputs, strict=False))
        names |= dict.fromkeys(function.inputs[len(node.inputs) :], "")
        passed_through = [name for name in function.outputs if name in names]
        outer_names = dict(zip(function.outputs, node.outputs, strict=False))
        names |= {
            inner: outer for inner, outer in outer_names.items() if outer and inner not in passed_through
        }
        values = {**function.defaults, **node.attributes}
        for inner in list_stored_nodes(function.nodes):
            called_node = substitute_attributes(inner, values)
            for output in called_node.outputs:
                if output and output not in names:
                    names[output] = create_free_name(f"{node.label}/{output}", self.used_names)
            name = f"{node.label}/{called_node.label}"
            inputs = [names.get(value, "") for value in called_node.inputs]
            new = called_node.replace_values(
                inputs, [names.get(value, "") for value in called_node.outputs], name
            )
            self.add(replace_bodies(new, {key: _rename_outer(body, names) for key, body in list_bodies(new)}))
        for value in passed_through:  # an input that is also an output
            if outer := outer_names.get(value):
                self.nodes.append(Node("Identity", (names[value],), (outer,), name=f"{node.label}/{value}"))


def _rename_outer(body: Graph, names: Mapping[str, str]) -> Graph:
    """Returns a body with new names for the values that it reads from enclosing graphs."""
    own_names = {*_list_own_names(body)}
    outer = {name: outer_name for name, outer_name in names.items() if name not in own_names}
    nodes = []
    for node in list_stored_nodes(body.nodes):
        new = node.replace_values([outer.get(value, value) for value in node.inputs], node.outputs)
        nodes.append(
            replace_bodies(new, {key: _rename_outer(inner, outer) for key, inner in list_bodies(new)})
        )
    outputs = (
        Value(outer[value.name], value.dtype, value.shape) if value.name in outer else value
        for value in body.outputs
    )
    return replace(body, nodes=combine_nodes(nodes), outputs=tuple(outputs))


def _list_own_names(body: Graph) -> Iterator[str]:
    """Yields the names of the values that a body defines."""
    yield from (value.name for value in body.inputs)
    yield from body.initializers
    yield from (name for node in list_stored_nodes(body.nodes) for name in node.outputs if name)


def _list_all_bodies(nodes: Sequence[Node]) -> Iterator[Graph]:
    """Yields all bodies of the nodes, including nested bodies."""
    for node in list_stored_nodes(nodes):
        for _, body in list_bodies(node):
            yield body
            yield from _list_all_bodies(body.nodes)
