"""Finds the names that bodies capture, sets the attributes of calls, and counts the iterations of loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.engine.graph.model import AttributeRef, Graph, Node, list_bodies
from explorer.engine.shapes import constant_folding
from explorer.engine.shapes.constants import ConstantContents
from explorer.engine.symbolic import dimensions
from explorer.facts import Dim

FOREVER = 1 << 31
"""Trip count from which on only its condition ends a loop. Exporters write the largest integer for it."""


def find_captured_names(body: Graph) -> frozenset[str]:
    """Returns the names that a body reads from the enclosing graphs."""
    defined = {v.name for v in body.inputs} | set(body.initializers)
    read_names = {v.name for v in body.outputs}
    for node in body.nodes:
        defined.update(node.outputs)
        read_names.update(node.inputs)
        for _, inner in list_bodies(node):
            read_names |= find_captured_names(inner)
    return frozenset(read_names - defined - {""})


def substitute_attributes(node: Node, values: Mapping[str, Any]) -> Node:
    """Returns a node in which `values` replace the references to attributes of the enclosing function.

    A reference without a value is omitted.
    """
    attributes: dict[str, Any] = {}
    is_changed = False
    for name, value in node.attributes.items():
        if isinstance(value, AttributeRef):
            is_changed = True
            if value.name in values:
                attributes[name] = values[value.name]
        elif isinstance(value, Graph):
            nodes = tuple(substitute_attributes(n, values) for n in value.nodes)
            is_body_changed = any(new is not old for new, old in zip(nodes, value.nodes, strict=True))
            is_changed = is_changed or is_body_changed
            attributes[name] = replace(value, nodes=nodes) if is_body_changed else value
        else:
            attributes[name] = value
    if not is_changed:
        return node
    return node.replace_attributes(attributes)


def count_iterations(node: Node, contents: ConstantContents) -> tuple[Dim, bool]:
    """Counts the iterations of a Loop: a number, or a canonical expression of input sizes.

    Returns:
        The maximum number of iterations, or None if it depends on data. Then whether all of them run, because
        no condition ends the loop earlier.
    """
    trips = _read_trip_limit(contents, node.inputs[0]) if node.inputs and node.inputs[0] else None
    condition_name = node.inputs[1] if len(node.inputs) > 1 else ""
    condition = contents.get(condition_name) if condition_name else None
    if condition is not None and not condition.any():
        return 0, True
    starts = not condition_name or (condition is not None and bool(condition.all()))
    is_exact = starts and _always_continues(node.attributes["body"])
    if isinstance(trips, int) and trips >= FOREVER and not is_exact:
        trips = None
    return trips, is_exact


def _read_trip_limit(contents: ConstantContents, name: str) -> Dim:
    """Reads the maximum trip count of a Loop from its first input, or returns None if it is unknown."""
    elements = contents.get_elements(name)
    if elements is None or len(elements) != 1:
        return None
    value = elements[0]
    if isinstance(value, dimensions.Expression):
        return dimensions.dim(value)
    return max(int(value), 0) if isinstance(value, (int, float)) else None


def _always_continues(body: Graph) -> bool:
    """Whether the condition that a Loop's body computes is true in every iteration."""
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
