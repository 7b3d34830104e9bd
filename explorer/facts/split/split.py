"""Facts about a split: the stages of a model, the tensors that cross the cuts, and the balance."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from explorer.base.checked import Count, Positive, Spec, Words
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.units import memory_word
from explorer.base.verdicts import VerdictKind, find_weakest
from explorer.facts import OutputEvidence, TensorInfo, Verification
from explorer.facts.split.schedule import PipelineForecast
from explorer.facts.verification import judge_runs

SplitBy = Literal["macs", "params", "memory", "training", "time"]
"""Cost that the search balances: it minimizes the largest cost of a stage."""

StageForm = Literal["onnx", "torch"]
"""File format of the stages: ONNX models, or modules in .pt2 files."""

BALANCED: tuple[SplitBy, ...] = ("macs", "params", "memory", "training", "time")
"""All values of `SplitBy`, in display order."""


class SplitSpec(Spec, frozen=True):
    """A split as the user requests it.

    Attributes:
        stages: Number of stages, or None if `stage_memory` or `cuts` determines it.
        by: Cost that the search balances between stages.
        stage_memory: Most bytes of weights and activations in one stage. If `by` is 'training', the limit is
            on the memory of a training step.
        at: Patterns of module names. A cut lies where a matching module begins or ends. Empty allows a cut
            anywhere.
        cuts: Layers with which a stage begins. They replace the search.
        links: Bandwidth between neighboring stages in bytes per second, or None if unknown.
        micro_batches: Number of micro-batches in the pipeline. Each is one run at the bound sizes: the
            model's sizes, with open dimensions set by `--dim`.
        schedule: Order of the forward and backward passes of a stage in a training step.
        optimizer: Optimizer whose memory is counted for a training step.
    """

    stages: Annotated[
        Annotated[int, Meta(ge=2)] | None, option("how many stages", metavar="N", short="-n", label="stages")
    ] = None
    by: Annotated[
        SplitBy,
        option(
            "what is balanced; memory: weights and activations; training: memory of a step;\n"
            "time: least time on --machine, else the times of the last explorer profile",
            manual="what is balanced: `macs`, `params`, `memory` (weights and activations), `training`"
            " (memory of a step), `time` (least time on `--machine`; without a machine, the times of the last"
            " `explorer profile`)",
        ),
    ] = "macs"
    stage_memory: Annotated[
        Count | None,
        option(
            "most memory of a stage, such as 2G; without -n as few stages as it allows",
            manual="memory limit of a stage, such as `2G`; without `-n`, as few stages as possible",
            metavar="SIZE",
            reader="memory_size",
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
    optimizer: Annotated[
        Literal["sgd", "momentum", "adam"],
        option("optimizer whose memory counts; adam also stands for AdamW"),
    ] = "sgd"


class StageTraining(Fact, frozen=True):
    """Memory that one stage needs in a training step.

    Attributes:
        parameters: Bytes of the parameters of the stage's layers.
        gradients: Bytes of the gradients of these parameters.
        optimizer: Bytes of the optimizer's state for these parameters.
        activations: Bytes of the activations that one micro-batch keeps until its backward pass.
        in_flight: Number of micro-batches whose activations are kept at the same time.
        total: Bytes of the parameters, gradients, optimizer state and the activations of all micro-batches in
            flight.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    in_flight: int
    total: int


class Stage(Fact, frozen=True):
    """One stage of a split model.

    Attributes:
        file: File name relative to the manifest, or '' if no files were written.
        inputs: Tensors that the stage reads.
        outputs: Tensors that the stage passes to later stages or returns as outputs of the model.
        first: Path of the first layer of the stage.
        last: Path of the last layer of the stage.
        layers: Number of operators.
        weight_bytes: Bytes of the stored weights. A weight that several stages use counts in each stage.
        macs: Multiply-accumulates of one run at the bound sizes, or None if unknown.
        activation_bytes: Bytes of the activations at the bound sizes, or None if unknown.
        cost: Cost that the search balanced, in the unit `Split.unit`.
        seconds: Seconds of one run: the least possible on the machine, or measured. None if unknown.
        training: Memory of a training step, or None if it was not computed.
        sha256: SHA-256 digest of the file.
        data_sha256: SHA-256 digest of the separate file of weights, or '' if there is none.
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


class StageCut(Fact, frozen=True):
    """The cut between two neighboring stages.

    Attributes:
        bytes: Bytes of all tensors that are produced before the cut and read after it, branches and skip
            connections included.
        tensors: Tensors that cross the cut.
        before: Path of the layer with which the next stage begins.
        seconds: Seconds that the transfer takes, or None if the bandwidth of the link is unknown.
    """

    bytes: int
    tensors: tuple[TensorInfo, ...]
    before: str
    seconds: float | None = None


class StageCount(Fact, frozen=True):
    """Figures of a split into another number of stages.

    Attributes:
        stages: Number of stages.
        cost: Largest cost of a stage, in the unit `Split.unit`.
        balance: Mean cost of the stages divided by the largest.
        cut_bytes: Bytes that cross all cuts together.
        period: Seconds between two outputs of the pipeline, or None if no time is known.
    """

    stages: int
    cost: float
    balance: float
    cut_bytes: int
    period: float | None = None


class StepProof(Fact, frozen=True):
    """Proof that a training step of torch stages in separate processes matches a step of the full model.

    Attributes:
        outputs: Comparison of the outputs of the full model and of the last stage.
        gradients: Comparison of the gradients of each parameter, averaged over the micro-batches.
    """

    schedule: Literal["gpipe", "1f1b"]
    micro_batches: int
    outputs: tuple[OutputEvidence, ...]
    gradients: tuple[OutputEvidence, ...]


class Split(TableFact, frozen=True):
    """A model that is split into stages.

    Attributes:
        by: Cost that the search balanced.
        unit: Unit of `Stage.cost`: 'MACs', 'parameters', 'bytes' or 's'.
        stages: Stages in the order in which they run.
        cuts: Cuts between neighboring stages, in the same order.
        balance: Mean cost of the stages divided by the largest, at most 1.
        shared: Names of the stored tensors that several stages hold.
        forecast: Speed of the pipeline, or None if no time is known.
        by_macs: Forecast in MACs instead of seconds, if no time is known. It assumes that time is
            proportional to MACs.
        counts: Figures of splits into fewer and more stages, for comparison.
        machines: Names of the machines that run the stages.
        output: Path of the written folder, or '' if none was written.
        verification: Proof of the stages against the full model, or None if nothing was written.
        exact: Whether the stages, run one after the other, gave the outputs of the full model bit for bit.
            Outputs that depend on random numbers are not compared. None if the stages did not run or every
            output depends on random numbers.
        rounded: Types to which the full model's values at the cuts were rounded before the comparison of
            `exact`, such as 'float16', or '' for none. They are rounded because the stages exchange rounded
            values, while the runtime keeps more precision inside a graph.
        outputs: Comparison of the outputs with the optimizations of the runtime turned on, within rounding.
        steps: Proof of a training step of torch stages, one for each schedule.
        notes: Further remarks, in words.
        seconds: Seconds that the command took.
    """

    ROWS: ClassVar[str] = "stages"

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

    @property
    def verdict_kind(self) -> VerdictKind | None:
        """Kind of the verdict: the weaker of those on the graph and on the runs. None without a proof."""
        if self.verification is None:
            return None
        exact = None if self.steps else self.exact  # torch stages only need to agree within rounding
        return find_weakest((self.verification.verdict_kind, judge_runs(exact, self.outputs)))
