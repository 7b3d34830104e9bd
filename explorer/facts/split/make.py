"""Facts about a model that `explorer make` built from a line of text."""

from __future__ import annotations

from typing import Annotated

from explorer.base.checked import Count, Spec, Words
from explorer.base.fact import Fact
from explorer.base.options import option
from explorer.facts import TensorInfo


class MakeSpec(Spec, frozen=True):
    """Settings of a model that is built from a line of text, as the user requests them.

    Attributes:
        name: Name of the graph, or None for the kind of model. The name and the seed determine the weights.
        batch: Number of rows of an mlp, or of images of a convolution. A name leaves the batch open.
        weight_inputs: Whether the weights are inputs of the graph. Otherwise the file holds them.
    """

    name: Annotated[
        Words | None,
        option("name of the graph; it determines the weights together with --seed", metavar="NAME"),
    ] = None
    batch: Annotated[
        Count | Words,
        option(
            "batch size: rows of an mlp, images of a conv (default 1); a name leaves it open",
            metavar="N|NAME",
            reader="batch",
            usual="",
        ),
    ] = 1
    weight_inputs: Annotated[bool, option("weights are inputs of the graph, not in the file")] = False


class MadeModel(Fact, frozen=True):
    """A model that was built from a line of text.

    Attributes:
        text: Line of text that describes the model.
        name: Name of the graph. The name and the seed determine the weights.
        stored: Whether the file holds the weights. Otherwise they are inputs of the model.
        macs: Multiply-accumulates of one forward pass, or None if an open batch size leaves them unknown.
        output: Path of the file.
    """

    text: str
    name: str
    seed: int
    stored: bool
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    layers: int
    params: int
    macs: int | None
    file_bytes: int
    output: str
