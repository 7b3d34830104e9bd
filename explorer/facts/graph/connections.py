"""Facts about the connections of a layer: the layers that produce its inputs and read its outputs.

The connections of a group are the tensors that cross its boundary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import field

from explorer.base.fact import Fact
from explorer.facts import Layer, Shape, TensorInfo

InputSource = Literal["layer", "input", "stored", "unknown"]


class LayerRef(Fact, frozen=True):
    """A reference to a layer: its id in the layer tree, its path and its kind."""

    id: int
    path: str
    kind: str


class InputConnection(Fact, frozen=True):
    """A tensor that a layer reads.

    Attributes:
        tensor: Tensor as the reader declares it.
        source: Origin of the tensor: 'layer'; 'input' of the model; 'stored' in its file; 'unknown' if its
            producer was not observed.
        producer: Layer that produces the tensor, or None unless `source` is 'layer'.
        constant: Whether the tensor is the same for every input of the model: stored, or computed from stored
            tensors.
    """

    tensor: TensorInfo
    source: InputSource
    producer: LayerRef | None = None
    constant: bool = False


class OutputConnection(Fact, frozen=True):
    """A tensor that a layer produces.

    Attributes:
        tensor: Tensor as the producer declares it.
        readers: Layers that read the tensor, the first of `reader_count`. They are in execution order,
            constants and shape arithmetic last.
        model_output: Whether the tensor is an output of the model.
        constant: Whether only constants and shape arithmetic read the tensor.
    """

    tensor: TensorInfo
    readers: tuple[LayerRef, ...]
    reader_count: int
    model_output: bool = False
    constant: bool = False


class Connections(Fact, frozen=True):
    """Inputs of a layer with their producers, and outputs of the layer with their readers.

    Attributes:
        layer: Layer or group.
        inputs: First of `input_count` inputs, constant ones last. A tensor that only this layer stores is one
            of its weights and not listed here.
        outputs: First of `output_count` outputs, constant ones last.
        unknown: Reason why the connections are unknown, or '' if they are known.
        declared: Shapes by tensor name as the file declares them, for tensors with bound sizes.
        same_name: Paths of other layers that have the same name in the file.
    """

    layer: Layer
    inputs: tuple[InputConnection, ...] = ()
    outputs: tuple[OutputConnection, ...] = ()
    input_count: int = 0
    output_count: int = 0
    unknown: str = ""
    declared: Mapping[str, Shape] = field(default_factory=dict)
    same_name: tuple[str, ...] = ()
