"""Dimensions of a site: the sizes, tiles and widths that decide its cost, and quantities derived from them.

The figures (`cost`) and the formulas that explain them (`formulas`) both use this module.
"""

from __future__ import annotations

from typing import NamedTuple

from explorer.base.errors import Misuse
from explorer.engine.graph.dtypes import ELEMENT_TYPES
from explorer.facts import SitePlan
from explorer.facts.cost import Dataflow, SiteCost

OPERANDS = (("A", "mk"), ("B", "kn"), ("C", "mn"))
"""The three operands, with the loops that each depends on."""

MAPPED: dict[Dataflow, tuple[int, int, int]] = {
    "output-stationary": (0, 2, 1),
    "weight-stationary": (1, 2, 0),
    "input-stationary": (1, 0, 2),
}
"""Indices into (M, K, N) along a systolic array's rows, its columns, and the streaming axis (SCALE-Sim)."""

_BITS = {name: bits for _, name, bits in ELEMENT_TYPES if bits}


class SiteDims(NamedTuple):
    """The properties of a site that decide its cost; sizes in elements, widths in bits."""

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
    """The dimensions of a site.

    Raises:
        Misuse: The width of one of its types is unknown.
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
    """(m, k, n): the number of tiles along M, K and N."""
    tm, tk, tn = shape.tile
    return -(-shape.M // tm), -(-shape.K // tk), -(-shape.N // tn)


def moved_sizes(shape: SiteDims) -> tuple[int, int, int]:
    """(M, K, N) as moved: rounded up to whole tiles if edges are padded."""
    if not shape.padded:
        return shape.M, shape.K, shape.N
    (m, k, n), (tm, tk, tn) = grid_of(shape), shape.tile
    return m * tm, k * tk, n * tn


def largest_tile(shape: SiteDims) -> tuple[int, int, int]:
    """(TM, TK, TN) of the largest tile; with ragged edges at most the size of the site."""
    if shape.padded:
        return shape.tile
    tm, tk, tn = shape.tile
    return min(tm, shape.M), min(tk, shape.K), min(tn, shape.N)


def packed_bytes(elements: int, bits: int) -> int:
    """Bytes of densely packed elements of any width."""
    return -(-elements * bits // 8)


def operand_bytes(shape: SiteDims, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Bytes of A, B and C for one product of these (M, K, N)."""
    M, K, N = sizes
    return (
        packed_bytes(M * K, shape.width),
        packed_bytes(K * N, shape.width),
        packed_bytes(M * N, shape.sum_width),
    )


def again(order: str, grid: tuple[int, int, int], depends: str) -> str:
    """The loops that fetch every tile of an operand again; the product of their trips is its fetches.

    A tile is fetched when a loop that it depends on advances, so every loop outside of that one fetches it
    again. A loop inside of all those leaves the tile in place, and a loop with one trip never advances.

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
    """The number of times that the tiles along an axis fill an array of this width."""
    t, count = shape.tile[axis], grid_of(shape)[axis]
    last = moved_sizes(shape)[axis] - (count - 1) * t
    return (count - 1) * -(-t // width) + -(-last // width)
