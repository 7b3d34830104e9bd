"""Facts about time on a machine that is known by two numbers: what it can compute and what it can move."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from explorer.facts.cost import Hardware
from explorer.facts.external.machine import Machine
from explorer.facts.profile.machine import MeasuredMachine

__all__ = ["Machine", "Machines", "NamedMachine", "Roofline", "RooflinePoint"]

Limit = Literal["compute", "memory", "unknown"]


class NamedMachine(Struct, frozen=True):
    """A machine that `--machine` takes by name.

    Attributes:
        name: For `--machine`.
        about: What it is; empty for the user's own.
        dtype: Of the numbers that the peak multiplies, where that is known; dense, without sparsity.
        hardware: All that is known of it.
        source: The datasheet, or the file, that has the figures.
        measured: What was measured, if it was.
    """

    name: str
    about: str
    dtype: str
    hardware: Hardware
    source: str
    measured: MeasuredMachine | None = None


class Machines(Struct, frozen=True):
    """The machines that have a name.

    Attributes:
        config: The file in which a user names his own, there or not.
        machines: His own, then the presets.
    """

    config: str
    machines: tuple[NamedMachine, ...]


class RooflinePoint(Struct, frozen=True):
    """One layer (never a group) on the roofline.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        macs, bytes: Of all its calls; bytes are those read and written, each once.
        intensity: FLOPs per byte; None when either is unknown or no byte moves.
        limit: What bounds its time: 'compute' at or right of the ridge, 'memory' left of it.
        seconds: Lower bound of its time: the longer of macs / peak_macs and bytes / bandwidth.
        share: Of `Roofline.seconds`.
    """

    layer: int
    path: str
    kind: str
    macs: int | None
    bytes: int | None
    intensity: float | None
    limit: Limit
    seconds: float | None
    share: float


class Roofline(Struct, frozen=True):
    """Every layer on the roofline of one machine, in execution order.

    Attributes:
        ridge: FLOPs per byte at which the machine's two limits meet: 2 x peak_macs / bandwidth.
        seconds: Sum of the layers' lower bounds, as far as they are known: layers run one after the other.
            None where a layer is not known and the others add up to nothing; so for the next two.
        compute_seconds: All MACs at the peak.
        memory_seconds: All bytes at full bandwidth.
        compute_bound, memory_bound, unknown: How many layers.
        coverage: Share of layers whose time is known.
    """

    machine: Machine
    ridge: float
    points: tuple[RooflinePoint, ...]
    seconds: float | None
    compute_seconds: float | None
    memory_seconds: float | None
    compute_bound: int
    memory_bound: int
    unknown: int
    coverage: float
