"""Conv and ConvTranspose as products, tap by tap.

The columns of X are the taps of the kernel, each with the channels of a pack of groups inside; the rows of W
are the same taps and channels of the kernel, zero where a column belongs to another group.

A transposed convolution is split by the position of an output within the stride (its phase). A phase with
fewer taps than others gets zeros for the missing taps, and the output omits the positions that it lacks.
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


def convolution(node: Node, look: NodeReader, fill: int = 0) -> Original:
    """The meaning of a Conv or ConvTranspose; `fill` is the number between the kernels of two groups.

    Raises:
        NotTiled: Its images are constant.
    """
    if look.number(node.inputs[0]) is not None:
        raise NotTiled(f"{node.op} '{node.label}' of the original has no operand that is not constant")
    kernel = look.number(node.inputs[1])
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    bias = look.number(name) if name else None
    inputs = [node.inputs[0]] if kernel is not None else [node.inputs[0], node.inputs[1]]
    operands = len(inputs)
    if name and bias is None:
        inputs.append(name)
    added: Array | int | None = bias if bias is not None else (len(inputs) - 1 if name else None)
    depth = look.planned.K if look.planned is not None else None

    def at(shapes: Sequence[tuple[int, ...]], out: tuple[int, ...]) -> ProductSpec:
        size = kernel.shape if kernel is not None else shapes[1]
        slide = _forwards if node.op == "Conv" else _backwards
        taps = slide(node.attributes, shapes[0], size, out)
        return _meaning(taps, shapes[0], size, kernel, added, out, depth, node, fill)

    return Original(node, tuple(inputs), operands, str(kernel.dtype) if kernel is not None else "", at)


class _Taps(Struct, frozen=True):
    """Which input positions meet which taps of the kernel.

    Attributes:
        phases: Of each axis; outputs o = p phases + q are position p of phase q.
        positions: Of each axis, in one phase.
        each: For every phase its taps in order; None for a missing tap.
        met: For a phase and a tap: the input positions on each axis that the positions of the phase meet.
            Positions beyond the input are zero.
    """

    phases: tuple[int, ...]
    positions: tuple[int, ...]
    each: Mapping[tuple[int, ...], list[tuple[int, ...] | None]]
    met: Callable[[tuple[int, ...], tuple[int, ...]], list[Array]]


def _forwards(
    attributes: Mapping[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]
) -> _Taps:
    window = Window(attributes, shape[2:], kernel[2:])
    if window.out != out[2:]:
        raise NotTiled(f"the original gives {list(out[2:])} positions, its attributes {list(window.out)}")

    heads = [head for head, _ in window.pads]
    axes = list(zip(window.dilations, window.strides, window.out, heads, strict=True))

    def met(phase: tuple[int, ...], tap: tuple[int, ...]) -> list[Array]:
        return [np.arange(n) * s + t * d - head for t, (d, s, n, head) in zip(tap, axes, strict=True)]

    origin = (0,) * len(out[2:])
    return _Taps((1,) * len(origin), window.out, {origin: list(np.ndindex(*kernel[2:]))}, met)


def _backwards(
    attributes: Mapping[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]
) -> _Taps:
    """Input i and tap k are added into output o = i stride + k dilation - pad."""
    rank = len(kernel) - 2
    strides = tuple(attributes.get("strides") or (1,) * rank)
    dilations = tuple(attributes.get("dilations") or (1,) * rank)
    heads = _heads(attributes, shape[2:], kernel[2:], out[2:])
    phases = tuple(min(s, o) for s, o in zip(strides, out[2:], strict=True))
    positions = tuple(-(-o // p) for o, p in zip(out[2:], phases, strict=True))
    axes = list(zip(strides, dilations, heads, strict=True))
    axis_taps = [
        [[k for k in range(size) if (q + pad - k * d) % s == 0] for q in range(count)]
        for size, count, (s, d, pad) in zip(kernel[2:], phases, axes, strict=True)
    ]
    width = [max(1, *(len(taps) for taps in of_axis)) for of_axis in axis_taps]
    each: dict[tuple[int, ...], list[tuple[int, ...] | None]] = {}
    for phase in np.ndindex(*phases):
        here = [of_axis[q] for of_axis, q in zip(axis_taps, phase, strict=True)]
        each[phase] = [
            tuple(taps[i] for taps, i in zip(here, at, strict=True))
            if all(i < len(taps) for taps, i in zip(here, at, strict=True))
            else None
            for at in np.ndindex(*width)
        ]

    def met(phase: tuple[int, ...], tap: tuple[int, ...]) -> list[Array]:
        each = zip(positions, phase, tap, axes, strict=True)
        return [np.arange(count) + (q + pad - k * d) // s for count, q, k, (s, d, pad) in each]

    return _Taps(phases, positions, each, met)


def _heads(
    attributes: Mapping[str, Any], shape: tuple[int, ...], kernel: tuple[int, ...], out: tuple[int, ...]
) -> list[int]:
    """The part of the full output that is cut off before each axis, from the size of the output."""
    rank = len(kernel)
    strides = attributes.get("strides") or (1,) * rank
    dilations = attributes.get("dilations") or (1,) * rank
    padding = attributes.get("output_padding") or (0,) * rank
    auto = attributes.get("auto_pad", "NOTSET")
    if auto == "NOTSET" and not attributes.get("output_shape"):
        return list((attributes.get("pads") or (0,) * rank)[:rank])
    full = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(shape, strides, kernel, dilations, padding, strict=True)
    ]
    cut = [max(f - o, 0) for f, o in zip(full, out, strict=True)]
    if auto == "VALID":
        return [0] * rank
    return [c // 2 if auto == "SAME_UPPER" else -(-c // 2) for c in cut]


def _meaning(
    taps: _Taps,
    shape: tuple[int, ...],
    size: tuple[int, ...],
    kernel: Array | None,
    bias: Array | int | None,
    out: tuple[int, ...],
    depth: int | None,
    node: Node,
    fill: int,
) -> ProductSpec:
    """The product, with as many groups side by side as make it `depth` deep."""
    groups = int(node.attributes.get("group", 1))
    in_channels, out_channels = shape[1] // groups, out[1] // groups
    width = len(next(iter(taps.each.values())))
    pack = 1
    if depth is not None and depth % (width * in_channels) == 0:
        pack = max(1, min(depth // (width * in_channels), groups))
    packs = -(-groups // pack)
    rank = len(out) - 2
    M = shape[0] * math.prod(taps.positions)
    K, N = width * pack * in_channels, pack * out_channels
    batch = len(taps.each) * packs

    def left(values: Sequence[Array]) -> Rows:
        return UnfoldedImages(values[0], taps, packs, pack * in_channels)

    def weight(w: Array) -> Array:
        if node.op == "Conv" and groups == width == len(taps.each) == 1:
            return w.reshape(1, out_channels, in_channels).swapaxes(1, 2)  # as it is stored
        return _blocks(w, taps, (groups, pack), (in_channels, out_channels), node.op != "Conv", fill).reshape(
            batch, K, N
        )

    whole = [p * n for p, n in zip(taps.phases, taps.positions, strict=True)]
    grow = [(0, 0), (0, packs * N - out[1]), *((0, w - o) for w, o in zip(whole, out[2:], strict=True))]
    grows = any(map(any, grow))

    def arranged(y: Array) -> Array:
        """Y, or an array of its shape, as (batch, M, N); zero where Y has no element."""
        y = y.reshape(out)
        if grows:
            y = np.pad(y, grow)
        split = [n for pair in zip(taps.positions, taps.phases, strict=True) for n in pair]
        y = y.reshape(shape[0], packs, N, *split)
        order = (*(4 + 2 * i for i in range(rank)), 1, 0, *(3 + 2 * i for i in range(rank)), 2)
        return y.transpose(order).reshape(batch, M, N)

    return ProductSpec(
        batch,
        M,
        K,
        N,
        left,
        weight(kernel) if kernel is not None else lambda values: weight(values[1]),
        arranged,
        out,
        bias=bias,
        spread=lambda c: np.broadcast_to(c.reshape(-1, *(1,) * rank), out),
        shown=arranged(np.ones(out, bool)) if grows else None,
        squares=lambda values: _squares(values[0], taps, packs, pack * in_channels),
    )


def _blocks(
    w: Array, taps: _Taps, packing: tuple[int, int], channels: tuple[int, int], transposed: bool, fill: int
) -> Array:
    """A kernel as (phase, pack, tap, member, channel in, member, channel out), `fill` between two groups.

    Where it is `transposed`, its channels come in before they go out.
    """
    (groups, pack), (in_channels, out_channels) = packing, channels
    width = len(next(iter(taps.each.values())))
    columns = np.full(
        (len(taps.each), -(-groups // pack), width, pack, in_channels, pack, out_channels), fill, w.dtype
    )
    for q, each in enumerate(taps.each.values()):
        for t, tap in enumerate(each):
            if tap is None:
                columns[q, :, t] = 0
                continue
            where: Any = (slice(None), slice(None), *tap)
            met = w[where]
            for g in range(groups):
                block = (
                    met[g * in_channels : (g + 1) * in_channels]
                    if transposed
                    else met[g * out_channels : (g + 1) * out_channels].T
                )
                p, member = divmod(g, pack)
                columns[q, p, t, member, :, member, :] = block
    return columns


class UnfoldedImages:
    """X of images (images, channels, ...); every position has the `deep` channels of a pack."""

    def __init__(self, x: Array, taps: _Taps, packs: int, deep: int) -> None:
        self.x, self.packs, self.deep = x, packs, deep
        self._sizes = x.shape[2:]
        self._tables = [_table(taps, phase, self._sizes) for phase in taps.each]
        self._every = np.arange(x.shape[0] * math.prod(taps.positions))
        self._laid: Array | None = None
        self._looked_up = 0

    def places(self, b: int) -> Array:
        """The places of a matrix, (places, deep); the last place is the zero beyond the images."""
        if self._laid is None:
            images, channels, *_ = self.x.shape
            whole = math.prod(self._sizes)
            self._laid = np.zeros((images * whole + 1, self.packs, self.deep), self.x.dtype)
            flat = self._laid.reshape(-1, self.packs * self.deep)
            for image in range(images):
                part = flat[image * whole : (image + 1) * whole, :channels]
                copy_matrix(part, self.x[image].reshape(channels, whole).T)
        return self._laid[:, b % self.packs]

    def met(self, b: int, some: Array | slice) -> Array:
        """The places in some rows of a matrix, (rows, taps); -1 for the zero."""
        table = self._tables[b // self.packs]
        image, position = np.divmod(self._every[some], len(table))
        at = table[position]
        if len(self.x) > 1:
            at = np.where(at < 0, -1, at + image[:, None] * math.prod(self._sizes))
        return at

    def __call__(self, b: int, some: Array | slice) -> Array:
        """Some rows of a matrix: see `Rows`."""
        images, channels, *_ = self.x.shape
        whole = math.prod(self._sizes)
        at = self.met(b, some)
        self._looked_up += at.size
        if self._looked_up <= whole and images == self.packs == 1 and channels == self.deep:
            # for few rows, only the places that they contain
            met = self.x.reshape(channels, whole)[:, at.reshape(-1)]
            met[:, at.reshape(-1) < 0] = 0
            return np.ascontiguousarray(met.T).reshape(len(at), -1)
        return self.places(b).take(at, 0).reshape(len(at), -1)


def _squares(x: Array, taps: _Taps, packs: int, deep: int) -> Array:
    """Sums of squares of the rows of `UnfoldedImages`, (phases packs, rows); each place is squared once."""
    images, channels, *sizes = x.shape
    places = np.zeros((images, packs, math.prod(sizes) + 1))  # behind the last place stands a zero, as there
    for p in range(packs):
        here = x[:, p * deep : min((p + 1) * deep, channels)].reshape(images, -1, math.prod(sizes))
        places[:, p, :-1] = np.einsum("icp,icp->ip", here, here, dtype=np.float64)
    met = [places[:, :, _table(taps, phase, sizes)].sum(-1) for phase in taps.each]
    return np.stack(met).transpose(0, 2, 1, 3).reshape(len(met) * packs, -1)


def _table(taps: _Taps, phase: tuple[int, ...], sizes: Sequence[int]) -> Array:
    """The place of an image under every position of a phase and every tap; -1 for none."""
    table = np.full((math.prod(taps.positions), len(taps.each[phase])), -1, np.int32)
    for t, tap in enumerate(taps.each[phase]):
        if tap is not None:
            met = np.ix_(*taps.met(phase, tap))
            there = np.ones((), bool)
            place: Array = np.zeros((), np.int64)
            for at, size in zip(met, sizes, strict=True):
                there = there & (at >= 0) & (at < size)
                place = place * size + at
            table[:, t] = np.where(there, place, -1).reshape(-1)
    return table
