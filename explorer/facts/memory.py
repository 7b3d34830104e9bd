"""Facts about memory over time: the live tensors at each step, and the size of an arena that holds them.

This module is separate from the facts of the first screen, because importing it costs startup time and few
sessions need it.
"""

from __future__ import annotations

from typing import ClassVar

from explorer.base.fact import Fact, TableFact
from explorer.facts import Status, TensorInfo


class MemoryStep(Fact, frozen=True):
    """One step of the execution order.

    Attributes:
        path: Path of the layer that runs, or '' for the inputs of the model, which come before the first
            layer.
        kind: Operator or module type of the layer.
        live_bytes: Bytes of the activations that are live while the layer runs: its inputs, its outputs, and
            tensors that later steps read.
        layer: Id of the layer's row in `Analysis.layers`, or None if it has no row of its own.
    """

    path: str
    kind: str
    live_bytes: int
    layer: int | None = None


class Lifetime(Fact, frozen=True):
    """One activation and the steps during which it is live, both ends included.

    `offset` is its address in bytes in the arena (`Memory.arena_bytes`) that a first-fit allocator fills.
    """

    tensor: TensorInfo
    bytes: int
    born: int
    dies: int
    offset: int


class Memory(TableFact, frozen=True):
    """Activation memory of one forward pass, step by step.

    Attributes:
        steps: Steps in execution order.
        lifetimes: Activations that use memory of their own, ordered by the step in which they are created.
        sum_bytes: Sum of the sizes of all `lifetimes`, in bytes.
        peak_bytes: Largest `live_bytes`, first reached at step `peak_step`.
        arena_bytes: Bytes of the arena that first-fit placement needs. Tensors are placed in the order of
            creation or by decreasing size, whichever needs less. Never below `peak_bytes`, the lower bound of
            any allocator.
        weight_bytes: Bytes of the weights. They are resident throughout, and no other figure includes them.
        status: 'exact'; 'bound' if the size of a tensor is an upper bound; 'unknown' if a size is unknown. In
            the last case the figures omit those tensors, and `reason` tells how many.
        assumed: Whether the figures of status 'bound' rest on the assumption that `reason` names. The true
            figures may be larger or smaller.
    """

    ROWS: ClassVar[str] = "lifetimes"

    steps: tuple[MemoryStep, ...]
    lifetimes: tuple[Lifetime, ...]
    sum_bytes: int
    peak_bytes: int
    peak_step: int
    arena_bytes: int
    weight_bytes: int
    status: Status = "exact"
    reason: str = ""
    assumed: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("assumed",)
