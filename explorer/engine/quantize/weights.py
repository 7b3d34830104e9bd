"""Quantized weights: the grid of a stored weight, and its codes, computed in slabs while they are written.

A weight is read twice, once for its range and once for its codes. In a linear format, it is never in memory
as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.graph.model import ComputedPayload, FileSpan, Inline, Tensor
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, find_ends
from explorer.engine.quantize.layers import Operand

_SLAB_ELEMENTS = 1 << 18
"""Number of elements processed at a time, so that they stay in the processor's cache."""

_THREAD_ELEMENTS = 1 << 22
"""Number of elements of a part of a weight, which one thread encodes."""

_MIN_SCALE = 1e-30
"""Smallest scale of a weight of zeros. With a smaller one, the product of two scales underflows float32."""

_MAX_BLOCK = 128
"""Length of the longest block of any format."""


def choose_weight_grid(
    operand: Operand, fmt: NumberFormat, *, per_channel: bool, symmetric: bool, block: int = 0
) -> Grid:
    """Chooses the grid of a stored weight from its range.

    Args:
        operand: The weight.
        fmt: Number format of the weight.
        per_channel: Whether each output channel has its own scale. A weight without channels has one scale.
        symmetric: Whether zero points are fixed, as in `NumberFormat.build_grid`.
        block: Number of elements along the depth that share a scale. 0, or at least the depth, means no
            blocks.

    Raises:
        BadModel: The weight holds NaN or infinity.
    """
    axis, block = find_scale_axis(operand, fmt, per_channel=per_channel, block=block)
    assert operand.tensor is not None
    values = read_floats(operand)
    if not fmt.scaled:
        axis, block = None, 0
    low, high = (find_ends(values, reduce, axis, block) for reduce in (np.minimum, np.maximum))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise BadModel(
            f"the weight '{operand.stored}' holds NaN or infinity", hint="no format has a grid for it"
        )
    if fmt.writing == "linear":  # a linear grid depends on the ends of the range only
        grid = replace(fmt.build_grid(low, high, axis=axis, symmetric=symmetric), block=block)
    else:
        values = values.astype(np.float32, copy=False) if fmt.scaled else values
        grid = fmt.fit_grid(values, axis=axis, block=block, symmetric=symmetric)
    _release_pages(operand)
    return grid


def read_floats(operand: Operand) -> Array:
    """Returns a stored operand in its own element type, with its axes in the order that the layer reads."""
    assert operand.tensor is not None
    return operand.tensor.array().transpose(operand.axes)


def convert_to_layer_dtype(values: Array, operand: Operand) -> Array:
    """Converts rounded float32 numbers to the element type of the layer."""
    return values if operand.dtype == "float32" else values.astype(operand.dtype)


def find_scale_axis(
    operand: Operand, fmt: NumberFormat, *, per_channel: bool, block: int
) -> tuple[int | None, int]:
    """Returns the axis along which a stored weight has several scales, and its block length, as in `Grid`.

    A format that is written as a function has no blocks, because the function broadcasts its scales.
    """
    rank = len(operand.shape)
    if (
        block
        and fmt.writing != "function"
        and operand.depth is not None
        and operand.shape[operand.depth] > block
    ):
        return operand.depth % rank, block
    if per_channel and operand.channel is not None:
        return operand.channel % rank, 0
    return None, 0


def fit_bias(operand: Operand, grid: Grid, bias: Array, input_scale: Array, product: int) -> Grid:
    """Coarsens the grid of a weight until its layer's bias fits into half of the int32 range.

    The other half of the range is for the products, which onnxruntime adds without saturation. A weight of
    zeros gets the scale at which the bias is as large as the largest product.

    Args:
        operand: The weight.
        grid: Grid with one scale, or one per channel.
        bias: Bias of the layer, of shape (channels,).
        input_scale: Scale of the layer's input.
        product: Largest product of a weight code and an input code.

    Returns:
        A grid with larger scales, or `grid` itself if the bias fits.
    """
    bias_ratio = np.abs(bias.astype(np.float64)).reshape(-1) / float(input_scale)
    if grid.axis is None:
        bias_ratio = np.asarray(np.max(bias_ratio, initial=0))
    elif bias_ratio.size % grid.scale.size:
        return grid
    elif operand.channel == -len(operand.shape):  # channels that share a scale are consecutive
        bias_ratio = bias_ratio.reshape(grid.scale.size, -1).max(axis=1)
    else:  # all groups of a transposed convolution share the scales
        bias_ratio = bias_ratio.reshape(-1, grid.scale.size).max(axis=0)
    scale_from_bias = np.asarray(bias_ratio / product, np.float32)
    is_zero = _find_zero_weights(operand, grid) & (scale_from_bias > _MIN_SCALE)
    scale = np.maximum(np.where(is_zero, scale_from_bias, grid.scale), bias_ratio / 2**30).astype(np.float32)
    return grid if np.array_equal(scale, grid.scale) else replace(grid, scale=scale)


def repeat_scales(operand: Operand, scale: Array, channels: int) -> Array:
    """Repeats a weight's scales so that each of `channels` output channels has one."""
    times = channels // scale.size
    return np.repeat(scale, times) if operand.channel == -len(operand.shape) else np.tile(scale, times)


def _find_zero_weights(operand: Operand, grid: Grid) -> Array:
    """Returns whether all numbers of a scale are 0, for each scale of a stored weight.

    The grid of such numbers has a scale of 1.
    """
    is_zero = np.asarray(grid.scale == 1)
    if is_zero.any():
        low, high = (
            find_ends(read_floats(operand), reduce, grid.axis) for reduce in (np.minimum, np.maximum)
        )
        is_zero = is_zero & (low == 0) & (high == 0)
    return is_zero


def quantize_weight(name: str, operand: Operand, fmt: NumberFormat, grid: Grid) -> Tensor:
    """Returns a tensor with the codes of a stored weight, in the shape that its layer reads."""
    shape, bits = operand.shape, fmt.bits
    row_count = shape[0] if shape else 1
    row_elements = max(1, operand.tensor.elements // max(1, row_count)) if operand.tensor is not None else 1
    step = _count_rows_per_slab(operand, grid.block, _THREAD_ELEMENTS)

    def count_bytes(start: int, stop: int) -> int:
        return ((min(stop, row_count) - start) * row_elements * bits + 7) // 8

    parts = tuple(
        ComputedPayload(
            count_bytes(start_row, start_row + step),
            partial(_encode_slabs, operand, fmt, grid, start_row, start_row + step),
            is_independent=True,
        )
        for start_row in range(0, row_count, step)
    )
    payload = ComputedPayload(
        count_bytes(0, row_count), partial(_encode_slabs, operand, fmt, grid, 0, row_count), parts
    )
    return Tensor(name, fmt.element_type, shape, payload)


def iterate_slabs(
    operand: Operand, grid: Grid, start: int = 0, stop: int | None = None
) -> Iterator[tuple[Array, Grid]]:
    """Yields a stored weight a few rows of its first axis at a time, each slab with its part of the grid.

    A block along the first axis is never split. Pages of the file are released after they are read.
    """
    values = read_floats(operand)
    if not values.ndim:
        yield np.asarray(values, np.float32), grid
        return
    end = len(values) if stop is None else min(stop, len(values))
    step = _count_rows_per_slab(operand, grid.block, _SLAB_ELEMENTS)
    for start_row in range(start, end, step):
        slab = values[start_row : min(start_row + step, end)].astype(np.float32, copy=False)
        yield slab, _slice_grid(grid, values.ndim, start_row, min(start_row + step, end))
    has_stored_order = operand.axes == tuple(range(values.ndim))
    if has_stored_order or end == len(values):
        _release_pages(operand, *((start, end) if has_stored_order else ()))


def _release_pages(operand: Operand, first: int = 0, last: int | None = None) -> None:
    """Releases the file pages of some rows of a weight, if the file stores the rows consecutively."""
    payload = operand.tensor.payload if operand.tensor is not None else None
    if isinstance(payload, FileSpan):
        row = payload.size // max(1, operand.shape[0]) if operand.shape else 0
        payload.release(first * row, payload.size if last is None else last * row)


def pack_codes(codes: Array, bits: int) -> bytes:
    """Encodes codes as ONNX stores them. Two 4-bit codes share a byte; the first is in the lower half."""
    if bits >= 8:
        return codes.tobytes()
    flat = codes.reshape(-1).view(np.uint8) & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return bytes(flat[::2] | flat[1::2] << 4)


def build_small_tensor(name: str, values: Array, fmt_type: str = "") -> Tensor:
    """Builds a small tensor of type `fmt_type`, or of the type of `values` if it is ''.

    `values` of the types 'int4' and 'uint4' have one number per byte.
    """
    bits = 4 if fmt_type in ("int4", "uint4") else 8
    return Tensor(name, fmt_type or str(values.dtype), values.shape, Inline(pack_codes(values, bits)))


def _count_rows_per_slab(operand: Operand, block: int, elements: int) -> int:
    """Returns the number of rows of the first axis to process at a time.

    Along the depth, it is a multiple of the block, or of the blocks of any format. It is even, because two
    4-bit codes share a byte.
    """
    rows = operand.shape[0] if operand.shape else 1
    assert operand.tensor is not None
    row_elements = max(1, operand.tensor.elements // max(1, rows))
    rank = len(operand.shape)
    depth_is_first = operand.depth is not None and operand.depth % rank == 0
    multiple = (math.lcm(block, 2) if block else _MAX_BLOCK) if depth_is_first else 2
    return max(1, elements // row_elements // multiple) * multiple


def _slice_grid(grid: Grid, rank: int, start: int, stop: int) -> Grid:
    """Returns the part of a grid for the rows `start` to `stop` of the weight's first axis."""
    if grid.axis is None or (grid.axis % rank and not grid.block):
        return grid
    if grid.block and grid.axis % rank == 0:
        start, stop = start // grid.block, -(-stop // grid.block)
    return replace(grid, scale=grid.scale[start:stop], zero=grid.zero[start:stop])


def _encode_slabs(
    operand: Operand, fmt: NumberFormat, grid: Grid, start: int, stop: int
) -> Iterator[memoryview]:
    for values, part in iterate_slabs(operand, grid, start, stop):
        yield memoryview(pack_codes(fmt.encode(values, part), fmt.bits))
