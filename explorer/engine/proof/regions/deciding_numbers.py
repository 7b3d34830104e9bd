"""Deciding numbers: limits and thresholds that one of two graphs alone holds.

Where a size is compared with 20, runs at smaller sizes show nothing of what happens above. So such a number
must be shown to count, by runs close to it: another number in its place has to change what comes out. And
open sizes are tried on both sides of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.graph.constant_nodes import constant_of
from explorer.engine.graph.interpreter import reads
from explorer.engine.graph.model import Function, Graph, Inline, Model, Node, Tensor, subgraphs, with_bodies
from explorer.engine.graph.random_operators import all_nodes
from explorer.engine.graph.repeated_nodes import gathered, node_sequence

_DECIDING: Mapping[str, str] = {
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), "Less"),
    **dict.fromkeys(("Clip", "Max", "Min"), "Clip"),
    **dict.fromkeys(("Loop", "Mod", "Pow", "Range", "Slice", "TopK", "Trilu", "Where"), ""),
    **dict.fromkeys(("HardSigmoid", "IsInf", "Shrink", "ThresholdedRelu"), ""),
}
"""Operators of which a number decides what they do, and the one that stands for several alike."""

_ARITHMETIC = {"Add": "fiu", "Div": "iu", "Sub": "fiu"}
"""Operators whose single numbers may be limits of what comes behind them (a Relu of what is left of a size),
and of which kinds of numbers. A factor is none."""

_OF_SHAPES = ("Shape", "Size", "ConstantOfShape")
"""Operators that read how large a value is, and none of its numbers."""

_SMALL = 64
"""Elements that a tensor of limits has at the most."""

_LONGEST, _LARGEST = float((1 << 31) - 1), 1e37
"""From here on an integer, or a float, stands for no limit: 'to the end', 'as large as it may be'."""

_ALWAYS = 1
"""Up to here an integer is met: every open size is tried at it and above."""

_STEP = 1 / 16
"""By how much of itself a float is moved."""

Key = tuple[str, float]


class DecidingNumber(Struct, frozen=True):
    """A number in an operator that it decides.

    Attributes:
        op: The operator.
        value: The number.
    """

    op: str
    value: float


def one_sided(one: Model, other: Model) -> tuple[list[DecidingNumber], list[DecidingNumber]]:
    """The deciding numbers that either model alone holds, in operators alike."""
    mine, theirs = (dict(_numbers(model)) for model in (one, other))
    return (
        [number for key, number in mine.items() if key not in theirs],
        [number for key, number in theirs.items() if key not in mine],
    )


def moved_number(model: Model, number: DecidingNumber) -> Iterator[Model]:
    """The model with other numbers close to this one in its place, below and above."""
    for sign in (-1, 1):
        functions = {key: _moved_in(function, number, sign) for key, function in model.functions.items()}
        yield replace(model, graph=_moved(model.graph, number, sign), functions=functions)


def _numbers(model: Model) -> Iterator[tuple[Key, DecidingNumber]]:
    """The deciding numbers of a model, in bodies and functions too, by what stands for them."""
    given = {value.name for value in model.graph.feeds}
    yield from _of_nodes(model.graph.nodes, [model.graph.initializers], given)
    called = {node.key for node in all_nodes(model, model.graph.nodes)} & model.functions.keys()
    for key in sorted(called):
        function = model.functions[key]
        yield from _of_nodes(function.nodes, [], set(function.inputs))


def _of_nodes(
    nodes: Sequence[Node], around: Sequence[Mapping[str, Tensor]], given: Collection[str]
) -> Iterator[tuple[Key, DecidingNumber]]:
    """The same of a list of nodes; `given` are values whose numbers are others in each run."""
    flowing = set(given)
    held = node_sequence(nodes)
    own = {node.outputs[0]: tensor for node in held if (tensor := constant_of(node)) is not None}
    stored = [*around, own]
    for node in held:
        if node.op not in _OF_SHAPES and not flowing.isdisjoint(reads(node)):
            flowing.update(node.outputs)
        for _, body in subgraphs(node):
            inside = {*flowing, *(value.name for value in body.inputs)}
            yield from _of_nodes(body.nodes, [*stored, body.initializers], inside)
        if node.op == "Slice" and not flowing.intersection(node.inputs[:1]):
            continue  # of zeros, or of the sizes in a shape: where it begins hides nothing
        if node.domain or not (node.op in _DECIDING or node.op in _ARITHMETIC):
            continue
        kind = _DECIDING.get(node.op) or node.op
        for name in node.inputs:
            tensor = next((some[name] for some in stored if name in some), None)
            values = _values(tensor) if tensor is not None else None
            if values is None or not _may_limit(node.op, values):
                continue
            for value in values.reshape(-1).tolist():
                if _counts(float(value), values.dtype):
                    yield (kind, float(value)), DecidingNumber(node.op, float(value))
        for attribute in node.attributes.values():
            if isinstance(attribute, float) and _counts(attribute, np.dtype(np.float32)):
                yield (kind, attribute), DecidingNumber(node.op, attribute)


def _may_limit(op: str, values: np.ndarray[Any, Any]) -> bool:
    kinds = _ARITHMETIC.get(op)
    return kinds is None or (values.size == 1 and values.dtype.kind in kinds)


def _counts(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether a number is a limit: neither as large as any may be, nor met by sizes that are always tried."""
    if abs(value) <= (_ALWAYS if dtype.kind in "iu" else 0.0):
        return False
    return abs(value) < (_LONGEST if dtype.kind in "iu" else _LARGEST)


def _values(tensor: Tensor) -> np.ndarray[Any, Any] | None:
    """The few numbers of a stored tensor; None for others."""
    if tensor.payload is None or tensor.dtype in ("string", "bool") or tensor.elements > _SMALL:
        return None
    if tensor.held is not None or tensor.dtype.startswith(("float4", "float6", "float8", "complex")):
        return None
    return np.asarray(tensor.array())


def _moved_in(function: Function, number: DecidingNumber, sign: int) -> Function:
    """The same of a function, whose stored tensors are Constants."""
    nodes, added = _moved_nodes(function.nodes, {}, number, sign)
    constants = [
        Node("Constant", (), (name,), attributes={"value": tensor}) for name, tensor in added.items()
    ]
    return replace(function, nodes=gathered((*constants, *nodes)), record=None) if added else function


def _moved(graph: Graph, number: DecidingNumber, sign: int) -> Graph:
    """The graph with another number wherever an operator of its kind reads this one."""
    nodes, added = _moved_nodes(graph.nodes, graph.initializers, number, sign)
    return replace(graph, nodes=gathered(nodes), initializers={**graph.initializers, **added})


def _moved_nodes(
    nodes: Sequence[Node], initializers: Mapping[str, Tensor], number: DecidingNumber, sign: int
) -> tuple[list[Node], dict[str, Tensor]]:
    """The nodes of a graph or a function with another number, and the tensors that these read."""
    held = node_sequence(nodes)
    stored = {name: tensor for node in held if (tensor := constant_of(node)) for name in node.outputs}
    stored.update(initializers)
    added: dict[str, Tensor] = {}
    out: list[Node] = []
    for node in held:
        bodies = {name: _moved(body, number, sign) for name, body in subgraphs(node)}
        if bodies:
            node = with_bodies(node, bodies)
        if node.op == number.op and not node.domain:
            node = _with_number(node, stored, added, number, sign)
        out.append(node)
    return out, added


def _with_number(
    node: Node, stored: Mapping[str, Tensor], added: dict[str, Tensor], number: DecidingNumber, sign: int
) -> Node:
    """One node with another number; what it then reads goes into `added`."""
    inputs = list(node.inputs)
    for at, name in enumerate(inputs):
        values = _values(stored[name]) if name in stored else None
        if values is None or not (values == number.value).any():
            continue
        inputs[at] = f"{name}/moved"
        new = np.where(values == number.value, _beside(number.value, sign, values.dtype), values)
        data = np.asarray(new).astype(values.dtype)
        added[inputs[at]] = Tensor(inputs[at], str(data.dtype), tuple(data.shape), Inline(data.tobytes()))
    attributes = {
        name: _beside(number.value, sign, np.dtype(np.float32)) if value == number.value else value
        for name, value in node.attributes.items()
        if isinstance(value, float)
    }
    moved = node.with_values(inputs, node.outputs)
    return moved.with_attributes({**node.attributes, **attributes}) if attributes else moved


def _beside(value: float, sign: int, dtype: np.dtype[Any]) -> float:
    """A number close to another one."""
    if dtype.kind in "iu":
        return max(value + sign, 0) if dtype.kind == "u" else value + sign
    return value + sign * (abs(value) * _STEP or _STEP)
