"""Quantized weights as tensors of torchao, where it has the layer and the format: codes, scales, zero points.

A layer gives the same result as with the rounded weight in float32, to the last bit: torchao computes
(code - zero point) x scale and calls PyTorch's own product.
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
from explorer.engine.quantize.weights import slabs
from explorer.host.optional_packages import require

ROUNDED = "float32"
"""Storage of a weight that torchao does not support: rounded numbers."""

HELD = "torchao"

_LAYERS = frozenset(("Linear", "Conv2d", "Embedding"))
"""Layers that torchao multiplies, or reads rows of, with a weight of integers."""

_MOST_BITS = 8


def held_as(choice: LayerChoice, operand: Operand, grid: Grid) -> str:
    """The storage of a quantized weight: `HELD` as torchao's integers, or `ROUNDED` floats."""
    fmt: NumberFormat | None = getattr(choice, operand.part)
    is_supported = isinstance(fmt, Integer) and not isinstance(fmt, Ternary) and fmt.bits <= _MOST_BITS
    if operand.part != "weight" or choice.layer.op not in _LAYERS or not is_supported:
        return ROUNDED
    whole = not grid.block or not operand.shape[grid.axis or 0] % grid.block
    return HELD if whole else ROUNDED


def integers(fmt: Integer, operand: Operand, grid: Grid) -> nn.Parameter:
    """A stored weight as torchao's integers, of up to 8 bits in a byte each.

    Args:
        fmt: Its format. Unsigned codes and their zero points are stored minus half their range.
        operand: The weight.
        grid: The grid on which it is rounded.

    Raises:
        MissingExtra: torchao is not installed.
    """
    tensor_class = require("torchao.quantization", "torchao's tensors").IntxUnpackedToInt8Tensor
    middle = 0 if fmt.signed else 1 << (fmt.bits - 1)
    codes = np.empty(operand.shape, np.int8)
    at = 0
    for some, part in slabs(operand, grid):
        codes[at : at + len(some)] = fmt.codes(some, part).astype(np.int16) - middle
        at += len(some)
    if grid.block:  # scales of blocks have the shape of the weight, except along the axis
        sizes = [grid.block if at == grid.axis else 1 for at in range(len(operand.shape))]
    else:
        sizes = [1 if at == grid.axis else size for at, size in enumerate(operand.shape)]
    counts = [size // block_size for size, block_size in zip(operand.shape, sizes, strict=True)]

    def spread(values: Any, dtype: Any) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.asarray(values, dtype).reshape(counts)))

    zero = np.broadcast_to(grid.zero - middle, grid.scale.shape)
    tensor = tensor_class(
        torch.from_numpy(codes),
        spread(grid.scale, np.float32),
        spread(zero, np.int8),
        getattr(torch, f"int{fmt.bits}"),
        tuple(sizes),
        torch.float32,
        None,
    )
    return nn.Parameter(tensor, requires_grad=False)
