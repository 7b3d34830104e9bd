"""Sets attributes of a node: parses a text as the type that the operator's schema declares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.edit.names import Aliases, FoundNode, find_node
from explorer.engine.edit.schemas import get_signature
from explorer.engine.edit.scopes import replace_body, replace_nodes
from explorer.engine.graph.model import Model, Node, get_dtype_code
from explorer.facts.split.edit import EditStep

FLAG = "--set"

_MAX_INTEGER = (1 << 63) - 1
_LARGEST_FLOAT = 3.4028234663852886e38


def set_attribute(model: Model, step: EditStep, aliases: Aliases) -> tuple[Model, str]:
    """Sets or removes an attribute of a node; returns the new model and a description of the change.

    Raises:
        Misuse: There is no such node, its operator has no such attribute, or the type does not match.
    """
    target = find_node(model, step.name, FLAG, aliases)
    node, name = target.node, step.attribute
    kind, required = _get_declared_kind(model, target, name)
    old_value = node.attributes.get(name)
    new_value = None if step.to == "" else _parse_value(step, node, kind)
    if new_value is None and (required or old_value is None):
        reason = f"{node.op} requires it" if required else "it has none"
        raise Misuse(
            f"'{name}' of {target.text} cannot be removed: {reason}", where=FLAG, hint="give a value"
        )
    if new_value == old_value:
        raise Misuse(f"'{name}' of {target.text} is {_format_value(new_value)} already", where=FLAG)
    attributes: Mapping[str, Any] = {key: value for key, value in node.attributes.items() if key != name}
    if new_value is not None:
        attributes = {**node.attributes, name: new_value}
    body = target.scope.body
    nodes = [*body.nodes]
    nodes[target.index] = node.replace_attributes(attributes)
    old_text = "not given" if old_value is None else _format_value(old_value)
    new_text = "not given" if new_value is None else _format_value(new_value)
    description = f"{name} of {target.text}: {old_text} -> {new_text}"
    return replace_body(model, target.scope, replace_nodes(body, nodes)), description


def _get_declared_kind(model: Model, target: FoundNode, name: str) -> tuple[str, bool]:
    """Returns the declared kind of an attribute, or else its value's, and whether it is required."""
    node = target.node
    operator = get_signature(model, node.domain, node.op, target.scope.opsets, node.overload)
    declared = None if operator is None else operator.attributes.get(name)
    if operator is not None and declared is None:
        raise Misuse(
            f"{node.op} has no attribute '{name}'",
            where=FLAG,
            hint=suggest_name(name, list(operator.attributes)) or "the operator has no attributes",
        )
    kind, required = declared or ("", False)
    kind = kind or _get_kind(node.attributes.get(name))
    if not kind:
        message = f"the type of '{name}' of {node.op} is not declared anywhere"
        raise Misuse(message, where=FLAG, hint="only an attribute that the node has already can be set here")
    return kind, required


def _get_kind(value: Any) -> str:
    """Returns the kind of an attribute's current value."""
    is_list = isinstance(value, tuple)
    first = value[0] if is_list and value else value
    type_names = ((bool, "int"), (int, "int"), (float, "float"), (str, "text"))
    kind = next((name for type_, name in type_names if isinstance(first, type_)), "")
    return f"{kind}s" if is_list and kind else kind


def _parse_int(text: str) -> int:
    value = int(text)
    if not -_MAX_INTEGER - 1 <= value <= _MAX_INTEGER:
        raise ValueError
    return value


def _parse_float(text: str) -> float:
    value = float(text)
    if abs(value) > _LARGEST_FLOAT and "inf" not in text.lower():
        raise ValueError
    return value


_PARSERS: Mapping[str, Callable[[str], Any]] = {"int": _parse_int, "float": _parse_float, "text": str}


def _parse_value(step: EditStep, node: Node, kind: str) -> Any:
    """Returns the text of a step, parsed as a value of this kind."""
    item_kind = kind.removesuffix("s")
    parse = _PARSERS.get(item_kind)
    if parse is None:
        raise Misuse(
            f"'{step.attribute}' of {node.op} is a {kind}", where=FLAG, hint="no text can express it"
        )
    try:
        if kind != item_kind:
            return tuple([parse(text) for text in _list_members(step.to)])
        if kind == "int" and step.attribute in ("to", "dtype", "output_dtype"):
            return _parse_type_code(step.to)
        return parse(step.to.strip() if kind != "text" else step.to)
    except ValueError:
        expected = {"ints": "whole numbers: 2,2", "floats": "numbers: 0.5,1", "int": "a whole number"}
        raise Misuse(
            f"'{step.to}' is not a value for '{step.attribute}' of {node.op}",
            where=FLAG,
            hint=f"give {expected.get(kind, 'a number' if kind == 'float' else 'texts: a,b')}",
        ) from None


def _list_members(text: str) -> list[str]:
    """Returns the members of a list, which is separated by commas or written in JSON.

    Raises:
        ValueError: The JSON is invalid, or a item is neither a number nor a text.
    """
    if text.lstrip().startswith("["):
        members = json.loads(text)
        if not all(isinstance(item, (int, float, str)) and not isinstance(item, bool) for item in members):
            raise ValueError
        return [str(item) for item in members]
    return [item.strip() for item in text.split(",")]


def _parse_type_code(text: str) -> int:
    """Returns ONNX's code of an element type, from its name or code."""
    try:
        return get_dtype_code(text.strip())
    except KeyError:
        return _parse_int(text)


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, float):
        return f"{value:.7g}"
    return (
        f"'{value}'" if isinstance(value, str) else str(value) if isinstance(value, int) else "another kind"
    )
