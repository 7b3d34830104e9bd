"""Placement: which execution provider of onnxruntime runs which layer, and what goes from one to another."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Partition(Struct, frozen=True):
    """Layers that run on one provider, one after the other, without anything in between on another.

    Attributes:
        provider: As onnxruntime names it: 'CPUExecutionProvider'.
        layers: Their paths, in execution order.
    """

    provider: str
    layers: tuple[str, ...]


class Boundary(Struct, frozen=True):
    """A tensor that one provider makes and another reads.

    Attributes:
        tensor, shape: Its name and shape.
        maker: Path of the layer that makes it; empty for an input of the model, which lies on the CPU.
        source: Provider of the maker.
        target: Provider of its readers, of which `readers` are the paths; none: it is an output of the model.
        bytes: Its size; None where that is not known.
    """

    tensor: str
    shape: tuple[int | str | None, ...] | None
    maker: str
    source: str
    target: str
    readers: tuple[str, ...]
    bytes: int | None


class FusedLayers(Struct, frozen=True):
    """Layers that run as one operator.

    Attributes:
        op: The operator that onnxruntime makes of them.
        provider: That runs it.
        layers: Their paths.
    """

    op: str
    provider: str
    layers: tuple[str, ...]


class Placement(Struct, frozen=True):
    """Which provider runs what.

    Attributes:
        runtime: 'onnxruntime 1.32.0'.
        available: Providers that it has here.
        asked: Those that were asked for, in the order in which each takes what it can.
        providers: By the id of a row: the provider, of a group all of them; '' for what runs nowhere.
        layers: How many layers each provider runs.
        partitions: In execution order.
        boundaries: What goes from one provider to another.
        bytes: Of all boundaries whose size is known.
        unknown: How many boundaries have no known size.
        fused: Layers that run as one operator.
        removed: Layers that do not run: computed when the model is loaded, or left out.
        notes: What else to know, in words.
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
