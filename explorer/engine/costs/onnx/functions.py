"""Adds function calls to the layer tree: expanded into the function's nodes, or as one row.

A file of a few hundred bytes can describe billions of calls. A call beyond the row limit becomes one row with
the figures of its whole body, which is called a closed body here. These figures are computed once for each
function and argument types.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.costs.layer_tree import UNPLACED, sum_known
from explorer.engine.costs.memory.liveness import find_live_peak
from explorer.engine.costs.onnx import tile_coverage
from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.scopes import ScopedName
from explorer.engine.costs.onnx.state import Visit, VisitResult, VisitState
from explorer.engine.costs.onnx.values import (
    MAX_LISTED_VALUES,
    GraphContext,
    StoredValue,
    count_bytes,
    multiply_by_runs,
    read_constant,
    simplify_attributes,
)
from explorer.engine.graph.model import Function, Model, Node, list_bodies
from explorer.engine.operators import cost_formulas, registry
from explorer.engine.operators.cost_formulas import Cost, WorkBound
from explorer.engine.shapes import Shapes, substitute_attributes
from explorer.facts import Layer, TensorInfo, TiledMacs


def find_single_operator(
    model: Model, function: Function, node: Node
) -> tuple[Node, Mapping[str, TensorInfo]] | None:
    """Returns the single operator that a function consists of, and its constants by name.

    The operator has the inputs and outputs of the calling node. The result is None if the function has
    several operators, calls another function, or contains control flow.
    """
    operators = [n for n in function.nodes if n.op != "Constant" or n.domain]
    if len(operators) != 1 or operators[0].key in model.functions or list_bodies(operators[0]):
        return None
    body_node, alike = operators[0], operators[0].alike
    if function.attributes or function.defaults:
        body_node, alike = substitute_attributes(body_node, {**function.defaults, **node.attributes}), None
    outer_names = dict(zip(function.inputs, node.inputs, strict=False))
    outer_names.update(zip(function.outputs, node.outputs, strict=False))
    constants: dict[str, TensorInfo] = {}
    for inner in function.nodes:
        if inner is not operators[0] and inner.op == "Constant":
            tensor = read_constant(inner)
            if tensor is not None and inner.outputs:
                name = inner.outputs[0]
                constants[name] = TensorInfo(name, tensor.dtype, tensor.shape, "declared")
    operator = Node(
        body_node.op,
        [outer_names.get(n, n if n in constants else "") for n in body_node.inputs],
        [outer_names.get(n, "") for n in body_node.outputs],
        name=node.name or node.label,
        domain=body_node.domain,
        attributes=body_node.attributes,
        metadata=node.metadata,
        alike=alike,
    )
    return operator, constants


class FunctionCalls:
    """Adds the function calls of a model to its rows.

    Args:
        model: Model to visit.
        state: State of the visit.
        rows: Maximum number of rows that all calls together expand into.
    """

    def __init__(self, model: Model, state: VisitState, rows: int) -> None:
        self._model = model
        self._state = state
        self._rows = rows
        self._sizes: dict[Hashable, int] = {}
        self._closed: dict[tuple[int, frozenset[str]], tuple[Shapes, ClosedBody]] = {}

    def add_call(
        self, visit: Visit, context: GraphContext, node: Node, name: ScopedName, function: Function
    ) -> None:
        """Expands a call into a group, or adds it as one leaf if it is too large or in a closed body."""
        types = [context.get_info(n) if n else None for n in node.inputs]
        state = self._state
        nodes, shapes = state.inference.infer_function(function, node, types, context.shapes.constants)
        stored_inputs = {
            inner_name: context.stored[outer_name]
            for inner_name, outer_name in zip(function.inputs, node.inputs, strict=False)
            if outer_name in context.stored
        }
        body_context = replace(context, shapes=shapes, stored=stored_inputs, storage_ids={}, keys={})
        size = self._count_operators(function)
        if context.sums_calls or size > self._rows:
            self._add_closed_call(
                self._compute_closed_body(visit, body_context, nodes, function), context, node, name
            )
            return
        self._rows -= size
        for inner_name, outer_name in zip(function.inputs, node.inputs, strict=False):
            if outer_name:
                body_context.keys[inner_name] = context.get_key(outer_name)
        for inner_name, outer_name in zip(function.outputs, node.outputs, strict=False):
            if outer_name:
                body_context.keys.setdefault(inner_name, context.get_key(outer_name))
        body_context.scopes, body_context.prefix = state.open_scopes(context, node, name, function.name)
        body_context.opsets = {**context.opsets, **function.opsets}
        body_context.owner_path = ""
        body_context.body_number = state.create_body_number()
        state.result.groups[body_context.scopes[-1].path] = state.group(context, node, function.name)
        visit(body_context, nodes)
        for inner_name, outer_name in zip(function.outputs, node.outputs, strict=False):
            if outer_name and inner_name in body_context.stored:
                context.stored[outer_name] = body_context.stored[inner_name]

    def _count_operators(self, function: Function) -> int:
        """Returns the number of operators that a call expands into."""
        if function.key not in self._sizes:
            self._sizes[function.key] = 0  # a recursive function is counted once
            total = 0
            pending = list(function.nodes)
            while pending:
                node = pending.pop()
                total += 1
                inner = self._model.functions.get(node.key)
                if inner is not None:
                    total += self._count_operators(inner)
                for _, body in list_bodies(node):
                    pending.extend(body.nodes)
            self._sizes[function.key] = total
        return self._sizes[function.key]

    def _compute_closed_body(
        self, visit: Visit, body_context: GraphContext, nodes: Sequence[Node], function: Function
    ) -> ClosedBody:
        """Returns the figures of a body, shared by all calls with the same argument types."""
        key = id(body_context.shapes), frozenset(body_context.stored)
        if key not in self._closed:
            stored_arguments = dict(body_context.stored)
            body_context.trips = 1
            body_context.early_end_reason = ""
            body_context.is_uncertain_branch = False
            body_context.sums_calls = True
            body_context.body_number = self._state.create_body_number()
            with self._state.separate_result() as body_result:
                visit(body_context, nodes)
            output_memory = frozenset(
                self._state.find_memory_key(body_context.get_key(n)) for n in function.outputs
            )
            labels = self._state.result.tile_labels
            tiled = None if labels is None else tile_coverage.count_tiled_macs(labels, body_result.leaves)
            peak = find_live_peak(body_result.steps, output_memory).bytes
            self._closed[key] = (
                body_context.shapes,
                _analyze_closed_body(body_result, stored_arguments, peak, tiled),
            )
        return self._closed[key][1]

    def _add_closed_call(self, body: ClosedBody, context: GraphContext, node: Node, name: ScopedName) -> None:
        """Adds an unexpanded call as one leaf with the figures of the whole body."""
        state, trips = self._state, context.trips
        scale = trips if isinstance(trips, int) else None
        cost = cost_formulas.times(body.cost, trips, "iterations")
        entries = {
            e.identity: (e.identity, e.elements, e.size)
            for n in node.inputs
            for e in context.stored.get(n, ())
            if e.quantized or registry.is_parameter("", -1, e.dtype, e.shape)
        }
        outputs = [context.get_info(n) for n in node.outputs if n]
        read = [n for n in node.inputs if n and n not in context.stored]
        path = context.get_path(node)
        layer = Layer(
            **UNPLACED,
            path=path,
            name=name.name,
            kind=node.op,
            calls=scale or 1,
            inputs=tuple(context.get_info(n) for n in read)[:MAX_LISTED_VALUES],
            outputs=tuple(outputs),
            macs=cost.macs,
            formula=cost.formula,
            elementwise_ops=cost.elementwise_ops,
            bytes_read=multiply_by_runs(body.read, scale),
            bytes_written=multiply_by_runs(body.written, scale),
            activation_bytes=multiply_by_runs(body.written, scale),
            weight_bytes_read=multiply_by_runs(body.weights, scale),
            attributes=simplify_attributes(node),
            status=cost.status,
            reason=str(cost.reason),
            work_bound=isinstance(cost.reason, WorkBound),
        )
        parameters, nodes = (*entries.values(), *body.stored), body.nodes * (scale or 1)
        leaf = OperatorLeaf(layer, context, node, (name,), 0, parameters, nodes)
        if body.tiled is not None and body.tiled.products != 0:
            leaf.tiled = (
                multiply_by_runs(body.tiled.macs, scale),
                multiply_by_runs(body.tiled.products, scale),
            )
        position = len(state.result.leaves)
        state.result.leaves.append(leaf)
        state.result.node_values.append(leaf)
        step_outputs = [(context.get_key(o.name), o, count_bytes(o)) for o in outputs]
        # the peak includes the outputs, which have their own entries, or the tensors that become them
        inner_bytes = (
            None if body.peak is None else max(body.peak - sum(s or 0 for _, _, s in step_outputs), 0)
        )
        step_outputs.append(((path, "inside"), TensorInfo(f"inside {path}", None, None), inner_bytes))
        bound_reason = "a function without analyzed contents counts its inputs as in memory until its end"
        state.step(
            path, [context.get_key(n) for n in read], step_outputs, leaf=position, bound_reason=bound_reason
        )


class ClosedBody(Struct, frozen=True):
    """Figures of a body that is not expanded.

    Attributes:
        cost: Cost of all its operators.
        read, written: Bytes that the operators read and write, or None if unknown.
        weights: Bytes of weights that they read, or None if unknown.
        nodes: Number of operators.
        stored: Identity, elements and bytes of the stored parameters in the body.
        peak: Largest number of live bytes, or None if unknown.
        tiled: Tiled and all multiply-accumulates of the body, or None.
    """

    cost: Cost
    read: int | None
    written: int | None
    weights: int | None
    nodes: int
    stored: tuple[tuple[Hashable, int, int], ...]
    peak: int | None
    tiled: TiledMacs | None = None


def _analyze_closed_body(
    body: VisitResult,
    stored_arguments: Mapping[str, Collection[StoredValue]],
    peak: int | None,
    tiled: TiledMacs | None,
) -> ClosedBody:
    """Sums the figures of a body; `stored_arguments` are stored tensors that the caller passes, by name."""
    counted_leaves = [leaf for leaf in body.leaves if leaf.counted]
    figures = [leaf.figures for leaf in counted_leaves]
    nodes = sum(leaf.nodes for leaf in counted_leaves)
    inexact = next((x for s in ("unknown", "bound") for x in counted_leaves if x.figures.status == s), None)
    reason = "" if inexact is None else f"{inexact.path}: {inexact.figures.reason}"
    if all(leaf_figures.work_bound for leaf_figures in figures if leaf_figures.status != "exact"):
        reason = WorkBound(reason)
    cost = Cost(
        sum_known(leaf_figures.macs for leaf_figures in figures),
        sum_known(leaf_figures.elementwise_ops for leaf_figures in figures),
        f"sum over {nodes:,} operators inside, too many to list",
        "exact" if inexact is None else inexact.figures.status,
        reason,
    )
    # parameters that the caller passes differ between calls, so they belong to the call
    argument_identities = {entry.identity for entries in stored_arguments.values() for entry in entries}
    parameters = {e[0]: e for leaf in body.leaves for e in leaf.stored if e[0] not in argument_identities}
    return ClosedBody(
        cost,
        sum_known(x.bytes_read for x in figures),
        sum_known(x.bytes_written for x in figures),
        sum_known(x.weight_bytes_read for x in figures),
        nodes,
        tuple(parameters.values()),
        peak,
        tiled,
    )
