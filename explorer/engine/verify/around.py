"""Whether a tiled graph is the original outside of its sites, node by node.

A run shows only what it comes through: of a branch that no draw takes, or a loop that none enters, nothing is
seen. What is not tiled keeps its place in a tiled graph, so that it can be compared as it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from explorer.engine.graph import Function, Graph, Model, Node, Tensor, subgraphs
from explorer.engine.places import body_name, call_name
from explorer.engine.verify.meanings import Original
from explorer.units import printable

__all__ = ["branches", "difference"]

Key = tuple[str, str, str]


def branches(model: Model) -> bool:
    """Whether the data decides which nodes run."""
    graphs: list[Sequence[Node]] = [model.graph.nodes, *(f.nodes for f in model.functions.values())]
    while graphs:
        for node in graphs.pop():
            if node.op in ("If", "Loop") and not node.domain:
                return True
            graphs += [graph.nodes for _, graph in subgraphs(node)]
    return False


class _Differs(Exception):
    """The first thing that differs, in words."""


class _Scope(Struct):
    """One graph of both models: nodes by the values that they make, and stored tensors."""

    path: tuple[str, ...]
    before: dict[str, Node]
    after: dict[str, Node]
    stored: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]

    @classmethod
    def of(cls, path: tuple[str, ...], one: Graph | Function, other: Graph | Function) -> _Scope:
        stored = (
            one.initializers if isinstance(one, Graph) else {},
            other.initializers if isinstance(other, Graph) else {},
        )
        return cls(path, _makers(one.nodes), _makers(other.nodes), stored)


def difference(before: Model, after: Model, sites: Mapping[str, Original]) -> str:
    """What another model computes otherwise outside of the sites.

    Args:
        before: The original.
        after: The tiled model.
        sites: What was proved, by the names of its places and its output, joined by slashes.

    Returns:
        The first difference in words; '' if there is none.
    """
    called: list[Key] = []
    seen: set[Key] = set()
    try:
        _graphs(_Scope.of((), before.graph, after.graph), _outputs(before.graph), sites, before, called)
        while called:
            key = called.pop()
            if key in seen:
                continue
            seen.add(key)
            one, other = before.functions[key], after.functions.get(key)
            if other is None or (one.inputs, one.outputs) != (other.inputs, other.outputs):
                raise _Differs(f"function '{printable(one.name)}' is not the original's")
            _graphs(_Scope.of((call_name(before, one),), one, other), one.outputs, sites, before, called)
    except _Differs as found:
        return str(found)
    return ""


def _graphs(
    scope: _Scope,
    outputs: Iterable[str],
    sites: Mapping[str, Original],
    before: Model,
    called: list[Key],
) -> list[str]:
    """Follows values from the outputs of a graph to its inputs, around the sites.

    Returns:
        What comes from outside: its inputs, and values of the graphs around it.

    Raises:
        _Differs: Some value is made otherwise.
    """
    pending = list(outputs)
    seen: set[str] = {""}
    outside: list[str] = []
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        site = sites.get("/".join((*scope.path, name)))
        if site is not None:
            pending += site.inputs
            continue
        one, other = scope.before.get(name), scope.after.get(name)
        if one is None or other is None:
            if one is not other or not _same(*(stored.get(name) for stored in scope.stored)):
                raise _Differs(f"'{printable(name)}' is not what it is in the original")
            if name not in scope.stored[0]:
                outside.append(name)
            continue
        pending += _node(one, other, scope, sites, before, called)
    return outside


def _node(
    one: Node, other: Node, scope: _Scope, sites: Mapping[str, Original], before: Model, called: list[Key]
) -> list[str]:
    """Compares two nodes and their bodies; returns what they read."""
    said = f"{one.op} '{printable(one.label)}' is not the original's"
    if (one.key, one.inputs, one.outputs) != (other.key, other.inputs, other.outputs):
        raise _Differs(said)
    read = list(one.inputs)
    mine, theirs = dict(_settings(one)), dict(_settings(other))
    if mine.keys() != theirs.keys():
        raise _Differs(said)
    for name, value in mine.items():
        twin = theirs[name]
        if not isinstance(value, Graph):
            if not _same(value, twin):
                raise _Differs(f"{said}: its {printable(name)} differs")
            continue
        if not isinstance(twin, Graph) or _outputs(value) != _outputs(twin):
            raise _Differs(f"{said}: its {printable(name)} differs")
        if [v.name for v in value.inputs] != [v.name for v in twin.inputs]:
            raise _Differs(f"{said}: its {printable(name)} differs")
        inner = _Scope.of((*scope.path, body_name(one, name)), value, twin)
        read += _graphs(inner, _outputs(value), sites, before, called)
    if one.key in before.functions:
        called.append(one.key)
    return read


def _settings(node: Node) -> Iterator[tuple[str, Any]]:
    """Attributes and bodies, under the names of places."""
    bodies = subgraphs(node)
    for name, value in node.attributes.items():
        if not any(at == name or at.startswith(f"{name}[") for at, _ in bodies):
            yield name, value
    yield from bodies


def _outputs(graph: Graph) -> list[str]:
    return [value.name for value in graph.outputs]


def _makers(nodes: Sequence[Node]) -> dict[str, Node]:
    return {name: node for node in nodes for name in node.outputs if name}


def _same(one: Any, other: Any) -> bool:
    """Whether two attributes, or stored tensors, are the same to the bit."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.payload is None or other.payload is None:
        return one.payload is other.payload
    return bool(one.payload.view() == other.payload.view())
