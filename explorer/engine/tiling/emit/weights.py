"""Weight layout: the layouts of a site's weight in the tiled file, and how their bytes are made.

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
    """The weight, or the matrix `at` of a stack, as (K, N): a view of the stored bytes."""
    size = (weight.N, weight.K) if weight.transposed else (weight.K, weight.N)
    matrix: Array = weight.tensor.array().reshape(weight.batch, *size)[at]
    return matrix.T if weight.transposed else matrix


def _bytes(array: Array) -> memoryview:
    # types of ml_dtypes have no buffer format: use plain bytes
    return array.reshape(-1).view(np.uint8).data


def _release_pages(weight: Weight, first: int, last: int) -> None:
    """Releases the mapped pages of the stored rows from `first` to `last` - 1."""
    payload = weight.tensor.payload
    if isinstance(payload, FileSpan) and weight.batch == 1:
        row = payload.size // max(weight.N if weight.transposed else weight.K, 1)
        payload.release(first * row, last * row)


def _itemsize(weight: Weight) -> int:
    return weight.tensor.nbytes // max(weight.tensor.elements, 1)


def _lies_in_file(weight: Weight) -> bool:
    """Whether the bytes lie in a file and need no computation before they are cut."""
    return weight.cut is None and isinstance(weight.tensor.payload, FileSpan)


def _tensor(name: str, weight: Weight, shape: tuple[int, ...], slabs: Sequence[ComputedPayload]) -> Tensor:
    """A tensor whose bytes are the `slabs` in sequence."""
    payload = slabs[0]
    if len(slabs) > 1:
        # cutting across the file's rows in parallel would map or hold too much of it
        apart = tuple(slabs) if weight.transposed and _lies_in_file(weight) else ()
        size = sum(slab.size for slab in slabs)
        payload = ComputedPayload(
            size, lambda: itertools.chain.from_iterable(slab.make() for slab in slabs), apart
        )
    return Tensor(name, weight.tensor.dtype, shape, payload)


class _Slabs(Struct):
    """The blocks at `corners` of the matrix `at`, each `height` x `width`; `made` lists those done."""

    weight: Weight
    corners: list[tuple[int, int]]
    height: int
    width: int
    at: int = 0
    made: list[int] = field(default_factory=list)

    def payloads(self) -> list[ComputedPayload]:
        """The bytes of the blocks, as payloads that can each be made independently."""
        size = self.height * self.width * _itemsize(self.weight)
        if not self.weight.transposed or not _lies_in_file(self.weight):
            return [ComputedPayload(len(self.corners) * size, self.in_order)]
        # pages of a large weight stay mapped until all its blocks are made: one such weight at a time
        alone = self.height >= self.weight.K or self.weight.tensor.nbytes <= _BESIDE
        return [
            ComputedPayload(size, functools.partial(self.single, at), alone=alone or at > 0)
            for at in range(len(self.corners))
        ]

    def single(self, at: int) -> Iterator[memoryview]:
        """One block of a matrix that is stored column by column."""
        k, n = self.corners[at]
        yield _bytes(padded_block(_matrix(self.weight, self.at), k, n, self.height, self.width))
        if self.height >= self.weight.K:
            # a whole column is a range of stored rows that is not needed again
            _release_pages(self.weight, n, n + self.width)
            return
        self.made.append(at)
        if len(self.corners) > 1 and len(self.made) % len(self.corners) == 0:
            _release_pages(self.weight, 0, max(self.weight.K, self.weight.N))

    def in_order(self) -> Iterator[memoryview]:
        """All blocks, in order."""
        if self.weight.cut is not None:
            for k, n in self.corners:
                yield _bytes(self.weight.cut(self.at, k, n, self.height, self.width))
            _release_pages(self.weight, 0, max(self.weight.K, self.weight.N))
            return
        matrix = _matrix(self.weight, self.at)
        if not self.weight.transposed and matrix.nbytes > _MAPPED and len(self.corners) > 1:
            yield from self.from_bands(matrix)
            return
        for k, n in self.corners:
            yield _bytes(padded_block(matrix, k, n, self.height, self.width))
        if len(self.corners) > 1:
            _release_pages(self.weight, 0, max(self.weight.K, self.weight.N))

    def from_bands(self, matrix: Array) -> Iterator[memoryview]:
        """The blocks of a large matrix that is stored row by row, from a few columns of blocks at a time.

        A column of blocks touches every page of the matrix; taken one by one, the columns would each map all
        of it.
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
                    _release_pages(self.weight, row, min(row + rows, matrix.shape[0]))
            yield _bytes(padded_block(band, k, n - first, self.height, self.width))


_SLAB = 1 << 21
"""Bytes of a dense matrix that are made at once, unless a single row is longer."""

_BESIDE = 1 << 25
"""Bytes of a weight that may be mapped at the same time as another weight."""

_MAPPED = 1 << 27
"""Bytes of a weight that may be mapped at once while it is read across its rows."""


def dense(name: str, weight: Weight, height: int, width: int, first: int = 0, at: int | None = 0) -> Tensor:
    """The padded (height, width) matrix that starts at column `first`, made in slabs of rows.

    Args:
        name: Name of the tensor.
        weight: The weight that it is cut from.
        height: Rows.
        width: Columns.
        first: The first column.
        at: The index of a matrix in a stack; None for all, (batch, height, width).
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
    """`count` columns of tiles as [count, height, width], with K padded to `height` and `width` = TN.

    For a whole stack (`at` is None): [batch, count, height, width].
    """
    corners = [(0, j * width) for j in range(count)]
    each = range(weight.batch) if at is None else (at,)
    slabs = [slab for b in each for slab in _Slabs(weight, corners, height, width, b).payloads()]
    shape = (count, height, width) if at is not None else (weight.batch, count, height, width)
    return _tensor(name, weight, shape, slabs)


def blocks(name: str, weight: Weight, grid: tuple[int, int], height: int, width: int) -> Tensor:
    """All padded tiles: [n, k, TK, TN], or [batch, 1, n, k, TK, TN] for a stack; `grid` is (k, n)."""
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
    """The column sums of an integer weight; for a stack, those of all matrices in sequence."""
    each = (matrix_of(weight, at, 0, weight.N) for at in range(weight.batch))
    return np.concatenate([matrix.sum(0, dtype=np.int64) for matrix in each])


def matrix_of(weight: Weight, at: int, first: int, width: int) -> Array:
    """Some columns of one matrix, (K, width)."""
    if weight.cut is None:
        return _matrix(weight, at)[:, first : first + width]
    block: Array = weight.cut(at, 0, first, weight.K, width)
    return block


class WeightTiles:
    """The tiles of one matrix, each an initializer.

    They are cut in storage order, a band at a time, with one copy for all tiles of a band: separate copies
    for 14,000 tiles would take longer than the copying itself.

    Args:
        weight: The weight.
        tile: (TK, TN).
        sizes: Tile lengths along K, and along N.
        at: The index of a matrix in a stack.

    Attributes:
        places: (k, n) of every tile, in storage order.
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

        return WeightBundle(dtype, names, shapes, single, data, bands if _lies_in_file(self._weight) else ())

    def payloads(self) -> list[ComputedPayload]:
        """The bytes of all padded tiles in the order of `places`; a band is cut at once."""
        size = self._across * math.prod(self._tile) * self._itemsize
        along = range(len(self.places) // self._across)
        return [
            ComputedPayload(size, functools.partial(self._band, at, whole=True), alone=True) for at in along
        ]

    def _band(self, along: int, *, whole: bool = False) -> Iterator[memoryview]:
        """The bytes of the tiles of a band; with `whole`, tiles inside the matrix come in one piece."""
        tiles = self._inner_tiles(along)
        if len(tiles):
            tile_bytes = _bytes(tiles)
            size = len(tile_bytes) if whole else len(tile_bytes) // len(tiles)
            for at in range(0, len(tile_bytes), size):
                yield tile_bytes[at : at + size]
        first = along * self._across
        yield from map(self._single, range(first + len(tiles), first + self._across))
        if self._weight.cut is None:
            step = self._tile[1 if self._weight.transposed else 0]
            _release_pages(self._weight, along * step, (along + 1) * step)

    def _single(self, at: int) -> memoryview:
        tk, tn = self._tile
        k, n = self.places[at]
        height, width = self._sizes[0][k], self._sizes[1][n]
        if self._weight.cut is not None:
            return _bytes(self._weight.cut(self._at, k * tk, n * tn, height, width))
        return _bytes(padded_block(_matrix(self._weight, self._at), k * tk, n * tn, height, width))

    def _inner_tiles(self, along: int) -> Array:
        """The tiles of a band that lie completely inside the matrix."""
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
