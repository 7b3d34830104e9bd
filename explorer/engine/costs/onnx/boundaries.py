"""Group boundaries: the tensors that enter and leave each group that exists only through names."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import GroupFacts, Scope
from explorer.engine.costs.memory.liveness import DeferredDescription, build_description
from explorer.engine.costs.onnx.leaves import OperatorFigures, OperatorLeaf
from explorer.engine.costs.onnx.values import MAX_LISTED_VALUES, GraphContext
from explorer.engine.graph.model import Graph
from explorer.facts import TensorInfo

Edge = tuple[
    tuple[Scope, ...], Sequence[Hashable], Sequence[TensorInfo], Sequence[Hashable], Sequence[TensorInfo]
]
"""The groups that contain a node, and the keys and descriptions of its inputs and of its outputs."""

_Crossing = dict[str, dict[Hashable, TensorInfo]]
"""Tensors that cross a boundary, by key, by path of the group."""
_SIZE_READERS = ("Shape", "Size")
"""Operators that read only the sizes of a tensor.

Tensors read by them, and int64 tensors, are listed after the other outputs of a group, because the tree shows
the shape of the first output.
"""


def compute_boundaries(
    edges: Sequence[Edge | OperatorLeaf], facts: Mapping[str, GroupFacts], graph: Graph, context: GraphContext
) -> dict[str, GroupFacts]:
    """Returns the facts of the groups that are missing in `facts`.

    Args:
        edges: Inputs and outputs of each node, in execution order.
        facts: Facts of groups by path.
        graph: Main graph.
        context: Context of the main graph.
    """
    edge_scopes = [edge.scopes if isinstance(edge, OperatorLeaf) else edge[0] for edge in edges]
    if not any(edge_scopes):
        return {}
    producers: dict[Hashable, tuple[Scope, ...]] = {}
    for scopes, edge in zip(edge_scopes, edges, strict=True):
        for key in _list_output_keys(edge) if isinstance(edge, OperatorLeaf) else edge[3]:
            producers.setdefault(key, scopes)
    inputs_by_group: _Crossing = {}
    outputs_by_group: _Crossing = {}
    sizes_by_group: _Crossing = {}
    root: tuple[Scope, ...] = ()
    for scopes, edge in zip(edge_scopes, edges, strict=True):
        if not isinstance(edge, OperatorLeaf):
            for key, info in zip(*edge[1:3], strict=True):
                _cross(key, info, producers.get(key, root), scopes, inputs_by_group, outputs_by_group)
            continue
        edge_context, names = edge.context, edge.node.inputs
        for key, name in zip(_list_keys(edge_context, names), names, strict=True):
            origin = producers.get(key, root)
            if (
                origin is not scopes
                and name
                and name not in edge_context.stored
                and name not in edge.constants
            ):
                info = build_description((edge_context.shapes.values, name))
                is_size = edge.node.op in _SIZE_READERS or info.dtype == "int64"
                _cross(
                    key,
                    info,
                    origin,
                    scopes,
                    inputs_by_group,
                    sizes_by_group if is_size else outputs_by_group,
                )
    for value in graph.outputs:
        key = context.get_key(value.name)
        _cross(
            key,
            context.get_info(value.name),
            producers.get(key, root),
            root,
            inputs_by_group,
            outputs_by_group,
        )
    for path, values in sizes_by_group.items():
        path_outputs = outputs_by_group.setdefault(path, {})
        path_outputs.update((key, info) for key, info in values.items() if key not in path_outputs)
    return {
        path: GroupFacts(
            inputs=tuple(inputs_by_group.get(path, {}).values()),
            outputs=tuple(islice(outputs_by_group.get(path, {}).values(), MAX_LISTED_VALUES)),
        )
        for path in {**inputs_by_group, **outputs_by_group}
        if path not in facts
    }


def _cross(
    key: Hashable,
    info: TensorInfo | DeferredDescription,
    origin: tuple[Scope, ...],
    scopes: tuple[Scope, ...],
    inputs_by_group: _Crossing,
    outputs_by_group: _Crossing,
) -> None:
    """Records a value as an output of the groups that it leaves and as an input of those that it enters."""
    shared_depth = 0
    for a, b in zip(origin, scopes, strict=False):
        if a is not b and a.path != b.path:
            break
        shared_depth += 1
    if shared_depth == len(scopes) == len(origin):
        return
    named = restore_own_name(key, build_description(info))
    for crossings, crossed_scopes in (
        (inputs_by_group, scopes[shared_depth:]),
        (outputs_by_group, origin[shared_depth:]),
    ):
        for scope in crossed_scopes:
            group_values = crossings.setdefault(scope.path, {})
            if len(group_values) < MAX_LISTED_VALUES or key in group_values:
                group_values[key] = named


def restore_own_name(key: Hashable, info: TensorInfo) -> TensorInfo:
    """Renames a value from its name in a function or body to its own name."""
    name = key[1] if isinstance(key, tuple) and len(key) == 2 else key
    return replace(info, name=name) if isinstance(name, str) and name != info.name else info


def _list_output_keys(leaf: OperatorLeaf) -> Sequence[Hashable]:
    """Returns the keys of an operator's outputs."""
    if isinstance(leaf.figures, OperatorFigures) and not leaf.figures.sizes:
        return ()
    outputs = leaf.node.outputs
    return _list_keys(leaf.context, outputs if "" not in outputs else [n for n in outputs if n])


def _list_keys(context: GraphContext, names: Sequence[str]) -> Sequence[Hashable]:
    return [context.get_key(n) for n in names] if context.number or context.keys else names
