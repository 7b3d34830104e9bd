"""Visits the graphs of control flow nodes: If, Loop, Scan, SequenceMap and FlexAttention.

An If counts its costliest branch, unless its condition is constant. A body counts once per run. The count is
an upper bound if a condition may end the loop earlier, and unknown if the number of runs depends on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import GroupFacts, Scope, sum_known
from explorer.engine.costs.memory.liveness import find_live_peak
from explorer.engine.costs.onnx.scopes import ScopedName
from explorer.engine.costs.onnx.sequences import SequenceElements
from explorer.engine.costs.onnx.state import Visit, VisitResult, VisitState
from explorer.engine.costs.onnx.values import GraphContext, count_bytes, multiply_by_runs
from explorer.engine.graph.model import Graph, Node, list_bodies
from explorer.engine.shapes import Shapes
from explorer.engine.shapes.bodies import count_iterations
from explorer.engine.shapes.constants import ConstantContents
from explorer.engine.shapes.subgraphs import infer_scan_inputs
from explorer.engine.symbolic import dimensions
from explorer.facts import Dim, TensorInfo


class ControlFlowNode(NamedTuple):
    """A node that contains graphs, with the state needed to visit them."""

    visit: Visit
    state: VisitState
    context: GraphContext
    node: Node
    name: ScopedName

    def infer_shapes(self, body: Graph, types: Sequence[TensorInfo | None]) -> Shapes:
        """Infers the shapes of a body whose inputs have these types."""
        shapes = self.context.shapes
        return self.state.inference.infer_body(
            body, types, shapes.values, shapes.constants, self.context.opsets
        )

    def open_scopes(self, kind: str) -> tuple[tuple[Scope, ...], str]:
        """Returns the scopes and the path prefix of a body of the node."""
        return self.state.open_scopes(self.context, self.node, self.name, kind)


def visit_graphs(
    visit: Visit, state: VisitState, context: GraphContext, node: Node, name: ScopedName
) -> bool:
    """Visits the graphs of a node. Returns False if it has none, or lacks attributes to visit them."""
    handler = _HANDLERS.get((node.domain, node.op))
    if handler is None or not _can_visit(node):
        return False
    handler(ControlFlowNode(visit, state, context, node, name))
    return True


def _visit_branches(owner: ControlFlowNode) -> None:
    """Visits every branch of an If. The branch that runs counts, or the costliest branch if it is unknown."""
    visit, state, context, node = owner.visit, owner.state, owner.context, owner.node
    scopes, prefix = owner.open_scopes("If")
    result = state.result
    branches: list[tuple[str, VisitResult]] = []
    costs: list[tuple[int | None, int | None]] = []
    ends: list[list[Hashable]] = []
    branch_index = _find_constant_branch(context, node, [name for name, _ in list_bodies(node)])
    for name, body in list_bodies(node):
        shapes = owner.infer_shapes(body, ())
        body_scopes = (*scopes, Scope(prefix + name, name, "branch"))
        with state.separate_result() as branch_result:
            body_context = state.create_child_context(context, body, shapes, body_scopes, prefix + name)
            body_context.is_uncertain_branch = context.is_uncertain_branch or branch_index is None
            visit(body_context, body.nodes)
        ends.append([state.find_memory_key(body_context.get_key(v.name)) for v in body.outputs])
        branches.append((name, branch_result))
        counted_figures = [x.figures for x in branch_result.leaves if x.counted]
        costs.append(
            (
                sum_known(x.macs for x in counted_figures),
                sum_known(x.elementwise_ops for x in counted_figures),
            )
        )
    # if the branch is unknown, the branch with the highest peak determines the memory
    peaks = [find_live_peak(b.steps, end).bytes or 0 for (_, b), end in zip(branches, ends, strict=True)]
    if branch_index is None:
        costliest_index = max(range(len(branches)), key=lambda i: (costs[i][0] or 0, costs[i][1] or 0))
        largest_peak_index = peaks.index(max(peaks))
    else:
        costliest_index = largest_peak_index = branch_index
    has_unknown_cost = branch_index is None and any(None in cost for cost in costs)
    has_one_cost = branch_index is not None or len(set(costs)) == 1
    bound_reason = "the branch that needs more memory is counted"
    if branch_index is not None or len(set(peaks)) == 1:
        bound_reason = ""
    for index, (name, branch_result) in enumerate(branches):
        is_counted = index == costliest_index
        first_leaf = len(result.leaves)
        result.leaves += (
            branch_result.leaves if is_counted else [replace(x, counted=False) for x in branch_result.leaves]
        )
        result.node_values += branch_result.node_values
        result.body_outputs += branch_result.body_outputs
        result.groups.update(branch_result.groups)
        result.shapes.update(branch_result.shapes)
        result.groups[prefix + name] = GroupFacts(is_excluded=not is_counted)
        if index == largest_peak_index:
            for step in branch_result.steps:
                leaf = step.leaf + first_leaf if step.leaf >= 0 else -1
                result.steps.append(replace(step, leaf=leaf, bound=step.bound or bound_reason))
    for output_name, key in zip(node.outputs, ends[largest_peak_index], strict=False):
        if output_name:
            state.memory_of[context.get_key(output_name)] = key
    costs_text = "; ".join(
        f"{name}: {_describe_cost(cost)}" for (name, _), cost in zip(branches, costs, strict=True)
    )
    result.groups[scopes[-1].path] = state.group(
        context,
        node,
        "If",
        status="unknown" if has_unknown_cost else None if has_one_cost else "bound",
        reason=f"the costliest branch counts ({costs_text})" if has_unknown_cost or not has_one_cost else "",
    )
    state.finish(context, node, scopes)


def _find_constant_branch(context: GraphContext, node: Node, names: list[str]) -> int | None:
    """Returns the index of the branch that runs if the condition is constant, else None."""
    condition = context.shapes.constants.get(node.inputs[0]) if node.inputs else None
    if condition is None or condition.size != 1:
        return None
    name = "then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"
    return names.index(name) if name in names else None


def _describe_cost(cost: tuple[int | None, int | None]) -> str:
    """Formats MACs and elementwise operations; '?' for an unknown number."""
    macs, ops = ("?" if c is None else f"{c:,}" for c in cost)
    return f"{macs} MACs, {ops} elementwise"


def _visit_loop(owner: ControlFlowNode) -> None:
    """Visits the body of a Loop, which counts once per trip. The condition may end the loop earlier."""
    state, context, node = owner.state, owner.context, owner.node
    body = node.attributes["body"]
    constants = context.shapes.constants
    max_trips, is_fixed = (
        count_iterations(node, constants) if isinstance(constants, ConstantContents) else (None, False)
    )
    trips = dimensions.format_for_display(max_trips) if isinstance(max_trips, str) else max_trips
    types = state.inference.infer_loop_inputs(node, context.shapes.values, constants, context.opsets)
    shapes = owner.infer_shapes(body, types)
    early_end_reason = "" if is_fixed else "the loop may end earlier"
    _visit_repeated(
        owner,
        "Loop",
        body,
        shapes,
        trips,
        early_end_reason=early_end_reason,
        carried_from=2,
        carried=len(node.inputs) - 2,
    )


def _visit_scan(owner: ControlFlowNode) -> None:
    """Visits the body of a Scan, which counts once for each slice of the scanned axis."""
    context, node = owner.context, owner.node
    if context.opsets.get("", 0) < 9:
        _visit_batched_scan(owner)
        return
    body = node.attributes["body"]
    types, trips = infer_scan_inputs(node, context.get_info)
    states = len(node.inputs) - int(node.attributes.get("num_scan_inputs", 0))
    _visit_repeated(owner, "Scan", body, owner.infer_shapes(body, types), trips, carried=states)


def _visit_batched_scan(owner: ControlFlowNode) -> None:
    """Visits a Scan of opset 8: every tensor has a batch axis, and the first input has sequence lengths."""
    context, node = owner.context, owner.node
    body = node.attributes["body"]
    count = int(node.attributes.get("num_scan_inputs", 0))
    states = len(node.inputs) - 1 - count
    types: list[TensorInfo | None] = []
    trips: Dim = None
    for index, name in enumerate(node.inputs[1:]):
        info = context.get_info(name)
        batch_rank = 1 if index < states else 2
        if info.shape is None or len(info.shape) < batch_rank:
            types.append(replace(info, shape=None))
            continue
        if index >= states and trips is None:
            trips = _multiply_trips(info.shape[0], info.shape[1])
        types.append(replace(info, shape=info.shape[batch_rank:]))
    shapes = owner.infer_shapes(body, types)
    early_end_reason = "sequences may be shorter than the longest" if node.inputs[0] else ""
    _visit_repeated(
        owner, "Scan", body, shapes, trips, early_end_reason=early_end_reason, carried_from=1, carried=states
    )


def _visit_sequence_map(owner: ControlFlowNode) -> None:
    """Visits the body of a SequenceMap, which counts once per tensor of the first sequence."""
    state, context, node = owner.state, owner.context, owner.node
    body = node.attributes["body"]
    types: list[TensorInfo | None] = []
    for index, name in enumerate(node.inputs):
        elements = state.sequences.get(context.get_key(name))
        info = context.get_info(name)
        if elements is not None:
            types.append(elements.each)
        else:
            # an input with its own type is a tensor that every run reads
            types.append(info if index and info.dtype is not None else None)
    shapes = owner.infer_shapes(body, types)
    first = state.sequences.get(context.get_key(node.inputs[0]))
    trips = None if first is None else first.length
    _visit_repeated(owner, "SequenceMap", body, shapes, trips)
    for name, value in zip(node.outputs, body.outputs, strict=False):
        if name:
            state.sequences[context.get_key(name)] = SequenceElements(trips, shapes.values.get(value.name))


def _visit_modified_attention(owner: ControlFlowNode) -> None:
    """Visits a FlexAttention: the attention, and the graphs that modify its scores and probabilities."""
    visit, state, context, node = owner.visit, owner.state, owner.context, owner.node
    scopes, prefix = owner.open_scopes(node.op)
    plain_attributes = {n: v for n, v in node.attributes.items() if not isinstance(v, Graph)}
    attention_context = replace(context, scopes=scopes, prefix=prefix)
    attention = Node(
        node.op, node.inputs, node.outputs, name="attention", domain=node.domain, attributes=plain_attributes
    )
    visit(attention_context, (attention,))
    query, key = (context.get_info(n).shape for n in node.inputs[:2])
    scores = None if query is None or key is None else (*query[:3], *key[2:3])
    dtype = "float64" if context.get_info(node.inputs[0]).dtype == "float64" else "float32"
    for name, body in list_bodies(node):
        types = [TensorInfo(v.name, v.dtype or dtype, scores) for v in body.inputs]
        shapes = owner.infer_shapes(body, types)
        body_scopes = (*scopes, Scope(prefix + name, name, "modifier"))
        body_context = state.create_child_context(context, body, shapes, body_scopes, prefix + name)
        visit(body_context, body.nodes)
    state.result.groups[scopes[-1].path] = state.group(context, node, node.op)


def _visit_repeated(
    owner: ControlFlowNode,
    kind: str,
    body: Graph,
    shapes: Shapes,
    trips: Dim,
    *,
    early_end_reason: str = "",
    carried_from: int = 0,
    carried: int = 0,
) -> None:
    """Visits a body that runs `trips` times, or fewer times if `early_end_reason` is set.

    Args:
        owner: Node with the body.
        kind: Kind of the group.
        body: Graph to visit.
        shapes: Shapes of the body's values.
        trips: Number of runs.
        early_end_reason: Reason why it may run less often, or ''.
        carried_from: Index of the first node input that is also a body input.
        carried: Number of values that each run passes to the next; the last run returns them. Each further
            output of the node stacks one slice per run.
    """
    visit, state, context, node = owner.visit, owner.state, owner.context, owner.node
    scopes, prefix = owner.open_scopes(kind)
    count = trips if isinstance(trips, int) else None
    body_context = state.create_child_context(context, body, shapes, scopes, prefix[:-1])
    body_context.trips = _multiply_trips(context.trips, trips)
    body_context.early_end_reason = context.early_end_reason or early_end_reason
    for value, outer_name in zip(body.inputs[carried_from:], node.inputs[carried_from:], strict=False):
        if outer_name in context.stored:
            body_context.stored[value.name] = context.stored[outer_name]
        elif outer_name:
            state.memory_of[body_context.get_key(value.name)] = state.find_memory_key(
                context.get_key(outer_name)
            )
    output_offset = max(len(body.outputs) - len(node.outputs), 0)
    stacked = [
        (
            context.get_key(outer_name),
            context.get_info(outer_name),
            multiply_by_runs(count_bytes(body_context.get_info(value.name)), count),
        )
        for outer_name, value in list(zip(node.outputs, body.outputs[output_offset:], strict=False))[carried:]
        if outer_name
    ]
    state.step(scopes[-1].path, (), stacked)
    visit(body_context, body.nodes)
    ends = [body_context.get_key(v.name) for v in body.outputs if v.name not in body_context.stored]
    for outer_name, value in zip(node.outputs[:carried], body.outputs[output_offset:], strict=False):
        if outer_name and value.name not in body_context.stored:
            state.memory_of[context.get_key(outer_name)] = state.find_memory_key(
                body_context.get_key(value.name)
            )
    trips_text = "?" if trips is None else str(trips)
    reason = "" if trips is not None else "how often it runs depends on the data"
    facts = state.group(context, node, kind)
    state.result.groups[scopes[-1].path] = replace(
        facts,
        attributes={
            **facts.attributes,
            "iterations": f"at most {trips_text}" if early_end_reason and trips else trips_text,
        },
        reason=reason,
        status="unknown" if reason else None,
    )
    # the next run needs captured values again
    captured_keys = [key for name, key in body_context.keys.items() if name not in context.stored]
    state.finish(context, node, scopes, live_keys=(*ends, *captured_keys))


_HANDLERS: Mapping[tuple[str, str], Callable[[ControlFlowNode], None]] = {
    ("", "If"): _visit_branches,
    ("", "Loop"): _visit_loop,
    ("", "Scan"): _visit_scan,
    ("", "SequenceMap"): _visit_sequence_map,
    ("ai.onnx.preview", "FlexAttention"): _visit_modified_attention,
}

KEYS = _HANDLERS.keys()
"""Domain and type of the operators that contain graphs."""

CARRIERS = frozenset(op for _, op in KEYS)
"""Types of the operators that contain graphs."""


def _can_visit(node: Node) -> bool:
    """Whether a node has the attributes and inputs that are needed to visit its graphs."""
    if node.op == "If":
        return bool(list_bodies(node))
    if node.op == "FlexAttention":
        return bool(list_bodies(node)) and len(node.inputs) >= 3
    if not isinstance(node.attributes.get("body"), Graph):
        return False
    if node.op == "SequenceMap":
        return bool(node.inputs)
    count = node.attributes.get("num_scan_inputs", 0)
    axes = node.attributes.get("scan_input_axes", ())
    has_valid_axes = isinstance(axes, tuple) and all(isinstance(a, int) for a in axes)
    return isinstance(count, int) and 0 <= count <= len(node.inputs) and has_valid_axes


def _multiply_trips(a: Dim, b: Dim) -> Dim:
    """Returns the number of runs of a body within a body, or None if either is unknown."""
    if a is None or b is None:
        return None
    product = dimensions.multiply(a, b)
    return dimensions.format_for_display(product) if isinstance(product, str) else product
