"""Facts about a split: the stages of a model, what crosses between them, and how well they are balanced."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from explorer.base.checked import Count, Positive, Spec, Words
from explorer.base.options import option
from explorer.base.units import memory_word
from explorer.facts import OutputEvidence, TensorInfo, Verification
from explorer.facts.split.schedule import PipelineForecast

SplitBy = Literal["macs", "params", "memory", "training", "time"]
"""What is balanced: the largest of a stage is made as small as it can be."""

StageForm = Literal["onnx", "torch"]
"""What stages are written as: ONNX models, or modules in .pt2 files."""

BALANCED: tuple[SplitBy, ...] = ("macs", "params", "memory", "training", "time")


class SplitSpec(Spec, frozen=True):
    """How a model is to be cut.

    Attributes:
        stages: How many; None where `stage_memory` or `cuts` say it.
        by: What is balanced.
        stage_memory: Most bytes of weights and activations (of a training step where `by` is 'training') in
            one stage.
        at: Patterns of modules: cuts lie where one of these ends or begins. Empty: anywhere.
        cuts: Layers that begin a stage, in place of the search.
        links: Bytes per second between neighbouring stages; None where nothing is known of them.
        micro_batches: How many go through the pipeline; each is a run at the sizes that are bound.
        schedule: In which order a stage of a training step works.
        optimizer: Of a training step.
    """

    stages: Annotated[
        Annotated[int, Meta(ge=2)] | None, option("how many stages", metavar="N", short="-n", label="stages")
    ] = None
    by: Annotated[
        SplitBy,
        option(
            "what is balanced: memory is weights and activations, training that of a step,\n"
            "time the least on --machine, or what explorer profile measured last",
            manual="what is balanced: `macs`, `params`, `memory` (weights and activations), `training`"
            " (memory of a step), `time` (the least on `--machine`; without one what `explorer profile`"
            " measured last)",
        ),
    ] = "macs"
    stage_memory: Annotated[
        Count | None,
        option(
            "most memory of a stage, such as 2G; without -n as few stages as it allows",
            manual="most memory of a stage, such as `2G`; without `-n` as few stages as it allows",
            metavar="SIZE",
            reader="card",
            write=memory_word,
        ),
    ] = None
    at: Annotated[
        tuple[Words, ...],
        option("cut only where a module of this name begins or ends", metavar="GLOB"),
    ] = ()
    cuts: Annotated[
        tuple[Words, ...],
        option(
            "layers that begin a stage, in place of the search",
            metavar="LAYER,...",
            reader="names",
            joined=True,
            write=",".join,
        ),
    ] = ()
    links: Annotated[
        Positive | None,
        option(
            "bytes per second between stages, such as 10GB/s",
            metavar="RATE",
            reader="rate",
            write="{:.17g}".format,
        ),
    ] = None
    micro_batches: Annotated[Count, option("how many micro-batches go through the pipeline", metavar="N")] = 8
    schedule: Annotated[Literal["gpipe", "1f1b"], option("order of work in a training step")] = "1f1b"
    optimizer: Annotated[Literal["sgd", "momentum", "adam"], option("whose memory is counted")] = "sgd"


class StageTraining(Struct, frozen=True):
    """Memory of one stage in a training step, in bytes.

    Attributes:
        parameters, gradients, optimizer: Of its layers.
        activations: Of one micro-batch, kept until its backward pass.
        in_flight: Micro-batches whose activations are kept at once.
        total: All of it.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    in_flight: int
    total: int


class Stage(Struct, frozen=True):
    """One part of a model.

    Attributes:
        file: Beside the manifest; '' where nothing is written.
        inputs, outputs: What it reads and hands on or out.
        first, last: Paths of its first and last layer.
        layers: How many operators.
        weight_bytes: As stored; what several stages use is in each of them.
        macs, activation_bytes: At the sizes that are bound; None where they are not known.
        cost: What was balanced, in its unit.
        seconds: Least or measured time of one run; None where nothing says it.
        sha256, data_sha256: Of the file, and of its weights beside it where they are.
    """

    file: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    first: str
    last: str
    layers: int
    params: int
    macs: int | None
    weight_bytes: int
    activation_bytes: int | None
    cost: float
    seconds: float | None = None
    training: StageTraining | None = None
    sha256: str = ""
    data_sha256: str = ""


class StageCut(Struct, frozen=True):
    """What lies between two neighbouring stages.

    Attributes:
        bytes: Of all that was made before it and is read behind it, branches and skips too.
        tensors: These.
        before: Path of the layer that the next stage begins with.
        seconds: On the link; None where its rate is not known.
    """

    bytes: int
    tensors: tuple[TensorInfo, ...]
    before: str
    seconds: float | None = None


class StageCount(Struct, frozen=True):
    """What another number of stages would give.

    Attributes:
        stages: How many.
        cost: Largest of a stage.
        balance: Mean of the stages over the largest.
        cut_bytes: Over all cuts.
        period: Seconds between two results; None where no time is known.
    """

    stages: int
    cost: float
    balance: float
    cut_bytes: int
    period: float | None = None


class StepProof(Struct, frozen=True):
    """A training step of torch stages in processes, against the whole's over the same micro-batches.

    Attributes:
        outputs: Of the whole and the last stage.
        gradients: By parameter, added up over the micro-batches and divided by their number.
    """

    schedule: Literal["gpipe", "1f1b"]
    micro_batches: int
    outputs: tuple[OutputEvidence, ...]
    gradients: tuple[OutputEvidence, ...]


class Split(Struct, frozen=True):
    """A model in stages.

    Attributes:
        by: What was balanced.
        unit: Of `Stage.cost`: 'MACs', 'parameters', 'bytes' or 's'.
        stages: In their order.
        cuts: Between them.
        balance: Mean cost of the stages over the largest, at most 1.
        shared: Stored tensors that several stages have, by name.
        forecast: What the pipeline does; None where no time is known.
        by_macs: The same where no time is known, as if it went with MACs: with MACs in place of seconds.
        counts: Fewer and more stages, beside this one.
        machines: Of the stages.
        output: Folder that was written; '' for none.
        verification: The stages against the whole; None where nothing was written.
        exact: Whether the stages, run one after the other, gave the whole's outputs bit for bit, but those
            that depend on random numbers; None where they were not run, or there are no others.
        rounded: 'float16' where that is so of the whole with values at the cuts rounded to float16: inside
            of a graph the runtime keeps more. '' where nothing had to be rounded.
        outputs: The same with the runtime's own optimisation, within rounding.
        steps: Of torch stages a training step by each schedule.
        notes: What else to know, in words.
    """

    by: SplitBy
    unit: str
    stages: tuple[Stage, ...]
    cuts: tuple[StageCut, ...]
    balance: float
    shared: tuple[str, ...] = ()
    forecast: PipelineForecast | None = None
    by_macs: PipelineForecast | None = None
    counts: tuple[StageCount, ...] = ()
    machines: tuple[str, ...] = ()
    output: str = ""
    verification: Verification | None = None
    exact: bool | None = None
    rounded: str = ""
    outputs: tuple[OutputEvidence, ...] = ()
    steps: tuple[StepProof, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
