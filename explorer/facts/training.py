"""Facts about one training step: forward pass, backward pass, and memory over time."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from explorer.base.checked import Count, Spec, Words
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.units import join_values, memory_word
from explorer.facts import Status

Optimizer = Literal["sgd", "momentum", "adam"]

OPTIMIZERS: dict[Optimizer, int] = {"sgd": 0, "momentum": 1, "adam": 2}
"""Number of values that each optimizer keeps per trained parameter."""


class TrainingStepSpec(Spec, frozen=True):
    """Settings of a training step whose cost is counted.

    Attributes:
        batches: Batch sizes, each a step of its own. Empty selects the model's own size.
        optimizer: Optimizer whose memory is counted.
        checkpoint: Patterns of modules whose activations are recomputed in the backward pass.
        card: Bytes of memory that the step may use, or None for no limit.
        measured: Whether to run each step, and compare its memory with the counted one.
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
            write=join_values,
            label="batch",
            placeholder="as opened; 1,8,32",
        ),
    ] = ()
    optimizer: Annotated[
        Optimizer, option("optimizer whose memory counts; adam also stands for AdamW", label="optimizer")
    ] = "sgd"
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
            "memory limit of a step, such as 16G (16 GiB): prints the largest batch that fits",
            metavar="SIZE",
            reader="memory_size",
            write=memory_word,
            label="card",
            placeholder="any; 16G",
        ),
    ] = None
    measured: Annotated[
        bool, option("also run each step of a module on the CPU, and compare the measured memory")
    ] = False


Phase = Literal["forward", "backward", "step"]

Holding = Literal["parameters", "optimizer", "inputs", "activations", "gradients", "temporary"]


class LayerTraining(Fact, frozen=True):
    """One layer (never a group) in a training step. Every figure is for the full batch.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        forward_macs: Multiply-accumulates of the forward pass, as in inference.
        backward_input_macs: Multiply-accumulates of the gradient of its input: as many as forward, or 0 if no
            trained parameter precedes the layer.
        backward_weight_macs: Multiply-accumulates of the gradient of its weights: as many as forward. 0 for a
            frozen weight. 0 for a product of two activations, because `backward_input_macs` has both
            gradients.
        activation_bytes: Bytes of its outputs, which are kept until its backward pass has run.
        gradient_bytes: Bytes of the gradients of its parameters. A shared parameter counts once in the model.
        optimizer_bytes: Bytes of the optimizer's state for its parameters.
        param_bytes: Bytes of its parameters. A shared parameter counts once in the model.
        backward_elementwise_ops: Elementwise operations of the backward pass: as many as forward if the
            gradient of its input is needed, and as many again if the gradient of a parameter is.
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


class TrainingMoment(Fact, frozen=True):
    """Moment of one phase at which one module reaches its highest memory. Every figure is in bytes.

    Attributes:
        phase: 'forward', 'backward' or 'step' (of the optimizer).
        path: Path of the innermost running module, or '' for the model itself.
        parameters: Bytes of parameters and buffers.
        optimizer: Bytes of the state that the optimizer keeps between steps.
        inputs: Bytes of the batch.
        activations: Bytes of tensors that the forward pass produced and still holds, and of those that
            checkpointing recomputed.
        gradients: Bytes of the gradients of the parameters, and of inputs that require a gradient.
        temporary: Bytes of gradients of activations, and of workspaces that are tensors.
        live_bytes: Sum of the six figures above.
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


class TrainingHolder(Fact, frozen=True):
    """Memory of one kind that a module holds at the peak."""

    path: str
    kind: Holding
    bytes: int


class MeasuredMemory(Fact, frozen=True):
    """Memory in use during a training step that ran on the CPU, as torch's profiler reports it.

    Attributes:
        peak_bytes: Largest number of bytes in use at the same time, with parameters, inputs and optimizer.
        peak_phase: Phase of the peak.
        forward: Bytes in use after each allocation and release of the forward pass. Of many values, the
            largest of each interval.
        backward: Bytes in use in the backward pass, in the same form.
        step: Bytes in use in the step of the optimizer, in the same form.
    """

    peak_bytes: int
    peak_phase: Phase
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    step: tuple[int, ...]


class StepMemory(Fact, frozen=True):
    """Memory of one training step at one batch size.

    Attributes:
        batch: Batch size, or None if the inputs do not show it.
        counted: Method of counting. 'autograd': torch's autograd ran the step on shapes, and each tensor was
            tracked from its creation to its release. 'outputs': the outputs of the layers were summed.
        mode: Mode of the modules: 'train', or 'eval' if they do not run in training mode.
        kept_bytes: Bytes that the backward pass needs from the forward pass, besides parameters and inputs,
            at the end of the forward pass.
        peak_bytes: Largest number of bytes that are live at the same time.
        peak: Index of the moment of the peak in `moments`.
        fits: Whether the peak is within the memory limit, or None without a limit.
        recomputed_macs: Multiply-accumulates that checkpointing repeats in the backward pass.
        plain_kept_bytes: `kept_bytes` without checkpointing, or None if no module is checkpointed.
        plain_peak_bytes: `peak_bytes` without checkpointing, or None if no module is checkpointed.
        moments: Moments in chronological order.
        holders: Memory that is live at the peak by module and kind, the largest first.
        measured: Memory of the same step in a run, or None if it was not measured.
        assumption: Reason why the real memory may be larger or smaller, or ''.
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
    measured: MeasuredMemory | None = None
    assumption: str = ""


class TrainingMemory(Fact, frozen=True):
    """Memory of training steps at several batch sizes.

    Attributes:
        optimizer: Optimizer whose memory is counted.
        limit_bytes: Memory limit in bytes, or None.
        largest_batch: Largest batch size whose peak is within the limit, 0 if none is, or None without a
            limit.
        checkpoint: Patterns of the checkpointed modules.
        checkpointed: Paths of the modules that match the patterns.
        steps: Memory of one training step for each batch size.
        notes: Assumptions, in words.
    """

    optimizer: Optimizer
    limit_bytes: int | None
    largest_batch: int | None
    checkpoint: tuple[str, ...]
    checkpointed: tuple[str, ...]
    steps: tuple[StepMemory, ...]
    notes: tuple[str, ...] = ()


class Training(TableFact, frozen=True):
    """Cost of one training step of a model at one batch size, per layer and in total.

    Attributes:
        batch: Batch size, or None if the inputs of the model do not show it.
        input_bytes: Bytes of the inputs of the batch.
        activation_bytes: Bytes of the outputs of every layer, each once. This is a theoretical figure;
            `memory` has the bytes that torch keeps.
        param_bytes: Bytes of the parameters, summed over the layers.
        gradient_bytes: Bytes of their gradients, summed over the layers.
        optimizer_bytes: Bytes of the optimizer's state, summed over the layers.
        sum_bytes: Sum of the bytes of inputs, activations, parameters, gradients and optimizer state.
        forward_macs: Multiply-accumulates of the forward pass, summed over the layers.
        backward_macs: Multiply-accumulates of the gradients of inputs and of weights, summed over the layers.
        coverage: Share of layers whose figures are all known, 0 to 1.
        elementwise_ops: Elementwise operations of the forward pass, which are not multiply-accumulates.
        backward_elementwise_ops: Elementwise operations of the backward pass.
        memory: Memory while the step runs, if it was requested.
    """

    ROWS: ClassVar[str] = "layers"

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
