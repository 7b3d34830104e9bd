"""Determines the gradients of an ONNX graph in training: which values and stored tensors need one.

The file does not say what is trained. Every stored floating-point tensor that is a parameter
(`registry.is_parameter`) counts as trained, except running statistics and parameters of quantized operators.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.costs.onnx import analyse
from explorer.engine.costs.onnx.leaves import OperatorLeaf
from explorer.engine.costs.onnx.values import GraphContext
from explorer.engine.costs.training.step import LeafGradients, ParameterBytes, StepGradients
from explorer.engine.graph.model import Model, Node, list_bodies
from explorer.engine.operators import cost_formulas, registry
from explorer.engine.operators.call import Call, Rules
from explorer.engine.operators.gradients import Gradient, GradientPurpose, elementwise
from explorer.engine.operators.operator import blocked
from explorer.facts import Layer, Shape, Status

InputShapes = Mapping[str, tuple[str | None, tuple[int, ...]]]


def choose_batch_sizes(
    model: Model, batch: int, dims: Mapping[str, int], input_shapes: InputShapes
) -> tuple[dict[str, int], dict[str, tuple[str | None, tuple[int, ...]]]]:
    """Returns the dimension sizes and the input dtypes and shapes for an analysis at a batch size.

    The first of these rules that applies chooses the batch dimensions: dimensions named like a batch,
    symbolic first dimensions, or the first dimension of every input. With the last rule, only the analysis
    shows whether the graph supports the batch size.

    Raises:
        Misuse: No input has a dimension that could be the batch.
    """
    inputs = [v for v in model.graph.required_inputs if v.shape]
    symbols = dict.fromkeys(d for v in inputs for d in v.shape or () if isinstance(d, str))
    first_sizes = {v.name: v.shape[0] for v in inputs if v.shape}
    batch_names = [s for s in symbols if "batch" in s.lower() or s.lower() in ("n", "b", "bs")]
    batch_names = batch_names or [d for d in dict.fromkeys(first_sizes.values()) if isinstance(d, str)]
    if batch_names:
        shapes = {
            name: (
                kind,
                tuple(
                    batch if _is_declared_as(model, name, axis, batch_names) else d
                    for axis, d in enumerate(shape)
                ),
            )
            for name, (kind, shape) in input_shapes.items()
        }
        return {**dims, **dict.fromkeys(batch_names, batch)}, shapes
    if not inputs:
        raise Misuse("no input of the model has a dimension that could be the batch", where="--batch")
    shapes = dict(input_shapes)
    for value in inputs:
        kind, declared_shape = input_shapes.get(value.name, (None, value.shape or ()))
        trailing = [dims.get(d, d) if isinstance(d, str) else d for d in declared_shape[1:]]
        if all(isinstance(d, int) for d in trailing):
            shapes[value.name] = kind, (batch, *(d for d in trailing if isinstance(d, int)))
    return dict(dims), shapes


def _is_declared_as(model: Model, name: str, axis: int, symbols: Sequence[str]) -> bool:
    """Whether dimension `axis` of an input is declared with one of the names in `symbols`."""
    shape: Shape = next((v.shape or () for v in model.graph.required_inputs if v.name == name), ())
    return axis < len(shape) and shape[axis] in symbols


def analyze_training_step(
    model: Model,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
    rules: Rules | None = None,
) -> StepGradients:
    """Analyzes one training step of a model.

    Args:
        model: Model to train.
        batch: Batch size, or None to keep the sizes.
        dims: Sizes of symbolic dimensions by name.
        input_shapes: dtype and shape by input name.
        rules: Cost rules of the user.

    Raises:
        Misuse: See `choose_batch_sizes` and `onnx.analyse.examine`.
    """
    dim_sizes, shapes = dict(dims or {}), dict(input_shapes or {})
    if batch is not None:
        dim_sizes, shapes = choose_batch_sizes(model, batch, dim_sizes, shapes)
    parts: list[LeafGradients] = []

    def collect_gradients(leaves: Sequence[OperatorLeaf], rows_of: Sequence[int]) -> None:
        if batch is not None:
            _check_sizes(leaves, batch)
        inputs = {v.name for v in model.graph.required_inputs}
        parts.extend(_compute_leaf_gradients(leaves, rows_of, inputs, _find_unneeded_leaves(model, leaves)))

    options: dict[str, Any] = {"rules": rules} if rules else {}
    examined = analyse.examine(model, dims=dim_sizes, input_shapes=shapes, look=collect_gradients, **options)
    analysis = examined.analysis
    if batch is not None:
        info = analysis.info
        dims_used = {**info.assumptions.get("dims", {}), "batch": batch}
        analysis = replace(analysis, info=replace(info, assumptions={**info.assumptions, "dims": dims_used}))
    notes = ["the file does not say what is trained: every floating-point parameter counts as trained"]
    if any(s.bytes and not s.trained for part in parts for s in part.stored):
        notes.append("integers, the tensors of quantized operators, and running statistics are not trained")
    return StepGradients(analysis, parts, tuple(notes))


def _check_sizes(leaves: Sequence[OperatorLeaf], batch: int) -> None:
    """Rejects a batch size if the graph contains sizes for another batch size.

    Raises:
        Misuse: A Reshape would have to change the number of elements.
    """
    for leaf in leaves:
        context, node = leaf.context, leaf.node
        if node.op != "Reshape":
            continue
        output = context.get_info(node.outputs[0])
        sizes = [
            cost_formulas.count(shape)
            for shape in (context.get_info(node.inputs[0]).shape, output.shape)
            if shape
        ]
        cannot_run = output.shape is None and output.conflict
        if cannot_run or (len(sizes) == 2 and None not in sizes and sizes[0] != sizes[1]):
            message = f"the file has a fixed batch other than {batch}: {leaf.path} contains a size of it"
            raise Misuse(message, where="--batch", hint="export it with an open batch dimension")


class _Flow:
    """Tracks, in execution order, which values need a gradient.

    Attributes:
        wanted: Whether a value needs a gradient, by its key.
        read: Keys of values that the backward pass may read.
        trained: Identities of trained stored tensors.
    """

    def __init__(self, inputs: set[str]) -> None:
        self.wanted: dict[Hashable, bool] = dict.fromkeys(inputs, False)
        self.read: set[Hashable] = set()
        self.trained: set[Hashable] = set()

    def get_gradient_purpose(
        self, context: GraphContext, node: Node, index: int, unknown: set[str]
    ) -> GradientPurpose:
        """Returns the purpose of an input's gradient; adds an input without a known producer to `unknown`."""
        name = node.inputs[index]
        stored_values = context.stored.get(name)
        if stored_values is not None:
            operator = registry.find_operator(node.op)
            is_fixed = index in operator.statistics or operator.quantized
            trained = [
                entry
                for entry in stored_values
                if not (is_fixed or entry.quantized)
                and _is_float(entry.dtype)
                and registry.is_parameter(node.op, index, entry.dtype, entry.shape)
            ]
            self.trained.update(entry.identity for entry in trained)
            return "weight" if trained else ""
        if not _is_float(context.get_info(name).dtype):
            return ""
        is_wanted = self.wanted.get(context.get_key(name))
        if is_wanted is None:
            unknown.add(name)
            return "input"
        return "input" if is_wanted else ""


def _is_float(dtype: str | None) -> bool:
    return dtype is None or dtype.startswith(("float", "bfloat", "complex"))


def _find_unneeded_leaves(model: Model, leaves: Sequence[OperatorLeaf]) -> set[int]:
    """Returns the indices of the leaves that no output depends on; they get no gradient.

    Values change their names on the way into and out of bodies, which is not traced. In a graph with bodies,
    the result is therefore empty.
    """
    if any(list_bodies(node) for node in model.graph.nodes):
        return set()
    needed: set[Hashable] = {v.name for v in model.graph.outputs}
    idle: set[int] = set()
    for index in range(len(leaves) - 1, -1, -1):
        context, node = leaves[index].context, leaves[index].node
        if any(name and context.get_key(name) in needed for name in node.outputs):
            needed.update(context.get_key(name) for name in node.inputs if name)
        else:
            idle.add(index)
    return idle


def _compute_leaf_gradients(
    leaves: Sequence[OperatorLeaf], rows_of: Sequence[int], inputs: set[str], idle: set[int]
) -> list[LeafGradients]:
    """Returns the gradients of each leaf; the leaves at the indices `idle` get none."""
    flow = _Flow(inputs)
    rows: list[tuple[int, OperatorLeaf, Gradient | None, Status, str]] = []
    for index, leaf in enumerate(leaves):
        gradient, status, reason = _find_gradient(leaf, flow)
        if index in idle:
            gradient, status, reason = Gradient(), "exact", ""
        rows.append((rows_of[index], leaf, gradient, status, reason))
    return [
        LeafGradients(
            row,
            gradient,
            _is_read_backward(leaf, flow),
            tuple(
                ParameterBytes(identity, size, identity in flow.trained) for identity, _, size in leaf.stored
            ),
            status,
            reason,
        )
        for row, leaf, gradient, status, reason in rows
    ]


def _find_gradient(leaf: OperatorLeaf, flow: _Flow) -> tuple[Gradient | None, Status, str]:
    """Returns the work of a leaf's gradients (None if unknown), its status, and the reason for the status.

    Also records which of its outputs need a gradient.
    """
    context, node, constants = leaf.context, leaf.node, leaf.constants
    unknown_inputs: set[str] = set()
    purposes: list[GradientPurpose] = []
    for index, name in enumerate(node.inputs):
        purposes.append(
            flow.get_gradient_purpose(context, node, index, unknown_inputs)
            if name and name not in constants
            else ""
        )
    operator = registry.OPERATORS.get((node.domain, node.op))
    if operator is not None and operator.gradient is blocked:
        purposes = [""] * len(purposes)
    is_unexpanded = isinstance(leaf.figures, Layer)
    if is_unexpanded:
        # the leaf of an unexpanded call includes the parameters of its body; those with 2 bytes or more for
        # each element count as floats
        flow.trained.update(identity for identity, elements, size in leaf.stored if size >= 2 * elements)
    has_gradient = any(purposes) or is_unexpanded
    for name in node.outputs:
        if name:
            flow.wanted[context.get_key(name)] = has_gradient and _is_float(context.get_info(name).dtype)
    if has_gradient:
        flow.read.update(
            context.get_key(name)
            for name in node.inputs
            if name and name not in constants and name not in context.stored
        )
    forward = leaf.figures.macs
    if forward is None:
        return None, "unknown", leaf.figures.reason
    elementwise_work = elementwise(
        leaf.figures.elementwise_ops, ("input", "weight") if is_unexpanded else purposes
    )
    if not forward or not has_gradient:
        return Gradient(elementwise=elementwise_work), "exact", ""
    inputs = tuple([context.get_info(name) if name else None for name in node.inputs])
    call = Call(node.op, node.domain, node.attributes, inputs, ())
    trips = context.trips if isinstance(context.trips, int) else 1
    gradient = None if is_unexpanded else registry.compute_gradient(call, purposes, forward, trips)
    if gradient is None:
        has_bound = is_unexpanded or node.op == "Einsum"
        if has_bound:
            return (
                Gradient(forward, forward, elementwise_work),
                "bound",
                "at most two gradients for each product",
            )
        return None, "unknown", f"there is no rule for the gradient of {node.op}"
    gradient += Gradient(elementwise=elementwise_work)
    if unknown_inputs:
        reason = "a value that a branch or loop returns counts as one that depends on trained weights"
        return gradient, "bound", reason
    return gradient, "exact", ""


def _is_read_backward(leaf: OperatorLeaf, flow: _Flow) -> bool:
    """Whether the backward pass reads an output, for a gradient through this leaf or through a reader."""
    keys = [leaf.context.get_key(name) for name in leaf.node.outputs if name]
    return any(flow.wanted.get(key, True) or key in flow.read for key in keys)
