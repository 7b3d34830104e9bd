"""Dimensions of a site: what decides its cost: sizes, tiles and widths, and what follows from them alone.

Both the figures (`cost`) and the formulas that explain them (`formulas`) are made from this.
"""

from __future__ import annotations

from typing import NamedTuple

from explorer.base.errors import Misuse
from explorer.engine.graph.dtypes import ELEMENT_TYPES
from explorer.facts import SitePlan
from explorer.facts.cost import Dataflow, SiteCost

OPERANDS = (("A", "mk"), ("B", "kn"), ("C", "mn"))
"""The three operands, and the loops that each depends on."""

MAPPED: dict[Dataflow, tuple[int, int, int]] = {
    "output-stationary": (0, 2, 1),
    "weight-stationary": (1, 2, 0),
    "input-stationary": (1, 0, 2),
}
"""Which of (M, K, N) lie along a systolic array's rows and columns, and which streams through (SCALE-Sim)."""

_BITS = {name: bits for _, name, bits in ELEMENT_TYPES if bits}


class SiteDims(NamedTuple):
    """All of a site that its cost depends on; sizes in elements, widths in bits."""

    M: int
    K: int
    N: int
    batch: int
    tile: tuple[int, int, int]
    padded: bool
    width: int
    sum_width: int
    macs: int


def site_dims(site: SitePlan | SiteCost) -> SiteDims:
    """What the cost of a site depends on.

    Raises:
        Misuse: How wide an element of its types is, is not known.
    """
    widths = []
    for dtype in (site.dtype, site.accumulator):
        if dtype not in _BITS:
            raise Misuse(f"the size of a '{dtype}' is not known", where=site.name)
        widths.append(_BITS[dtype])
    padded = site.edges == "padded"
    macs = site.macs if site.macs is not None else site.batch * site.M * site.K * site.N
    return SiteDims(site.M, site.K, site.N, site.batch, site.tile, padded, widths[0], widths[1], macs)


def grid_of(shape: SiteDims) -> tuple[int, int, int]:
    """(m, k, n): tiles along M, K and N."""
    tm, tk, tn = shape.tile
    return -(-shape.M // tm), -(-shape.K // tk), -(-shape.N // tn)


def moved_sizes(shape: SiteDims) -> tuple[int, int, int]:
    """(M, K, N) as it is moved: filled up to whole tiles where they are padded."""
    if not shape.padded:
        return shape.M, shape.K, shape.N
    (m, k, n), (tm, tk, tn) = grid_of(shape), shape.tile
    return m * tm, k * tk, n * tn


def largest_tile(shape: SiteDims) -> tuple[int, int, int]:
    """(TM, TK, TN) of the largest tile: that of a ragged site is no larger than the site."""
    if shape.padded:
        return shape.tile
    tm, tk, tn = shape.tile
    return min(tm, shape.M), min(tk, shape.K), min(tn, shape.N)


def packed_bytes(elements: int, bits: int) -> int:
    """Bytes of elements that lie one after the other, however narrow."""
    return -(-elements * bits // 8)


def operand_bytes(shape: SiteDims, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Bytes of A, B and C of one product whose sizes are (M, K, N)."""
    M, K, N = sizes
    return (
        packed_bytes(M * K, shape.width),
        packed_bytes(K * N, shape.width),
        packed_bytes(M * N, shape.sum_width),
    )


def again(order: str, grid: tuple[int, int, int], depends: str) -> str:
    """The loops that bring every tile of an operand in again: all its fetches are their trips' product.

    A tile is fetched when a loop that it depends on turns; so each turn of a loop outside of that one brings
    it in anew. A loop inside all of those leaves it where it is, and one of a single trip never turns.

    Args:
        order: Loops from the outermost in.
        grid: Trips of m, k and n.
        depends: The operand's own loops.
    """
    trips = dict(zip("mkn", grid, strict=True))
    turning = [loop for loop in order if trips[loop] > 1]
    depending = [at for at, loop in enumerate(turning) if loop in depends]
    return "".join(loop for loop in turning[: depending[-1]] if loop not in depends) if depending else ""


def folds(shape: SiteDims, axis: int, width: int) -> int:
    """How often the tiles along an axis, one after the other, fill an array of this width."""
    t, count = shape.tile[axis], grid_of(shape)[axis]
    last = moved_sizes(shape)[axis] - (count - 1) * t
    return (count - 1) * -(-t // width) + -(-last // width)
