"""Weight layout: how the weight of a site lies in the tiled file, and how its bytes come to lie so.

Each layout is a payload that cuts the stored weight while the file is written: one strided copy a
slab, no second copy of the weight in memory. Edges that must be padded get zeros.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.graph.model import ComputedPayload, FileSpan, Tensor
from explorer.engine.graph.repeated_nodes import WeightBundle
from explorer.engine.tiling.emit.padding import ODD_BYTES, padded_block
from explorer.engine.tiling.sites import Weight

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def _matrix(weight: Weight, at: int = 0) -> Array:
    """The weight as (K, N), a view of the stored bytes; of a stack the matrix `at`."""
    size = (weight.N, weight.K) if weight.transposed else (weight.K, weight.N)
    matrix: Array = weight.tensor.array().reshape(weight.batch, *size)[at]
    return matrix.T if weight.transposed else matrix


def _bytes(array: Array) -> memoryview:
    # ml_dtypes' types have no buffer format: hand out plain bytes
    return array.reshape(-1).view(np.uint8).data


def _forget(weight: Weight, first: int, last: int) -> None:
    """Releases the mapped pages of stored rows first ... last-1."""
    payload = weight.tensor.payload
    if isinstance(payload, FileSpan) and weight.batch == 1:
        row = payload.size // max(weight.N if weight.transposed else weight.K, 1)
        payload.release(first * row, last * row)


def _itemsize(weight: Weight) -> int:
    return weight.tensor.nbytes // max(weight.tensor.elements, 1)


def _lies(weight: Weight) -> bool:
    """Whether the bytes lie in a file, and nothing is reckoned before they are cut."""
    return weight.cut is None and isinstance(weight.tensor.payload, FileSpan)


def _tensor(name: str, weight: Weight, shape: tuple[int, ...], slabs: Sequence[ComputedPayload]) -> Tensor:
    """A tensor whose bytes are those of `slabs` one after the other."""
    payload = slabs[0]
    if len(slabs) > 1:
        # across the rows of the file several at once would map, or hold, too much of it
        apart = tuple(slabs) if weight.transposed and _lies(weight) else ()
        size = sum(slab.size for slab in slabs)
        payload = ComputedPayload(
            size, lambda: itertools.chain.from_iterable(slab.make() for slab in slabs), apart
        )
    return Tensor(name, weight.tensor.dtype, shape, payload)


class _Slabs(Struct):
    """The blocks at `corners` of the matrix `at`, each `height` x `width`; which of them were `made`."""

    weight: Weight
    corners: list[tuple[int, int]]
    height: int
    width: int
    at: int = 0
    made: list[int] = field(default_factory=list)

    def payloads(self) -> list[ComputedPayload]:
        """Their bytes, as payloads that can each be made by itself."""
        size = self.height * self.width * _itemsize(self.weight)
        if not self.weight.transposed or not _lies(self.weight):
            return [ComputedPayload(len(self.corners) * size, self.in_order)]
        # pages of a large weight are kept mapped until all blocks are made: not beside those of another
        alone = self.height >= self.weight.K or self.weight.tensor.nbytes <= _BESIDE
        return [
            ComputedPayload(size, functools.partial(self.single, at), alone=alone or at > 0)
            for at in range(len(self.corners))
        ]

    def single(self, at: int) -> Iterator[memoryview]:
        """A block of a matrix that is stored along its columns."""
        k, n = self.corners[at]
        yield _bytes(padded_block(_matrix(self.weight, self.at), k, n, self.height, self.width))
        if self.height >= self.weight.K:
            # a whole column is a run of stored rows that nobody needs again
            _forget(self.weight, n, n + self.width)
            return
        self.made.append(at)
        if len(self.corners) > 1 and len(self.made) % len(self.corners) == 0:
            _forget(self.weight, 0, max(self.weight.K, self.weight.N))

    def in_order(self) -> Iterator[memoryview]:
        """All blocks."""
        if self.weight.cut is not None:
            for k, n in self.corners:
                yield _bytes(self.weight.cut(self.at, k, n, self.height, self.width))
            _forget(self.weight, 0, max(self.weight.K, self.weight.N))
            return
        matrix = _matrix(self.weight, self.at)
        if not self.weight.transposed and matrix.nbytes > _MAPPED and len(self.corners) > 1:
            yield from self.from_bands(matrix)
            return
        for k, n in self.corners:
            yield _bytes(padded_block(matrix, k, n, self.height, self.width))
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
            yield _bytes(padded_block(band, k, n - first, self.height, self.width))


_SLAB = 1 << 21
"""Bytes of a dense matrix that are made at once, unless its rows are long."""

_BESIDE = 1 << 25
"""Bytes of a weight that may be mapped beside another."""

_MAPPED = 1 << 27
"""Bytes of a weight that may be mapped at once where it is read across its rows."""


def dense(name: str, weight: Weight, height: int, width: int, first: int = 0, at: int | None = 0) -> Tensor:
    """The (height, width) matrix that starts at column `first`, padded; in slabs of some rows.

    Args:
        name: Of the tensor.
        weight: What it is cut from.
        height: Rows.
        width: Columns.
        first: The first column.
        at: Which matrix of a stack; None for all, (batch, height, width).
    """
    step = max(64, _SLAB // max(width * _itemsize(weight), 1) // 64 * 64)
    rest = height % step
    corners = [(k, first) for k in range(0, height - rest, step)]
    slabs: list[ComputedPayload] = []
    for b in range(weight.batch) if at is None else (at,):
        slabs += _Slabs(weight, corners, step, width, b).payloads()
        if rest:
            slabs += _Slabs(weight, [(height - rest, first)], rest, width, b).payloads()
    shape = (height, width) if at is not None else (weight.batch, height, width)
    return _tensor(name, weight, shape, slabs)


def columns(name: str, weight: Weight, count: int, height: int, width: int, at: int | None = 0) -> Tensor:
    """[count, height, width]: `count` columns of tiles, each a (K padded to height, TN) matrix.

    Of a whole stack (`at` is None) [batch, count, height, width].
    """
    corners = [(0, j * width) for j in range(count)]
    each = range(weight.batch) if at is None else (at,)
    slabs = [slab for b in each for slab in _Slabs(weight, corners, height, width, b).payloads()]
    shape = (count, height, width) if at is not None else (weight.batch, count, height, width)
    return _tensor(name, weight, shape, slabs)


def blocks(name: str, weight: Weight, grid: tuple[int, int], height: int, width: int) -> Tensor:
    """[n, k, TK, TN], of a stack [batch, 1, n, k, TK, TN]: every tile, padded; `grid` is (k, n)."""
    corners = [(k * height, n * width) for n in range(grid[1]) for k in range(grid[0])]
    sizes = [height] * grid[0], [width] * grid[1]
    slabs: list[ComputedPayload] = []
    for b in range(weight.batch):
        if weight.transposed:
            slabs += WeightTiles(weight, (height, width), sizes, b).payloads()
        else:
            slabs += _Slabs(weight, corners, height, width, b).payloads()
    shape = (grid[1], grid[0], height, width)
    return _tensor(name, weight, shape if weight.batch == 1 else (weight.batch, 1, *shape), slabs)


def column_sums(weight: Weight) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The sums of the columns of an integer weight; of a stack those of all its matrices, in a row."""
    each = (matrix_of(weight, at, 0, weight.N) for at in range(weight.batch))
    return np.concatenate([matrix.sum(0, dtype=np.int64) for matrix in each])


def matrix_of(weight: Weight, at: int, first: int, width: int) -> Array:
    """Some columns of one matrix, (K, width)."""
    if weight.cut is None:
        return _matrix(weight, at)[:, first : first + width]
    block: Array = weight.cut(at, 0, first, weight.K, width)
    return block


class WeightTiles:
    """The tiles of one matrix, an initializer each.

    In the order in which the weight is stored they are cut a band at a time, one copy for all tiles along it:
    a copy for each of 14,000 tiles takes longer than the copying.

    Args:
        weight: The weight.
        tile: (TK, TN).
        sizes: Of the tiles along K, and along N.
        at: Which matrix of a stack.

    Attributes:
        places: (k, n) of every tile, in the order in which the weight is stored.
    """

    def __init__(
        self,
        weight: Weight,
        tile: tuple[int, int],
        sizes: tuple[Sequence[int], Sequence[int]],
        at: int = 0,
    ) -> None:
        self._weight = weight
        self._tile = tile
        self._sizes = sizes
        self._at = at
        self._itemsize = _itemsize(weight)
        self._across = len(sizes[0 if weight.transposed else 1])
        ks, ns = (range(len(of_axis)) for of_axis in sizes)
        self.places = (
            [(k, n) for n in ns for k in ks] if weight.transposed else list(itertools.product(ks, ns))
        )

    def bundle(self, names: Sequence[str]) -> WeightBundle:
        """The tiles under these names, in the order of `places`."""
        ks, ns = self._sizes
        dtype = self._weight.tensor.dtype
        shapes = [(ks[k], ns[n]) for k, n in self.places]

        def single(at: int) -> Tensor:
            payload = ComputedPayload(
                math.prod(shapes[at]) * self._itemsize, lambda: iter((self._single(at),))
            )
            return Tensor(names[at], dtype, shapes[at], payload)

        along = range(len(names) // self._across)
        bands = [(self._across, functools.partial(self._band, at)) for at in along]

        def data() -> Iterator[memoryview]:
            return itertools.chain.from_iterable(map(self._band, along))

        return WeightBundle(dtype, names, shapes, single, data, bands if _lies(self._weight) else ())

    def payloads(self) -> list[ComputedPayload]:
        """The bytes of all tiles in the order of `places`, those along a band at once; each is padded."""
        size = self._across * math.prod(self._tile) * self._itemsize
        along = range(len(self.places) // self._across)
        return [
            ComputedPayload(size, functools.partial(self._band, at, whole=True), alone=True) for at in along
        ]

    def _band(self, along: int, *, whole: bool = False) -> Iterator[memoryview]:
        """The bytes of the tiles along a band, those inside the matrix as a whole if that is asked for."""
        tiles = self._inside(along)
        if len(tiles):
            tile_bytes = _bytes(tiles)
            size = len(tile_bytes) if whole else len(tile_bytes) // len(tiles)
            for at in range(0, len(tile_bytes), size):
                yield tile_bytes[at : at + size]
        first = along * self._across
        yield from map(self._single, range(first + len(tiles), first + self._across))
        if self._weight.cut is None:
            step = self._tile[1 if self._weight.transposed else 0]
            _forget(self._weight, along * step, (along + 1) * step)

    def _single(self, at: int) -> memoryview:
        tk, tn = self._tile
        k, n = self.places[at]
        height, width = self._sizes[0][k], self._sizes[1][n]
        if self._weight.cut is not None:
            return _bytes(self._weight.cut(self._at, k * tk, n * tn, height, width))
        return _bytes(padded_block(_matrix(self._weight, self._at), k * tk, n * tn, height, width))

    def _inside(self, along: int) -> Array:
        """The tiles along a band that lie inside the matrix."""
        tk, tn = self._tile
        if self._weight.cut is not None:
            return np.empty(0)
        matrix = _matrix(self._weight, self._at)
        rows, size, turned = (
            (matrix.T, (tn, tk), (1, 2, 0)) if self._weight.transposed else (matrix, (tk, tn), (1, 0, 2))
        )
        rows = rows[along * size[0] : (along + 1) * size[0]]
        if len(rows) < size[0]:
            return np.empty(0)
        # rows an odd distance apart, see `padded_block`
        stage = np.empty((size[0], rows.shape[1] + ODD_BYTES // self._itemsize), rows.dtype)
        np.copyto(stage[:, : rows.shape[1]], rows)
        count = rows.shape[1] // size[1]
        tiles = stage[:, : count * size[1]].reshape(size[0], count, size[1])
        return np.ascontiguousarray(tiles.transpose(turned))
