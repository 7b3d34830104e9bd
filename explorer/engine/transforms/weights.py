"""How the weight of a site lies in the tiled file, and how its bytes come to lie so.

Each layout is a payload that cuts the stored weight while the file is written: one strided copy a
slab, no second copy of the weight in memory. Edges that must be padded get zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from explorer.engine.bulk import Bundle
from explorer.engine.graph import Computed, Span, Tensor
from explorer.engine.transforms.sites import Weight

__all__ = ["Tiles", "blocks", "column_sums", "columns", "dense"]

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]


def _matrix(weight: Weight, at: int = 0) -> Array:
    """The weight as (K, N), a view of the stored bytes; of a stack the matrix `at`."""
    size = (weight.N, weight.K) if weight.transposed else (weight.K, weight.N)
    stored: Array = weight.tensor.array().reshape(weight.batch, *size)[at]
    return stored.T if weight.transposed else stored


def _block(matrix: Array, k: int, n: int, height: int, width: int, fill: int = 0) -> Array:
    """matrix[k:k+height, n:n+width], contiguous, with `fill` where it reaches beyond the matrix."""
    part = matrix[k : k + height, n : n + width]
    whole = part.shape == (height, width)
    if part.strides[0] >= part.strides[1] and whole:
        return np.ascontiguousarray(part)
    out = np.empty((height, width), part.dtype) if whole else np.full((height, width), fill, part.dtype)
    if part.strides[0] >= part.strides[1]:
        out[: part.shape[0], : part.shape[1]] = part
        return out
    # Stored rows a multiple of 4 KiB apart share their cache sets, and reading across them misses
    # every time: a copy with odd distances first makes the transposition five times faster.
    for first in range(0, part.shape[1], _STAGED):
        rows = part[:, first : first + _STAGED].T
        stage = np.empty((len(rows), rows.shape[1] + _ODD // part.itemsize), part.dtype)[:, : rows.shape[1]]
        np.copyto(stage, rows)
        np.copyto(out[: rows.shape[1], first : first + len(rows)], stage.T)
    return out


_ODD = 64
"""Bytes by which the rows of a staging buffer are longer than their content."""

_STAGED = 256
"""Stored rows that are transposed at once."""


def _bytes(array: Array) -> memoryview:
    # ml_dtypes' types have no buffer format: hand out plain bytes
    return array.reshape(-1).view(np.uint8).data


def _forget(weight: Weight, first: int, last: int) -> None:
    """Releases the mapped pages of stored rows first ... last-1."""
    payload = weight.tensor.payload
    if isinstance(payload, Span) and weight.batch == 1:
        row = payload.size // max(weight.N if weight.transposed else weight.K, 1)
        payload.release(first * row, last * row)


def _tensor(
    name: str, weight: Weight, shape: tuple[int, ...], slabs: Sequence[Callable[[], Iterator[memoryview]]]
) -> Tensor:
    """A tensor whose bytes are those of `slabs` one after the other."""
    size = weight.tensor.nbytes // max(weight.tensor.elements, 1) * math.prod(shape)
    make = slabs[0] if len(slabs) == 1 else lambda: itertools.chain.from_iterable(slab() for slab in slabs)
    return Tensor(name, weight.tensor.dtype, shape, Computed(size, make))


class _Slabs:
    """Makes the blocks at `corners` of the matrix `at`, each `height` x `width`, in order."""

    def __init__(
        self,
        weight: Weight,
        corners: list[tuple[int, int]],
        height: int,
        width: int,
        at: int = 0,
        fill: int = 0,
    ) -> None:
        self.weight = weight
        self.corners = corners
        self.height = height
        self.width = width
        self.at = at
        self.fill = fill

    def __call__(self) -> Iterator[memoryview]:
        if self.weight.cut is not None:
            for k, n in self.corners:
                yield _bytes(self.weight.cut(self.at, k, n, self.height, self.width, self.fill))
            _forget(self.weight, 0, max(self.weight.K, self.weight.N))
            return
        matrix = _matrix(self.weight, self.at)
        if not self.weight.transposed and matrix.nbytes > _MAPPED and len(self.corners) > 1:
            yield from self.from_bands(matrix)
            return
        done = 0
        for k, n in self.corners:
            yield _bytes(_block(matrix, k, n, self.height, self.width, self.fill))
            if self.weight.transposed and self.height >= self.weight.K:
                # a whole column is a run of stored rows that nobody needs again
                _forget(self.weight, done, n + self.width)
                done = n + self.width
        if len(self.corners) > 1:
            _forget(self.weight, 0, max(self.weight.K, self.weight.N))

    def from_bands(self, matrix: Array) -> Iterator[memoryview]:
        """The blocks of a large matrix that is stored across them, from a few columns of blocks at a time.

        A column of blocks lies in every page of the stored matrix: taken one by one they would map all of it.
        """
        rows = max(1, _MAPPED // 8 // max(matrix[:1].nbytes, 1))
        columns = max(1, _MAPPED // max(matrix[:, : self.width].nbytes, 1)) * self.width
        band, first, last = matrix[:, :0], 0, -1
        for k, n in self.corners:
            if not first <= n < last:
                first, last = n, n + columns
                band = np.empty((matrix.shape[0], min(columns, matrix.shape[1] - n)), matrix.dtype)
                for row in range(0, matrix.shape[0], rows):
                    band[row : row + rows] = matrix[row : row + rows, first:last]
                    _forget(self.weight, row, min(row + rows, matrix.shape[0]))
            yield _bytes(_block(band, k, n - first, self.height, self.width, self.fill))


_SLAB = 1 << 21
"""Bytes of a dense matrix that are made at once, unless its rows are long."""

_MAPPED = 1 << 27
"""Bytes of a weight that may be mapped at once where it is read across its rows."""


def dense(
    name: str, weight: Weight, height: int, width: int, first: int = 0, at: int | None = 0, fill: int = 0
) -> Tensor:
    """The (height, width) matrix that starts at column `first`, padded; in slabs of some rows.

    Args:
        name: Of the tensor.
        weight: What it is cut from.
        height: Rows.
        width: Columns.
        first: The first column.
        at: Which matrix of a stack; None for all, (batch, height, width).
        fill: What it is padded with.
    """
    row = weight.tensor.nbytes * width // max(weight.tensor.elements, 1)
    step = max(64, _SLAB // max(row, 1))
    rest = height % step
    corners = [(k, first) for k in range(0, height - rest, step)]
    slabs: list[Callable[[], Iterator[memoryview]]] = []
    for b in range(weight.batch) if at is None else (at,):
        slabs.append(_Slabs(weight, corners, step, width, b, fill))
        if rest:
            slabs.append(_Slabs(weight, [(height - rest, first)], rest, width, b, fill))
    shape = (height, width) if at is not None else (weight.batch, height, width)
    return _tensor(name, weight, shape, slabs)


def columns(
    name: str, weight: Weight, count: int, height: int, width: int, at: int | None = 0, fill: int = 0
) -> Tensor:
    """[count, height, width]: `count` columns of tiles, each a (K padded to height, TN) matrix.

    Of a whole stack (`at` is None) [batch, count, height, width].
    """
    corners = [(0, j * width) for j in range(count)]
    each = range(weight.batch) if at is None else (at,)
    slabs = [_Slabs(weight, corners, height, width, b, fill) for b in each]
    shape = (count, height, width) if at is not None else (weight.batch, count, height, width)
    return _tensor(name, weight, shape, slabs)


def blocks(
    name: str, weight: Weight, grid: tuple[int, int], height: int, width: int, fill: int = 0
) -> Tensor:
    """[n, k, TK, TN], of a stack [batch, 1, n, k, TK, TN]: every tile, padded; `grid` is (k, n)."""
    corners = [(k * height, n * width) for n in range(grid[1]) for k in range(grid[0])]
    sizes = [height] * grid[0], [width] * grid[1]
    slabs: list[Callable[[], Iterator[memoryview]]] = [
        Tiles(weight, (height, width), sizes, b, fill).bands
        if weight.transposed
        else _Slabs(weight, corners, height, width, b, fill)
        for b in range(weight.batch)
    ]
    shape = (grid[1], grid[0], height, width)
    return _tensor(name, weight, shape if weight.batch == 1 else (weight.batch, 1, *shape), slabs)


def column_sums(weight: Weight) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The sums of the columns of an integer weight; of a stack those of all its matrices, in a row."""
    made = []
    for at in range(weight.batch):
        if weight.cut is not None:
            matrix = weight.cut(at, 0, 0, weight.K, weight.N, 0)
        else:
            matrix = _matrix(weight, at)
        made.append(matrix.sum(0, dtype=np.int64))
    return np.concatenate(made)


class Tiles:
    """The tiles of one matrix, an initializer each.

    In the order in which the weight is stored they are cut a band at a time, one copy for all tiles along it:
    a copy for each of 14,000 tiles takes longer than the copying.

    Args:
        weight: The weight.
        tile: (TK, TN).
        sizes: Of the tiles along K, and along N.
        at: Which matrix of a stack.
        fill: What it is padded with.

    Attributes:
        places: (k, n) of every tile, in the order in which the weight is stored.
    """

    def __init__(
        self,
        weight: Weight,
        tile: tuple[int, int],
        sizes: tuple[Sequence[int], Sequence[int]],
        at: int = 0,
        fill: int = 0,
    ) -> None:
        self._weight = weight
        self._tile = tile
        self._sizes = sizes
        self._at = at
        self._fill = fill
        self._matrix: Array | None = None
        self._band: tuple[int, Array] | None = None
        self._itemsize = weight.tensor.nbytes // max(weight.tensor.elements, 1)
        ks, ns = (range(len(of_axis)) for of_axis in sizes)
        self.places = (
            [(k, n) for n in ns for k in ks] if weight.transposed else list(itertools.product(ks, ns))
        )

    def bundle(self, names: Sequence[str]) -> Bundle:
        """The tiles under these names, in the order of `places`."""
        ks, ns = self._sizes
        dtype = self._weight.tensor.dtype
        shapes = [(ks[k], ns[n]) for k, n in self.places]

        def single(at: int) -> Tensor:
            payload = Computed(math.prod(shapes[at]) * self._itemsize, lambda: iter((self._made(at),)))
            return Tensor(names[at], dtype, shapes[at], payload)

        return Bundle(dtype, names, shapes, single, self._each)

    def bands(self) -> Iterator[memoryview]:
        """The bytes of all tiles in the order of `places`, those along a band at once."""
        for band, single in self._along():
            yield band if band is not None else memoryview(b"".join(map(self._made, single)))

    def _each(self) -> Iterator[memoryview]:
        """The bytes of every tile in the order of `places`."""
        for band, single in self._along():
            if band is None:
                yield from map(self._made, single)
                continue
            size = len(band) // len(single)
            for at in range(0, len(band), size):
                yield band[at : at + size]

    def _along(self) -> Iterator[tuple[memoryview | None, range]]:
        """The bytes of the tiles along each band, None where an edge or a cut needs them one by one."""
        across = len(self._sizes[0 if self._weight.transposed else 1])
        for first in range(0, len(self.places), across):
            single = range(first, first + across)
            k, n = self.places[single[-1]]
            inside = (k + 1) * self._tile[0] <= self._weight.K and (n + 1) * self._tile[1] <= self._weight.N
            if self._weight.cut is not None or not inside:
                yield None, single
                continue
            self._made(first)
            assert self._band is not None
            yield _bytes(self._band[1]), single

    def _made(self, at: int) -> memoryview:
        tk, tn = self._tile
        k, n = self.places[at]
        height, width = self._sizes[0][k], self._sizes[1][n]
        if self._weight.cut is not None:
            return _bytes(self._weight.cut(self._at, k * tk, n * tn, height, width, self._fill))
        if self._matrix is None:
            self._matrix = _matrix(self._weight, self._at)
        along, across = (n, k) if self._weight.transposed else (k, n)
        inside = (k + 1) * tk <= self._weight.K and (n + 1) * tn <= self._weight.N
        if not inside or not self._in_band(along, across):
            return _bytes(_block(self._matrix, k * tk, n * tn, height, width, self._fill))
        assert self._band is not None
        return _bytes(self._band[1][across])

    def _in_band(self, along: int, across: int) -> bool:
        """Whether the band with a tile is at hand; the first of a band makes it."""
        if across == 0:
            assert self._matrix is not None
            tk, tn = self._tile
            if self._weight.transposed:
                rows, size, turned = self._matrix.T, (tn, tk), (1, 2, 0)
            else:
                rows, size, turned = self._matrix, (tk, tn), (1, 0, 2)
            count = rows.shape[1] // size[1]
            first = along * size[0]
            # rows an odd distance apart, see `_block`
            stage = np.empty((size[0], rows.shape[1] + _ODD // self._itemsize), rows.dtype)
            np.copyto(stage[:, : rows.shape[1]], rows[first : first + size[0]])
            tiles = stage[:, : count * size[1]].reshape(size[0], count, size[1])
            self._band = along, np.ascontiguousarray(tiles.transpose(turned))
            _forget(self._weight, first, first + size[0])
        return self._band is not None and self._band[0] == along
