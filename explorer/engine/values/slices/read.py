"""Slices of a tensor. From a file, only the bytes of the slice and small gaps between them are read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from explorer.base.errors import BadModel, Misuse
from explorer.engine.values.numbers import Array, Numbers, Scales, select_elements
from explorer.settings.slices import Selection

PIECE = 1 << 20
"""Maximum count of numbers that are read at a time."""

_GAP = 1024
"""Maximum distance between two selected numbers that are read together, with the numbers between them."""


def read(numbers: Numbers, selection: Selection) -> Array:
    """Returns the selected numbers as stored, in an array with the sizes of the selection.

    Raises:
        Misuse: The tensor's numbers cannot be read one by one.
    """
    if numbers.unstored_zeros:
        raise Misuse(f"'{numbers.name}' is stored without its zeros", where="NAME")
    strides = [math.prod(numbers.shape[axis + 1 :]) for axis in range(len(numbers.shape))]
    flat_indices = np.zeros(1, np.int64)
    for axis, stride in zip(selection.indices, strides, strict=True):
        flat_indices = (flat_indices[:, None] + np.asarray(axis, np.int64) * stride).reshape(-1)
    gathered = _gather(numbers, flat_indices) if flat_indices.size else np.zeros(0, np.float32)
    if gathered.size != flat_indices.size:
        raise Misuse(f"the numbers of '{numbers.name}', {numbers.dtype}, are not read", where="NAME")
    return gathered.reshape(selection.sizes)


def split_selection(selection: Selection) -> Iterator[Selection]:
    """Splits a selection into parts of about `PIECE` numbers, in the order of the numbers."""
    indices = selection.indices
    if math.prod(selection.sizes) <= PIECE:
        yield selection
        return
    split_axis = next(split_axis for split_axis, axis in enumerate(indices) if len(axis) > 1)
    inner_count = math.prod(selection.sizes[split_axis + 1 :])
    step = max(PIECE // max(inner_count, 1), 1)
    axis = indices[split_axis]
    for start in range(0, len(axis), step):
        part_indices = (*indices[:split_axis], axis[start : start + step], *indices[split_axis + 1 :])
        yield from split_selection(selection._replace(indices=part_indices))


def _gather(numbers: Numbers, flat_indices: Array) -> Array:
    """Returns the numbers at these flat indices, or fewer numbers if some are missing."""
    order = np.argsort(flat_indices, kind="stable")
    sorted_indices = flat_indices[order]
    group_ends = [*(np.flatnonzero(np.diff(sorted_indices) > _GAP) + 1).tolist(), sorted_indices.size]
    pieces: list[Array] = []
    first = 0
    for end in group_ends:
        start, stop = int(sorted_indices[first]), int(sorted_indices[end - 1]) + 1
        slabs = (
            select_elements(numbers.slabs(), start, stop)
            if numbers.part is None
            else numbers.part(start, stop)
        )
        position = start
        for slab in slabs:
            low, high = np.searchsorted(sorted_indices[first:end], (position, position + slab.size))
            if high > low:
                pieces.append(slab[sorted_indices[first + low : first + high] - position])
            position += slab.size
        first = end
    sorted_numbers = np.concatenate(pieces) if pieces else np.zeros(0)
    if sorted_numbers.size != flat_indices.size:
        return sorted_numbers
    in_order = np.empty_like(sorted_numbers)
    in_order[order] = sorted_numbers
    return in_order


def dequantize_selection(codes: Array, scales: Scales, selection: Selection) -> tuple[Array, Array, Array]:
    """Dequantizes selected integers, and returns the numbers with the scale and zero point of each.

    As in DequantizeLinear, a number is the integer minus its zero point, times the scale, rounded once to
    their type. The zero point of floats of 8 or 4 bits is 0.

    Raises:
        BadModel: There are too few scales or zero points.
    """
    scale = scales.scale()
    zero = np.zeros(scale.shape) if scales.zero is None else scales.zero()
    try:
        steps, zeros = (
            _broadcast_scales(values, scales, selection) for values in (scale, zero.astype(np.int64))
        )
    except IndexError:
        raise BadModel(f"it has {scale.size:,} scales, but another number of parts") from None
    centered = codes.astype(np.int64) - zeros if codes.dtype.name.startswith(("int", "uint")) else codes
    with np.errstate(over="ignore", invalid="ignore"):
        wide_type = np.promote_types(scale.dtype, np.float32)
        numbers: Array = (centered.astype(wide_type) * steps.astype(wide_type)).astype(scales.number_type)
    return numbers, steps, zeros


def _broadcast_scales(values: Array, scales: Scales, selection: Selection) -> Array:
    """Returns the scale or zero point of each selected number."""
    sizes = selection.sizes
    if values.size == 1:
        return np.broadcast_to(values.reshape(()), sizes)
    axis = scales.axis % max(len(sizes), 1)
    index = np.asarray(selection.indices[axis], np.int64)
    if values.ndim == 1:
        shape = [-1 if i == axis else 1 for i in range(len(sizes))]
        return np.broadcast_to(values[index].reshape(shape), sizes)
    grid_indices = [np.asarray(axis_indices, np.int64) for axis_indices in selection.indices]
    grid_indices[axis] = index // max(scales.block, 1)
    picked: Array = values[np.ix_(*grid_indices)]
    return picked
