"""Tile grid of a matmul, counted without drawing it: which tiles along M, N and K make which block.

Pure arithmetic on a `SitePlan`, so that what the tile view shows is tested by counting, without a screen. One
product of tiles is (m, n, k): the block of the output in row m and column n of the grid takes one from each
of the k slices of the depth. A site of several products side by side (heads, groups) has a grid for each.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts import SitePlan

Interval = tuple[int, int]


class TileAxis(Struct, frozen=True):
    """One side of a product, cut into tiles."""

    size: int
    tile: int

    @property
    def count(self) -> int:
        """Tiles of the axis."""
        return -(-self.size // self.tile)

    def span(self, index: int, stop: int | None = None) -> Interval:
        """The elements of tile `index`, or of tiles `index` to `stop`: first, and one past the last."""
        last = index + 1 if stop is None else stop
        return index * self.tile, min(last * self.tile, self.size)

    @property
    def rest(self) -> int:
        """Elements of the last tile, which may be a partial tile."""
        return self.size - (self.count - 1) * self.tile

    def used(self, index: int, stop: int | None = None) -> float:
        """Filled share of tile `index`, or of tiles `index` to `stop`."""
        first, last = self.span(index, stop)
        return (last - first) / (((stop or index + 1) - index) * self.tile)


class TilePlace(Struct, frozen=True):
    """The chosen place: a product of the batch, a block of its output, a slice of the depth."""

    batch: int = 0
    row: int = 0
    col: int = 0
    depth: int = 0


class TileBlock(Struct, frozen=True):
    """A block of the output: its elements, and the share of the matrix unit's arithmetic that it needs."""

    rows: Interval
    cols: Interval
    used: float


class TileProduct(Struct, frozen=True):
    """One tile product: A[rows, depth] times B[depth, cols]."""

    index: int
    rows: Interval
    depth: Interval
    cols: Interval
    used: float


class Scale(Struct, frozen=True):
    """How many tiles one cell of the drawing stands for."""

    count: int
    per: int

    @property
    def cells(self) -> int:
        """Cells that are drawn."""
        return -(-self.count // self.per)

    def tiles(self, cell: int) -> tuple[int, int]:
        """The tiles of a cell: first, and one past the last."""
        return cell * self.per, min((cell + 1) * self.per, self.count)

    @classmethod
    def of(cls, count: int, room: int) -> Scale:
        """The finest scale that fits `room` cells."""
        return cls(count, max(1, -(-count // max(1, room))))


class TileGrid(Struct, frozen=True):
    """A site as a grid of blocks.

    Attributes:
        m, k, n: The three sides.
        batch: Products of this size side by side.
    """

    m: TileAxis
    k: TileAxis
    n: TileAxis
    batch: int = 1

    @classmethod
    def of(cls, site: SitePlan) -> TileGrid:
        """The grid of a site."""
        tm, tk, tn = site.tile
        return cls(TileAxis(site.M, tm), TileAxis(site.K, tk), TileAxis(site.N, tn), max(1, site.batch))

    @property
    def products(self) -> int:
        """Tile products of the site."""
        return self.batch * self.m.count * self.k.count * self.n.count

    def block(self, place: TilePlace) -> TileBlock:
        """The chosen block of the output."""
        row, col = place.row, place.col
        return TileBlock(self.m.span(row), self.n.span(col), self.cell(row, row + 1, col, col + 1))

    def product(self, place: TilePlace, index: int) -> TileProduct:
        """The product of the slice `index` of the depth for the chosen block."""
        used = self.m.used(place.row) * self.k.used(index) * self.n.used(place.col)
        return TileProduct(index, self.m.span(place.row), self.k.span(index), self.n.span(place.col), used)

    def cell(self, row: int, row_stop: int, col: int, col_stop: int) -> float:
        """Needed share of the arithmetic of a range of blocks, over all their products."""
        depth = self.k.used(0, self.k.count)
        return self.m.used(row, row_stop) * depth * self.n.used(col, col_stop)

    def moved(self, place: TilePlace, **by: int) -> TilePlace:
        """The place moved by so many tiles along each axis in `by`, stopped at the edges."""
        to = {axis: max(0, min(getattr(place, axis) + by[axis], self.count(axis) - 1)) for axis in by}
        return replace(place, **to)

    def step_of(self, place: TilePlace, order: str) -> int:
        """The step that makes the product, in a loop order such as 'mnk', outermost loop first."""
        at = {
            "m": (place.row, self.m.count),
            "k": (place.depth, self.k.count),
            "n": (place.col, self.n.count),
        }
        step = place.batch
        for loop in order:
            index, count = at[loop]
            step = step * count + index
        return step

    def at_step(self, step: int, order: str) -> TilePlace:
        """The product that is made at a step."""
        counts, found = {"m": self.m.count, "k": self.k.count, "n": self.n.count}, {}
        for loop in reversed(order):
            step, found[loop] = divmod(step, counts[loop])
        return TilePlace(step, found["m"], found["n"], found["k"])

    def count(self, axis: str) -> int:
        """Number of places along an axis of a `TilePlace`."""
        counts = {"batch": self.batch, "row": self.m.count, "col": self.n.count, "depth": self.k.count}
        return counts[axis]
