"""Packed weights of MatMulNBits: numbers of a few bits, in blocks that share a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.values.numbers import SLAB, Array, Numbers, Scales

Part = Callable[[Tensor, int, int], Iterator[Array]]


def opened_weights(
    nodes: Sequence[Node], stored: Mapping[str, Tensor], part: Part
) -> dict[str, Callable[[Numbers], Numbers]]:
    """By the name of a packed weight what makes of it the N x K integers that it holds, with their scales.

    Args:
        nodes: Of the graph.
        stored: Its tensors.
        part: Reads a part of one.
    """
    return {
        node.inputs[1]: maker
        for node in nodes
        if node.op == "MatMulNBits" and len(node.inputs) > 2 and (maker := _maker(node, stored, part))
    }


def _maker(node: Node, stored: Mapping[str, Tensor], part: Part) -> Callable[[Numbers], Numbers] | None:
    bits, block, depth, rows = (
        int(node.attributes.get(*key)) for key in (("bits", 4), ("block_size", 0), ("K", 0), ("N", 0))
    )
    weight, scale = stored.get(node.inputs[1]), stored.get(node.inputs[2])
    name = node.inputs[3] if len(node.inputs) > 3 else ""
    zero = stored.get(name)
    blocks = -(-depth // block) if block > 0 else 0
    row = blocks * block * bits // 8
    if weight is None or scale is None or bits not in (2, 4, 8) or not row:
        return None
    if weight.elements != rows * row or scale.elements != rows * blocks:
        return None
    if name and (zero is None or zero.dtype != "uint8" or zero.elements != rows * -(-blocks * bits // 8)):
        return None

    def read(start: int, stop: int) -> Iterator[Array]:
        step = max(SLAB // 4 // max(row * 8 // bits, 1), 1)
        last = -(-stop // depth)
        for first in range(start // depth, last, step):
            end = min(first + step, last)
            codes = np.concatenate(list(part(weight, first * row, end * row)))
            flat = _apart(codes.reshape(end - first, row), bits)[:, :depth].reshape(-1)
            yield flat[max(start - first * depth, 0) : stop - first * depth]

    def zeros() -> Array:
        if zero is None:
            return np.full((rows, blocks), 1 << (bits - 1))
        return _apart(zero.array().reshape(rows, -1), bits)[:, :blocks]

    scales = Scales(lambda: scale.array().reshape(rows, blocks), zeros, 1, block)

    def opened(numbers: Numbers) -> Numbers:
        return Numbers(
            numbers.name,
            f"uint{bits}",
            (rows, depth),
            numbers.nbytes,
            lambda: read(0, rows * depth),
            numbers.layer,
            part=read,
            scales=scales,
        )

    return opened


def _apart(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of numbers, those in the lower bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(packed.shape[0], -1)
