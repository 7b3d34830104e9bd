"""Facts about a model that `explorer make` built from a line of text."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts import TensorInfo


class MadeModel(Struct, frozen=True):
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
