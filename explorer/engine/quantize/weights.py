"""Quantized weights: the grid of a stored weight, and its codes, computed in slabs while they are written.

A weight is read twice, for its range and for its codes; it is never held as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.graph.model import ComputedPayload, FileSpan, Inline, Tensor
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, ends
from explorer.engine.quantize.layers import Operand

_SLAB = 1 << 18
"""Elements that are looked at together: they stay in a processor's cache."""

_BAND = 1 << 22
"""Elements that one of two threads computes at a time."""

_LEAST_SCALE = 1e-30
"""Below it the product of two scales is no float32."""

_BLOCKS = 128
"""No block of a format is longer."""


def weight_grid(
    operand: Operand, fmt: NumberFormat, *, channel: bool, symmetric: bool, block: int = 0
) -> Grid:
    """The grid of a stored weight, chosen from its range.

    Args:
        operand: The weight.
        fmt: Its number format.
        channel: One scale for each output channel, if it has channels; else one for the tensor.
        symmetric: As in `NumberFormat.grid`.
        block: Elements along the depth that share a scale; 0, or a depth that is not longer, for none.

    Raises:
        BadModel: It holds NaN or infinity.
    """
    axis, block = shared_axis(operand, channel=channel, block=block)
    assert operand.tensor is not None
    values = floats(operand)
    if not fmt.scaled:
        axis, block = None, 0
    low, high = (ends(values, reduce, axis, block) for reduce in (np.minimum, np.maximum))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise BadModel(
            f"the weight '{operand.stored}' holds NaN or infinity", hint="no format has a grid for it"
        )
    if fmt.writing == "linear":  # which looks at nothing but the ends
        grid = replace(fmt.grid(low, high, axis=axis, symmetric=symmetric), block=block)
    else:
        values = values.astype(np.float32, copy=False) if fmt.scaled else values
        grid = fmt.fitted(values, axis=axis, block=block, symmetric=symmetric)
    _forget(operand)
    return grid


def floats(operand: Operand) -> Array:
    """A stored operand as its layer reads it, in its own element type; rounding converts it to float32."""
    assert operand.tensor is not None
    return operand.tensor.array().transpose(operand.axes)


def as_read(values: Array, operand: Operand) -> Array:
    """Rounded numbers, float32, as a layer of another element type reads them."""
    return values if operand.dtype == "float32" else values.astype(operand.dtype)


def shared_axis(operand: Operand, *, channel: bool, block: int) -> tuple[int | None, int]:
    """The axis along which a stored weight has several scales, and the length of its blocks, as in `Grid`."""
    rank = len(operand.shape)
    if block and operand.depth is not None and operand.shape[operand.depth] > block:
        return operand.depth % rank, block
    if channel and operand.channel is not None:
        return operand.channel % rank, 0
    return None, 0


def fits_bias(operand: Operand, grid: Grid, bias: Array, input_scale: Array, product: int) -> Grid:
    """A weight's grid on which its layer's bias fits into half of int32: tiny weights get a coarser grid.

    The other half is for the products, which onnxruntime adds without saturation. Weights that are all 0 fit
    any scale; they get the one on which the bias is as large as a product.

    Args:
        operand: The weight.
        grid: A grid with one scale, or one per channel.
        bias: Bias of the layer, (channels,).
        input_scale: Scale of its input.
        product: The largest product of a weight and an input, in codes.
    """
    largest = np.abs(bias.astype(np.float64)).reshape(-1) / float(input_scale)
    if grid.axis is None:
        largest = np.asarray(np.max(largest, initial=0))
    elif largest.size % grid.scale.size:
        return grid
    elif operand.channel == -len(operand.shape):  # channels that share a scale follow each other
        largest = largest.reshape(grid.scale.size, -1).max(axis=1)
    else:  # every group of a transposed convolution has all scales
        largest = largest.reshape(-1, grid.scale.size).max(axis=0)
    alone = np.asarray(largest / product, np.float32)
    dead = _is_nothing(operand, grid) & (alone > _LEAST_SCALE)
    scale = np.maximum(np.where(dead, alone, grid.scale), largest / 2**30).astype(np.float32)
    return grid if np.array_equal(scale, grid.scale) else replace(grid, scale=scale)


def scale_of_channels(operand: Operand, scale: Array, channels: int) -> Array:
    """The scale of each of `channels` output channels, from a weight's scales along its axis of channels."""
    times = channels // scale.size
    return np.repeat(scale, times) if operand.channel == -len(operand.shape) else np.tile(scale, times)


def _is_nothing(operand: Operand, grid: Grid) -> Array:
    """For each scale of a stored weight, whether its numbers are all 0, which gave it a scale of 1."""
    none = np.asarray(grid.scale == 1)
    if none.any():
        low, high = (ends(floats(operand), reduce, grid.axis) for reduce in (np.minimum, np.maximum))
        none = none & (low == 0) & (high == 0)
    return none


def quantized_weight(name: str, operand: Operand, fmt: NumberFormat, grid: Grid) -> Tensor:
    """The codes of a stored weight, in the shape that its layer reads."""
    shape, bits = operand.shape, fmt.bits
    first = shape[0] if shape else 1
    row = max(1, operand.tensor.elements // max(1, first)) if operand.tensor is not None else 1
    step = _step(operand, grid.block, _BAND)

    def size(start: int, stop: int) -> int:
        return ((min(stop, first) - start) * row * bits + 7) // 8

    bands = tuple(
        ComputedPayload(size(at, at + step), partial(_codes, operand, fmt, grid, at, at + step), alone=True)
        for at in range(0, first, step)
    )
    payload = ComputedPayload(size(0, first), partial(_codes, operand, fmt, grid, 0, first), bands)
    return Tensor(name, fmt.element_type, shape, payload)


def slabs(
    operand: Operand, grid: Grid, start: int = 0, stop: int | None = None
) -> Iterator[tuple[Array, Grid]]:
    """A stored weight as its layer reads it, some rows of its first axis at a time, and their part of a grid.

    Blocks along the first axis are never cut. Pages of the file are released after they were read.
    """
    values = floats(operand)
    if not values.ndim:
        yield np.asarray(values, np.float32), grid
        return
    end = len(values) if stop is None else min(stop, len(values))
    step = _step(operand, grid.block, _SLAB)
    for at in range(start, end, step):
        some = values[at : min(at + step, end)].astype(np.float32, copy=False)
        yield some, _rows(grid, values.ndim, at, min(at + step, end))
    plain = operand.axes == tuple(range(values.ndim))
    if plain or end == len(values):
        _forget(operand, *((start, end) if plain else ()))


def _forget(operand: Operand, first: int = 0, last: int | None = None) -> None:
    """Releases the pages of a weight's rows, if it is in a file in the layer's order."""
    payload = operand.tensor.payload if operand.tensor is not None else None
    if isinstance(payload, FileSpan):
        row = payload.size // max(1, operand.shape[0]) if operand.shape else 0
        payload.release(first * row, payload.size if last is None else last * row)


def packed(codes: Array, bits: int) -> bytes:
    """Codes as ONNX stores them: of 4 bits two in a byte, the first in the lower half."""
    if bits >= 8:
        return codes.tobytes()
    flat = codes.reshape(-1).view(np.uint8) & 15
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return bytes(flat[::2] | flat[1::2] << 4)


def stored(name: str, values: Array, fmt_type: str = "") -> Tensor:
    """A small tensor; of the 4-bit types 'int4' and 'uint4' the values come one a byte."""
    bits = 4 if fmt_type in ("int4", "uint4") else 8
    return Tensor(name, fmt_type or str(values.dtype), values.shape, Inline(packed(values, bits)))


def _step(operand: Operand, block: int, elements: int) -> int:
    """Rows of the first axis that are looked at together: an even number, for packed pairs."""
    rows = operand.shape[0] if operand.shape else 1
    assert operand.tensor is not None
    row = max(1, operand.tensor.elements // max(1, rows))
    rank = len(operand.shape)
    whole = operand.depth is not None and operand.depth % rank == 0
    even = max(block, _BLOCKS if whole else 2)
    return max(1, elements // row // even) * even


def _rows(grid: Grid, rank: int, start: int, stop: int) -> Grid:
    if grid.axis is None or (grid.axis % rank and not grid.block):
        return grid
    if grid.block and grid.axis % rank == 0:
        start, stop = start // grid.block, -(-stop // grid.block)
    return replace(grid, scale=grid.scale[start:stop], zero=grid.zero[start:stop])


def _codes(operand: Operand, fmt: NumberFormat, grid: Grid, start: int, stop: int) -> Iterator[memoryview]:
    for values, part in slabs(operand, grid, start, stop):
        yield memoryview(packed(fmt.codes(values, part), fmt.bits))
