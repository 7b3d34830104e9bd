"""Packed weights of MatMulNBits: numbers of a few bits, in blocks that share a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.values.numbers import SLAB, Array, Numbers, Scales


def opened_weights(nodes: Sequence[Node], tensors: Mapping[str, Tensor]) -> dict[str, Callable[..., Numbers]]:
    """For each packed weight, by name, a function that unpacks it.

    The function returns K x N integers, laid out as the weight of a MatMul, with their scales.

    Args:
        nodes: The nodes of the graph.
        tensors: Its stored tensors.
    """
    return {
        node.inputs[1]: maker
        for node in nodes
        if node.op == "MatMulNBits" and len(node.inputs) > 2 and (maker := _maker(node, tensors))
    }


def _maker(node: Node, tensors: Mapping[str, Tensor]) -> Callable[..., Numbers] | None:
    bits, block, depth, rows = (
        int(node.attributes.get(*key)) for key in (("bits", 4), ("block_size", 0), ("K", 0), ("N", 0))
    )
    weight, scale = tensors.get(node.inputs[1]), tensors.get(node.inputs[2])
    name = node.inputs[3] if len(node.inputs) > 3 else ""
    zero = tensors.get(name)
    blocks = -(-depth // block) if block > 0 else 0
    row = blocks * block * bits // 8
    if weight is None or scale is None or bits not in (2, 4, 8) or not row:
        return None
    if weight.elements != rows * row or scale.elements != rows * blocks:
        return None
    if name and (zero is None or zero.dtype != "uint8" or zero.elements != rows * -(-blocks * bits // 8)):
        return None

    packed_weight, together = weight, 8 // bits

    def columns(first: int, end: int) -> Array:
        """The integers at depths `[first, end)`: (end - first) x N."""
        packed = packed_weight.array().reshape(rows, row)[:, first // together : -(-end // together)]
        return _apart(np.ascontiguousarray(packed), bits)[:, : end - first].T

    def outputs(first: int, end: int) -> Array:
        """The integers of outputs `[first, end)`: (end - first) x K."""
        return _apart(packed_weight.array().reshape(rows, row)[first:end], bits)[:, :depth]

    def read(by_rows: bool, start: int, stop: int) -> Iterator[Array]:
        some, many, width = (outputs, rows, depth) if by_rows else (columns, depth, rows)
        step = max(SLAB // 4 // max(width, 1) // together, 1) * together
        for first in range(start // width // together * together, -(-stop // width), step):
            flat = some(first, min(first + step, many)).reshape(-1)
            yield flat[max(start - first * width, 0) : max(stop - first * width, 0)]

    def zeros() -> Array:
        if zero is None:
            return np.full((rows, blocks), 1 << (bits - 1))
        return _apart(zero.array().reshape(rows, -1), bits)[:, :blocks]

    def opened(numbers: Numbers, by_rows: bool = False) -> Numbers:
        of_row = Scales(lambda: scale.array().reshape(rows, blocks), zeros, 1, block)
        of_column = Scales(lambda: scale.array().reshape(rows, blocks).T, lambda: zeros().T, 0, block)
        return Numbers(
            numbers.name,
            f"uint{bits}",
            (rows, depth) if by_rows else (depth, rows),
            numbers.nbytes,
            lambda: read(by_rows, 0, rows * depth),
            numbers.layer,
            part=partial(read, by_rows),
            scales=of_row if by_rows else of_column,
            opened=partial(opened, numbers),
        )

    return opened


def _apart(packed: Array, bits: int) -> Array:
    """Rows of bytes as rows of numbers, those in the lower bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(packed.shape[0], -1)
