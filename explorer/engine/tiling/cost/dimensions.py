"""Dimensions of a site: the sizes, tiles and bit widths that determine its cost.

The cost model (`cost`) and the formulas that explain it (`formulas`) use this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from explorer.base.errors import Misuse
from explorer.engine.graph.dtypes import ELEMENT_TYPES
from explorer.facts import SitePlan
from explorer.facts.cost import Dataflow, SiteCost

if TYPE_CHECKING:
    import numpy as np

_Elements = TypeVar("_Elements", int, "np.ndarray[Any, np.dtype[Any]]")

OPERANDS = (("A", "mk"), ("B", "kn"), ("C", "mn"))
"""The three operands, each with the loops that it depends on."""

ARRAY_AXES: dict[Dataflow, tuple[int, int, int]] = {
    "output-stationary": (0, 2, 1),
    "weight-stationary": (1, 2, 0),
    "input-stationary": (1, 0, 2),
}
"""For each dataflow, indices into (M, K, N): the array's rows, its columns, and the streaming axis."""

_BITS = {name: bits for _, name, bits in ELEMENT_TYPES if bits}


class SiteDims(NamedTuple):
    """The properties of a site that determine its cost; sizes in elements, widths in bits."""

    M: int
    K: int
    N: int
    batch: int
    tile: tuple[int, int, int]
    padded: bool
    width: int
    sum_width: int
    macs: int


def get_site_dims(site: SitePlan | SiteCost) -> SiteDims:
    """Returns the dimensions of a site.

    Raises:
        Misuse: The width of one of the site's types is unknown.
    """
    width, sum_width = (get_type_bits(dtype, site.name) for dtype in (site.dtype, site.accumulator))
    is_padded = site.edges == "padded"
    macs = site.macs if site.macs is not None else site.batch * site.M * site.K * site.N
    return SiteDims(site.M, site.K, site.N, site.batch, site.tile, is_padded, width, sum_width, macs)


def get_type_bits(dtype: str, site: str) -> int:
    """Returns the bits of an element of a number type.

    Raises:
        Misuse: The width of the type is unknown.
    """
    if dtype not in _BITS:
        raise Misuse(f"the size of a '{dtype}' is not known", where=site)
    return _BITS[dtype]


def compute_grid(shape: SiteDims) -> tuple[int, int, int]:
    """Computes (m, k, n), the number of tiles along M, K and N."""
    tm, tk, tn = shape.tile
    return -(-shape.M // tm), -(-shape.K // tk), -(-shape.N // tn)


def round_up_sizes(shape: SiteDims) -> tuple[int, int, int]:
    """Returns (M, K, N) as moved: rounded up to whole tiles if edges are padded."""
    if not shape.padded:
        return shape.M, shape.K, shape.N
    (m, k, n), (tm, tk, tn) = compute_grid(shape), shape.tile
    return m * tm, k * tk, n * tn


def find_largest_tile(shape: SiteDims) -> tuple[int, int, int]:
    """Returns (TM, TK, TN) of the largest tile. With ragged edges, it is at most the size of the site."""
    if shape.padded:
        return shape.tile
    tm, tk, tn = shape.tile
    return min(tm, shape.M), min(tk, shape.K), min(tn, shape.N)


def count_packed_bytes(elements: _Elements, bits: int) -> _Elements:
    """Computes the bytes of densely packed elements of any bit width."""
    return -(-elements * bits // 8)


def count_operand_bytes(shape: SiteDims, sizes: tuple[int, int, int]) -> tuple[int, int, int]:
    """Computes the bytes of A, B and C for one matmul of size `sizes`, (M, K, N)."""
    M, K, N = sizes
    return (
        count_packed_bytes(M * K, shape.width),
        count_packed_bytes(K * N, shape.width),
        count_packed_bytes(M * N, shape.sum_width),
    )


def find_refetch_loops(order: str, grid: tuple[int, int, int], operand_loops: str) -> str:
    """Returns the loops that fetch every tile of an operand again.

    The product of their trips is the number of fetches of each tile. A tile is fetched when a loop that it
    depends on advances. Every other loop outside of such a loop repeats the fetches. A loop inside all of
    them keeps the tile. A loop with one trip never advances.

    Args:
        order: Loops from the outermost to the innermost.
        grid: Trips of m, k and n.
        operand_loops: Loops that the operand depends on.
    """
    trips = dict(zip("mkn", grid, strict=True))
    repeated_loops = [loop for loop in order if trips[loop] > 1]
    fetch_indices = [index for index, loop in enumerate(repeated_loops) if loop in operand_loops]
    if not fetch_indices:
        return ""
    return "".join(loop for loop in repeated_loops[: fetch_indices[-1]] if loop not in operand_loops)


def count_folds(shape: SiteDims, axis: int, width: int) -> int:
    """Computes the number of folds along an axis: parts of at most `width` elements of each tile."""
    t, count = shape.tile[axis], compute_grid(shape)[axis]
    last = round_up_sizes(shape)[axis] - (count - 1) * t
    return (count - 1) * -(-t // width) + -(-last // width)
