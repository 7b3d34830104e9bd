"""MatMulNBits: a product whose weight is of 4 bits in blocks along the depth, as onnxruntime has it.

A DequantizeLinear in blocks in front of a MatMul would say the same; onnxruntime makes a MatMulNBits of it
which, unless a session says otherwise, rounds the activation to 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Computed, Node, Tensor
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.grids import Grids
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.number_formats.integer import Integer
from explorer.engine.quantize.number_formats.number_format import Array, Grid
from explorer.engine.quantize.weights import packed, slabs, stored
from explorer.engine.quantize.write.additions import Additions

DOMAIN = "com.microsoft"

MIDDLE = 8
"""What is stored for 0, where no zero points are."""

_IN_FLOATS = 1
"""The accuracy level at which the activation stays as it is."""


def write(choice: LayerChoice, grids: Grids, to: Additions) -> None:
    """Adds a MatMul or a Gemm with its weight in blocks; a bias is added behind it."""
    node, (operand,) = choice.layer.node, choice.layer.of("weight")
    fmt, grid = cast(Integer, choice.weight), grids.of(choice, operand)
    if operand.depth == -2:  # (K, N): it is stored as (N, K)
        operand = replace(operand, axes=operand.axes[::-1], depth=-1, channel=-2)
        grid = replace(grid, scale=grid.scale.T, zero=grid.zero.T, axis=1)
    key = "nbits", operand.stored, operand.axes, fmt, grid.scale.tobytes(), grid.zero.tobytes(), grid.block
    inputs = [node.inputs[0], to.known(key) or to.made(key, to.store(_blocks(operand, fmt, grid)))]
    inputs.append(to.number(f"{operand.stored}_scales", np.ascontiguousarray(grid.scale)))
    moved = MIDDLE if fmt.signed else 0
    if (grid.zero + moved != MIDDLE).any():
        inputs.append(to.store(_zeros(operand, grid.zero + moved)))
    n, k = operand.shape
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    output = to.unique(f"{node.outputs[0]}_unbiased") if bias else node.outputs[0]
    attributes = {"K": k, "N": n, "bits": 4, "block_size": grid.block, "accuracy_level": _IN_FLOATS}
    how: dict[str, Any] = {"domain": DOMAIN, "attributes": attributes, "metadata": node.metadata}
    to.nodes.append(Node("MatMulNBits", inputs, (output,), name=node.name, **how))
    to.opsets[DOMAIN] = 1
    if bias:
        to.nodes.append(Node("Add", (output, bias), node.outputs, name=f"{output}/Add"))


def _blocks(operand: Operand, fmt: Integer, grid: Grid) -> Tensor:
    """The codes, (N, blocks, bytes of a block)."""
    n, k = operand.shape
    shape = n, -(-k // grid.block), grid.block // 2
    make = partial(_rows, operand, fmt, grid, shape[1] * grid.block - k)
    return Tensor(f"{operand.stored}_blocks", "uint8", shape, Computed(shape[0] * shape[1] * shape[2], make))


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
