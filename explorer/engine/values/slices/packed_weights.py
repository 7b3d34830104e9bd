"""Packed weights of MatMulNBits: numbers of a few bits, in blocks that share a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from explorer.engine.graph.model import Node, Tensor
from explorer.engine.values.numbers import SLAB, Array, Numbers, Scales


def build_unpackers(
    nodes: Sequence[Node], tensors: Mapping[str, Tensor]
) -> dict[str, Callable[..., Numbers]]:
    """Returns for each packed weight, by name, a function that unpacks it.

    The function returns integers of shape [K, N], laid out as the weight of a MatMul, with their scales.

    Args:
        nodes: The nodes of the graph.
        tensors: Stored tensors of the graph.
    """
    return {
        node.inputs[1]: unpack
        for node in nodes
        if node.op == "MatMulNBits" and len(node.inputs) > 2 and (unpack := _unpacker(node, tensors))
    }


def _unpacker(node: Node, tensors: Mapping[str, Tensor]) -> Callable[..., Numbers] | None:
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

    packed_weight, numbers_per_byte = weight, 8 // bits

    def columns(first: int, end: int) -> Array:
        """Returns the integers at depths `[first, end)`, of shape [end - first, N]."""
        packed = packed_weight.array().reshape(rows, row)[
            :, first // numbers_per_byte : -(-end // numbers_per_byte)
        ]
        return _unpack_bits(np.ascontiguousarray(packed), bits)[:, : end - first].T

    def outputs(first: int, end: int) -> Array:
        """Returns the integers of outputs `[first, end)`, of shape [end - first, K]."""
        return _unpack_bits(packed_weight.array().reshape(rows, row)[first:end], bits)[:, :depth]

    def read(by_rows: bool, start: int, stop: int) -> Iterator[Array]:
        unpack_rows, row_count, width = (outputs, rows, depth) if by_rows else (columns, depth, rows)
        step = max(SLAB // 4 // max(width, 1) // numbers_per_byte, 1) * numbers_per_byte
        for first in range(start // width // numbers_per_byte * numbers_per_byte, -(-stop // width), step):
            flat = unpack_rows(first, min(first + step, row_count)).reshape(-1)
            yield flat[max(start - first * width, 0) : max(stop - first * width, 0)]

    def zeros() -> Array:
        if zero is None:
            return np.full((rows, blocks), 1 << (bits - 1))
        return _unpack_bits(zero.array().reshape(rows, -1), bits)[:, :blocks]

    def unpack(numbers: Numbers, by_rows: bool = False) -> Numbers:
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
            opened=partial(unpack, numbers),
        )

    return unpack


def _unpack_bits(packed: Array, bits: int) -> Array:
    """Unpacks rows of bytes to rows of numbers, the lower bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    unpacked: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return unpacked.reshape(packed.shape[0], -1)
