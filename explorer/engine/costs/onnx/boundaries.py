"""Group boundaries: the tensors that go into and out of every group that exists by name only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import GroupFacts, Scope
from explorer.engine.costs.memory.liveness import Named, described
from explorer.engine.costs.onnx.leaves import OperatorFigures, OperatorLeaf
from explorer.engine.costs.onnx.values import SHOWN, GraphContext
from explorer.engine.graph.model import Graph
from explorer.facts import TensorInfo

Edge = tuple[
    tuple[Scope, ...], Sequence[Hashable], Sequence[TensorInfo], Sequence[Hashable], Sequence[TensorInfo]
]
"""The groups around a node, keys and descriptions of what it reads, and of what it makes."""

_Crossing = dict[str, dict[Hashable, TensorInfo]]
"""Tensors by their keys, by path of the group."""
_ASKS_SIZES = ("Shape", "Size")
"""Operators that a tensor goes to for its sizes alone. What they read of a group, and indices, are named
behind the other outputs: the first is the shape that the group has in the tree."""


def boundaries(
    edges: Sequence[Edge | OperatorLeaf], facts: Mapping[str, GroupFacts], graph: Graph, context: GraphContext
) -> dict[str, GroupFacts]:
    """Facts of the groups that are missing in `facts`.

    Args:
        edges: What each node reads and makes, in execution order.
        facts: Facts of groups by path.
        graph: The main graph.
        context: Its values.
    """
    around = [edge.scopes if isinstance(edge, OperatorLeaf) else edge[0] for edge in edges]
    if not any(around):
        return {}
    makers: dict[Hashable, tuple[Scope, ...]] = {}
    for scopes, edge in zip(around, edges, strict=True):
        for key in _made_by(edge) if isinstance(edge, OperatorLeaf) else edge[3]:
            makers.setdefault(key, scopes)
    ins: _Crossing = {}
    outs: _Crossing = {}
    sizes: _Crossing = {}
    nowhere: tuple[Scope, ...] = ()
    for scopes, edge in zip(around, edges, strict=True):
        if not isinstance(edge, OperatorLeaf):
            for key, info in zip(*edge[1:3], strict=True):
                _cross(key, info, makers.get(key, nowhere), scopes, ins, outs)
            continue
        within, names = edge.context, edge.node.inputs
        for key, name in zip(_keys(within, names), names, strict=True):
            origin = makers.get(key, nowhere)
            if origin is not scopes and name and name not in within.stored and name not in edge.constants:
                info = described((within.shapes.values, name))
                size = edge.node.op in _ASKS_SIZES or info.dtype == "int64"
                _cross(key, info, origin, scopes, ins, sizes if size else outs)
    for value in graph.outputs:
        key = context.key(value.name)
        _cross(key, context.info(value.name), makers.get(key, nowhere), nowhere, ins, outs)
    for path, values in sizes.items():
        there = outs.setdefault(path, {})
        there.update((key, info) for key, info in values.items() if key not in there)
    return {
        path: GroupFacts(
            inputs=tuple(ins.get(path, {}).values()),
            outputs=tuple(islice(outs.get(path, {}).values(), SHOWN)),
        )
        for path in {**ins, **outs}
        if path not in facts
    }


def _cross(
    key: Hashable,
    info: TensorInfo | Named,
    origin: tuple[Scope, ...],
    scopes: tuple[Scope, ...],
    ins: _Crossing,
    outs: _Crossing,
) -> None:
    """Enters a value that crosses groups as an output of those it leaves and an input of those it enters."""
    same = 0
    for a, b in zip(origin, scopes, strict=False):
        if a is not b and a.path != b.path:
            break
        same += 1
    if same == len(scopes) == len(origin):
        return
    named = own_name(key, described(info))
    for crossings, passed in ((ins, scopes[same:]), (outs, origin[same:])):
        for scope in passed:
            there = crossings.setdefault(scope.path, {})
            if len(there) < SHOWN or key in there:
                there[key] = named


def own_name(key: Hashable, info: TensorInfo) -> TensorInfo:
    """A value under its own name, not under its name in the function or body that reads it."""
    name = key[1] if isinstance(key, tuple) and len(key) == 2 else key
    return replace(info, name=name) if isinstance(name, str) and name != info.name else info


def _made_by(leaf: OperatorLeaf) -> Sequence[Hashable]:
    """The keys of what an operator makes."""
    if isinstance(leaf.figures, OperatorFigures) and not leaf.figures.sizes:
        return ()
    outputs = leaf.node.outputs
    return _keys(leaf.context, outputs if "" not in outputs else [n for n in outputs if n])


def _keys(context: GraphContext, names: Sequence[str]) -> Sequence[Hashable]:
    return [context.key(n) for n in names] if context.number or context.keys else names
