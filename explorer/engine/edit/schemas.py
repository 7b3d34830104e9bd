"""Operator schemas of onnxruntime: attributes of an operator with their types, and its numbers of inputs.

The schemas come from the runtime instead of the onnx package, because the runtime also knows its own domains.
Besides, a model that the runtime rejects must not be written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.graph.model import Function, Model

KINDS = ("", "float", "int", "text", "tensor", "graph", "floats", "ints", "texts", "tensors", "graphs")
"""Names of AttributeProto.AttributeType."""

Key = tuple[str, str]
"""Domain and name of an operator."""


class Signature(Struct, frozen=True):
    """The attributes, inputs and outputs of an operator.

    Attributes:
        name: Name of the operator, with its domain unless that is the default one.
        attributes: Kind ('' if not declared) of each attribute, and whether it is required.
        inputs: Minimum and maximum number of inputs.
        outputs: Maximum number of outputs.
        types: Allowed types of each input ('tensor(float)'), or empty if not declared. The last entry applies
            to all further inputs.
    """

    name: str
    attributes: Mapping[str, tuple[str, bool]]
    inputs: tuple[int, int]
    outputs: int
    types: Sequence[frozenset[str]] = ()


def get_signature(
    model: Model, domain: str, op: str, opsets: Mapping[str, int], overload: str = ""
) -> Signature | None:
    """Returns the signature of an operator or a model's function; None if it is undeclared or deprecated."""
    function = model.functions.get((domain, op, overload))
    if function is not None:
        return _build_function_signature(function)
    versions = _load_schemas().get((domain, op), {})
    usable_versions = [version for version in versions if version <= opsets.get(domain, 0)]
    if not usable_versions or (schema := versions[max(usable_versions)]).deprecated:
        return None
    return Signature(
        f"{domain}::{op}" if domain else op,
        {
            name: (_get_kind(attribute.type), bool(attribute.required))
            for name, attribute in schema.attributes.items()
        },
        (schema.min_input, schema.max_input),
        schema.max_output,
        [frozenset(parameter.types) for parameter in schema.inputs],
    )


def find_required_signature(
    model: Model, domain: str, op: str, opsets: Mapping[str, int], flag: str
) -> Signature:
    """Returns the signature of an operator, as `get_signature` does; `flag` is the option to name in errors.

    Raises:
        Misuse: The model's opsets do not contain the operator.
    """
    signature = get_signature(model, domain, op, opsets)
    if signature is None:
        names = [name for key_domain, name in _load_schemas() if key_domain == domain]
        names += [name for key_domain, name, _ in model.functions if key_domain == domain]
        domain_text = f" of '{domain}'" if domain else ""
        prefix = f"the model's operator set {opsets[domain]}{domain_text} has no" if domain in opsets else ""
        prefix = prefix or f"no operator set{domain_text} has an"
        raise Misuse(f"{prefix} operator '{op}'", where=flag, hint=suggest_name(op, names))
    return signature


def add_domain(opsets: Mapping[str, int], domain: str, op: str) -> Mapping[str, int]:
    """Returns the opsets, with the runtime's domain of the operator added if they lack it."""
    versions = _load_schemas().get((domain, op), {})
    return opsets if domain in opsets or not versions else {**opsets, domain: max(versions)}


def _build_function_signature(function: Function) -> Signature:
    declared = dict.fromkeys(function.attributes, ("", True))
    declared |= dict.fromkeys(function.defaults, ("", False))
    count = len(function.inputs)
    return Signature(function.name, declared, (0, count), len(function.outputs))


def _get_kind(kind: Any) -> str:
    number = int(kind)
    return KINDS[number] if 0 <= number < len(KINDS) else "value of another kind"


@functools.cache
def _load_schemas() -> Mapping[Key, Mapping[int, Any]]:
    """Returns all schemas, by operator and by the opset version that introduced them."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    schemas: dict[Key, dict[int, Any]] = {}
    for schema in runtime.get_all_operator_schema():
        schemas.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    return schemas
