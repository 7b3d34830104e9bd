"""Facts about a model while one of its sizes grows: curves, their closed forms, and where they cross."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from explorer.facts.roofline import Machine

CurveName = Literal["macs", "moved", "activations", "weights", "kv_cache", "compute", "memory", "time"]
"""MACs; bytes read and written; bytes of activations at their peak, of weights, of the key-value cache;
seconds of all MACs at a machine's peak, of all bytes at its bandwidth, and the least time, layer after
layer."""


class SizeCurve(Struct, frozen=True):
    """One figure over the sizes.

    Attributes:
        name: What it is.
        values: One for each of `SizeCurves.sizes`; counts and bytes are whole, times are seconds.
        form: The closed form of a count or of bytes, such as `4096*batch`; '' where there is none.
    """

    name: CurveName
    values: tuple[float, ...]
    form: str = ""


class Crossing(Struct, frozen=True):
    """Where one figure passes another: at `size` `above` is more than `below`, one size before it is not.

    `counted` says that both sizes were analysed whole and show it; otherwise the closed forms do.
    """

    size: int
    above: CurveName
    below: CurveName
    counted: bool


class SizeCurves(Struct, frozen=True):
    """A model's figures over one size, the others as they are.

    Attributes:
        name: Of the size: 'batch', 'sequence'.
        low, high: The range.
        at: What the model has now; None where it is open.
        sizes: Where the curves have values: powers of two, the sizes between them some 3 % apart, both ends,
            and both sides of each crossing.
        curves: Those that are known.
        crossings: By size.
        others: Sizes of other open dimensions.
        machine: Of the times; None without one.
        counted: Sizes at which the whole model was analysed.
        closed: Whether every figure follows closed forms, which gave what was counted at all of `counted`.
            Otherwise `sizes` are those that were counted, and no more.
        names: Of every size that the model can have others of, and what it has now.
        notes: What a reader should know, in words.
    """

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
    names: dict[str, int | None] = {}
    notes: tuple[str, ...] = ()

    def curve(self, name: CurveName) -> SizeCurve | None:
        """A curve by its name; None if it is not known."""
        return next((curve for curve in self.curves if curve.name == name), None)
