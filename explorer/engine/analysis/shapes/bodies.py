"""Bodies of functions, branches and loops: what they take from around them, what a call puts into them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.engine.graph import AttributeRef, Graph, Node, subgraphs

__all__ = ["captured_names", "substituted"]


def captured_names(body: Graph) -> frozenset[str]:
    """Names that a body uses and does not define: they come from the graphs around it."""
    own = {v.name for v in body.inputs} | set(body.initializers)
    used = {v.name for v in body.outputs}
    for node in body.nodes:
        own.update(node.outputs)
        used.update(node.inputs)
        for _, inner in subgraphs(node):
            used |= captured_names(inner)
    return frozenset(used - own - {""})


def substituted(node: Node, values: Mapping[str, Any]) -> Node:
    """`node` with references to its function's attributes replaced by `values`; unset ones left out."""
    attributes: dict[str, Any] = {}
    changed = False
    for name, value in node.attributes.items():
        if isinstance(value, AttributeRef):
            changed = True
            if value.name in values:
                attributes[name] = values[value.name]
        elif isinstance(value, Graph):
            inner = tuple(substituted(n, values) for n in value.nodes)
            different = any(a is not b for a, b in zip(inner, value.nodes, strict=True))
            changed = changed or different
            attributes[name] = replace(value, nodes=inner) if different else value
        else:
            attributes[name] = value
    if not changed:
        return node
    return node.with_attributes(attributes)
