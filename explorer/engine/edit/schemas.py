"""Operator schemas, as onnxruntime has them: which attributes an operator takes, of which type, and how many
inputs.

They are the runtime's own and not onnx's, because the runtime has those of its own domains, too, and a model
that it refuses is not written.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.base.errors import Misuse, nearest
from explorer.engine.graph.model import Function, Model

KINDS = ("", "float", "int", "text", "tensor", "graph", "floats", "ints", "texts", "tensors", "graphs")
"""AttributeProto.AttributeType in words."""

Key = tuple[str, str]


class Signature(Struct, frozen=True):
    """What an operator takes.

    Attributes:
        name: In words, with its domain where that is not the default one.
        attributes: By name the kind of each ('' where it is not declared), and whether it has to be given.
        inputs: Fewest and most.
        outputs: Most.
        types: Of each input the types that it may have ('tensor(float)'); the last is that of all that
            follow. Empty where they are not declared.
    """

    name: str
    attributes: Mapping[str, tuple[str, bool]]
    inputs: tuple[int, int]
    outputs: int
    types: Sequence[frozenset[str]] = ()


def signature(
    model: Model, domain: str, op: str, opsets: Mapping[str, int], overload: str = ""
) -> Signature | None:
    """What an operator of a model takes, or a function of its own; None where nobody declares it."""
    function = model.functions.get((domain, op, overload))
    if function is not None:
        return _of_function(function)
    versions = _versions().get((domain, op), {})
    usable = [version for version in versions if version <= opsets.get(domain, 0)]
    if not usable or (schema := versions[max(usable)]).deprecated:
        return None
    return Signature(
        f"{domain}::{op}" if domain else op,
        {
            name: (_kind(attribute.type), bool(attribute.required))
            for name, attribute in schema.attributes.items()
        },
        (schema.min_input, schema.max_input),
        schema.max_output,
        [frozenset(parameter.types) for parameter in schema.inputs],
    )


def required_signature(model: Model, domain: str, op: str, opsets: Mapping[str, int], flag: str) -> Signature:
    """The same of an operator that has to be there.

    Raises:
        Misuse: The model's operator sets have none of this name.
    """
    operator = signature(model, domain, op, opsets)
    if operator is None:
        names = [name for (space, name), _ in _versions().items() if space == domain]
        names += [name for space, name, _ in model.functions if space == domain]
        space = f" of '{domain}'" if domain else ""
        prefix = f"the model's operator set {opsets[domain]}{space} has no" if domain in opsets else ""
        prefix = prefix or f"no operator set{space} has an"
        raise Misuse(f"{prefix} operator '{op}'", where=flag, hint=nearest(op, names))
    return operator


def with_domain(opsets: Mapping[str, int], domain: str, op: str) -> Mapping[str, int]:
    """Operator sets, with the one of a domain that they lack and that the runtime has an operator in."""
    versions = _versions().get((domain, op), {})
    return opsets if domain in opsets or not versions else {**opsets, domain: max(versions)}


def _of_function(function: Function) -> Signature:
    declared = dict.fromkeys(function.attributes, ("", True))
    declared |= dict.fromkeys(function.defaults, ("", False))
    count = len(function.inputs)
    return Signature(function.name, declared, (0, count), len(function.outputs))


def _kind(kind: Any) -> str:
    number = int(kind)
    return KINDS[number] if 0 <= number < len(KINDS) else "value of another kind"


@functools.cache
def _versions() -> Mapping[Key, Mapping[int, Any]]:
    """Every schema by operator, and by the version that it came with."""
    from onnxruntime.capi import onnxruntime_pybind11_state as runtime

    schemas: dict[Key, dict[int, Any]] = {}
    for schema in runtime.get_all_operator_schema():
        schemas.setdefault((schema.domain, schema.name), {})[schema.since_version] = schema
    return schemas
