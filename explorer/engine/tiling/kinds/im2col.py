"""im2col: writes the nodes that turn images into rows of a matrix, and rows back into images.

A position is an element of the output. A place is an element of the padded input. A tap is an element of the
kernel.

The channels are moved to the last axis, so that a position gathers runs of channels. That is 25 times as fast
as gathering single elements. A table of the gather indices of all positions and taps would take 5 MB for the
first layer of a ResNet. So nodes add one small constant for each axis, and a runtime folds their sum into one
constant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.kinds.convolution_windows import ConvWindow, WindowAxis
from explorer.engine.tiling.sites import GatheredRows

_END = (1 << 31) - 1
"""End of a slice that takes all elements."""


def write_unfold(builder: GraphBuilder, x: str, window: ConvWindow, fill: str = "") -> str:
    """Writes the left matrix of the product, (images x positions, K), or a stack of such matrices.

    Args:
        builder: Receives the nodes.
        x: Value name of the images, (images, channels, ...).
        window: The convolution as a product.
        fill: Value name of the padding value, or '' for zero.
    """
    axes, groups = window.axes, window.groups
    x = _move_channels_last(builder, x, window, fill)
    if window.has_open_size:
        return _write_open_unfold(builder, x, window)
    if not window.needs_no_gather or (builder.emission.opset < 10 and any(a.step != 1 for a in axes)):
        channels = groups.pack_count * groups.pack * groups.in_channels
        x = builder.reshape(x, (0, math.prod(a.padded_size for a in axes), channels), "images_flat")
        x = builder.add("Gather", (x, _write_index(builder, axes)), "images_gathered", attributes={"axis": 1})
    elif any(a.step != 1 for a in axes):
        x = _write_stride(builder, x, axes)
    if window.batch == 1:
        return builder.reshape(x, (-1, window.K), "unfolded")
    pack_depth = groups.pack * groups.in_channels
    # without a Gather, the positions are already in order
    split_shape = (-1, window.phases, window.positions, window.taps, groups.pack_count, pack_depth)
    x = builder.reshape(x, split_shape, "unfolded_split")
    x = builder.transpose(x, (1, 4, 0, 2, 3, 5), "unfolded_stacked")
    return builder.reshape(x, (window.batch, -1, window.K), "unfolded")


def write_gathered_rows(
    builder: GraphBuilder, x: str, window: ConvWindow, images: int, fill: str = ""
) -> GatheredRows | None:
    """Writes the images as a matrix with a row for each place, and the places that each position reads.

    Args:
        builder: Receives the nodes.
        x: Value name of the images, (images, channels, ...).
        window: The convolution as a product.
        images: Number of images.
        fill: Value name of the padding value, or '' for zero.

    Returns:
        The matrix of places, and the indices of its rows that form each row of the product's left matrix.
        None if no Gather is needed, if sizes are open, or if the convolution is several matmuls.
    """
    if window.has_open_size or window.needs_no_gather or window.batch != 1:
        return None
    x = _move_channels_last(builder, x, window, fill)
    places = builder.reshape(x, (-1, window.groups.pack * window.groups.in_channels), "images_flat")
    index = _write_index(builder, window.axes)
    if images != 1:
        places_per_image = math.prod(a.padded_size for a in window.axes)
        image_axis_shape = (-1, *(1,) * 2 * len(window.axes))
        starts = np.arange(images, dtype=np.int64).reshape(image_axis_shape) * places_per_image
        index = builder.add(
            "Add", (builder.add_array(starts, "places_image_starts"), index), "places_of_images"
        )
    return GatheredRows(places, builder.reshape(index, (-1, window.taps), "places_by_row"), window.taps)


def _move_channels_last(builder: GraphBuilder, x: str, window: ConvWindow, fill: str) -> str:
    """Pads the images and moves the channels to the last axis."""
    axes, groups, rank = window.axes, window.groups, len(window.axes)
    missing_channels = (
        groups.pack_count * groups.pack * groups.in_channels - groups.count * groups.in_channels
    )
    if missing_channels or any(any(a.pads) for a in axes):
        pads_before = (0, 0, *(a.pads[0] for a in axes))
        pads = (*pads_before, 0, missing_channels, *(a.pads[1] for a in axes))
        x = builder.pad(x, pads, "images_padded", fill, window.narrow)
    return builder.transpose(x, (0, *range(2, rank + 2), 1), "images_channels_last")


def _write_open_unfold(builder: GraphBuilder, x: str, window: ConvWindow) -> str:
    """Writes the left matrix for images of any size: a Slice for each tap, with ends counted from the end."""
    axes, groups = window.axes, window.groups
    rank, taps = len(axes), []
    for tap in itertools.product(*(range(a.taps) for a in axes)):
        starts = [t * a.dilation for t, a in zip(tap, axes, strict=True)]
        remaining = [(a.taps - 1 - t) * a.dilation for t, a in zip(tap, axes, strict=True)]
        steps = [a.step for a in axes]
        label = "tap_" + "_".join(map(str, tap))
        if any(remaining) or any(starts) or any(s != 1 for s in steps):
            bounds = starts, [-n or _END for n in remaining], range(1, rank + 1), steps
            slices = [builder.add_integers(values, f"{label}_{index}") for index, values in enumerate(bounds)]
            taps.append(builder.add("Slice", (x, *slices), label))
        else:
            taps.append(x)
    x = builder.concat(taps, rank + 1, "images_taps")
    if groups.pack_count == 1:
        return builder.reshape(x, (-1, window.K), "unfolded")
    x = builder.reshape(
        x, (-1, window.taps, groups.pack_count, groups.pack * groups.in_channels), "unfolded_split"
    )
    x = builder.transpose(x, (2, 0, 1, 3), "unfolded_stacked")
    return builder.reshape(x, (groups.pack_count, -1, window.K), "unfolded")


def _write_index(builder: GraphBuilder, axes: Sequence[WindowAxis]) -> str:
    """Writes the input places of each position, (positions, taps) in C order of the axes, phases first."""
    rank = len(axes)
    has_phases = any(a.phases != 1 for a in axes)
    index = ""
    inner = 1
    for i in reversed(range(rank)):
        axis = axes[i]
        shape = [1] * (3 * rank if has_phases else 2 * rank)
        for dimension, size in enumerate(axis.places.shape if has_phases else axis.places.shape[1:]):
            shape[dimension * rank + i] = size
        part = builder.add_array((axis.places * inner).reshape(shape).astype(np.int64), f"places_{i}")
        index = builder.add("Add", (part, index), f"places_from_{i}") if index else part
        inner *= axis.padded_size
    return index


def _write_stride(builder: GraphBuilder, x: str, axes: Sequence[WindowAxis]) -> str:
    """Selects every `step`-th element of each axis of the images (channels last)."""
    limits = {
        "starts": [0] * len(axes),
        "ends": [a.padded_size for a in axes],
        "axes": range(1, len(axes) + 1),
        "steps": [a.step for a in axes],
    }
    bounds = [builder.add_integers(values, f"images_strided_{label}") for label, values in limits.items()]
    return builder.add("Slice", (x, *bounds), "images_strided")


def _write_open_fold(builder: GraphBuilder, z: str, x: str, window: ConvWindow) -> str:
    """Turns the products into images of any size."""
    axes, groups = window.axes, window.groups
    packed = groups.pack_count * window.N
    if groups.pack_count != 1:
        z = builder.transpose(z, (1, 0, 2), "products_joined")
    # positions = (size + margin) / step + 1, where margin = pads - (taps - 1) * dilation - 1
    sizes = builder.slice(builder.add("Shape", (x,), "images_shape"), (2,), (_END,), "images_sizes")
    margins = [sum(a.pads) - (a.taps - 1) * a.dilation - 1 for a in axes]
    counts = builder.add("Add", (sizes, builder.add_integers(margins, "images_margin")), "images_span")
    if any(a.step != 1 for a in axes):
        steps = builder.add_integers([a.step for a in axes], "images_steps")
        counts = builder.add("Div", (counts, steps), "images_strides")
    unit = builder.add_integers((1,), "images_one")
    counts = builder.add("Add", (counts, unit), "images_positions")
    shape_parts = (
        builder.add_integers((-1,), "images_any"),
        counts,
        builder.add_integers((packed,), "images_channels"),
    )
    z = builder.add("Reshape", (z, builder.concat(shape_parts, 0, "products_shape")), "products_folded")
    if packed == groups.count * groups.out_channels:
        return z
    rank, channels = len(axes), groups.count * groups.out_channels
    return builder.slice(z, (0,) * (rank + 2), (*(_END,) * (rank + 1), channels), "products_cropped")


def write_fold(builder: GraphBuilder, z: str, x: str, window: ConvWindow) -> str:
    """Turns the products into images, channels last.

    Args:
        builder: Receives the nodes.
        z: Value name of the products.
        x: Value name of the input images.
        window: The convolution as a product.
    """
    if window.has_open_size:
        return _write_open_fold(builder, z, x, window)
    axes, groups = window.axes, window.groups
    rank = len(axes)
    phases, positions = [a.phases for a in axes], [a.positions for a in axes]
    sizes = [a.phases * a.positions for a in axes]
    channels = groups.count * groups.out_channels
    packed = groups.pack_count * window.N
    if window.phases != 1:
        z = builder.reshape(z, (*phases, groups.pack_count, -1, *positions, window.N), "products_split")
        # (phases, packs, images, positions, N) -> (images, positions and phases by axis, packs, N)
        spatial_axes = [axis for i in range(rank) for axis in (rank + 2 + i, i)]
        z = builder.transpose(z, (rank + 1, *spatial_axes, rank, 2 * rank + 2), "products_joined")
    elif groups.pack_count != 1:
        z = builder.reshape(z, (groups.pack_count, -1, window.positions, window.N), "products_split")
        z = builder.transpose(z, (1, 2, 0, 3), "products_joined")
    z = builder.reshape(z, (-1, *sizes, packed), "products_folded")
    output_sizes = [a.out for a in axes]
    if [*sizes, packed] != [*output_sizes, channels]:
        z = builder.slice(z, (0,) * (rank + 2), (_END, *output_sizes, channels), "products_cropped")
    return z
