"""Facts about a model as one size grows: curves, their closed forms, and their crossings."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import field

from explorer.base.fact import Fact, TableFact
from explorer.facts.roofline import Machine

CurveName = Literal["macs", "moved", "activations", "weights", "kv_cache", "compute", "memory", "time"]
"""Figure of a curve. 'macs'; 'moved': bytes read and written; 'activations': peak bytes of activations;
'weights': bytes of weights; 'kv_cache': bytes of the KV cache; 'compute': seconds of all MACs at the peak
rate; 'memory': seconds of all bytes at the full bandwidth; 'time': least seconds, layer after layer.
"""


class SizeCurve(Fact, frozen=True):
    """One figure as a function of the size.

    Attributes:
        name: Name of the figure.
        values: Value for each of `SizeCurves.sizes`. Counts and bytes are integers, times are seconds.
        form: Closed form of a count or of bytes, such as `4096*batch`, or '' if there is none.
    """

    name: CurveName
    values: tuple[float, ...]
    form: str = ""


class Crossing(Fact, frozen=True):
    """A size at which one figure becomes larger than another.

    At `size`, `above` is larger than `below`; one size before, it is not. `counted` tells whether the
    model was fully analyzed at both of these sizes. Otherwise the closed forms give the crossing.
    """

    size: int
    above: CurveName
    below: CurveName
    counted: bool


class SizeCurves(TableFact, frozen=True):
    """Figures of a model as functions of one size, with all other sizes fixed.

    Attributes:
        name: Name of the size: 'batch', 'sequence'.
        low: Smallest size of the range.
        high: Largest size of the range.
        at: Current size of the model, or None if it is open.
        sizes: Sizes at which the curves have values: powers of two, sizes between them about 3 % apart, both
            ends, and both sides of each crossing.
        curves: Known curves.
        crossings: Crossings by ascending size.
        others: Sizes of other open dimensions.
        machine: Machine to which the times apply, or None.
        counted: Sizes at which the full model was analyzed.
        closed: Whether closed forms give every figure and match all of `counted`. Otherwise `sizes` is
            `counted`.
        names: Current value of every size that can vary, by name.
        notes: Further remarks, in words.
    """

    ROWS: ClassVar[str] = "curves"

    name: str
    low: int
    high: int
    at: int | None
    sizes: tuple[int, ...]
    curves: tuple[SizeCurve, ...]
    crossings: tuple[Crossing, ...]
    others: dict[str, int]
    machine: Machine | None
    counted: tuple[int, ...]
    closed: bool
    names: dict[str, int | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def curve(self, name: CurveName) -> SizeCurve | None:
        """Finds a curve by its name, or returns None if it is unknown."""
        return next((curve for curve in self.curves if curve.name == name), None)
