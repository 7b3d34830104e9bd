"""Dequantizes stored weights: computes the floats that a DequantizeLinear of a stored tensor returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from explorer.engine.graph.model import DerivedPayload, Node, Tensor
from explorer.engine.number_formats.number_format import Grid, reshape_for_tensor

Array = np.ndarray[Any, np.dtype[Any]]

_FLOATS = ("float32", "float16")


def dequantize(node: Node, find_tensor: Callable[[str], Tensor | None]) -> Tensor | None:
    """Returns the result of a DequantizeLinear of a stored tensor, or None if an input is computed.

    Args:
        node: The DequantizeLinear.
        find_tensor: Function that returns the stored tensor of a value, or None if it is computed.
    """
    parts = [find_tensor(name) if name else None for name in node.inputs]
    if any(part is None and name for part, name in zip(parts, node.inputs, strict=True)):
        return None
    x, scale = parts[0], parts[1]
    zero = parts[2] if len(parts) > 2 else None
    if x is None or scale is None or scale.dtype not in _FLOATS:
        return None
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    size = x.elements * (4 if scale.dtype == "float32" else 2)
    make = partial(_compute_dequantized_bytes, x, scale, zero, axis, block)
    return Tensor(node.outputs[0], scale.dtype, x.shape, DerivedPayload(size, make))


def _compute_dequantized_bytes(x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block: int) -> bytes:
    zeros = np.zeros((), np.int32) if zero is None else zero.array().astype(np.int32)
    shared = scale.elements == 1
    grid = Grid(scale.array(), zeros, None if shared else axis, block if len(scale.shape) > 1 else 0)
    steps = reshape_for_tensor(grid.scale, x.shape, grid)
    codes = x.array().astype(np.int32)
    if zero is not None:
        codes -= reshape_for_tensor(grid.zero, x.shape, grid)
    floats: Array = np.multiply(codes.astype(scale.dtype), steps, dtype=scale.dtype)
    return floats.tobytes()
