"""Renames nodes and values (inputs, outputs, stored tensors, intermediate values), and all uses of them.

Uses in bodies are renamed as well, unless the body defines a value with that name itself. Encoded types and
tensors are copied byte for byte, except for the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.edit.names import (
    Aliases,
    FoundNode,
    FoundValue,
    NoSuchNode,
    find_node,
    find_own_nodes,
    find_values,
    take_single_match,
)
from explorer.engine.edit.scopes import (
    Body,
    GraphScope,
    collect_defined_values,
    list_scopes,
    replace_body,
    replace_nodes,
)
from explorer.engine.formats.onnx.protobuf_wire import encode_length_delimited, iterate_fields
from explorer.engine.graph.interpreter import list_free_names
from explorer.engine.graph.model import (
    FileSpan,
    Function,
    Graph,
    Inline,
    Model,
    Node,
    list_bodies,
    replace_bodies,
)
from explorer.facts.split.edit import EditStep

FLAG = "--rename"

_FIELDS_WITHOUT_NAMES = (10, 16)
"""Fields of a graph without value names: documentation and metadata."""


def rename(model: Model, step: EditStep, aliases: Aliases) -> tuple[Model, str]:
    """Renames a node or a value; returns the new model and a description of the change.

    Raises:
        Misuse: The name matches nothing or several items, or the new name is in use.
    """
    if not step.to or not step.to.isprintable() or step.to != step.to.strip():
        raise Misuse(f"'{step.to}' is not a name", where=FLAG, hint="give one that can be printed")
    target = _find_target(model, step.name, aliases)
    if isinstance(target, FoundNode):
        return _rename_node(model, target, step.to)
    return _rename_value(model, target, step.to)


def rename_weights(model: Model, step: EditStep) -> tuple[Model, str]:
    """Renames all stored tensors of the main graph to numbered names, in the order of the file.

    The name of the step is a pattern with one place for the number, such as 'learned_%d'.

    Raises:
        Misuse: The pattern has no single place for the number, or a name is in use.
    """
    flag, pattern = "--rename-weights", step.name
    if pattern.count("%") != 1 or re.search(r"%0?\d{0,2}d", pattern) is None or not pattern.isprintable():
        raise Misuse(f"'{pattern}' has no place for a number", where=flag, hint="write 'learned_%d'")
    weights = list(model.graph.initializers)
    if not weights:
        raise Misuse("the model stores no tensors", where=flag)
    names = {weight: pattern % number for number, weight in enumerate(weights)}
    clashes = set(names.values()).intersection(
        name
        for scope in list_scopes(model)
        for name in collect_defined_values(scope.body)
        if name not in names
    )
    if clashes:
        raise Misuse(f"a value is called '{min(clashes)}' already", where=flag, hint="write another pattern")
    graph = rename_values(model.graph, names, flag)
    first, last = names[weights[0]], names[weights[-1]]
    if len(names) == 1:
        return replace(model, graph=graph), f"1 stored tensor has the new name '{first}'"
    return replace(model, graph=graph), f"{len(names):,} stored tensors have new names, '{first}' to '{last}'"


def _find_target(model: Model, name: str, aliases: Aliases) -> FoundNode | FoundValue:
    """Finds the node or value with a name; 'node:' or 'value:' before the name chooses one of both."""
    nodes, values = find_own_nodes(model, name), find_values(model, name)
    if nodes and values:
        raise Misuse(
            f"'{name}' is a node and a value", where=FLAG, hint=f"write 'node:{name}' or 'value:{name}'"
        )
    if values:
        return take_single_match(values, values[0].value_name, FLAG)
    if nodes:
        return take_single_match(nodes, name, FLAG)
    if name.startswith("value:"):
        value_name = name.removeprefix("value:")
        if values := find_values(model, value_name):
            return take_single_match(values, values[0].value_name, FLAG)
        raise Misuse(f"no value is called '{value_name}'", where=FLAG, hint=_suggest_names(model, value_name))
    try:
        return find_node(model, name.removeprefix("node:"), FLAG, aliases)
    except NoSuchNode as error:
        message = f"no node or value is called '{name}'"
        raise Misuse(message, where=FLAG, hint=error.hint or _suggest_names(model, name)) from None


def _suggest_names(model: Model, name: str) -> str:
    return suggest_name(
        name, {value for scope in list_scopes(model) for value in collect_defined_values(scope.body)}
    )


def _rename_node(model: Model, target: FoundNode, to: str) -> tuple[Model, str]:
    """Renames a node, unless another node of the same graph has the name."""
    body, node = target.scope.body, target.node
    if node.name == to:
        raise Misuse(f"{target.text} is called that already", where=FLAG)
    if any(node.name == to for node in body.nodes):
        raise Misuse(f"a node is called '{to}' already", where=FLAG, hint="give another name")
    nodes = [*body.nodes]
    nodes[target.index] = node.replace_values(node.inputs, node.outputs, to)
    description = f"node {target.text} is '{to}'"
    return replace_body(model, target.scope, replace_nodes(body, nodes)), description


def _rename_value(model: Model, target: FoundValue, to: str) -> tuple[Model, str]:
    """Renames a value and its uses; the description names the value's role."""
    scope, name = target.scope, target.value_name
    if name == to:
        raise Misuse(f"the value '{name}' is called that already", where=FLAG)
    _check_free(model, scope, to)
    kind = _get_kind(scope.body, name)
    body = rename_values(scope.body, {name: to}, FLAG)
    return replace_body(model, scope, body), f"{kind} '{name}'{scope.text} is '{to}'"


def _check_free(model: Model, scope: GraphScope, to: str) -> None:
    """Rejects a name that is used in the same graph or function; a body could confuse the values."""
    for other_scope in list_scopes(model):
        if other_scope.root == scope.root and to in collect_defined_values(other_scope.body):
            raise Misuse(
                f"a value is called '{to}' already{other_scope.text}", where=FLAG, hint="give another name"
            )


def _get_kind(body: Body, name: str) -> str:
    """Returns the role of a value: input, output, stored tensor, or plain value."""
    if isinstance(body, Graph):
        names_by_kind = [
            ("input", {value.name for value in body.required_inputs}),
            ("output", {value.name for value in body.outputs}),
            ("stored tensor", set(body.initializers)),
        ]
    else:
        names_by_kind = [("input", set(body.inputs)), ("output", set(body.outputs))]
    return next((kind for kind, names in names_by_kind if name in names), "value")


def rename_values(body: Body, names: Mapping[str, str], flag: str) -> Body:
    """Renames values wherever a body reads, produces or declares them.

    Args:
        body: Graph or function.
        names: New names by old name.
        flag: Option to name in errors.

    Raises:
        Misuse: An uninterpreted part of the graph uses one of the names, or an inner body both defines the
            new name and reads the value.
    """
    nodes = [_rename_in_node(node, names, flag) for node in body.nodes]
    if isinstance(body, Function):
        inputs, outputs = (_rename_names(group, names) for group in (body.inputs, body.outputs))
        values = tuple([_encode_name(value, names, 1) for value in body.values])
        return replace(body, nodes=tuple(nodes), inputs=inputs, outputs=outputs, record=None, values=values)
    _check_extra(body, names, flag)
    initializers = {
        names.get(name, name): _encode_name(tensor, names, 8) for name, tensor in body.initializers.items()
    }
    groups = {
        group: tuple([_encode_name(value, names, 1) for value in getattr(body, group)])
        for group in ("inputs", "outputs", "values")
    }
    return replace(body, nodes=tuple(nodes), initializers=initializers, **groups)


def _rename_names(group: tuple[str, ...], names: Mapping[str, str]) -> tuple[str, ...]:
    return tuple([names.get(name, name) for name in group])


def _rename_in_node(node: Node, names: Mapping[str, str], flag: str) -> Node:
    """Renames the values that a node and its bodies read or write."""
    changed_bodies: dict[str, Body] = {}
    for name, inner in list_bodies(node):
        defined_names = collect_defined_values(inner)
        outer_names = set(list_free_names(inner))
        free = {old: new for old, new in names.items() if old in outer_names}
        if not defined_names.isdisjoint(free.values()):
            raise Misuse(f"'{node.label}' has a value of that name inside", where=flag)
        if free:
            changed_bodies[name] = rename_values(inner, free, flag)
    inputs, outputs = _rename_names(node.inputs, names), _rename_names(node.outputs, names)
    if changed_bodies:
        node = replace_bodies(node, changed_bodies)
    if (inputs, outputs) == (node.inputs, node.outputs):
        return node
    return node.replace_values(inputs, outputs)


def _encode_name(value: Any, names: Mapping[str, str], number: int) -> Any:
    """Returns a value (name in field `number` 1) or stored tensor (name in field 8) with its new name."""
    new_name = names.get(value.name)
    if new_name is None:
        return value
    record = None if value.record is None else Inline(set_field(value.record, number, new_name))
    return replace(value, name=new_name, record=record)


def set_field(record: FileSpan | Inline, number: int, text: str) -> bytes:
    """Returns an encoded message with a new text in field `number`."""
    encoded = bytes(record.view())
    fields_left = [
        encoded[begin:end]
        for field, _, begin, _, end in iterate_fields(encoded, 0, len(encoded))
        if field != number
    ]
    return b"".join((encode_length_delimited(number, text.encode()), *fields_left))


def _check_extra(graph: Graph, names: Mapping[str, str], flag: str) -> None:
    """Rejects a new name for a value that an uninterpreted part of the graph refers to."""
    for span in graph.extra:
        encoded = bytes(span.view())
        if encoded and next(iterate_fields(encoded, 0, len(encoded)))[0] in _FIELDS_WITHOUT_NAMES:
            continue
        for name in names:
            if (
                encode_length_delimited(1, name.encode()) in encoded
                or encode_length_delimited(8, name.encode()) in encoded
            ):
                raise Misuse(
                    f"'{name}' cannot be renamed: it is a sparse tensor or has a quantization annotation",
                    where=flag,
                )
