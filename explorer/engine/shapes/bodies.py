"""Bodies of functions, branches and loops: the names that they capture, and the attributes set by a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.engine.graph.model import AttributeRef, Graph, Node, subgraphs
from explorer.engine.shapes import constant_folding
from explorer.engine.shapes.constants import ConstantContents
from explorer.engine.symbolic import dimensions
from explorer.facts import Dim

FOREVER = 1 << 31
"""Trip count from which on only the condition ends a loop. Exporters write the largest integer."""


def find_captured_names(body: Graph) -> frozenset[str]:
    """Returns the names that a body reads from the enclosing graphs."""
    defined = {v.name for v in body.inputs} | set(body.initializers)
    used = {v.name for v in body.outputs}
    for node in body.nodes:
        defined.update(node.outputs)
        used.update(node.inputs)
        for _, inner in subgraphs(node):
            used |= find_captured_names(inner)
    return frozenset(used - defined - {""})


def substitute_attributes(node: Node, values: Mapping[str, Any]) -> Node:
    """Returns a node with references to its function's attributes replaced by `values`.

    Unset references are omitted.
    """
    attributes: dict[str, Any] = {}
    changed = False
    for name, value in node.attributes.items():
        if isinstance(value, AttributeRef):
            changed = True
            if value.name in values:
                attributes[name] = values[value.name]
        elif isinstance(value, Graph):
            inner = tuple(substitute_attributes(n, values) for n in value.nodes)
            is_changed = any(a is not b for a, b in zip(inner, value.nodes, strict=True))
            changed = changed or is_changed
            attributes[name] = replace(value, nodes=inner) if is_changed else value
        else:
            attributes[name] = value
    if not changed:
        return node
    return node.replace_attributes(attributes)


def iterations(node: Node, contents: ConstantContents) -> tuple[Dim, bool]:
    """Returns how often the body of a Loop runs: a number, or a canonical expression of input sizes.

    Returns:
        The maximum number of iterations, or None if it depends on data, and whether all of them run because
        no condition ends the loop earlier.
    """
    trips = _limit(contents, node.inputs[0]) if node.inputs and node.inputs[0] else None
    start = node.inputs[1] if len(node.inputs) > 1 else ""
    condition = contents.get(start) if start else None
    if condition is not None and not condition.any():
        return 0, True
    is_exact = (not start or (condition is not None and bool(condition.all()))) and _always_continues(
        node.attributes["body"]
    )
    if isinstance(trips, int) and trips >= FOREVER and not is_exact:
        trips = None
    return trips, is_exact


def _limit(contents: ConstantContents, name: str) -> Dim:
    flat = contents.flat(name)
    if flat is None or len(flat) != 1:
        return None
    value = flat[0]
    if isinstance(value, dimensions.Expression):
        return dimensions.dim(value)
    return max(int(value), 0) if isinstance(value, (int, float)) else None


def _always_continues(body: Graph) -> bool:
    """Whether the body's condition is always true."""
    if len(body.inputs) < 2 or not body.outputs:
        return False
    name = body.outputs[0].name
    producers = {o: n for n in body.nodes for o in n.outputs}
    for _ in range(len(body.nodes) + 1):
        if name == body.inputs[1].name:
            return True
        producer = producers.get(name)
        if producer is None or producer.op != "Identity":
            content = constant_folding.collect_small_constants(body).get(name)
            return content is not None and bool(content.all())
        name = producer.inputs[0]
    return False
