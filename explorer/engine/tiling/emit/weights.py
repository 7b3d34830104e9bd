"""Layouts of a site's weight in the tiled file, and how their bytes are computed.

Each layout is a payload that cuts the stored weight while the file is written. It copies a block or a band of
blocks at a time, and never the whole weight. Padded edges are zeros.
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
from explorer.engine.tiling.emit.padding import ROW_GAP_BYTES, read_padded_block
from explorer.engine.tiling.sites import Weight

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


def _view_matrix(weight: Weight, index: int = 0) -> Array:
    """Returns the weight, or one matrix of a stack, as (K, N): a view of the stored bytes."""
    size = (weight.N, weight.K) if weight.is_transposed else (weight.K, weight.N)
    matrix: Array = weight.tensor.array().reshape(weight.batch, *size)[index]
    return matrix.T if weight.is_transposed else matrix


def _view_bytes(array: Array) -> memoryview:
    # as plain bytes, because types of ml_dtypes have no buffer format
    return array.reshape(-1).view(np.uint8).data


def _release_pages(weight: Weight, first: int, last: int) -> None:
    """Releases the mapped pages of the stored rows `first` to `last` - 1. Stacks keep their pages."""
    payload = weight.tensor.payload
    if isinstance(payload, FileSpan) and weight.batch == 1:
        row = payload.size // max(weight.N if weight.is_transposed else weight.K, 1)
        payload.release(first * row, last * row)


def _get_itemsize(weight: Weight) -> int:
    """Returns the bytes of one element."""
    return weight.tensor.nbytes // max(weight.tensor.elements, 1)


def _is_in_file(weight: Weight) -> bool:
    """Whether the blocks of the weight can be read from a file, without computing them."""
    return weight.compute_block is None and isinstance(weight.tensor.payload, FileSpan)


def _create_tensor(
    name: str, weight: Weight, shape: tuple[int, ...], payloads: Sequence[ComputedPayload]
) -> Tensor:
    """Creates a tensor whose bytes are those of the `payloads` in sequence."""
    payload = payloads[0]
    if len(payloads) > 1:
        # a block of a matrix that is stored row by row reads a part of many stored rows, so parallel reads
        # would map too much of the file
        independent = tuple(payloads) if weight.is_transposed and _is_in_file(weight) else ()
        size = sum(part.size for part in payloads)
        payload = ComputedPayload(
            size, lambda: itertools.chain.from_iterable(part.make() for part in payloads), independent
        )
    return Tensor(name, weight.tensor.dtype, shape, payload)


class _Blocks(Struct):
    """Blocks of a matrix.

    Attributes:
        weight: The weight.
        corners: (k, n) of the first element of each block.
        height: Number of rows of a block.
        width: Number of columns of a block.
        matrix_index: Index of the matrix in a stack.
        completed: Indices of the computed blocks. Each further computation of a block adds its index again.
    """

    weight: Weight
    corners: list[tuple[int, int]]
    height: int
    width: int
    matrix_index: int = 0
    completed: list[int] = field(default_factory=list)

    def list_payloads(self) -> list[ComputedPayload]:
        """Returns the bytes of the blocks: a payload for each if their order is free, else one for all."""
        size = self.height * self.width * _get_itemsize(self.weight)
        if not self.weight.is_transposed or not _is_in_file(self.weight):
            return [ComputedPayload(len(self.corners) * size, self.compute_in_order)]
        # a large weight stays mapped until all its blocks are done, so its first block waits for the previous
        # weight
        may_overlap = self.height >= self.weight.K or self.weight.tensor.nbytes <= _MAX_SHARED_BYTES
        return [
            ComputedPayload(
                size,
                functools.partial(self.compute_block, block_index),
                is_independent=may_overlap or block_index > 0,
            )
            for block_index in range(len(self.corners))
        ]

    def compute_block(self, block_index: int) -> Iterator[memoryview]:
        """Yields the bytes of one block of a matrix that is stored column by column."""
        k, n = self.corners[block_index]
        yield _view_bytes(
            read_padded_block(_view_matrix(self.weight, self.matrix_index), k, n, self.height, self.width)
        )
        if self.height >= self.weight.K:
            # the block is a range of stored rows that no other block needs
            _release_pages(self.weight, n, n + self.width)
            return
        self.completed.append(block_index)
        if len(self.corners) > 1 and len(self.completed) % len(self.corners) == 0:
            _release_pages(self.weight, 0, max(self.weight.K, self.weight.N))

    def compute_in_order(self) -> Iterator[memoryview]:
        """Yields the bytes of all blocks, in order."""
        if self.weight.compute_block is not None:
            for k, n in self.corners:
                yield _view_bytes(self.weight.compute_block(self.matrix_index, k, n, self.height, self.width))
            _release_pages(self.weight, 0, max(self.weight.K, self.weight.N))
            return
        matrix = _view_matrix(self.weight, self.matrix_index)
        if not self.weight.is_transposed and matrix.nbytes > _MAX_MAPPED_BYTES and len(self.corners) > 1:
            yield from self.compute_from_bands(matrix)
            return
        for k, n in self.corners:
            yield _view_bytes(read_padded_block(matrix, k, n, self.height, self.width))
        if len(self.corners) > 1:
            _release_pages(self.weight, 0, max(self.weight.K, self.weight.N))

    def compute_from_bands(self, matrix: Array) -> Iterator[memoryview]:
        """Yields the bytes of the blocks of a large row-major matrix, from bands of a few columns of blocks.

        A column of blocks touches every page of the matrix. Without bands, each column would map the whole
        matrix.
        """
        rows = max(1, _MAX_MAPPED_BYTES // 8 // max(matrix[:1].nbytes, 1))
        columns = max(1, _MAX_MAPPED_BYTES // max(matrix[:, : self.width].nbytes, 1)) * self.width
        band, first, last = matrix[:, :0], 0, -1
        for k, n in self.corners:
            if not first <= n < last:
                first, last = n, n + columns
                band = np.empty((matrix.shape[0], min(columns, matrix.shape[1] - n)), matrix.dtype)
                for row in range(0, matrix.shape[0], rows):
                    band[row : row + rows] = matrix[row : row + rows, first:last]
                    _release_pages(self.weight, row, min(row + rows, matrix.shape[0]))
            yield _view_bytes(read_padded_block(band, k, n - first, self.height, self.width))


_DENSE_BLOCK_BYTES = 1 << 21
"""Approximate bytes of a block of a dense matrix. A block has at least 64 rows, even if they are larger."""

_MAX_SHARED_BYTES = 1 << 25
"""Maximum bytes of a weight that may be mapped at the same time as another weight."""

_MAX_MAPPED_BYTES = 1 << 27
"""Maximum bytes of a weight that may be mapped at the same time while it is read across its rows."""


def create_dense(
    name: str, weight: Weight, height: int, width: int, first: int = 0, index: int | None = 0
) -> Tensor:
    """Creates the padded (height, width) matrix that starts at column `first`, computed in blocks of rows.

    Args:
        name: Name of the tensor.
        weight: The weight that it is cut from.
        height: Number of rows.
        width: Number of columns.
        first: The first column.
        index: Index of a matrix in a stack, or None for all: (batch, height, width).
    """
    step = max(64, _DENSE_BLOCK_BYTES // max(width * _get_itemsize(weight), 1) // 64 * 64)
    remainder = height % step
    corners = [(k, first) for k in range(0, height - remainder, step)]
    payloads: list[ComputedPayload] = []
    for b in range(weight.batch) if index is None else (index,):
        payloads += _Blocks(weight, corners, step, width, b).list_payloads()
        if remainder:
            payloads += _Blocks(weight, [(height - remainder, first)], remainder, width, b).list_payloads()
    shape = (height, width) if index is not None else (weight.batch, height, width)
    return _create_tensor(name, weight, shape, payloads)


def create_columns(
    name: str, weight: Weight, count: int, height: int, width: int, index: int | None = 0
) -> Tensor:
    """Creates `count` columns of tiles, [count, height, width], with K padded to `height` and `width` = TN.

    For a stack (`index` is None): [batch, count, height, width].
    """
    corners = [(0, j * width) for j in range(count)]
    indices = range(weight.batch) if index is None else (index,)
    payloads = [
        payload for b in indices for payload in _Blocks(weight, corners, height, width, b).list_payloads()
    ]
    shape = (count, height, width) if index is not None else (weight.batch, count, height, width)
    return _create_tensor(name, weight, shape, payloads)


def create_blocks(name: str, weight: Weight, grid: tuple[int, int], height: int, width: int) -> Tensor:
    """Creates all padded tiles: [n, k, TK, TN], or [batch, 1, n, k, TK, TN] for a stack; `grid` is (k, n)."""
    corners = [(k * height, n * width) for n in range(grid[1]) for k in range(grid[0])]
    sizes = [height] * grid[0], [width] * grid[1]
    payloads: list[ComputedPayload] = []
    for b in range(weight.batch):
        if weight.is_transposed:
            payloads += WeightTiles(weight, (height, width), sizes, b).list_payloads()
        else:
            payloads += _Blocks(weight, corners, height, width, b).list_payloads()
    shape = (grid[1], grid[0], height, width)
    return _create_tensor(name, weight, shape if weight.batch == 1 else (weight.batch, 1, *shape), payloads)


def create_column_sums(weight: Weight) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Computes the column sums of an integer weight, or of all matrices of a stack in sequence."""
    matrices = (view_columns(weight, index, 0, weight.N) for index in range(weight.batch))
    return np.concatenate([matrix.sum(0, dtype=np.int64) for matrix in matrices])


def view_columns(weight: Weight, index: int, first: int, width: int) -> Array:
    """Returns the columns `first` to `first` + `width` - 1 of one matrix of a stack, (K, width)."""
    if weight.compute_block is None:
        return _view_matrix(weight, index)[:, first : first + width]
    block: Array = weight.compute_block(index, 0, first, weight.K, width)
    return block


class WeightTiles:
    """The tiles of one matrix, as separate initializers or as the contents of one tensor.

    They are cut in storage order, a band at a time, with one copy for all tiles of a band. A band is a row of
    tiles of the stored matrix. For 14,000 tiles, the overhead of separate copies would exceed the copying
    itself.

    Args:
        weight: The weight.
        tile: (TK, TN).
        sizes: Tile lengths along K, and along N.
        index: Index of a matrix in a stack.

    Attributes:
        places: (k, n) of every tile, in storage order.
    """

    def __init__(
        self,
        weight: Weight,
        tile: tuple[int, int],
        sizes: tuple[Sequence[int], Sequence[int]],
        index: int = 0,
    ) -> None:
        self._weight = weight
        self._tile = tile
        self._sizes = sizes
        self._index = index
        self._itemsize = _get_itemsize(weight)
        self._tiles_per_band = len(sizes[0 if weight.is_transposed else 1])
        k_range, n_range = (range(len(axis_sizes)) for axis_sizes in sizes)
        self.places = (
            [(k, n) for n in n_range for k in k_range]
            if weight.is_transposed
            else list(itertools.product(k_range, n_range))
        )

    def create_bundle(self, names: Sequence[str]) -> WeightBundle:
        """Returns the tiles as initializers with these names, in the order of `places`."""
        heights, widths = self._sizes
        dtype = self._weight.tensor.dtype
        shapes = [(heights[k], widths[n]) for k, n in self.places]

        def create_tile(index: int) -> Tensor:
            payload = ComputedPayload(
                math.prod(shapes[index]) * self._itemsize, lambda: iter((self._read_tile(index),))
            )
            return Tensor(names[index], dtype, shapes[index], payload)

        band_indices = range(len(names) // self._tiles_per_band)
        bands = [(self._tiles_per_band, functools.partial(self._read_band, band)) for band in band_indices]

        def read_bands() -> Iterator[memoryview]:
            return itertools.chain.from_iterable(map(self._read_band, band_indices))

        return WeightBundle(
            dtype, names, shapes, create_tile, read_bands, bands if _is_in_file(self._weight) else ()
        )

    def list_payloads(self) -> list[ComputedPayload]:
        """Returns the bytes of all padded tiles in the order of `places`, one payload per band."""
        size = self._tiles_per_band * math.prod(self._tile) * self._itemsize
        band_indices = range(len(self.places) // self._tiles_per_band)
        return [
            ComputedPayload(
                size, functools.partial(self._read_band, band, in_one_piece=True), is_independent=True
            )
            for band in band_indices
        ]

    def _read_band(self, band: int, *, in_one_piece: bool = False) -> Iterator[memoryview]:
        """Yields the bytes of the tiles of a band.

        Args:
            band: Index of the band.
            in_one_piece: Whether tiles inside the matrix come as one piece; otherwise one piece per tile.
        """
        tiles = self._find_inner_tiles(band)
        if len(tiles):
            tile_bytes = _view_bytes(tiles)
            size = len(tile_bytes) if in_one_piece else len(tile_bytes) // len(tiles)
            for start in range(0, len(tile_bytes), size):
                yield tile_bytes[start : start + size]
        first = band * self._tiles_per_band
        yield from map(self._read_tile, range(first + len(tiles), first + self._tiles_per_band))
        if self._weight.compute_block is None:
            step = self._tile[1 if self._weight.is_transposed else 0]
            _release_pages(self._weight, band * step, (band + 1) * step)

    def _read_tile(self, index: int) -> memoryview:
        """Returns the bytes of one tile, padded to the lengths that were planned."""
        tk, tn = self._tile
        k, n = self.places[index]
        height, width = self._sizes[0][k], self._sizes[1][n]
        if self._weight.compute_block is not None:
            return _view_bytes(self._weight.compute_block(self._index, k * tk, n * tn, height, width))
        return _view_bytes(
            read_padded_block(_view_matrix(self._weight, self._index), k * tk, n * tn, height, width)
        )

    def _find_inner_tiles(self, band: int) -> Array:
        """Returns the full tiles of a band, (tiles, TK, TN).

        The result is empty if the band is lower than a tile, or if `compute_block` computes the weight.
        """
        tk, tn = self._tile
        if self._weight.compute_block is not None:
            return np.empty(0)
        matrix = _view_matrix(self._weight, self._index)
        rows, size, axis_order = (
            (matrix.T, (tn, tk), (1, 2, 0)) if self._weight.is_transposed else (matrix, (tk, tn), (1, 0, 2))
        )
        rows = rows[band * size[0] : (band + 1) * size[0]]
        if len(rows) < size[0]:
            return np.empty(0)
        # rows are staged with a gap, for the reason in `read_padded_block`
        padded_rows = np.empty((size[0], rows.shape[1] + ROW_GAP_BYTES // self._itemsize), rows.dtype)
        np.copyto(padded_rows[:, : rows.shape[1]], rows)
        count = rows.shape[1] // size[1]
        tiles = padded_rows[:, : count * size[1]].reshape(size[0], count, size[1])
        return np.ascontiguousarray(tiles.transpose(axis_order))
