"""Saturation of 8-bit products: scales of weights with which no pair of products leaves the 16-bit range.

On an x86 processor without VNNI, onnxruntime multiplies unsigned by signed bytes with `vpmaddubsw`. This
instruction adds two neighboring products in 16 bits and saturates. 255 times the sum of two codes of one sign
fits if that sum is at most 128. onnxruntime's own option `reduce_range` costs a whole bit of every weight
instead.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from explorer.engine.number_formats.number_format import Array, Grid
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.weights import read_floats

_LARGEST_PAIR = 127
"""Largest sum of two codes before rounding, which adds at most 1."""

_BATCH = 1 << 20
"""Number of elements processed at a time."""


def enlarge_scales(operand: Operand, grid: Grid, groups: int = 1) -> Grid:
    """Enlarges the scales of a signed weight until no two neighboring products saturate.

    onnxruntime packs the depth in groups of four. The first two and the last two of a group are neighbors.
    For a convolution, it stores the channels of each kernel position consecutively. Depthwise convolutions
    have a separate kernel with 32-bit sums, so their grids do not change.

    Args:
        operand: Stored weight.
        grid: Grid with one scale, or one per channel. A grid of blocks is returned unchanged.
        groups: Number of groups of a convolution.
    """
    if grid.block or operand.tensor is None or operand.depth is None or len(operand.shape) < 2:
        return grid
    values = read_floats(operand)
    rank = values.ndim
    channel = (operand.channel if operand.channel is not None else -1) % rank
    rows = np.moveaxis(values, channel, 0)
    if rank > 2 and rows.shape[1] == 1 and groups == len(rows):
        return grid
    step = max(1, _BATCH // max(1, rows[0].size))
    largest_pairs = np.concatenate(
        [_find_largest_pairs(rows[start : start + step]) for start in range(0, len(rows), step)]
    )
    needed = np.max(largest_pairs, initial=0) if grid.axis is None else largest_pairs
    if grid.axis is not None and (grid.axis % rank != channel or needed.shape != grid.scale.shape):
        needed = np.broadcast_to(np.max(largest_pairs, initial=0), grid.scale.shape)
    scale = np.maximum(grid.scale, np.asarray(needed / _LARGEST_PAIR, np.float32)).astype(np.float32)
    return grid if np.array_equal(scale, grid.scale) else replace(grid, scale=scale)


def _find_largest_pairs(rows: Array) -> Array:
    """Returns the largest sum of two neighbors of one sign, for each output channel.

    `rows` has the shape (channels, depth, ...).
    """
    slab = np.moveaxis(rows.astype(np.float32, copy=False), 1, -1).reshape(len(rows), -1)
    slab = np.pad(slab, ((0, 0), (0, slab.shape[1] % 2)))
    pairs = slab.reshape(len(slab), -1, 2)
    largest_by_sign = (np.maximum(side, 0).sum(axis=2).max(axis=1, initial=0) for side in (pairs, -pairs))
    return np.asarray(np.maximum(*largest_by_sign))
