"""Finds the tensors that enter and leave each group that exists only through the names of its nodes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import GroupFacts, Scope
from explorer.engine.costs.memory.liveness import DeferredDescription, build_description
from explorer.engine.costs.onnx.leaves import OperatorFigures, OperatorLeaf
from explorer.engine.costs.onnx.values import MAX_LISTED_VALUES, GraphContext
from explorer.engine.graph.model import Graph
from explorer.facts import TensorInfo


class NodeValues(NamedTuple):
    """The values that a node with a body, or the body itself, reads and produces.

    Attributes:
        scopes: Groups that contain the node.
        input_keys: Keys of its inputs.
        inputs: Descriptions of its inputs.
        output_keys: Keys of its outputs.
        outputs: Descriptions of its outputs.
    """

    scopes: tuple[Scope, ...]
    input_keys: Sequence[Hashable]
    inputs: Sequence[TensorInfo]
    output_keys: Sequence[Hashable]
    outputs: Sequence[TensorInfo]


_GroupValues = dict[str, dict[Hashable, TensorInfo]]
"""For each group's path, the tensors that cross its boundary, by key."""

_SIZE_READERS = ("Shape", "Size")
"""Operators that read only the sizes of a tensor.

Tensors read by them, and int64 tensors, are listed after the other outputs of a group, because the tree shows
the shape of the first output.
"""


def compute_boundaries(
    node_values: Sequence[NodeValues | OperatorLeaf],
    facts: Mapping[str, GroupFacts],
    graph: Graph,
    context: GraphContext,
) -> dict[str, GroupFacts]:
    """Returns the facts of the groups that are missing in `facts`.

    Args:
        node_values: Inputs and outputs of each node, in execution order.
        facts: Facts of groups by path.
        graph: Main graph.
        context: Context of the main graph.
    """
    if not any(entry.scopes for entry in node_values):
        return {}
    producers: dict[Hashable, tuple[Scope, ...]] = {}
    for entry in node_values:
        for key in _list_output_keys(entry) if isinstance(entry, OperatorLeaf) else entry.output_keys:
            producers.setdefault(key, entry.scopes)
    inputs_by_group: _GroupValues = {}
    outputs_by_group: _GroupValues = {}
    size_outputs_by_group: _GroupValues = {}
    root: tuple[Scope, ...] = ()
    for entry in node_values:
        scopes = entry.scopes
        if not isinstance(entry, OperatorLeaf):
            for key, info in zip(entry.input_keys, entry.inputs, strict=True):
                _record_crossing(
                    key, info, producers.get(key, root), scopes, inputs_by_group, outputs_by_group
                )
            continue
        leaf_context, names = entry.context, entry.node.inputs
        for key, name in zip(_list_keys(leaf_context, names), names, strict=True):
            origin = producers.get(key, root)
            if (
                origin is not scopes
                and name
                and name not in leaf_context.stored
                and name not in entry.constants
            ):
                info = build_description((leaf_context.shapes.values, name))
                is_size = entry.node.op in _SIZE_READERS or info.dtype == "int64"
                _record_crossing(
                    key,
                    info,
                    origin,
                    scopes,
                    inputs_by_group,
                    size_outputs_by_group if is_size else outputs_by_group,
                )
    for value in graph.outputs:
        key = context.get_key(value.name)
        _record_crossing(
            key,
            context.get_info(value.name),
            producers.get(key, root),
            root,
            inputs_by_group,
            outputs_by_group,
        )
    for path, tensors in size_outputs_by_group.items():
        path_outputs = outputs_by_group.setdefault(path, {})
        path_outputs.update((key, info) for key, info in tensors.items() if key not in path_outputs)
    return {
        path: GroupFacts(
            inputs=tuple(inputs_by_group.get(path, {}).values()),
            outputs=tuple(islice(outputs_by_group.get(path, {}).values(), MAX_LISTED_VALUES)),
        )
        for path in {**inputs_by_group, **outputs_by_group}
        if path not in facts
    }


def _record_crossing(
    key: Hashable,
    info: TensorInfo | DeferredDescription,
    origin: tuple[Scope, ...],
    scopes: tuple[Scope, ...],
    inputs_by_group: _GroupValues,
    outputs_by_group: _GroupValues,
) -> None:
    """Records a value as an output of the groups that it leaves and as an input of those that it enters."""
    shared_depth = 0
    for a, b in zip(origin, scopes, strict=False):
        if a is not b and a.path != b.path:
            break
        shared_depth += 1
    if shared_depth == len(scopes) == len(origin):
        return
    named = restore_original_name(key, build_description(info))
    for crossings, crossed_scopes in (
        (inputs_by_group, scopes[shared_depth:]),
        (outputs_by_group, origin[shared_depth:]),
    ):
        for scope in crossed_scopes:
            group_values = crossings.setdefault(scope.path, {})
            if len(group_values) < MAX_LISTED_VALUES or key in group_values:
                group_values[key] = named


def restore_original_name(key: Hashable, info: TensorInfo) -> TensorInfo:
    """Returns the description with the name that the value has where it was produced, taken from its key."""
    name = key[1] if isinstance(key, tuple) and len(key) == 2 else key
    return replace(info, name=name) if isinstance(name, str) and name != info.name else info


def _list_output_keys(leaf: OperatorLeaf) -> Sequence[Hashable]:
    """Returns the keys of an operator's outputs."""
    if isinstance(leaf.figures, OperatorFigures) and not leaf.figures.sizes:
        return ()
    outputs = leaf.node.outputs
    return _list_keys(leaf.context, outputs if "" not in outputs else [n for n in outputs if n])


def _list_keys(context: GraphContext, names: Sequence[str]) -> Sequence[Hashable]:
    return [context.get_key(n) for n in names] if context.body_number or context.keys else names
