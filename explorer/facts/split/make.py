"""Facts about a model that was made from a line of text."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts import TensorInfo


class MadeModel(Struct, frozen=True):
    """A model that was made.

    Attributes:
        text: What it was made from.
        name: Of its graph; with the seed it decides the weights.
        stored: Whether weights are in the file; else they are inputs.
        macs: None where an open batch leaves them open.
        output: The file.
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
