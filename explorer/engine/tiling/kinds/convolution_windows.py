"""Convolutions as matrix products: which input element is multiplied by which kernel element.

Along each axis, an output position and a tap determine a place in the padded input. A tap is a slot that
holds the index of a kernel element, or none. The rows of X are the output positions of all images. Its
columns are the taps, with the channels innermost. The weight is reordered in the same way while the file is
written.

A transposed convolution is divided into small convolutions, the phases: one for each remainder of the output
position by the stride. Groups that are packed into one product use a weight that is zero outside of the
diagonal blocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.model import Tensor

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class WindowAxis(Struct, frozen=True):
    """One spatial axis of a convolution.

    Attributes:
        places: Places in the padded input, (phases, positions, taps).
        kernel_indices: Index of each tap's kernel element, (phases, taps); -1 for a tap that holds none.
        pads: Number of padding elements before and after the input.
        size: Size of the input.
        out: Size of the output; the product of phases and positions may be larger.
        step: Distance between positions in the input.
        dilation: Distance between taps of a convolution; unused for a transposed one.
    """

    places: Places
    kernel_indices: Places
    pads: tuple[int, int]
    size: int
    out: int
    step: int
    dilation: int = 1

    @property
    def phases(self) -> int:
        """Number of phases."""
        return self.places.shape[0]

    @property
    def positions(self) -> int:
        """Number of output positions of each phase."""
        return self.places.shape[1]

    @property
    def taps(self) -> int:
        """Number of taps of each phase."""
        return self.places.shape[2]

    @property
    def padded_size(self) -> int:
        """Size of the padded input."""
        return self.size + sum(self.pads)

    @property
    def needs_no_gather(self) -> bool:
        """Whether a Slice can select the needed elements."""
        covers_input = self.positions == -(-self.size // self.step) and not self.places[0, 0, 0]
        return self.phases == self.taps == 1 and self.pads == (0, 0) and covers_input


class Groups(Struct, frozen=True):
    """The groups of channels, and how they are packed.

    Attributes:
        count: Number of groups.
        pack: Number of groups in one product.
        in_channels: Number of input channels of a group.
        out_channels: Number of output channels of a group.
    """

    count: int
    pack: int
    in_channels: int
    out_channels: int

    @property
    def pack_count(self) -> int:
        """Number of matmuls of a phase, each with up to `pack` groups. The last one may have fewer."""
        return -(-self.count // self.pack)


class ConvWindow(Struct, frozen=True):
    """A convolution of any kind as `batch` matmuls X W, with X (images x positions, K) and W (K, N).

    Attributes:
        axes: The spatial axes, at example sizes if `has_open_size`.
        groups: The groups of channels.
        has_open_size: Whether the size of the images is known only at run time.
        narrow: Element type of the images if onnxruntime's Pad supports only wider types, else ''.
    """

    axes: tuple[WindowAxis, ...]
    groups: Groups
    has_open_size: bool = False
    narrow: str = ""

    @property
    def phases(self) -> int:
        """Number of phases of all axes together."""
        return math.prod(a.phases for a in self.axes)

    @property
    def positions(self) -> int:
        """Number of rows of X for one image and phase."""
        return math.prod(a.positions for a in self.axes)

    @property
    def taps(self) -> int:
        """Number of taps of all axes together."""
        return math.prod(a.taps for a in self.axes)

    @property
    def batch(self) -> int:
        """Number of matmuls: one for each phase and pack of groups."""
        return self.phases * self.groups.pack_count

    @property
    def K(self) -> int:  # noqa: N802 - the matrix's letter
        """Depth of a matmul."""
        return self.taps * self.groups.pack * self.groups.in_channels

    @property
    def N(self) -> int:  # noqa: N802
        """Number of columns of a matmul."""
        return self.groups.pack * self.groups.out_channels

    @property
    def has_padding(self) -> bool:
        """Whether images or channels need padding."""
        groups = self.groups
        return groups.pack_count * groups.pack != groups.count or any(any(a.pads) for a in self.axes)

    @property
    def needs_no_gather(self) -> bool:
        """Whether Slices can select the needed elements on all axes."""
        return all(a.needs_no_gather for a in self.axes)


def compute_axes(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int]
) -> tuple[WindowAxis, ...]:
    """Computes the axes of a convolution.

    Args:
        attributes: Attributes of the operator: strides, dilations, pads, auto_pad.
        shape: Spatial sizes of the input.
        kernel: Spatial sizes of the kernel.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    pads = tuple(attributes.get("pads") or (0,) * 2 * rank)
    auto = attributes.get("auto_pad", "NOTSET")
    axes = []
    for i, (n, k, s, d) in enumerate(zip(shape, kernel, strides, dilations, strict=True)):
        extent = d * (k - 1) + 1
        pad_before, pad_after = pads[i], pads[i + rank]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            missing = max((-(-n // s) - 1) * s + extent - n, 0)
            pad_before = missing // 2 if auto == "SAME_UPPER" else missing - missing // 2
            pad_after = missing - pad_before
        elif auto == "VALID":
            pad_before = pad_after = 0
        out = max((n + pad_before + pad_after - extent) // s + 1, 0)
        places = (np.arange(out) * s)[:, None] + np.arange(k) * d
        axes.append(WindowAxis(places[None], np.arange(k)[None], (pad_before, pad_after), n, out, s, d))
    return tuple(axes)


def compute_transposed_axes(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int], output_sizes: Sequence[int]
) -> tuple[WindowAxis, ...]:
    """Computes the axes of a transposed convolution.

    Output position p reads kernel element t at input i if p + head = i s + t d, with the stride s, the
    dilation d and the cropped elements `head`. All positions with the same remainder by s read the same
    kernel elements: they form a phase.

    Args:
        attributes: Attributes: strides, dilations, pads, output_padding, auto_pad, output_shape.
        shape: Spatial sizes of the input.
        kernel: Spatial sizes of the kernel.
        output_sizes: Spatial sizes of the output.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    heads = _compute_cropped_heads(attributes, shape, kernel, output_sizes)
    axes = []
    for n, k, s, d, o, head in zip(shape, kernel, strides, dilations, output_sizes, heads, strict=True):
        phases = min(s, o)
        positions = -(-o // phases)
        taps_by_phase = [[t for t in range(k) if (q + head - t * d) % s == 0] for q in range(phases)]
        taps = max(1, *map(len, taps_by_phase))
        table = np.full((phases, taps), -1)
        shifts = np.zeros((phases, taps), np.int64)
        for q, phase_taps in enumerate(taps_by_phase):
            table[q, : len(phase_taps)] = phase_taps
            shifts[q, : len(phase_taps)] = [(q + head - t * d) // s for t in phase_taps]
        has_tap = table >= 0
        lacks_taps = not has_tap.all()
        pad_before = max(int(lacks_taps), -int(shifts.min(where=has_tap, initial=0)))
        last = positions - 1 + int(shifts.max(where=has_tap, initial=0))
        places = np.arange(positions)[None, :, None] + shifts[:, None, :] + pad_before
        # a missing tap of a phase reads the first padding element
        places = np.where(has_tap[:, None, :], places, 0)
        axes.append(WindowAxis(places, table, (pad_before, max(0, last + 1 - n)), n, o, 1))
    return tuple(axes)


def _compute_cropped_heads(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int], output_sizes: Sequence[int]
) -> list[int]:
    """Computes how many elements are cropped at the start of each axis of a transposed convolution."""
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    extra = tuple(attributes.get("output_padding") or (0,) * rank)
    pads = tuple(attributes.get("pads") or (0,) * 2 * rank)
    auto = attributes.get("auto_pad", "NOTSET")
    if auto == "VALID":
        return [0] * rank
    if auto == "NOTSET" and not attributes.get("output_shape"):
        return list(pads[:rank])
    heads = []
    for n, k, s, d, e, o in zip(shape, kernel, strides, dilations, extra, output_sizes, strict=True):
        total = max(s * (n - 1) + e + d * (k - 1) + 1 - o, 0)
        heads.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return heads


class KernelBlocks(Struct, frozen=True):
    """Cuts blocks of W from a stored kernel, with reordered channels, packed groups and phases.

    Attributes:
        tensor: The stored tensor.
        axes: Axes of the tensor, in the operator's order.
        window: The convolution as a product.
        has_inputs_first: Whether the stored order is (input channels, output channels of a group, ...), as
            for ConvTranspose, instead of (output channels, input channels of a group, ...).
        zero: Value outside of the blocks of packed groups.
    """

    tensor: Tensor
    axes: tuple[int, ...]
    window: ConvWindow
    has_inputs_first: bool
    zero: int = 0

    def __call__(self, matrix: int, k: int, n: int, height: int, width: int) -> Array:
        """Returns the block of W of one matmul with its corner at (k, n).

        It has `zero` outside of the blocks of packed groups, and 0 for taps without a kernel element.
        """
        kernels = self._view_grouped_kernel()
        groups = self.window.groups
        pack_count = groups.pack_count
        pack = groups.pack
        in_channels = groups.in_channels
        out_channels = groups.out_channels
        phase, pack_index = divmod(matrix, pack_count)
        taps = self._list_kernel_taps(phase)
        tap_depth = pack * in_channels
        members = min(pack, groups.count - pack_index * pack)
        block = np.full((height, width), self.zero, kernels.dtype)
        for tap in range(k // tap_depth, min(-(-(k + height) // tap_depth), len(taps))):
            if min(taps[tap]) < 0:
                # a missing tap multiplies only padding
                block[max(tap * tap_depth - k, 0) : max((tap + 1) * tap_depth - k, 0)] = 0
                continue
            where: Any = (..., *taps[tap])
            part = kernels[where]
            for member in range(members):
                row, column = tap * tap_depth + member * in_channels, member * out_channels
                top, bottom = max(row, k), min(row + in_channels, k + height)
                left, right = max(column, n), min(column + out_channels, n + width)
                if top >= bottom or left >= right:
                    continue
                kernel_block = part[
                    pack_index * pack + member, left - column : right - column, top - row : bottom - row
                ]
                block[top - k : bottom - k, left - n : right - n] = kernel_block.T
        return block

    def _view_grouped_kernel(self) -> Array:
        """Returns the kernel as (groups, output channels, input channels, *kernel): a view."""
        kernels: Array = self.tensor.array().transpose(self.axes)
        groups, kernel = self.window.groups, kernels.shape[2:]
        if self.has_inputs_first:
            return kernels.reshape(groups.count, groups.in_channels, groups.out_channels, *kernel).swapaxes(
                1, 2
            )
        return kernels.reshape(groups.count, groups.out_channels, groups.in_channels, *kernel)

    def _list_kernel_taps(self, phase: int) -> list[tuple[int, ...]]:
        """Returns the kernel element of each tap of a phase."""
        axes = self.window.axes
        axis_phases = np.unravel_index(phase, [a.phases for a in axes])
        tables = [a.kernel_indices[int(q)].tolist() for a, q in zip(axes, axis_phases, strict=True)]
        return list(itertools.product(*tables))
