"""Convolution windows as one matrix product: which element of the input meets which of the kernel.

Along each axis an output position and a tap of the kernel name a place in the padded input. The rows of X
are the output positions of all images, its columns the taps with the channels inside (`sliding` writes the
nodes that make it so); the weight is brought into the same order while the file is written.

A transposed convolution falls apart into one small convolution for each position within the stride: the
phases. Groups that are packed side by side meet a weight that is zero off the blocks.
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
    """One spatial axis.

    Attributes:
        places: (phases, positions, taps): where in the padded input.
        kernel: (phases, taps): which element of the kernel; -1 where a phase has fewer taps than others.
        pads: Zeros before and behind the input.
        size: Of the input.
        out: Of the output; phases times positions may be more.
        step: Distance of the positions.
        spread: Distance of the taps.
    """

    places: Places
    kernel: Places
    pads: tuple[int, int]
    size: int
    out: int
    step: int
    spread: int = 1

    @property
    def phases(self) -> int:
        """Small convolutions side by side."""
        return self.places.shape[0]

    @property
    def positions(self) -> int:
        """Output positions of each of them."""
        return self.places.shape[1]

    @property
    def taps(self) -> int:
        """Kernel elements of each."""
        return self.places.shape[2]

    @property
    def whole(self) -> int:
        """Size of the padded input."""
        return self.size + sum(self.pads)

    @property
    def plain(self) -> bool:
        """Whether a Slice takes what is needed."""
        whole = self.positions == -(-self.size // self.step) and not self.places[0, 0, 0]
        return self.phases == self.taps == 1 and self.pads == (0, 0) and whole


class Groups(Struct, frozen=True):
    """How channels are grouped, and the groups packed.

    Attributes:
        count: Groups.
        pack: Groups in one product.
        in_channels: Input channels of a group.
        out_channels: Output channels of a group.
    """

    count: int
    pack: int
    in_channels: int
    out_channels: int

    @property
    def packs(self) -> int:
        """Products side by side; the last one may hold fewer groups."""
        return -(-self.count // self.pack)


class ConvWindow(Struct, frozen=True):
    """A convolution of any kind as a product: `batch` times X (images x positions, K) W (K, N).

    Attributes:
        axes: How it slides; at example sizes where it is `opened`.
        groups: How channels are grouped.
        opened: The size of the images is known at run time only.
        narrow: Their element type, where onnxruntime pads but wider ones.
    """

    axes: tuple[WindowAxis, ...]
    groups: Groups
    opened: bool = False
    narrow: str = ""

    @property
    def phases(self) -> int:
        """Of all axes together."""
        return math.prod(a.phases for a in self.axes)

    @property
    def positions(self) -> int:
        """Rows for one image."""
        return math.prod(a.positions for a in self.axes)

    @property
    def taps(self) -> int:
        """Places that a position takes."""
        return math.prod(a.taps for a in self.axes)

    @property
    def batch(self) -> int:
        """Products of this size."""
        return self.phases * self.groups.packs

    @property
    def K(self) -> int:  # noqa: N802 - the matrix's letter
        """Depth of a product."""
        return self.taps * self.groups.pack * self.groups.in_channels

    @property
    def N(self) -> int:  # noqa: N802
        """Columns of a product."""
        return self.groups.pack * self.groups.out_channels

    @property
    def surrounded(self) -> bool:
        """Whether something stands around the images, or beside their channels."""
        groups = self.groups
        return groups.packs * groups.pack != groups.count or any(any(a.pads) for a in self.axes)

    @property
    def plain(self) -> bool:
        """Whether no Gather is needed."""
        return all(a.plain for a in self.axes)


def convolution_axes(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int]
) -> tuple[WindowAxis, ...]:
    """The axes of a convolution.

    Args:
        attributes: Of the operator: strides, dilations, pads, auto_pad.
        shape: Spatial sizes of the input.
        kernel: Of the kernel.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    pads = tuple(attributes.get("pads") or (0,) * 2 * rank)
    auto = attributes.get("auto_pad", "NOTSET")
    axes = []
    for i, (n, k, s, d) in enumerate(zip(shape, kernel, strides, dilations, strict=True)):
        reach = d * (k - 1) + 1
        before, behind = pads[i], pads[i + rank]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            missing = max((-(-n // s) - 1) * s + reach - n, 0)
            before = missing // 2 if auto == "SAME_UPPER" else missing - missing // 2
            behind = missing - before
        elif auto == "VALID":
            before = behind = 0
        out = max((n + before + behind - reach) // s + 1, 0)
        places = (np.arange(out) * s)[:, None] + np.arange(k) * d
        axes.append(WindowAxis(places[None], np.arange(k)[None], (before, behind), n, out, s, d))
    return tuple(axes)


def transposed_convolution_axes(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> tuple[WindowAxis, ...]:
    """The axes of a transposed convolution.

    Output o gets tap k of input i where o + pad = i s + k d. All outputs of one remainder of o by the stride
    s meet the same taps: they are a phase.

    Args:
        attributes: Of the operator: strides, dilations, pads, output_padding, auto_pad, output_shape.
        shape: Spatial sizes of the input.
        kernel: Of the kernel.
        out: Spatial sizes of the output.
    """
    rank = len(kernel)
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    heads = _transposed_heads(attributes, shape, kernel, out)
    axes = []
    for n, k, s, d, o, head in zip(shape, kernel, strides, dilations, out, heads, strict=True):
        phases = min(s, o)
        positions = -(-o // phases)
        met = [[t for t in range(k) if (q + head - t * d) % s == 0] for q in range(phases)]
        taps = max(1, *map(len, met))
        table = np.full((phases, taps), -1)
        shifts = np.zeros((phases, taps), np.int64)
        for q, phase_taps in enumerate(met):
            table[q, : len(phase_taps)] = phase_taps
            shifts[q, : len(phase_taps)] = [(q + head - t * d) // s for t in phase_taps]
        there = table >= 0
        lacking = not there.all()
        before = max(int(lacking), -int(shifts.min(where=there, initial=0)))
        last = positions - 1 + int(shifts.max(where=there, initial=0))
        places = np.arange(positions)[None, :, None] + shifts[:, None, :] + before
        # a tap that a phase does not have meets the first pad
        places = np.where(there[:, None, :], places, 0)
        axes.append(WindowAxis(places, table, (before, max(0, last + 1 - n)), n, o, 1))
    return tuple(axes)


def _transposed_heads(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> list[int]:
    """Elements that are cut off before each axis of a transposed convolution."""
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
    for n, k, s, d, e, o in zip(shape, kernel, strides, dilations, extra, out, strict=True):
        total = max(s * (n - 1) + e + d * (k - 1) + 1 - o, 0)
        heads.append(total // 2 if auto == "SAME_UPPER" else total - total // 2)
    return heads


class Kernel(Struct, frozen=True):
    """Cuts blocks of W from a stored kernel: taps with the channels inside, packed groups, phases.

    Attributes:
        tensor: As it is stored.
        axes: Its axes in the order of the operator.
        window: The product.
        inward: The stored order is (input channels, output channels of a group, ...), as ConvTranspose has
            it, and not (output channels, input channels of a group, ...).
        zero: What stands off the blocks of packed groups, where no number is stored.
    """

    tensor: Tensor
    axes: tuple[int, ...]
    window: ConvWindow
    inward: bool
    zero: int = 0

    def __call__(self, at: int, k: int, n: int, height: int, width: int) -> Array:
        """The block of matrix `at` whose corner is (k, n), `zero` where nothing is stored."""
        kernels = self._grouped()
        groups = self.window.groups
        packs, pack, in_channels, out_channels = (
            groups.packs,
            groups.pack,
            groups.in_channels,
            groups.out_channels,
        )
        phase, first = divmod(at, packs)
        taps = self._taps(phase)
        deep = pack * in_channels
        members = min(pack, groups.count - first * pack)
        block = np.full((height, width), self.zero, kernels.dtype)
        for tap in range(k // deep, min(-(-(k + height) // deep), len(taps))):
            if min(taps[tap]) < 0:
                # it meets what stands around the images
                block[max(tap * deep - k, 0) : max((tap + 1) * deep - k, 0)] = 0
                continue
            where: Any = (..., *taps[tap])
            part = kernels[where]
            for member in range(members):
                row, column = tap * deep + member * in_channels, member * out_channels
                top, bottom = max(row, k), min(row + in_channels, k + height)
                left, right = max(column, n), min(column + out_channels, n + width)
                if top >= bottom or left >= right:
                    continue
                piece = part[first * pack + member, left - column : right - column, top - row : bottom - row]
                block[top - k : bottom - k, left - n : right - n] = piece.T
        return block

    def _grouped(self) -> Array:
        """(groups, output channels, input channels, *kernel), a view."""
        kernels: Array = self.tensor.array().transpose(self.axes)
        groups, kernel = self.window.groups, kernels.shape[2:]
        if self.inward:
            return kernels.reshape(groups.count, groups.in_channels, groups.out_channels, *kernel).swapaxes(
                1, 2
            )
        return kernels.reshape(groups.count, groups.out_channels, groups.in_channels, *kernel)

    def _taps(self, phase: int) -> list[tuple[int, ...]]:
        """For every tap of a phase which element of the kernel it is."""
        axes = self.window.axes
        places = np.unravel_index(phase, [a.phases for a in axes])
        tables = [a.kernel[int(q)].tolist() for a, q in zip(axes, places, strict=True)]
        return list(itertools.product(*tables))
