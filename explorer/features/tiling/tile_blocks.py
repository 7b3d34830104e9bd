"""Arithmetic of the tile grid of a matmul: which tiles along M, N and K make which block of the output.

A tile matmul (m, n, k) multiplies two tiles. The output block in row m and column n of the grid sums the tile
matmuls of all slices k of the depth (axis K). Each matmul of a batch (heads, groups) has a grid of its own.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from explorer.facts import SitePlan

Interval = tuple[int, int]


class TileAxis(Struct, frozen=True):
    """One axis of a matmul, cut into tiles; `size` and `tile` are numbers of elements."""

    size: int
    tile: int

    @property
    def count(self) -> int:
        """Number of tiles along the axis."""
        return -(-self.size // self.tile)

    def span(self, index: int, stop: int | None = None) -> Interval:
        """Return the half-open interval of elements in tile `index`, or in tiles `index` to `stop - 1`."""
        last = index + 1 if stop is None else stop
        return index * self.tile, min(last * self.tile, self.size)

    @property
    def last_size(self) -> int:
        """Number of elements in the last tile, which may be a partial tile."""
        return self.size - (self.count - 1) * self.tile

    def compute_filled_share(self, index: int, stop: int | None = None) -> float:
        """Compute the share of tile `index`, or of the tiles `index` to `stop - 1`, that holds elements."""
        first, last = self.span(index, stop)
        return (last - first) / (((stop or index + 1) - index) * self.tile)


class TilePlace(Struct, frozen=True):
    """Indices of a tile matmul: matmul of the batch, row and column of its output block, depth slice."""

    batch: int = 0
    row: int = 0
    col: int = 0
    depth: int = 0


class TileBlock(Struct, frozen=True):
    """A block of the output: its elements, and the share of the tiles' arithmetic that is needed for them."""

    rows: Interval
    cols: Interval
    utilization: float


class TileProduct(Struct, frozen=True):
    """One tile matmul: A[rows, depth] times B[depth, cols]. `index` is the number of its slice along K."""

    index: int
    rows: Interval
    depth: Interval
    cols: Interval
    utilization: float


class Scale(Struct, frozen=True):
    """Scale of a drawing of `count` tiles, in which each cell shows `per` tiles."""

    count: int
    per: int

    @property
    def cells(self) -> int:
        """Number of drawn cells."""
        return -(-self.count // self.per)

    def tiles(self, cell: int) -> tuple[int, int]:
        """Return the tiles of a cell as a half-open interval."""
        return cell * self.per, min((cell + 1) * self.per, self.count)

    @classmethod
    def fit(cls, count: int, room: int) -> Scale:
        """Create the finest scale for `count` tiles that fits in `room` cells."""
        return cls(count, max(1, -(-count // max(1, room))))


class TileGrid(Struct, frozen=True):
    """A site as a grid of output blocks.

    Attributes:
        m, k, n: Axes of the matmul.
        batch: Number of matmuls of this size side by side.
    """

    m: TileAxis
    k: TileAxis
    n: TileAxis
    batch: int = 1

    @classmethod
    def from_site(cls, site: SitePlan) -> TileGrid:
        """Build the grid of a site."""
        tm, tk, tn = site.tile
        return cls(TileAxis(site.M, tm), TileAxis(site.K, tk), TileAxis(site.N, tn), max(1, site.batch))

    @property
    def products(self) -> int:
        """Number of tile matmuls of the site."""
        return self.batch * self.m.count * self.k.count * self.n.count

    def block(self, place: TilePlace) -> TileBlock:
        """Return the output block at a place."""
        row, col = place.row, place.col
        return TileBlock(
            self.m.span(row), self.n.span(col), self.compute_utilization(row, row + 1, col, col + 1)
        )

    def product(self, place: TilePlace, index: int) -> TileProduct:
        """Return the tile matmul of slice `index` of the depth, for the block at a place."""
        share = (
            self.m.compute_filled_share(place.row)
            * self.k.compute_filled_share(index)
            * self.n.compute_filled_share(place.col)
        )
        return TileProduct(index, self.m.span(place.row), self.k.span(index), self.n.span(place.col), share)

    def compute_utilization(self, row: int, row_stop: int, col: int, col_stop: int) -> float:
        """Compute the share of the arithmetic that a range of blocks needs, over all their tile matmuls."""
        depth = self.k.compute_filled_share(0, self.k.count)
        return self.m.compute_filled_share(row, row_stop) * depth * self.n.compute_filled_share(col, col_stop)

    def move(self, place: TilePlace, **steps: int) -> TilePlace:
        """Move a place by a number of tiles along each axis in `steps`, at most to the edges."""
        target = {
            axis: max(0, min(getattr(place, axis) + steps[axis], self.count_places(axis) - 1))
            for axis in steps
        }
        return replace(place, **target)

    def find_step(self, place: TilePlace, order: str) -> int:
        """Find the step of a tile matmul in a loop order such as 'mnk': m is the outermost loop."""
        positions = {
            "m": (place.row, self.m.count),
            "k": (place.depth, self.k.count),
            "n": (place.col, self.n.count),
        }
        step = place.batch
        for loop in order:
            index, count = positions[loop]
            step = step * count + index
        return step

    def find_place(self, step: int, order: str) -> TilePlace:
        """Find the tile matmul of a step in a loop order. It is the inverse of `find_step`."""
        counts, indices = {"m": self.m.count, "k": self.k.count, "n": self.n.count}, {}
        for loop in reversed(order):
            step, indices[loop] = divmod(step, counts[loop])
        return TilePlace(step, indices["m"], indices["n"], indices["k"])

    def count_places(self, axis: str) -> int:
        """Count the values of a field of `TilePlace`: 'batch', 'row', 'col' or 'depth'."""
        counts = {"batch": self.batch, "row": self.m.count, "col": self.n.count, "depth": self.k.count}
        return counts[axis]
