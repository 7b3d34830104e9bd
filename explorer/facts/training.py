"""Facts about one training step: forward, backward, and what has to be kept in memory for it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from explorer.facts import Status

Optimizer = Literal["sgd", "momentum", "adam"]

OPTIMIZERS: dict[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Numbers that an optimizer keeps for every trained parameter."""


class LayerTraining(Struct, frozen=True):
    """One layer (never a group) in a training step; every figure for the whole batch.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        forward_macs: As in inference.
        backward_input_macs: For the gradient of its input: as many as forward, none where no parameter
            lies before it.
        backward_weight_macs: For the gradient of its weights: as many as forward, none for a product of
            two activations (there both gradients are of inputs) or a frozen weight.
        activation_bytes: Its outputs, kept until its backward has run.
        gradient_bytes: Gradients of its parameters, each stored parameter once over the model.
        optimizer_bytes: What the optimizer keeps for them.
        param_bytes: The parameters themselves, each stored parameter once over the model.
        backward_elementwise_ops: As many elementwise operations as forward where the gradient of its input is
            wanted, and as many again where that of a parameter is.
    """

    layer: int
    path: str
    kind: str
    forward_macs: int | None
    backward_input_macs: int | None
    backward_weight_macs: int | None
    activation_bytes: int | None
    gradient_bytes: int
    optimizer_bytes: int
    param_bytes: int
    status: Status = "exact"
    reason: str = ""
    backward_elementwise_ops: int | None = 0


class Training(Struct, frozen=True):
    """One training step of a model at a batch size, per layer and in total.

    Attributes:
        batch: The batch size; None when the model's inputs show none.
        input_bytes: The inputs of the batch.
        activation_bytes: Outputs of every layer, kept for backward, each once.
        param_bytes, gradient_bytes, optimizer_bytes: Sums over the layers.
        sum_bytes: input + activations + parameters + gradients + optimizer.
        forward_macs, backward_macs: Sums over the layers; backward is the gradient of inputs and of weights.
        coverage: Share of layers whose figures are all known.
        elementwise_ops, backward_elementwise_ops: Beside the multiply-accumulates, forward and backward.
    """

    batch: int | None
    optimizer: Optimizer
    layers: tuple[LayerTraining, ...]
    input_bytes: int | None
    activation_bytes: int | None
    param_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    sum_bytes: int | None
    forward_macs: int | None
    backward_macs: int | None
    coverage: float
    notes: tuple[str, ...] = ()
    elementwise_ops: int | None = 0
    backward_elementwise_ops: int | None = 0
