"""Connections of a layer: which layers its inputs come from, and which ones read its outputs.

Of a group they are what crosses its boundary. What stays inside is on the pages of the layers inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from explorer.facts import Layer, Shape, TensorInfo

InputSource = Literal["layer", "input", "stored", "unknown"]


class LayerRef(Struct, frozen=True):
    """A layer by its place in the tree, its path and its kind."""

    id: int
    path: str
    kind: str


class InputConnection(Struct, frozen=True):
    """A tensor that a layer reads.

    Attributes:
        tensor: As its reader sees it.
        source: 'layer'; 'input' of the model; 'stored' in its file; 'unknown': nobody saw who made it.
        producer: The layer that makes it; None unless `source` is 'layer'.
        constant: It is the same whatever goes into the model: stored, or made of what is stored.
    """

    tensor: TensorInfo
    source: InputSource
    producer: LayerRef | None = None
    constant: bool = False


class OutputConnection(Struct, frozen=True):
    """A tensor that a layer makes.

    Attributes:
        tensor: As its producer sees it.
        readers: Layers that read it, in execution order, constants and shape arithmetic behind the others;
            the first of `reader_count`.
        model_output: It is an output of the model.
        constant: Constants and shape arithmetic read it, and nobody else.
    """

    tensor: TensorInfo
    readers: tuple[LayerRef, ...]
    reader_count: int
    model_output: bool = False
    constant: bool = False


class Connections(Struct, frozen=True):
    """What goes into a layer, and where what comes out of it goes.

    Attributes:
        layer: The layer or group.
        inputs, outputs: The first of `input_count` and `output_count`, what is constant behind the others;
            tensors that only a layer stores are among its weights, not here.
        unknown: Why the connections are not known; empty if they are.
        declared: Of tensors with sizes that were bound, the shape that the file declares, by their names.
        same_name: Paths of other layers that the file calls as it calls this one.
    """

    layer: Layer
    inputs: tuple[InputConnection, ...] = ()
    outputs: tuple[OutputConnection, ...] = ()
    input_count: int = 0
    output_count: int = 0
    unknown: str = ""
    declared: Mapping[str, Shape] = field(default_factory=dict)
    same_name: tuple[str, ...] = ()
