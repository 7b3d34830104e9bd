"""Facts about a part of a model that is extracted and can run alone."""

from __future__ import annotations

from typing import Annotated

from explorer.base.checked import Spec, Words
from explorer.base.fact import Fact
from explorer.base.options import option
from explorer.base.verdicts import VerdictKind
from explorer.facts import OutputEvidence, TensorInfo
from explorer.facts.verification import judge_runs


class PartSpec(Spec, frozen=True):
    """A part as the user selects it: by its layers, or by the layers and tensors where it starts and ends.

    Attributes:
        layers: Globs or filters that select layers.
        start: Layers or tensors with which the part starts. If empty and `end` is set, it starts with the
            inputs of the model.
        end: Layers or tensors with which the part ends. If empty and `start` is set, it ends with the outputs
            of the model.
    """

    layers: Annotated[
        tuple[Words, ...],
        option(
            "only layers or tensors whose path matches, or that a filter finds",
            metavar="GLOB|FILTER",
            flag="--layer",
        ),
    ] = ()
    start: Annotated[
        tuple[Words, ...],
        option(
            "first layers or tensors of the part (default: the inputs)",
            metavar="NAME,...",
            flag="--from",
            reader="names",
            joined=True,
            write=",".join,
        ),
    ] = ()
    end: Annotated[
        tuple[Words, ...],
        option(
            "last layers or tensors of the part (default: the outputs)",
            metavar="NAME,...",
            flag="--to",
            reader="names",
            joined=True,
            write=",".join,
        ),
    ] = ()


class Extraction(Fact, frozen=True):
    """A part of a model that was extracted, with the evidence that it computes the same values.

    Attributes:
        inputs: Inputs of the part, each a value of the full model.
        outputs: Outputs of the part, each a value of the full model.
        first: Path of the first layer of the part.
        last: Path of the last layer of the part.
        layers: Number of operators in the part.
        layers_whole: Number of operators in the full model.
        macs: Multiply-accumulates of one forward pass at the bound sizes, or None if unknown.
        exact: Whether the part, run on values of the full model, gave the values of the full model bit for
            bit. None if it was not run, or if random numbers that it draws affect all its outputs.
        rounded: Types to which the full model's values at the inputs of the part were rounded before the
            comparison of `exact`, such as 'float16', or '' for none. They are rounded because the part reads
            rounded values, while the runtime keeps more precision inside a graph.
        compared: Comparison of the outputs with the optimizations of the runtime turned on, within rounding.
        drawn: Descriptions of the inputs of the full model in this run.
        runtime: Runtime that ran both: 'onnxruntime' or 'torch'.
        output: Path of the file, or '' if no file was kept.
    """

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    first: str
    last: str
    layers: int
    layers_whole: int
    params: int
    macs: int | None
    weight_bytes: int
    exact: bool | None = None
    rounded: str = ""
    compared: tuple[OutputEvidence, ...] = ()
    drawn: tuple[str, ...] = ()
    runtime: str = "onnxruntime"
    output: str = ""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def verdict_kind(self) -> VerdictKind:
        """Kind of the verdict on the values of the part: 'equal', 'different' or 'unproven'."""
        return judge_runs(self.exact, self.compared)
