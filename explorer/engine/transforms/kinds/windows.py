"""What slides over its input, as one matrix product: which element of the input meets which of the kernel.

Along each axis an output position and a tap of the kernel name a place in the padded input. The rows of X
are the output positions of all images, its columns the taps with the channels inside: an image whose
channels lie last is gathered in runs of whole channels, 25 times faster than element by element, and the
weight is brought into the same order while the file is written.

What a position takes is made of one small constant an axis, added up in the graph: a table of every
position and tap would be 5 MB for the first layer of a ResNet. A runtime folds the sum away.

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

from explorer.engine.graph import Tensor, tensor_from_array
from explorer.engine.transforms.region import Region

__all__ = ["Axis", "Groups", "Kernel", "Window", "convolved", "fold", "transposed", "unfold"]

_ALL = (1 << 31) - 1
"""End of a slice of all images."""

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Places = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Axis(Struct, frozen=True):
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
        given: Input channels of a group.
        made: Output channels of a group.
    """

    count: int
    pack: int
    given: int
    made: int

    @property
    def packs(self) -> int:
        """Products side by side; the last one may hold fewer groups."""
        return -(-self.count // self.pack)


class Window(Struct, frozen=True):
    """A convolution of any kind as a product: `batch` times X (images x positions, K) W (K, N).

    Attributes:
        axes: How it slides; at example sizes where it is `opened`.
        groups: How channels are grouped.
        opened: The size of the images is known at run time only.
    """

    axes: tuple[Axis, ...]
    groups: Groups
    opened: bool = False

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
        return self.taps * self.groups.pack * self.groups.given

    @property
    def N(self) -> int:  # noqa: N802
        """Columns of a product."""
        return self.groups.pack * self.groups.made

    @property
    def surrounded(self) -> bool:
        """Whether something stands around the images, or beside their channels."""
        groups = self.groups
        return groups.packs * groups.pack != groups.count or any(any(a.pads) for a in self.axes)

    @property
    def plain(self) -> bool:
        """Whether no Gather is needed."""
        return all(a.plain for a in self.axes)


def convolved(attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int]) -> tuple[Axis, ...]:
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
        axes.append(Axis(places[None], np.arange(k)[None], (before, behind), n, out, s, d))
    return tuple(axes)


def transposed(
    attributes: Mapping[str, Any], shape: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> tuple[Axis, ...]:
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
        for q, own in enumerate(met):
            table[q, : len(own)] = own
            shifts[q, : len(own)] = [(q + head - t * d) // s for t in own]
        there = table >= 0
        lacking = not there.all()
        before = max(int(lacking), -int(shifts.min(where=there, initial=0)))
        last = positions - 1 + int(shifts.max(where=there, initial=0))
        places = np.arange(positions)[None, :, None] + shifts[:, None, :] + before
        # a tap that a phase does not have meets the first pad
        places = np.where(there[:, None, :], places, 0)
        axes.append(Axis(places, table, (before, max(0, last + 1 - n)), n, o, 1))
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
    """

    tensor: Tensor
    axes: tuple[int, ...]
    window: Window
    inward: bool

    def __call__(self, at: int, k: int, n: int, height: int, width: int, fill: int) -> Array:
        """The block of matrix `at` whose corner is (k, n), `fill` where nothing is stored."""
        stored = self._grouped()
        groups = self.window.groups
        packs, pack, given, made = groups.packs, groups.pack, groups.given, groups.made
        phase, first = divmod(at, packs)
        taps = self._taps(phase)
        deep = pack * given
        members = min(pack, groups.count - first * pack)
        block = np.full((height, width), fill, stored.dtype)
        for tap in range(k // deep, min(-(-(k + height) // deep), len(taps))):
            if min(taps[tap]) < 0:
                continue
            where: Any = (..., *taps[tap])
            part = stored[where]
            for member in range(members):
                row, column = tap * deep + member * given, member * made
                top, bottom = max(row, k), min(row + given, k + height)
                left, right = max(column, n), min(column + made, n + width)
                if top >= bottom or left >= right:
                    continue
                piece = part[first * pack + member, left - column : right - column, top - row : bottom - row]
                block[top - k : bottom - k, left - n : right - n] = piece.T
        return block

    def _grouped(self) -> Array:
        """(groups, output channels, input channels, *kernel), a view."""
        stored: Array = self.tensor.array().transpose(self.axes)
        groups, kernel = self.window.groups, stored.shape[2:]
        if self.inward:
            return stored.reshape(groups.count, groups.given, groups.made, *kernel).swapaxes(1, 2)
        return stored.reshape(groups.count, groups.made, groups.given, *kernel)

    def _taps(self, phase: int) -> list[tuple[int, ...]]:
        """For every tap of a phase which element of the kernel it is."""
        axes = self.window.axes
        places = np.unravel_index(phase, [a.phases for a in axes])
        tables = [a.kernel[int(q)].tolist() for a, q in zip(axes, places, strict=True)]
        return list(itertools.product(*tables))


def unfold(region: Region, x: str, window: Window, fill: str = "") -> str:
    """The nodes that make X, (images x positions, K) or a stack of them, from the images.

    Args:
        region: Where they are written.
        x: The images, (images, channels, ...).
        window: How they are taken.
        fill: Value name of what stands around an image; '' for zero.
    """
    axes, groups = window.axes, window.groups
    rank = len(axes)
    room = groups.packs * groups.pack * groups.given - groups.count * groups.given
    if room or any(any(a.pads) for a in axes):
        before = (0, 0, *(a.pads[0] for a in axes))
        x = region.pad(x, (*before, 0, room, *(a.pads[1] for a in axes)), "images_around", fill)
    x = region.transpose(x, (0, *range(2, rank + 2), 1), "images_channels_last")
    if window.opened:
        return _slid(region, x, window)
    if not window.plain or (region.emission.opset < 10 and any(a.step != 1 for a in axes)):
        channels = groups.packs * groups.pack * groups.given
        x = region.reshape(x, (0, math.prod(a.whole for a in axes), channels), "images_places")
        x = region.add("Gather", (x, _index(region, axes)), "images_gathered", attributes={"axis": 1})
    elif any(a.step != 1 for a in axes):
        x = _strided(region, x, axes)
    if window.batch == 1:
        return region.reshape(x, (-1, window.K), "met")
    deep = groups.pack * groups.given
    # without a Gather the positions lie as they are counted
    apart = (-1, window.phases, window.positions, window.taps, groups.packs, deep)
    x = region.reshape(x, apart, "met_apart")
    x = region.transpose(x, (1, 4, 0, 2, 3, 5), "met_turned")
    return region.reshape(x, (window.batch, -1, window.K), "met")


def _slid(region: Region, x: str, window: Window) -> str:
    """X of images of any size: a Slice for each tap, ends counted from behind."""
    axes, groups = window.axes, window.groups
    rank, taps = len(axes), []
    for tap in itertools.product(*(range(a.taps) for a in axes)):
        starts = [t * a.spread for t, a in zip(tap, axes, strict=True)]
        left = [(a.taps - 1 - t) * a.spread for t, a in zip(tap, axes, strict=True)]
        steps = [a.step for a in axes]
        label = "tap_" + "_".join(map(str, tap))
        if any(left) or any(starts) or any(s != 1 for s in steps):
            bounds = starts, [-n or _ALL for n in left], range(1, rank + 1), steps
            given = [region.integers(values, f"{label}_{at}") for at, values in enumerate(bounds)]
            taps.append(region.add("Slice", (x, *given), label))
        else:
            taps.append(x)
    x = region.concat(taps, rank + 1, "images_met")
    if groups.packs == 1:
        return region.reshape(x, (-1, window.K), "met")
    x = region.reshape(x, (-1, window.taps, groups.packs, groups.pack * groups.given), "met_apart")
    x = region.transpose(x, (2, 0, 1, 3), "met_turned")
    return region.reshape(x, (groups.packs, -1, window.K), "met")


def _index(region: Region, axes: Sequence[Axis]) -> str:
    """The places that every position takes, (positions, taps) in C order of the axes; phases before."""
    rank = len(axes)
    phased = any(a.phases != 1 for a in axes)
    total = ""
    inner = 1
    for i in reversed(range(rank)):
        axis = axes[i]
        shape = [1] * (3 * rank if phased else 2 * rank)
        for kind, size in enumerate(axis.places.shape if phased else axis.places.shape[1:]):
            shape[kind * rank + i] = size
        part = region.constant(
            tensor_from_array("", (axis.places * inner).reshape(shape).astype(np.int64)), f"places_{i}"
        )
        total = region.add("Add", (part, total), f"places_from_{i}") if total else part
        inner *= axis.whole
    return total


def _strided(region: Region, x: str, axes: Sequence[Axis]) -> str:
    """Every so many elements of each axis of images whose channels lie last."""
    given = ([0] * len(axes), [a.whole for a in axes], range(1, len(axes) + 1), [a.step for a in axes])
    labels = ("starts", "ends", "axes", "steps")
    bounds = [
        region.integers(values, f"images_strided_{label}")
        for values, label in zip(given, labels, strict=True)
    ]
    return region.add("Slice", (x, *bounds), "images_strided")


def _refolded(region: Region, z: str, x: str, window: Window) -> str:
    """Images of any size from the products."""
    axes, groups = window.axes, window.groups
    packed = groups.packs * window.N
    if groups.packs != 1:
        z = region.transpose(z, (1, 0, 2), "made_joined")
    # positions = (size + pads - reach) / step + 1
    sizes = region.slice(region.add("Shape", (x,), "images_shape"), (2,), (_ALL,), "images_sizes")
    room = [sum(a.pads) - (a.taps - 1) * a.spread - 1 for a in axes]
    counts = region.add("Add", (sizes, region.integers(room, "images_room")), "images_reach")
    if any(a.step != 1 for a in axes):
        steps = region.integers([a.step for a in axes], "images_steps")
        counts = region.add("Div", (counts, steps), "images_last")
    one = region.integers((1,), "images_one")
    counts = region.add("Add", (counts, one), "images_positions")
    ends = region.integers((-1,), "images_all"), counts, region.integers((packed,), "images_made")
    z = region.add("Reshape", (z, region.concat(ends, 0, "made_shape")), "made_places")
    if packed == groups.count * groups.made:
        return z
    rank, channels = len(axes), groups.count * groups.made
    return region.slice(z, (0,) * (rank + 2), (*(_ALL,) * (rank + 1), channels), "made_shown")


def fold(region: Region, z: str, x: str, window: Window) -> str:
    """The nodes that make images with the channels last from the products; `x` are the images given."""
    if window.opened:
        return _refolded(region, z, x, window)
    axes, groups = window.axes, window.groups
    rank = len(axes)
    phases, positions = [a.phases for a in axes], [a.positions for a in axes]
    made = [a.phases * a.positions for a in axes]
    channels = groups.count * groups.made
    packed = groups.packs * window.N
    if window.batch == 1:
        z = region.reshape(z, (-1, *made, packed), "made_places")
    elif window.phases == 1:
        z = region.reshape(z, (groups.packs, -1, window.positions, window.N), "made_apart")
        z = region.transpose(z, (1, 2, 0, 3), "made_joined")
        z = region.reshape(z, (-1, *made, packed), "made_places")
    else:
        z = region.reshape(z, (*phases, groups.packs, -1, *positions, window.N), "made_apart")
        # (phases, packs, images, positions, N) -> images, each position with its phases, packs, N
        turns = [at for i in range(rank) for at in (rank + 2 + i, i)]
        z = region.transpose(z, (rank + 1, *turns, rank, 2 * rank + 2), "made_joined")
        z = region.reshape(z, (-1, *made, packed), "made_places")
    out = [a.out for a in axes]
    if [*made, packed] != [*out, channels]:
        z = region.slice(z, (0,) * (rank + 2), (_ALL, *out, channels), "made_shown")
    return z
