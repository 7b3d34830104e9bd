"""MatMulNBits: onnxruntime's product with a weight of 4 bits in blocks along the depth.

A DequantizeLinear in front of a MatMul or a Gemm would mean the same, in blocks or not. But onnxruntime makes
a MatMulNBits of it that rounds the activation to 8 bits, unless a session option prevents it.
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
from explorer.engine.quantize.weights import packed, slabs, stored
from explorer.engine.quantize.write import qdq
from explorer.engine.quantize.write.additions import Additions

DOMAIN = "com.microsoft"

MIDDLE = 8
"""The stored code of 0, if there are no zero points."""

_BLOCK = 32
"""Block size for a weight with one scale, or one per channel: every block repeats that scale."""

_BIAS = 5
"""Which input the bias is, of shape (N,)."""

_IN_FLOATS = 1
"""The accuracy level that does not round the activation."""


def write(choice: LayerChoice, grids: Grids, to: Additions) -> None:
    """Adds a MatMulNBits for a MatMul or a Gemm, with its weight in blocks.

    A bias of another shape, or one that is not stored, goes into an Add behind it.
    """
    node, (operand,) = choice.layer.node, choice.layer.of("weight")
    fmt, grid = cast(Integer, choice.weight), grids.of(choice, operand)
    names = qdq.read(choice, [o for o in choice.layer.operands if o is not operand], grids, to)
    if operand.depth == -2:  # (K, N): it is stored as (N, K)
        axis = 1 if grid.block else None if grid.axis is None else 0
        operand = replace(operand, axes=operand.axes[::-1], depth=-1, channel=-2)
        grid = replace(grid, scale=grid.scale.T, zero=grid.zero.T, axis=axis)
    n, k = operand.shape
    grid = grid if grid.block else _repeated(grid, n, -(-k // _BLOCK))
    key = "nbits", operand.stored, operand.axes, fmt, grid.scale.tobytes(), grid.zero.tobytes(), grid.block
    inputs = [names[0], to.once(key, lambda: to.store(_blocks(operand, fmt, grid)))]
    inputs.append(to.number(f"{operand.stored}_scales", np.ascontiguousarray(grid.scale)))
    moved = MIDDLE if fmt.signed else 0
    if (grid.zero + moved != MIDDLE).any():
        inputs.append(to.store(_zeros(operand, grid.zero + moved)))
    bias = names[2] if len(names) > 2 else ""
    if bias and to.shape(node.inputs[2]) == (n,) and not is_bias_added(choice):
        inputs, bias = [*inputs, *[""] * (_BIAS - len(inputs)), bias], ""
    output = to.unique(f"{node.outputs[0]}_unbiased") if bias else node.outputs[0]
    attributes = {"K": k, "N": n, "bits": 4, "block_size": grid.block, "accuracy_level": _IN_FLOATS}
    fields: dict[str, Any] = {"domain": DOMAIN, "attributes": attributes, "metadata": node.metadata}
    to.nodes.append(Node("MatMulNBits", inputs, (output,), name=node.name, **fields))
    to.opsets[DOMAIN] = 1
    if bias:
        to.nodes.append(Node("Add", (output, bias), node.outputs, name=f"{output}/Add"))


def _repeated(grid: Grid, rows: int, blocks: int) -> Grid:
    """The grid with a scale and a zero point for each block of each row."""
    scale, zero = (np.broadcast_to(part.reshape(-1, 1), (rows, blocks)) for part in (grid.scale, grid.zero))
    return Grid(scale, zero, 1, _BLOCK)


def _blocks(operand: Operand, fmt: Integer, grid: Grid) -> Tensor:
    """The codes, (N, blocks, bytes of a block)."""
    n, k = operand.shape
    shape = n, -(-k // grid.block), grid.block // 2
    make = partial(_rows, operand, fmt, grid, shape[1] * grid.block - k)
    return Tensor(
        f"{operand.stored}_blocks", "uint8", shape, ComputedPayload(shape[0] * shape[1] * shape[2], make)
    )


def _rows(operand: Operand, fmt: Integer, grid: Grid, rest: int) -> Iterator[memoryview]:
    moved = MIDDLE if fmt.signed else 0
    for values, part in slabs(operand, grid):
        codes = (fmt.codes(values, part).astype(np.int16) + moved).astype(np.uint8)
        yield memoryview(packed(np.pad(codes, ((0, 0), (0, rest))), 4))


def _zeros(operand: Operand, zeros: Array) -> Tensor:
    """Two zero points in a byte, each row beginning with a byte of its own."""
    even = np.pad(zeros.astype(np.uint8), ((0, 0), (0, zeros.shape[1] % 2)))
    flat = np.frombuffer(packed(even, 4), np.uint8)
    return stored(f"{operand.stored}_zero_points", flat.reshape(len(zeros), -1))
