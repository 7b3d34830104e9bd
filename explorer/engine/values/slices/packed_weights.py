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
    """Returns a function for each packed weight, by the name of the weight.

    The function unpacks the weight to integers of shape [K, N], as in the weight of a MatMul, with their
    scales. K is the depth of the product (the axis that is summed), and N is the number of outputs.

    Args:
        nodes: The nodes of the graph.
        tensors: Stored tensors of the graph.
    """
    return {
        node.inputs[1]: unpack
        for node in nodes
        if node.op == "MatMulNBits" and len(node.inputs) > 2 and (unpack := _make_unpacker(node, tensors))
    }


def _make_unpacker(node: Node, tensors: Mapping[str, Tensor]) -> Callable[..., Numbers] | None:
    """Returns a function that unpacks the weight of a MatMulNBits, or None if it is not as declared."""
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes.get("block_size", 0))
    depth, rows = int(node.attributes.get("K", 0)), int(node.attributes.get("N", 0))
    weight, scale_tensor = tensors.get(node.inputs[1]), tensors.get(node.inputs[2])
    zero_name = node.inputs[3] if len(node.inputs) > 3 else ""
    zero_tensor = tensors.get(zero_name)
    blocks = -(-depth // block) if block > 0 else 0
    row_bytes = blocks * block * bits // 8
    if weight is None or scale_tensor is None or bits not in (2, 4, 8) or not row_bytes:
        return None
    if weight.elements != rows * row_bytes or scale_tensor.elements != rows * blocks:
        return None
    if zero_name and (
        zero_tensor is None
        or zero_tensor.dtype != "uint8"
        or zero_tensor.elements != rows * -(-blocks * bits // 8)
    ):
        return None

    packed_weight, numbers_per_byte = weight, 8 // bits

    def unpack_depths(first: int, end: int) -> Array:
        """Returns the integers at depths `[first, end)`, of shape [end - first, N]."""
        packed = packed_weight.array().reshape(rows, row_bytes)[
            :, first // numbers_per_byte : -(-end // numbers_per_byte)
        ]
        return _unpack_bits(np.ascontiguousarray(packed), bits)[:, : end - first].T

    def unpack_outputs(first: int, end: int) -> Array:
        """Returns the integers of outputs `[first, end)`, of shape [end - first, K]."""
        return _unpack_bits(packed_weight.array().reshape(rows, row_bytes)[first:end], bits)[:, :depth]

    def read(by_rows: bool, start: int, stop: int) -> Iterator[Array]:
        unpack_rows, row_count, width = (
            (unpack_outputs, rows, depth) if by_rows else (unpack_depths, depth, rows)
        )
        step = max(SLAB // 4 // max(width, 1) // numbers_per_byte, 1) * numbers_per_byte
        for first in range(start // width // numbers_per_byte * numbers_per_byte, -(-stop // width), step):
            flat = unpack_rows(first, min(first + step, row_count)).reshape(-1)
            yield flat[max(start - first * width, 0) : max(stop - first * width, 0)]

    def unpack_zero_points() -> Array:
        if zero_tensor is None:
            return np.full((rows, blocks), 1 << (bits - 1))
        return _unpack_bits(zero_tensor.array().reshape(rows, -1), bits)[:, :blocks]

    def unpack(numbers: Numbers, by_rows: bool = False) -> Numbers:
        row_scales = Scales(lambda: scale_tensor.array().reshape(rows, blocks), unpack_zero_points, 1, block)
        column_scales = Scales(
            lambda: scale_tensor.array().reshape(rows, blocks).T, lambda: unpack_zero_points().T, 0, block
        )
        return Numbers(
            numbers.name,
            f"uint{bits}",
            (rows, depth) if by_rows else (depth, rows),
            numbers.nbytes,
            lambda: read(by_rows, 0, rows * depth),
            numbers.layer,
            part=partial(read, by_rows),
            scales=row_scales if by_rows else column_scales,
            unpack=partial(unpack, numbers),
        )

    return unpack


def _unpack_bits(packed: Array, bits: int) -> Array:
    """Unpacks rows of bytes to rows of numbers, the lower bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    unpacked: Array = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return unpacked.reshape(packed.shape[0], -1)
