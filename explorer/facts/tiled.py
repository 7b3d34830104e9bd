"""What of a model runs on tiles: counted in the graph as it is, whatever its metadata claim.

Re-exported by `explorer.facts`; see there for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

__all__ = ["LeftOver", "Tiled"]


class LeftOver(Struct, frozen=True):
    """Operators of one type that multiply and accumulate beside the tiles, for one reason.

    Attributes:
        name: Path of the first.
        count: How many there are in the graph.
        macs: All of theirs in one forward pass; None if one is unknown.
        reason: Why they are left; what the plan in the file says, or what is wrong with them.
    """

    op: str
    name: str
    count: int
    macs: int | None
    reason: str


class Tiled(Struct, frozen=True):
    """The part of a model's MACs that tile products do.

    Attributes:
        products: Tile products of one forward pass; None where it is not known how often one runs.
        macs: Of these products, zeros that fill up a tile included; None if one is unknown.
        macs_total: Of the whole model; None if one is unknown.
        share: `macs` in `macs_total`; None if one of them is not known, or nothing multiplies.
        left: What multiplies and accumulates beside the tiles, the costliest first.
        dims: Where the model leaves sizes open: those that these figures are for, which the plan in the
            file names, unlike all other figures of the model; empty where they are for the same sizes.
    """

    products: int | None
    macs: int | None
    macs_total: int | None
    share: float | None
    left: tuple[LeftOver, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
