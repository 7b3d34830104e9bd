"""Facts about the placement: the execution provider of onnxruntime that runs each layer."""

from __future__ import annotations

from collections.abc import Mapping

from explorer.base.fact import Fact


class Partition(Fact, frozen=True):
    """Consecutive layers that run on the same provider, without a layer on another provider between them.

    Attributes:
        provider: Name of the provider in onnxruntime: 'CPUExecutionProvider'.
        layers: Paths of the layers, in execution order.
    """

    provider: str
    layers: tuple[str, ...]


class Boundary(Fact, frozen=True):
    """A tensor that one provider produces and another provider reads.

    Attributes:
        tensor: Name of the tensor.
        shape: Shape of the tensor, or None if unknown.
        maker: Path of the layer that produces the tensor, or '' for an input of the model, which is in CPU
            memory.
        source: Provider that produces the tensor.
        target: Provider that reads the tensor.
        readers: Paths of the layers that read the tensor. Empty for an output of the model.
        bytes: Bytes of the tensor, or None if unknown.
    """

    tensor: str
    shape: tuple[int | str | None, ...] | None
    maker: str
    source: str
    target: str
    readers: tuple[str, ...]
    bytes: int | None


class FusedLayers(Fact, frozen=True):
    """Layers that onnxruntime runs as a single operator.

    Attributes:
        op: Operator into which onnxruntime fuses the layers.
        provider: Provider that runs the operator.
        layers: Paths of the fused layers.
    """

    op: str
    provider: str
    layers: tuple[str, ...]


class Placement(Fact, frozen=True):
    """The provider that runs each layer, and the tensors that move between providers.

    Attributes:
        runtime: Name and version of the runtime: 'onnxruntime 1.32.0'.
        available: Providers that this installation has.
        asked: Requested providers, in order of preference.
        providers: Provider by row id. A group lists all providers of its layers. '' if the layer does not
            run.
        layers: Number of layers that each provider runs.
        partitions: Partitions in execution order.
        boundaries: Tensors that move from one provider to another.
        bytes: Bytes of all boundaries of known size.
        unknown: Number of boundaries of unknown size.
        fused: Layers that run as a single operator.
        removed: Paths of layers that do not run: onnxruntime computes them when it loads the model, or
            removes them.
        notes: Further remarks, in words.
    """

    runtime: str
    available: tuple[str, ...]
    asked: tuple[str, ...]
    providers: Mapping[int, str]
    layers: Mapping[str, int]
    partitions: tuple[Partition, ...]
    boundaries: tuple[Boundary, ...] = ()
    bytes: int = 0
    unknown: int = 0
    fused: tuple[FusedLayers, ...] = ()
    removed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
