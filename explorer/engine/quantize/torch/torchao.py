"""Quantized weights as torchao tensors of codes, scales and zero points.

A layer gives bit for bit the same result as with the rounded weight in float32: torchao computes (code - zero
point) x scale and calls PyTorch's matrix product. Weights that torchao does not support stay rounded floats.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.narrow import Ternary
from explorer.engine.number_formats.number_format import Grid, NumberFormat
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.weights import iterate_slabs
from explorer.host.optional_packages import require

ROUNDED = "float32"
"""Storage of a weight that torchao does not support: rounded float32 numbers."""

TORCHAO = "torchao"

_LAYERS = frozenset(("Linear", "Conv2d", "Embedding"))
"""Layers that torchao supports with an integer weight."""

_MAX_BITS = 8
"""Bits of torchao's codes, which it stores in one byte each."""


def choose_weight_storage(choice: LayerChoice, operand: Operand, grid: Grid) -> str:
    """Returns the storage of a rounded weight: `TORCHAO` for torchao's integers, or `ROUNDED` for floats."""
    fmt: NumberFormat | None = getattr(choice, operand.part)
    is_supported = isinstance(fmt, Integer) and not isinstance(fmt, Ternary) and fmt.bits <= _MAX_BITS
    if operand.part != "weight" or choice.layer.op not in _LAYERS or not is_supported:
        return ROUNDED
    has_full_blocks = not grid.block or not operand.shape[grid.axis or 0] % grid.block
    return TORCHAO if has_full_blocks else ROUNDED


def build_torchao_parameter(fmt: Integer, operand: Operand, grid: Grid) -> nn.Parameter:
    """Builds a torchao tensor of a stored weight, with one byte for each code of up to 8 bits.

    Args:
        fmt: Number format of the weight. Unsigned codes and zero points are stored minus half their range.
        operand: The weight.
        grid: Grid on which the weight is rounded.

    Raises:
        MissingExtra: torchao is not installed.
    """
    tensor_class = require("torchao.quantization", "torchao's tensors").IntxUnpackedToInt8Tensor
    middle = 0 if fmt.signed else 1 << (fmt.bits - 1)
    codes = np.empty(operand.shape, np.int8)
    start = 0
    for slab, part in iterate_slabs(operand, grid):
        codes[start : start + len(slab)] = fmt.encode(slab, part).astype(np.int16) - middle
        start += len(slab)
    if grid.block:  # block scales have the weight's shape, divided by the block length along the axis
        sizes = [grid.block if axis == grid.axis else 1 for axis in range(len(operand.shape))]
    else:
        sizes = [1 if axis == grid.axis else size for axis, size in enumerate(operand.shape)]
    counts = [size // block_size for size, block_size in zip(operand.shape, sizes, strict=True)]

    def build_tensor(values: Any, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.asarray(values, dtype).reshape(counts)))

    zero = np.broadcast_to(grid.zero - middle, grid.scale.shape)
    tensor = tensor_class(
        torch.from_numpy(codes),
        build_tensor(grid.scale, np.float32),
        build_tensor(zero, np.int8),
        getattr(torch, f"int{fmt.bits}"),
        tuple(sizes),
        torch.float32,
        None,
    )
    return nn.Parameter(tensor, requires_grad=False)
