"""Visits an ONNX model: adds each operator once as a leaf of the layer tree, and descends into bodies.

`functions` visits the nodes of a local function at each call, and `control_flow` the graphs of a node. The
execution order is recorded along the way.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import sum_if_all_known
from explorer.engine.costs.onnx import control_flow, sequences, tile_coverage
from explorer.engine.costs.onnx.functions import FunctionCalls, find_single_operator
from explorer.engine.costs.onnx.leaves import OperatorFigures, OperatorLeaf, describe_values
from explorer.engine.costs.onnx.scopes import ScopedName, ScopedNames
from explorer.engine.costs.onnx.state import ExecutionOrder, VisitResult, VisitState
from explorer.engine.costs.onnx.values import (
    PROPAGATING,
    VIEWS,
    GraphContext,
    StoredValue,
    count_bytes,
    count_traffic,
    describe_initializers,
    find_parameter_places,
    find_viewed_input,
    is_alias,
    list_attribute_parameters,
    list_plain_storage,
    list_weights,
    multiply_by_runs,
    propagate_stored,
    simplify_attributes,
)
from explorer.engine.graph.model import Model, Node
from explorer.engine.operators import cost_formulas, registry
from explorer.engine.operators.call import Call, Rules
from explorer.engine.operators.cost_formulas import Cost
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.shapes import Inference
from explorer.facts import Progress, TensorInfo

_SPECIAL = VIEWS | sequences.SEQUENCE_OPERATORS
"""Operators whose outputs may be a view or a sequence."""

MAX_LEAVES = 60_000
"""Maximum number of leaves from expanded calls; the calls beyond it become one leaf each."""

_CHECK_INTERVAL = 512
"""Number of nodes between two calls of `cancel` and `on_progress`."""


def visit(
    model: Model,
    inference: Inference,
    *,
    user_rules: Rules | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> VisitResult:
    """Visits all operators of a model in execution order.

    Args:
        model: Model to visit.
        inference: Shapes of the model.
        user_rules: Cost rules of the user, which override built-in rules and function bodies.
        on_progress: Called with the number of visited nodes of the main graph.
        cancel: Called every `_CHECK_INTERVAL` nodes; a true result stops the visit.

    Raises:
        Cancelled: `cancel` returned true.
        Misuse: A rule of the user failed.
    """
    visitor = GraphVisitor(model, inference, user_rules or {}, on_progress, cancel)
    state, graph = visitor.state, model.graph
    result = state.result
    context = result.context = GraphContext(
        inference.main, describe_initializers(graph, ()), model.opsets, storage_ids=list_plain_storage(graph)
    )
    inputs = [context.get_info(v.name) for v in graph.required_inputs]
    state.step("", (), [(i.name, i, count_bytes(i)) for i in inputs])
    visitor.visit_nodes(context, graph.nodes)
    if result.tile_labels is not None:
        result.tiled = tile_coverage.count_tiled_macs(result.tile_labels, result.leaves)
    result.output_keys = frozenset(state.find_memory_key(context.get_key(v.name)) for v in graph.outputs)
    return result


class GraphVisitor:
    """Visits the graphs of one model and adds a leaf for every operator."""

    def __init__(
        self, model: Model, inference: Inference, user_rules: Rules, on_progress: OnProgress, cancel: Cancel
    ) -> None:
        self.model = model
        self.user_rules = user_rules
        self.rules: Rules = {**registry.RULES, **user_rules} if user_rules else registry.RULES
        # operators whose cost depends on more than types and attributes
        self.uncached = {*registry.READERS, *control_flow.KEYS, *user_rules}
        self.bounds = inference.bounds
        self.on_progress = on_progress
        self.cancel = cancel
        memory_of: dict[Hashable, Hashable] = {}
        result = VisitResult(ExecutionOrder(memory_of), tile_coverage.TileLabels.from_model(model))
        self.state = VisitState(inference, result, memory_of)
        self.calls = FunctionCalls(model, self.state, MAX_LEAVES)
        self.names: dict[tuple[int, str], ScopedNames] = {}
        self.output_names = frozenset(value.name for value in model.graph.outputs)
        self.visited = 0

    def visit_nodes(self, context: GraphContext, nodes: Sequence[Node]) -> None:
        """Visits the nodes of a graph or body."""
        self.state.result.shapes[id(context.shapes)] = context.shapes
        key = id(nodes), context.owner_path
        names = self.names.get(key)
        if names is None:
            names = self.names[key] = ScopedNames(nodes, context.owner_path)
        model = self.model
        user_rules = self.user_rules
        functions = self.model.functions
        carriers = control_flow.CARRIERS
        for index, node in enumerate(nodes):
            self.visited += 1
            if not self.visited % _CHECK_INTERVAL:
                stop_if(self.cancel)
                if self.on_progress is not None and not context.body_number:
                    self.on_progress(Progress("analyzing", index, len(nodes)))
            if user_rules and (node.domain, node.op) in user_rules:
                self.add_operator(context, node, names, index)
            elif functions and (function := functions.get(node.key)) is not None:
                single = find_single_operator(model, function, node)
                if single is None:
                    self.calls.add_call(self.visit_nodes, context, node, names[index], function)
                else:
                    self.add_operator(context, single[0], (names[index],), 0, function.name, single[1])
            elif node.op not in carriers or not control_flow.visit_graphs(
                self.visit_nodes, self.state, context, node, names[index]
            ):
                self.add_operator(context, node, names, index)

    def add_operator(
        self,
        context: GraphContext,
        node: Node,
        names: Sequence[ScopedName],
        index: int,
        function: str = "",
        constants: Mapping[str, TensorInfo] | None = None,
    ) -> None:
        """Adds one operator as a leaf.

        Args:
            context: Graph or body of the node.
            node: Operator.
            names: Scoped names of the nodes of that body.
            index: Index of the node's own name in `names`.
            function: Function whose body is this operator only, or ''.
            constants: Constants of the function's body, which the context lacks, by name.
        """
        inputs, stored_values, op = node.inputs, context.stored, node.op
        reads_stored = not stored_values.keys().isdisjoint(inputs)
        figures = self.find_figures(context, node, constants or {}, reads_stored, inline=bool(function))
        entries: list[tuple[Hashable, int, int]] = []
        if figures.parameters:
            for input_index, entry_index, bits in figures.parameters:
                entry = stored_values[inputs[input_index]][entry_index]
                entries.append((entry.identity, entry.elements * 8 // bits, entry.size))
            if len(entries) > 1 and len({identity for identity, _, _ in entries}) < len(entries):
                entries = list({entry[0]: entry for entry in entries}.values())
        if op in registry.LEARNED:
            entries += [
                (entry.identity, entry.elements, entry.size)
                for entry in list_attribute_parameters(context, node)
            ]
        may_be_view = op in _SPECIAL
        if figures.is_alias or op in PROPAGATING:
            if not self.output_names.isdisjoint(node.outputs) and not context.body_number:
                # no node reads this output, so its parameters count here
                weights = list_weights(context, node)
                entries += [(entry.identity, entry.elements, entry.size) for entry in weights]
            propagate_stored(context, node)
        times = context.trips if isinstance(context.trips, int) else 1
        leaf = OperatorLeaf(
            figures, context, node, names, index, entries or (), times, True, constants or (), function
        )
        state = self.state
        result = state.result
        leaf_index = len(result.leaves)
        result.leaves.append(leaf)
        result.node_values.append(leaf)
        if may_be_view:
            if op in sequences.SEQUENCE_OPERATORS and not node.domain:
                sequences.record_sequence(state.sequences, context, node)
            source = find_viewed_input(node) if op in VIEWS else ""
            if source and node.outputs[0] and source not in stored_values:
                state.memory_of[context.get_key(node.outputs[0])] = state.find_memory_key(
                    context.get_key(source)
                )
        result.steps.add(leaf, leaf_index)

    def find_figures(
        self,
        context: GraphContext,
        node: Node,
        constants: Mapping[str, TensorInfo],
        reads_stored: bool,
        *,
        inline: bool = False,
    ) -> OperatorFigures:
        """Returns the figures of a node, cached by signature.

        Args:
            context: Graph or body of the node.
            node: Operator.
            constants: Constants of a function's body, which the context lacks, by name.
            reads_stored: Whether an input is stored.
            inline: Whether the node replaces a function call.
        """
        key = None if constants else self.build_signature(context, node, reads_stored, inline)
        figures = None if key is None else _FIGURES.get(key)
        if figures is None:
            figures = self.compute_figures(context, node, constants, reads_stored)
            if key is not None:
                if len(_FIGURES) >= MAX_CACHED:
                    _FIGURES.clear()
                _FIGURES[key] = figures
        return figures

    def build_signature(
        self, context: GraphContext, node: Node, reads_stored: bool, inline: bool
    ) -> tuple[Hashable, ...] | None:
        """Builds a key of everything that the figures of a node depend on, or returns None if unknown.

        The key is valid for all models. It has the operator, its attributes and types, the stored form of its
        inputs (if `reads_stored`), which inputs are equal, and the number of runs of the body.
        """
        if node.alike is None or (node.domain, node.op) in self.uncached:
            return None
        names, shapes = node.inputs, context.shapes
        exact = not self.bounds
        shared_types = shapes.alike.get(id(node)) if exact and not inline else None
        key: list[Hashable]
        if shared_types is not None:
            # shape inference has one object for equal operators with equal attributes and types
            key = [shared_types]
        else:
            key = [node.domain, node.op, node.alike, context.opsets.get(node.domain, 0), len(names)]
            if exact and shapes.types:
                get_type = shapes.types.get
                key += [name and get_type(name) for name in (*names, *node.outputs)]
            else:
                for name in (*names, *node.outputs):
                    info = context.get_info(name) if name else None
                    key.append(info and (info.dtype, info.shape, info.origin))
        if reads_stored:
            storage_ids, stored_values = context.storage_ids, context.stored
            key += [
                storage_ids.get(n)
                or (
                    self.get_storage_id(context, n)
                    if n in stored_values
                    else _UNSTORED[n in shapes.constants]
                )
                for n in names
            ]
        if context.body_number:
            key += context.trips, context.early_end_reason, context.is_uncertain_branch
        if len(names) > 1 and len(set(names)) < len(names):
            key.append(tuple([names.index(n) for n in names]))
        return tuple(key)

    def get_storage_id(self, context: GraphContext, name: str) -> int:
        """Returns a number for the form of the stored tensors behind a name; equal forms share the number."""
        form = tuple([_STORED_FORM(entry) for entry in context.stored[name]])
        number = _STORAGE_IDS.get(form)
        if number is None:
            if len(_STORAGE_IDS) >= MAX_CACHED:
                _STORAGE_IDS.clear()
            number = _STORAGE_IDS[form] = next(_NUMBERS)
        context.storage_ids[name] = number
        return number

    def compute_figures(
        self, context: GraphContext, node: Node, constants: Mapping[str, TensorInfo], reads_stored: bool
    ) -> OperatorFigures:
        """Returns the figures of a node, from the rule for its operator."""
        inputs, outputs = describe_values(context, node, constants)
        cost = self.compute_cost(context, node, inputs, outputs)
        places = find_parameter_places(context, node) if reads_stored else []
        params = {node.inputs[index] for index, _, _ in places}
        moved = count_traffic(context, node, inputs, outputs, params, constants)
        attribute_bytes = sum(entry.size for entry in list_attribute_parameters(context, node))
        scale = context.trips if isinstance(context.trips, int) else None
        bytes_read = multiply_by_runs(sum_if_all_known((moved.read, attribute_bytes)), scale)
        bytes_written = multiply_by_runs(moved.written, scale)
        is_weight = reads_stored and is_alias(context, node)
        status, reason = cost.status, cost.reason
        if status != "unknown" and None in (bytes_read, bytes_written):
            is_unsized = None in (moved.read, moved.written)
            status, reason = "unknown", _UNSIZED if is_unsized else cost_formulas.unknown_runs(context.trips)
        return OperatorFigures(
            macs=cost.macs,
            elementwise_ops=cost.elementwise_ops,
            bytes_read=bytes_read,
            bytes_written=bytes_written,
            activation_bytes=0 if is_weight else bytes_written,
            weight_bytes_read=multiply_by_runs(sum_if_all_known((moved.weights, attribute_bytes)), scale),
            status=status,
            reason=reason,
            formula=cost.formula,
            parameters=places,
            sizes=moved.output_sizes,
            attributes=simplify_attributes(node),
            is_alias=is_weight,
        )

    def compute_cost(
        self,
        context: GraphContext,
        node: Node,
        inputs: Sequence[TensorInfo | None],
        outputs: Sequence[TensorInfo],
    ) -> Cost:
        """Returns the cost of a node times its number of runs."""
        call = Call(
            node.op,
            node.domain,
            node.attributes,
            tuple(inputs),
            tuple(outputs),
            context.shapes.constants,
            context.opsets.get(node.domain, 0),
        )
        cost = registry.compute_cost(call, self.rules)
        if context.trips != 1:
            cost = cost_formulas.times(cost, context.trips, "iterations")
        has_exact_sizes = cost.status == "exact" or isinstance(cost.reason, cost_formulas.WorkBound)
        if has_exact_sizes and context.early_end_reason:
            return replace(cost, status="bound", reason=context.early_end_reason)
        if has_exact_sizes and _has_bounded_shape(inputs, outputs):
            reason = "the size of its tensors depends on the data; the largest size is counted"
            return replace(cost, status="bound", reason=reason)
        return cost


_UNSIZED = "the size of a tensor that it reads or writes is unknown, so no sum includes its bytes"

MAX_CACHED = 8_192
"""Maximum number of node signatures cached across models. Each takes about 1 KB."""

_FIGURES: dict[Hashable, OperatorFigures] = {}
"""Figures by `GraphVisitor.build_signature`; models of one family share a few hundred signatures."""

_STORAGE_IDS: dict[Hashable, int] = {}
"""A number per form of stored tensors. A number is never reused for another form."""
_NUMBERS = count(1)
_UNSTORED = (0, -2)
"""Numbers for values that are not stored: computed values, and small constants such as shapes."""


def clear_figures() -> None:
    """Empties the caches that persist between models."""
    _FIGURES.clear()
    _STORAGE_IDS.clear()


_STORED_FORM: Callable[[StoredValue], Any] = operator.attrgetter(
    *(f for f in StoredValue.__struct_fields__ if f not in ("identity", "name"))
)
"""Returns the fields of a stored tensor that figures depend on: all but its identity and name."""


def _has_bounded_shape(inputs: Iterable[TensorInfo | None], outputs: Iterable[TensorInfo]) -> bool:
    """Whether the shape of an input or output is an upper bound."""
    return any(info is not None and info.origin == "bound" for info in (*inputs, *outputs))
