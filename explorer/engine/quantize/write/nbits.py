"""Writer for MatMulNBits: onnxruntime's product with a 4-bit weight in blocks along the depth.

A DequantizeLinear before a MatMul or a Gemm would express the same. However, onnxruntime replaces these nodes
by a MatMulNBits that rounds the activation to 8 bits, unless a session option prevents it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import ComputedPayload, Node, Tensor
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import Array, Grid
from explorer.engine.quantize.choice import LayerChoice, is_bias_added
from explorer.engine.quantize.grids import Grids
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.weights import build_small_tensor, iterate_slabs, pack_codes
from explorer.engine.quantize.write import qdq
from explorer.engine.quantize.write.additions import Additions

DOMAIN = "com.microsoft"

MIDDLE = 8
"""Stored code of the number 0 in a weight without zero points."""

_BLOCK = 32
"""Block size for a weight with one scale or one per channel. Every block repeats that scale."""

_BIAS = 5
"""Index of the input for a bias of shape (N,)."""

_IN_FLOATS = 1
"""Value of the attribute `accuracy_level` of MatMulNBits with which the activation is not rounded."""


def write(choice: LayerChoice, grids: Grids, additions: Additions) -> None:
    """Adds a MatMulNBits for a MatMul or a Gemm, with its weight in blocks.

    A separate Add applies a bias that has another shape or is not stored.
    """
    node, (operand,) = choice.layer.node, choice.layer.list_operands("weight")
    fmt, grid = cast(Integer, choice.weight), grids.find_operand_grid(choice, operand)
    names = qdq.convert_operands(
        choice, [o for o in choice.layer.operands if o is not operand], grids, additions
    )
    if operand.depth == -2:  # MatMulNBits stores a (K, N) weight as (N, K)
        axis = 1 if grid.block else None if grid.axis is None else 0
        operand = replace(operand, axes=operand.axes[::-1], depth=-1, channel=-2)
        grid = replace(grid, scale=grid.scale.T, zero=grid.zero.T, axis=axis)
    n, k = operand.shape
    grid = grid if grid.block else _split_grid_into_blocks(grid, n, -(-k // _BLOCK))
    key = "nbits", operand.stored, operand.axes, fmt, grid.scale.tobytes(), grid.zero.tobytes(), grid.block
    codes = additions.get_or_add(key, lambda: additions.store(_build_code_tensor(operand, fmt, grid)))
    scales = additions.store_numbers(f"{operand.stored}_scales", np.ascontiguousarray(grid.scale))
    inputs = [names[0], codes, scales]
    offset = MIDDLE if fmt.signed else 0
    if (grid.zero + offset != MIDDLE).any():
        inputs.append(additions.store(_build_zero_points(operand, grid.zero + offset)))
    bias = names[2] if len(names) > 2 else ""
    if bias and additions.find_shape(node.inputs[2]) == (n,) and not is_bias_added(choice):
        inputs, bias = [*inputs, *[""] * (_BIAS - len(inputs)), bias], ""
    output = additions.create_name(f"{node.outputs[0]}_unbiased") if bias else node.outputs[0]
    attributes = {"K": k, "N": n, "bits": 4, "block_size": grid.block, "accuracy_level": _IN_FLOATS}
    fields: dict[str, Any] = {"domain": DOMAIN, "attributes": attributes, "metadata": node.metadata}
    additions.nodes.append(Node("MatMulNBits", inputs, (output,), name=node.name, **fields))
    additions.opsets[DOMAIN] = 1
    if bias:
        additions.nodes.append(Node("Add", (output, bias), node.outputs, name=f"{output}/Add"))


def _split_grid_into_blocks(grid: Grid, rows: int, blocks: int) -> Grid:
    """Returns a grid with a scale and a zero point for each block of each row."""
    scale, zero = (np.broadcast_to(part.reshape(-1, 1), (rows, blocks)) for part in (grid.scale, grid.zero))
    return Grid(scale, zero, 1, _BLOCK)


def _build_code_tensor(operand: Operand, fmt: Integer, grid: Grid) -> Tensor:
    """Builds the tensor of codes, of shape (N, blocks, bytes of a block)."""
    n, k = operand.shape
    shape = n, -(-k // grid.block), grid.block // 2
    encode = partial(_encode_rows, operand, fmt, grid, shape[1] * grid.block - k)
    return Tensor(
        f"{operand.stored}_blocks", "uint8", shape, ComputedPayload(shape[0] * shape[1] * shape[2], encode)
    )


def _encode_rows(operand: Operand, fmt: Integer, grid: Grid, padding: int) -> Iterator[memoryview]:
    """Yields the packed codes of the weight, with `padding` zeros after each row."""
    offset = MIDDLE if fmt.signed else 0
    for values, part in iterate_slabs(operand, grid):
        codes = (fmt.encode(values, part).astype(np.int16) + offset).astype(np.uint8)
        yield memoryview(pack_codes(np.pad(codes, ((0, 0), (0, padding))), 4))


def _build_zero_points(operand: Operand, zeros: Array) -> Tensor:
    """Builds the tensor of zero points: two per byte, and each row starts at a new byte."""
    even = np.pad(zeros.astype(np.uint8), ((0, 0), (0, zeros.shape[1] % 2)))
    flat = np.frombuffer(pack_codes(even, 4), np.uint8)
    return build_small_tensor(f"{operand.stored}_zero_points", flat.reshape(len(zeros), -1))
