"""Saturation of sums of bytes: scales of weights on which no pair of products leaves 16 bits.

An x86 processor without VNNI multiplies unsigned by signed bytes with `vpmaddubsw`, which adds two
neighboring products in 16 bits and saturates. 255 times the sum of two codes of one sign stays inside where
that sum is at most 128. onnxruntime's own way out, `reduce_range`, gives up a whole bit of every weight.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from explorer.engine.number_formats.number_format import Array, Grid
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.weights import floats

_MOST = 127
"""The sum of two codes before they are rounded, which adds at most 1."""

_BATCH = 1 << 20
"""Numbers that are looked at together."""


def unsaturated(operand: Operand, grid: Grid, groups: int = 1) -> Grid:
    """The grid of a signed weight with scales large enough that no two neighboring products saturate.

    onnxruntime packs the depth in groups of four, of which the first two and the last two are neighbors. Of a
    convolution it puts the channels of each place of the kernel side by side. A depthwise convolution has a
    kernel of its own, in 32 bits.

    Args:
        operand: A stored weight.
        grid: A grid with one scale, or one per channel; a grid of blocks is returned unchanged.
        groups: Groups of a convolution.
    """
    if grid.block or operand.tensor is None or operand.depth is None or len(operand.shape) < 2:
        return grid
    values = floats(operand)
    rank = values.ndim
    channel = (operand.channel if operand.channel is not None else -1) % rank
    rows = np.moveaxis(values, channel, 0)
    if rank > 2 and rows.shape[1] == 1 and groups == len(rows):
        return grid
    step = max(1, _BATCH // max(1, rows[0].size))
    largest_pairs = np.concatenate([_largest_pairs(rows[at : at + step]) for at in range(0, len(rows), step)])
    needed = np.max(largest_pairs, initial=0) if grid.axis is None else largest_pairs
    if grid.axis is not None and (grid.axis % rank != channel or needed.shape != grid.scale.shape):
        needed = np.broadcast_to(np.max(largest_pairs, initial=0), grid.scale.shape)
    scale = np.maximum(grid.scale, np.asarray(needed / _MOST, np.float32)).astype(np.float32)
    return grid if np.array_equal(scale, grid.scale) else replace(grid, scale=scale)


def _largest_pairs(rows: Array) -> Array:
    """The largest sum of two neighbors of one sign, for each output channel of (channels, depth, ...)."""
    some = np.moveaxis(rows.astype(np.float32, copy=False), 1, -1).reshape(len(rows), -1)
    some = np.pad(some, ((0, 0), (0, some.shape[1] % 2)))
    pairs = some.reshape(len(some), -1, 2)
    signed = (np.maximum(side, 0).sum(axis=2).max(axis=1, initial=0) for side in (pairs, -pairs))
    return np.asarray(np.maximum(*signed))
