"""Specifies Conv and ConvTranspose as products.

A tap is one position of the kernel. The columns of X are the taps, each with the channels of a pack of
groups. The rows of W are the same taps and channels of the kernel. W is zero where a column belongs to
another group.

A transposed convolution is split into phases: the phase of an output is its position within the stride. All
phases get the same number of taps and of positions. Zeros replace missing taps, and the output omits
additional positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.model import Node
from explorer.engine.proof.float64.windows import Window
from explorer.engine.proof.meanings.product_spec import NodeReader, Original, ProductSpec, Rows
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.transpose import copy_matrix


def describe_convolution(node: Node, reader: NodeReader, fill: int = 0) -> Original:
    """Returns the product that a Conv or ConvTranspose computes.

    Args:
        node: Convolution.
        reader: Reader of the original graph.
        fill: Element of W where a row and a column belong to different groups.

    Raises:
        NotTiled: The images are constant.
    """
    if reader.read_numbers(node.inputs[0]) is not None:
        raise NotTiled(f"{node.op} '{node.label}' of the original has no operand that is not constant")
    kernel = reader.read_numbers(node.inputs[1])
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = reader.read_numbers(name) if name else None
    inputs = [node.inputs[0]] if kernel is not None else [node.inputs[0], node.inputs[1]]
    operand_count = len(inputs)
    if name and bias is None:
        inputs.append(name)
    bias_source: Array | int | None = bias if bias is not None else (len(inputs) - 1 if name else None)
    depth = reader.planned.K if reader.planned is not None else None

    def build_spec(shapes: Sequence[tuple[int, ...]], output_shape: tuple[int, ...]) -> ProductSpec:
        kernel_shape = kernel.shape if kernel is not None else shapes[1]
        compute_taps = _compute_taps if node.op == "Conv" else _compute_transposed_taps
        taps = compute_taps(node.attributes, shapes[0], kernel_shape, output_shape)
        return _build_spec(taps, shapes[0], kernel, bias_source, output_shape, depth, node, fill)

    return Original(
        node, tuple(inputs), operand_count, str(kernel.dtype) if kernel is not None else "", build_spec
    )


class _Taps(Struct, frozen=True):
    """Taps of a convolution, and the input positions that they read.

    Attributes:
        phases: Number of phases on each axis; output o = p phases + q is position p of phase q.
        positions: Number of positions in a phase, on each axis.
        by_phase: Taps in order, by phase. None is a missing tap.
        input_positions: Function from a phase and a tap to the input positions on each axis that the tap
            reads, for all positions of the phase. Input beyond the edge is zero.
    """

    phases: tuple[int, ...]
    positions: tuple[int, ...]
    by_phase: Mapping[tuple[int, ...], list[tuple[int, ...] | None]]
    input_positions: Callable[[tuple[int, ...], tuple[int, ...]], list[Array]]


def _compute_taps(
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    output_shape: tuple[int, ...],
) -> _Taps:
    """Returns the taps of a Conv, which has a single phase.

    Raises:
        NotTiled: The attributes give another output shape.
    """
    window = Window(attributes, shape[2:], kernel[2:])
    if window.out != output_shape[2:]:
        raise NotTiled(
            f"the original's output has {list(output_shape[2:])} positions, but its attributes give"
            f" {list(window.out)}"
        )

    heads = [head for head, _ in window.pads]
    axes = list(zip(window.dilations, window.strides, window.out, heads, strict=True))

    def compute_input_positions(phase: tuple[int, ...], tap: tuple[int, ...]) -> list[Array]:
        return [np.arange(n) * s + t * d - head for t, (d, s, n, head) in zip(tap, axes, strict=True)]

    origin = (0,) * len(output_shape[2:])
    return _Taps(
        (1,) * len(origin), window.out, {origin: list(np.ndindex(*kernel[2:]))}, compute_input_positions
    )


def _compute_transposed_taps(
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    output_shape: tuple[int, ...],
) -> _Taps:
    """Returns the taps of a transposed convolution.

    The product of input i and tap k is added to output o = i stride + k dilation - pad.
    """
    rank = len(kernel) - 2
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    heads = _compute_leading_crops(attributes, shape[2:], kernel[2:], output_shape[2:])
    phases = tuple(min(s, o) for s, o in zip(strides, output_shape[2:], strict=True))
    positions = tuple(-(-o // p) for o, p in zip(output_shape[2:], phases, strict=True))
    axes = list(zip(strides, dilations, heads, strict=True))
    axis_taps = [
        [[k for k in range(size) if (q + pad - k * d) % s == 0] for q in range(count)]
        for size, count, (s, d, pad) in zip(kernel[2:], phases, axes, strict=True)
    ]
    width = [max(1, *(len(taps) for taps in phase_taps)) for phase_taps in axis_taps]
    taps_by_phase: dict[tuple[int, ...], list[tuple[int, ...] | None]] = {}
    for phase in np.ndindex(*phases):
        tap_lists = [phase_taps[q] for phase_taps, q in zip(axis_taps, phase, strict=True)]
        taps_by_phase[phase] = [
            tuple(taps[i] for taps, i in zip(tap_lists, indices, strict=True))
            if all(i < len(taps) for taps, i in zip(tap_lists, indices, strict=True))
            else None
            for indices in np.ndindex(*width)
        ]

    def compute_input_positions(phase: tuple[int, ...], tap: tuple[int, ...]) -> list[Array]:
        per_axis = zip(positions, phase, tap, axes, strict=True)
        return [np.arange(count) + (q + pad - k * d) // s for count, q, k, (s, d, pad) in per_axis]

    return _Taps(phases, positions, taps_by_phase, compute_input_positions)


def _compute_leading_crops(
    attributes: Mapping[str, Any],
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    output_sizes: tuple[int, ...],
) -> list[int]:
    """Returns the number of elements that are cropped from the start of each axis of the full output."""
    rank = len(kernel)
    strides = attributes.get("strides") or (1,) * rank
    dilations = attributes.get("dilations") or (1,) * rank
    padding = attributes.get("output_padding") or (0,) * rank
    auto = attributes.get("auto_pad", "NOTSET")
    if auto == "NOTSET" and not attributes.get("output_shape"):
        return list((attributes.get("pads") or (0,) * rank)[:rank])
    full_sizes = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(shape, strides, kernel, dilations, padding, strict=True)
    ]
    cropped = [max(f - o, 0) for f, o in zip(full_sizes, output_sizes, strict=True)]
    if auto == "VALID":
        return [0] * rank
    return [c // 2 if auto == "SAME_UPPER" else -(-c // 2) for c in cropped]


def _build_spec(
    taps: _Taps,
    shape: tuple[int, ...],
    kernel: Array | None,
    bias: Array | int | None,
    output_shape: tuple[int, ...],
    depth: int | None,
    node: Node,
    fill: int,
) -> ProductSpec:
    """Builds the specification of a convolution. A pack has as many groups as K = `depth` requires."""
    groups = int(node.attributes.get("group", 1))
    in_channels, out_channels = shape[1] // groups, output_shape[1] // groups
    tap_count = len(next(iter(taps.by_phase.values())))
    pack = 1
    if depth is not None and depth % (tap_count * in_channels) == 0:
        pack = max(1, min(depth // (tap_count * in_channels), groups))
    packs = -(-groups // pack)
    rank = len(output_shape) - 2
    M = shape[0] * math.prod(taps.positions)
    K, N = tap_count * pack * in_channels, pack * out_channels
    batch = len(taps.by_phase) * packs

    def read_left(values: Sequence[Array]) -> Rows:
        return UnfoldedImages(values[0], taps, packs, pack * in_channels)

    def arrange_weight(w: Array) -> Array:
        if node.op == "Conv" and groups == tap_count == len(taps.by_phase) == 1:
            return w.reshape(1, out_channels, in_channels).swapaxes(1, 2)  # a view of the stored weight
        return _arrange_kernel(
            w, taps, (groups, pack), (in_channels, out_channels), node.op != "Conv", fill
        ).reshape(batch, K, N)

    padded_sizes = [p * n for p, n in zip(taps.phases, taps.positions, strict=True)]
    padding = [
        (0, 0),
        (0, packs * N - output_shape[1]),
        *((0, w - o) for w, o in zip(padded_sizes, output_shape[2:], strict=True)),
    ]
    needs_padding = any(map(any, padding))

    def flatten_output(y: Array) -> Array:
        """Arranges Y, or an array of its shape, as (batch, M, N), with zeros where Y has no element."""
        y = y.reshape(output_shape)
        if needs_padding:
            y = np.pad(y, padding)
        split = [n for pair in zip(taps.positions, taps.phases, strict=True) for n in pair]
        y = y.reshape(shape[0], packs, N, *split)
        order = (*(4 + 2 * i for i in range(rank)), 1, 0, *(3 + 2 * i for i in range(rank)), 2)
        return y.transpose(order).reshape(batch, M, N)

    return ProductSpec(
        batch,
        M,
        K,
        N,
        read_left,
        arrange_weight(kernel) if kernel is not None else lambda values: arrange_weight(values[1]),
        flatten_output,
        output_shape,
        bias=bias,
        expand_bias=lambda c: np.broadcast_to(c.reshape(-1, *(1,) * rank), output_shape),
        contained=flatten_output(np.ones(output_shape, bool)) if needs_padding else None,
        squares=lambda values: _sum_squares(values[0], taps, packs, pack * in_channels),
    )


def _arrange_kernel(
    w: Array, taps: _Taps, packing: tuple[int, int], channels: tuple[int, int], is_transposed: bool, fill: int
) -> Array:
    """Arranges a kernel as (phase, pack, tap, group, input channel, group, output channel).

    Args:
        w: Kernel.
        taps: Taps of the convolution.
        packing: Number of groups, and of groups in a pack.
        channels: Number of input and output channels of a group.
        is_transposed: Whether the kernel's first axis has the input channels.
        fill: Element of W where a row and a column belong to different groups.
    """
    (groups, pack), (in_channels, out_channels) = packing, channels
    tap_count = len(next(iter(taps.by_phase.values())))
    columns = np.full(
        (len(taps.by_phase), -(-groups // pack), tap_count, pack, in_channels, pack, out_channels),
        fill,
        w.dtype,
    )
    for q, phase_taps in enumerate(taps.by_phase.values()):
        for t, tap in enumerate(phase_taps):
            if tap is None:
                columns[q, :, t] = 0
                continue
            tap_index: Any = (slice(None), slice(None), *tap)
            tap_weights = w[tap_index]
            for g in range(groups):
                block = (
                    tap_weights[g * in_channels : (g + 1) * in_channels]
                    if is_transposed
                    else tap_weights[g * out_channels : (g + 1) * out_channels].T
                )
                p, member = divmod(g, pack)
                columns[q, p, t, member, :, member, :] = block
    return columns


class UnfoldedImages:
    """The matrix X of a convolution, which is computed from the images by rows.

    A place is one pixel with all channels of a pack. Each element of a row refers to a place by its number.

    Args:
        x: Images, (images, channels, ...).
        taps: Taps of the convolution.
        packs: Number of packs of groups.
        channels_per_pack: Number of channels in a pack.
    """

    def __init__(self, x: Array, taps: _Taps, packs: int, channels_per_pack: int) -> None:
        self.x, self.packs, self.channels_per_pack = x, packs, channels_per_pack
        self._sizes = x.shape[2:]
        self._tables = [_build_place_table(taps, phase, self._sizes) for phase in taps.by_phase]
        self._all_rows = np.arange(x.shape[0] * math.prod(taps.positions))
        self._places: Array | None = None
        self._read_places = 0

    def read_places(self, b: int) -> Array:
        """Returns the places of a matrix, (places, channels); the last is the zero beyond the images."""
        if self._places is None:
            images, channels, *_ = self.x.shape
            image_size = math.prod(self._sizes)
            self._places = np.zeros(
                (images * image_size + 1, self.packs, self.channels_per_pack), self.x.dtype
            )
            flat = self._places.reshape(-1, self.packs * self.channels_per_pack)
            for image in range(images):
                part = flat[image * image_size : (image + 1) * image_size, :channels]
                copy_matrix(part, self.x[image].reshape(channels, image_size).T)
        return self._places[:, b % self.packs]

    def find_row_places(self, b: int, rows: Array | slice) -> Array:
        """Returns the numbers of the places in some rows of a matrix, (rows, taps); -1 is the zero."""
        table = self._tables[b // self.packs]
        image, position = np.divmod(self._all_rows[rows], len(table))
        places = table[position]
        if len(self.x) > 1:
            places = np.where(places < 0, -1, places + image[:, None] * math.prod(self._sizes))
        return places

    def __call__(self, b: int, rows: Array | slice) -> Array:
        """Returns some rows of a matrix; see `Rows`."""
        images, channels, *_ = self.x.shape
        image_size = math.prod(self._sizes)
        places = self.find_row_places(b, rows)
        self._read_places += places.size
        if (
            self._read_places <= image_size
            and images == self.packs == 1
            and channels == self.channels_per_pack
        ):
            # for a few rows, gather only their places instead of copying all images
            columns = self.x.reshape(channels, image_size)[:, places.reshape(-1)]
            columns[:, places.reshape(-1) < 0] = 0
            return np.ascontiguousarray(columns.T).reshape(len(places), -1)
        return self.read_places(b).take(places, 0).reshape(len(places), -1)


def _sum_squares(x: Array, taps: _Taps, packs: int, channels_per_pack: int) -> Array:
    """Returns the sums of squares of the rows of `UnfoldedImages`; each place is squared once."""
    images, channels, *sizes = x.shape
    # the last place is the zero, as in UnfoldedImages
    places = np.zeros((images, packs, math.prod(sizes) + 1))
    for p in range(packs):
        part = x[:, p * channels_per_pack : min((p + 1) * channels_per_pack, channels)].reshape(
            images, -1, math.prod(sizes)
        )
        places[:, p, :-1] = np.einsum("icp,icp->ip", part, part, dtype=np.float64)
    phase_sums = [places[:, :, _build_place_table(taps, phase, sizes)].sum(-1) for phase in taps.by_phase]
    return np.stack(phase_sums).transpose(0, 2, 1, 3).reshape(len(phase_sums) * packs, -1)


def _build_place_table(taps: _Taps, phase: tuple[int, ...], sizes: Sequence[int]) -> Array:
    """Returns the number of the image place for every position of a phase and every tap; -1 if outside."""
    table = np.full((math.prod(taps.positions), len(taps.by_phase[phase])), -1, np.int32)
    for t, tap in enumerate(taps.by_phase[phase]):
        if tap is not None:
            axis_positions = np.ix_(*taps.input_positions(phase, tap))
            is_inside = np.ones((), bool)
            number: Array = np.zeros((), np.int64)
            for positions, size in zip(axis_positions, sizes, strict=True):
                is_inside = is_inside & (positions >= 0) & (positions < size)
                number = number * size + positions
            table[:, t] = np.where(is_inside, number, -1).reshape(-1)
    return table
