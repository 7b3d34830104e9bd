"""Facts about a roofline: the least time of layers on a machine with a compute and a memory limit."""

from __future__ import annotations

from typing import ClassVar, Literal

from explorer.base.fact import Fact, TableFact
from explorer.facts.cost import Hardware
from explorer.facts.external.machine import Machine
from explorer.facts.profile.machine import MeasuredMachine

__all__ = ["Machine", "Machines", "NamedMachine", "Roofline", "RooflinePoint"]

Limit = Literal["compute", "memory", "unknown"]


class NamedMachine(Fact, frozen=True):
    """A machine that `--machine` accepts by name.

    Attributes:
        name: Name for `--machine`.
        about: Description, or '' for a machine of the user's own.
        dtype: Number type of the peak rate, if known. The rate is that of dense products, without sparsity.
        hardware: All known properties of the machine.
        source: Datasheet or file from which the figures come.
        measured: Measurements of the machine, or None if it was not measured.
    """

    name: str
    about: str
    dtype: str
    hardware: Hardware
    source: str
    measured: MeasuredMachine | None = None


class Machines(Fact, frozen=True):
    """All machines that have a name.

    Attributes:
        config: Path of the config file for the user's own machines. The file need not exist.
        machines: The user's own machines, then the presets.
    """

    config: str
    machines: tuple[NamedMachine, ...]


class RooflinePoint(Fact, frozen=True):
    """One layer (never a group) on the roofline.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        macs: Multiply-accumulates of all its calls, or None if unknown.
        bytes: Bytes read and written by all its calls, each once, or None if unknown.
        intensity: FLOPs per byte, or None if either number is unknown or no byte moves.
        limit: Resource that bounds the time: 'compute' at or right of the ridge, 'memory' left of it, or
            'unknown'.
        seconds: Lower bound of the time: the longer of macs / peak_macs and bytes / bandwidth. None if
            unknown.
        share: Share of `Roofline.seconds`, 0 to 1.
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


class Roofline(TableFact, frozen=True):
    """Every layer on the roofline of one machine, in execution order.

    Attributes:
        ridge: FLOPs per byte at which the two limits of the machine meet: 2 x peak_macs / bandwidth.
        seconds: Sum of the known lower bounds of the layers, which run one after the other. None if a layer
            is unknown and the others sum to 0. The same holds for the next two figures.
        compute_seconds: Seconds of all MACs at the peak rate.
        memory_seconds: Seconds of all bytes at full bandwidth.
        compute_bound: Number of compute-bound layers.
        memory_bound: Number of memory-bound layers.
        unknown: Number of layers with an unknown limit.
        coverage: Share of layers whose time is known, 0 to 1.
        multiplied: Number type in which the model multiplies, by most of its MACs. '' for integers and if
            unknown.
    """

    ROWS: ClassVar[str] = "points"
    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("multiplied",)

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
    multiplied: str = ""
