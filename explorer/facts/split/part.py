"""Facts about a part of a model that was taken out of it, and runs alone."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from explorer.base.checked import Spec, Words
from explorer.base.options import option
from explorer.facts import OutputEvidence, TensorInfo


class PartSpec(Spec, frozen=True):
    """Which part: layers, or what lies between some and others.

    Attributes:
        layers: Globs or filters of layers.
        start: Layers or tensors that it begins with; empty with `end`: the model's inputs.
        end: Layers or tensors that it ends with; empty with `start`: the model's outputs.
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
            "layers or tensors that the part begins with (default: the inputs)",
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
            "layers or tensors that it ends with (default: the outputs)",
            metavar="NAME,...",
            flag="--to",
            reader="names",
            joined=True,
            write=",".join,
        ),
    ] = ()


class Extraction(Struct, frozen=True):
    """A part of a model.

    Attributes:
        inputs, outputs: Of the part, as values of the whole.
        first, last: Paths of its first and last layer.
        layers: How many operators, of so many.
        macs: At the sizes that are bound; None where they are not known.
        exact: Whether it gave the whole's own values bit for bit on the whole's own values; None where it was
            not run, or where all that it gives depends on random numbers that it draws.
        rounded: 'float16' where that is so of the whole with the values that the part begins with rounded to
            float16: inside of a graph the runtime keeps more. '' where nothing had to be rounded.
        compared: The same with the runtime's own optimisation, within rounding.
        drawn: The whole's inputs of this run, in words.
        runtime: Where both were run: 'onnxruntime' or 'torch'.
        output: The file; '' where none was kept.
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
