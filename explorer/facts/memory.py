"""Facts about memory over time: what is live at each step, and how small an arena holds it.

Apart from the facts that the screen paints first with, because importing them costs start-up time
and few sessions ask for these.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from explorer.facts import Status, TensorInfo


class MemoryStep(Struct, frozen=True):
    """One step of the execution order.

    Attributes:
        path: Path of the layer that runs; '' for the model's inputs, which come before the first.
        kind: Its operator or module type.
        live_bytes: Activations live while it runs: its inputs, its outputs, and what later steps need.
        layer: Id of the layer's row in `Analysis.layers`, None where it has none of its own.
    """

    path: str
    kind: str
    live_bytes: int
    layer: int | None = None


class Lifetime(Struct, frozen=True):
    """One activation and the steps through which it is live, both ends included.

    `offset` is its place in the smallest arena that a first-fit allocator needs (`Memory.arena_bytes`).
    """

    tensor: TensorInfo
    bytes: int
    born: int
    dies: int
    offset: int


class Memory(Struct, frozen=True):
    """Activation memory of one forward pass, step by step.

    Attributes:
        steps: In execution order.
        lifetimes: Every activation that takes memory of its own, in the order in which they are born.
        sum_bytes: All of `lifetimes` together.
        peak_bytes: The largest `live_bytes`, first reached at step `peak_step`.
        arena_bytes: Size of the arena that first-fit placement needs, in the order of birth or by
            decreasing size, whichever is smaller; never below the peak, which no allocator can beat.
        weight_bytes: Resident throughout, in none of the other figures.
        status: 'bound' when a tensor's size is an upper bound; 'unknown' when one is not known at all: then
            the figures count the others and `reason` says how many were left out.
        assumed: The figures of status 'bound' rest on the assumption that `reason` names. They may be more
            or less.
    """

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
