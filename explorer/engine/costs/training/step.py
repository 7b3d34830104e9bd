"""Computes the cost of a training step from the gradients of its layers.

`training.onnx` and `torch.training` determine which gradients a step needs and which parameters it trains.
They provide `LeafGradients` for every layer. This module turns them into facts in the same way for all
formats.

The backward pass computes the gradient of every value that depends on a trained parameter, and of every
trained parameter (`gradients`). For each of the two it repeats the forward pass's elementwise work
(`gradients.elementwise`). The sums of gradients of a value with several readers, and the optimizer's update,
are not counted. Memory is counted at the end of the forward pass of a plain training loop: inputs, outputs
that the backward pass reads, parameters, their gradients, and optimizer state. Kernel workspaces, and tensors
that kernels save besides their outputs, are not counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.costs.layer_tree import sum_if_all_known, sum_known
from explorer.engine.graph.model import count_dense_bytes
from explorer.engine.operators.gradients import Gradient
from explorer.facts import Analysis, Layer, Status
from explorer.facts.training import OPTIMIZERS, LayerTraining, Optimizer, Training


class ParameterBytes(Struct, frozen=True):
    """A stored parameter.

    Attributes:
        identity: Value that is equal for all uses of the parameter.
        bytes: Its bytes.
        trained: Whether it is trained.
    """

    identity: Hashable
    bytes: int
    trained: bool


class LeafGradients(Struct, frozen=True):
    """The contribution of one layer to a training step.

    Attributes:
        layer: Id of its row.
        gradient: Work of its gradients, or None if unknown.
        kept: Whether the backward pass reads its outputs.
        stored: Parameters that the layer uses.
        status: Status of the counts.
        reason: Reason why the counts are not exact, or ''.
    """

    layer: int
    gradient: Gradient | None = Gradient()
    kept: bool = True
    stored: tuple[ParameterBytes, ...] = ()
    status: Status = "exact"
    reason: str = ""


class StepGradients(Struct, frozen=True):
    """A model in training: its analysis at the batch size, the gradients of every layer, and notes.

    `failed_layer` has the layer at which the model's own code failed, and its error, or ''.
    """

    analysis: Analysis
    parts: Sequence[LeafGradients]
    notes: tuple[str, ...] = ()
    failed_layer: str = ""


def check_options(batch: int | None, optimizer: str) -> None:
    """Rejects an invalid batch size or optimizer.

    Raises:
        Misuse: `batch` is below 1, or `optimizer` is unknown.
    """
    if batch is not None and batch < 1:
        raise Misuse(f"a batch cannot be {batch}", where="--batch")
    if optimizer not in OPTIMIZERS:
        hint = suggest_name(optimizer, OPTIMIZERS)
        raise Misuse(f"no optimizer is called '{optimizer}'", where="--optimizer", hint=hint)


def compute_training(step: StepGradients, optimizer: Optimizer = "sgd") -> Training:
    """Computes the facts of one training step.

    Args:
        step: Gradients from the model's format.
        optimizer: Optimizer. It keeps a fixed number of values per value of a trained parameter.

    Raises:
        Misuse: The optimizer is unknown.
    """
    check_options(None, optimizer)
    parts = {part.layer: part for part in step.parts}
    counted: set[Hashable] = set()
    rows = []
    for layer in step.analysis.layers:
        if layer.group:
            continue
        part = parts.get(layer.id, LeafGradients(layer.id))
        parameters = [s for s in {s.identity: s for s in part.stored}.values() if s.identity not in counted]
        counted.update(s.identity for s in parameters)
        rows.append(_compute_layer(layer, part, parameters, OPTIMIZERS[optimizer]))
    inputs = step.analysis.info.model.inputs
    input_bytes = sum_if_all_known(count_dense_bytes(info.shape, info.dtype) for info in inputs)
    activations = sum_known(row.activation_bytes for row in rows)
    stored_sums = [sum(getattr(row, name) for row in rows) for name in _STORED]
    known_bytes = (
        None if input_bytes is None and activations is None else (input_bytes or 0) + (activations or 0)
    )
    backward = sum_known(x for row in rows for x in (row.backward_input_macs, row.backward_weight_macs))
    unknown_rows = sum(1 for row in rows if _has_unknown_figure(row))
    return Training(
        batch=_find_batch(step.analysis),
        optimizer=optimizer,
        layers=tuple(rows),
        input_bytes=input_bytes,
        activation_bytes=activations,
        param_bytes=stored_sums[0],
        gradient_bytes=stored_sums[1],
        optimizer_bytes=stored_sums[2],
        sum_bytes=None if known_bytes is None else known_bytes + sum(stored_sums),
        forward_macs=sum_known(row.forward_macs for row in rows),
        backward_macs=backward,
        coverage=1 - unknown_rows / len(rows) if rows else 1.0,
        notes=(*step.notes, *_describe_optimizer(optimizer)),
        elementwise_ops=step.analysis.info.totals.elementwise_ops,
        backward_elementwise_ops=sum_known(row.backward_elementwise_ops for row in rows),
    )


def _compute_layer(
    layer: Layer, part: LeafGradients, parameters: Sequence[ParameterBytes], optimizer_values: int
) -> LayerTraining:
    """Computes the facts of one layer.

    Args:
        layer: Row of the layer.
        part: Gradients of the layer.
        parameters: Parameters that are counted at this layer.
        optimizer_values: Number of values that the optimizer keeps for each value of a trained parameter.
    """
    trained = sum(s.bytes for s in parameters if s.trained)
    is_unknown = layer.status == "unknown"
    status, reason = (layer.status, layer.reason) if is_unknown else (part.status, part.reason)
    if status == "exact" and layer.status == "bound":
        status, reason = layer.status, layer.reason
    # a branch that does not run has parameters but no other cost
    figures: tuple[int | None, int | None, int | None, int | None] = (0, 0, 0, 0)
    elementwise: int | None = 0
    if layer.counted:
        gradient = part.gradient if layer.macs is not None else None
        figures = (
            layer.macs,
            None if gradient is None else gradient.input,
            None if gradient is None else gradient.weight,
            layer.activation_bytes if part.kept or layer.activation_bytes is None else 0,
        )
        elementwise = None if gradient is None or layer.elementwise_ops is None else gradient.elementwise
    if None in figures and status != "unknown":
        status, reason = "unknown", "the size of its output is not known"
    return LayerTraining(
        layer.id,
        layer.path,
        layer.kind,
        *figures,
        gradient_bytes=trained,
        optimizer_bytes=trained * optimizer_values,
        param_bytes=sum(s.bytes for s in parameters),
        status=status,
        reason=reason,
        backward_elementwise_ops=elementwise,
    )


_STORED = ("param_bytes", "gradient_bytes", "optimizer_bytes")
"""Figures of `LayerTraining` that are summed over all layers."""


def _has_unknown_figure(row: LayerTraining) -> bool:
    figures = row.forward_macs, row.backward_input_macs, row.backward_weight_macs, row.activation_bytes
    return row.status == "unknown" or None in (*figures, row.backward_elementwise_ops)


def _describe_optimizer(optimizer: Optimizer) -> tuple[str, ...]:
    notes: Mapping[Optimizer, str] = {
        "sgd": "",
        "momentum": "momentum keeps one number for each trained parameter, in the parameter's type",
        "adam": "Adam and AdamW keep two numbers for each trained parameter, in the parameter's type"
        " (as torch.optim.Adam does)",
    }
    return (notes[optimizer],) if notes[optimizer] else ()


def _find_batch(analysis: Analysis) -> int | None:
    """Returns the assumed batch size, or else the first size of the first input, or None if unknown."""
    dims = analysis.info.assumptions.get("dims", {})
    if isinstance(dims.get("batch"), int):
        return int(dims["batch"])
    shape = next((info.shape for info in analysis.info.model.inputs if info.shape), None)
    return shape[0] if shape and isinstance(shape[0], int) else None
