"""Facts about one training step: forward, backward, and the memory for it, moment by moment."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from explorer.base.checked import Count, Spec, Words
from explorer.base.options import option
from explorer.base.units import joined_text, memory_word
from explorer.facts import Status

Optimizer = Literal["sgd", "momentum", "adam"]

OPTIMIZERS: dict[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Numbers that an optimizer keeps for every trained parameter."""


class TrainingStepSpec(Spec, frozen=True):
    """A training step that is counted.

    Attributes:
        batches: Batch sizes, each a step of its own; empty for the model's own.
        optimizer: Whose memory is in it.
        checkpoint: Patterns of modules whose activations are not kept.
        card: Bytes of memory that the step may take; None for no limit.
    """

    batches: Annotated[
        tuple[Count, ...],
        option(
            "batch size (default: the model's own), or several side by side, such as 1,8,32",
            manual="batch size (default: the model's own), or several side by side, such as `1,8,32`; the"
            " layers are those of the first",
            metavar="N,...",
            flag="--batch",
            reader="sizes",
            joined=True,
            write=joined_text,
            label="batch",
            placeholder="as opened; 1,8,32",
        ),
    ] = ()
    optimizer: Annotated[Optimizer, option("whose memory is counted", label="optimizer")] = "sgd"
    checkpoint: Annotated[
        tuple[Words, ...],
        option(
            "modules whose activations are made again in the backward pass, such as 'layer1.*'",
            manual="modules whose activations are not kept but made again in the backward pass, such as"
            " `layer1.*`",
            metavar="GLOB",
            label="checkpoint",
            placeholder="none; layer1.*",
        ),
    ] = ()
    card: Annotated[
        Count | None,
        option(
            "memory that a step may take, such as 16G: up to which batch it fits",
            metavar="SIZE",
            reader="card",
            write=memory_word,
            label="card",
            placeholder="any; 16G",
        ),
    ] = None


Phase = Literal["forward", "backward", "step"]

Holding = Literal["parameters", "optimizer", "inputs", "activations", "gradients", "temporary"]


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


class TrainingMoment(Struct, frozen=True):
    """The fullest moment of one module in one phase; every figure in bytes.

    Attributes:
        phase: 'forward', 'backward' or 'step' (of the optimizer).
        path: The innermost module that runs, '' for the model itself.
        parameters: Parameters and buffers.
        optimizer: What the optimizer keeps between steps.
        inputs: The batch.
        activations: What the forward pass made and still holds, and what checkpointing made again.
        gradients: Of the parameters.
        temporary: Gradients of activations on their way, and workspaces that are tensors.
        live_bytes: The sum of the six.
    """

    phase: Phase
    path: str
    parameters: int
    optimizer: int
    inputs: int
    activations: int
    gradients: int
    temporary: int
    live_bytes: int


class TrainingHolder(Struct, frozen=True):
    """What a module holds of one kind at the peak."""

    path: str
    kind: Holding
    bytes: int


class StepMemory(Struct, frozen=True):
    """The memory of one training step at one batch size.

    Attributes:
        batch: The batch size; None when the inputs show none.
        counted: 'autograd': torch's autograd ran the step on shapes, and every tensor was seen to be born and
            to die. 'outputs': the outputs of the layers were added up.
        mode: Of the modules: 'train', or 'eval' where they do not run in training mode.
        kept_bytes: What backward needs of the forward pass beside parameters and inputs, when forward has
            ended.
        peak_bytes: The most that is live at once.
        peak: Index of that moment.
        fits: Whether the peak is within the memory that was asked about; None where none was.
        recomputed_macs: Multiply-accumulates that checkpointing does again in the backward pass.
        plain_kept_bytes, plain_peak_bytes: The same without checkpointing; None where nothing is.
        moments: In the order in which they come.
        holders: What is live at the peak, the largest first.
    """

    batch: int | None
    counted: Literal["autograd", "outputs"]
    mode: Literal["train", "eval"]
    kept_bytes: int
    peak_bytes: int
    peak: int
    fits: bool | None
    recomputed_macs: int
    plain_kept_bytes: int | None
    plain_peak_bytes: int | None
    moments: tuple[TrainingMoment, ...]
    holders: tuple[TrainingHolder, ...]


class TrainingMemory(Struct, frozen=True):
    """The memory of training steps, a batch size after the other.

    Attributes:
        optimizer: Whose memory is in it.
        limit_bytes: The memory that was asked about.
        largest_batch: The largest batch whose peak is within it, 0 if none is; None where none was asked.
        checkpoint: Patterns of the modules that are checkpointed.
        checkpointed: The modules that they mean.
        steps: One for each batch size.
        notes: What was assumed.
    """

    optimizer: Optimizer
    limit_bytes: int | None
    largest_batch: int | None
    checkpoint: tuple[str, ...]
    checkpointed: tuple[str, ...]
    steps: tuple[StepMemory, ...]
    notes: tuple[str, ...] = ()


class Training(Struct, frozen=True):
    """One training step of a model at a batch size, per layer and in total.

    Attributes:
        batch: The batch size; None when the model's inputs show none.
        input_bytes: The inputs of the batch.
        activation_bytes: Outputs of every layer, each once: theoretical. What torch keeps is in `memory`.
        param_bytes, gradient_bytes, optimizer_bytes: Sums over the layers.
        sum_bytes: input + activations + parameters + gradients + optimizer.
        forward_macs, backward_macs: Sums over the layers; backward is the gradient of inputs and of weights.
        coverage: Share of layers whose figures are all known.
        elementwise_ops, backward_elementwise_ops: Beside the multiply-accumulates, forward and backward.
        memory: What is live while it runs, where that was asked for.
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
    memory: TrainingMemory | None = None
