"""Dequantizes stored weights: computes the floats that a DequantizeLinear of a stored tensor returns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from explorer.engine.graph.model import DTYPES, DerivedPayload, Node, Tensor
from explorer.engine.number_formats.number_format import Grid, reshape_for_tensor

Array = np.ndarray[Any, np.dtype[Any]]

_FLOATS = ("float32", "float16")
"""Types of scales and results that can be computed here."""


def dequantize(node: Node, find_tensor: Callable[[str], Tensor | None]) -> Tensor | None:
    """Returns the result of a DequantizeLinear of a stored tensor.

    Returns None if an input is computed, or if the scale or the result is neither float32 nor float16.

    Args:
        node: The DequantizeLinear.
        find_tensor: Function that returns the stored tensor of a value, or None if it is computed.
    """
    parts = [find_tensor(name) if name else None for name in node.inputs]
    if any(part is None and name for part, name in zip(parts, node.inputs, strict=True)):
        return None
    x, scale = parts[0], parts[1]
    zero = parts[2] if len(parts) > 2 else None
    code = int(node.attributes.get("output_dtype", 0))
    dtype = DTYPES[code].name if code in DTYPES else scale.dtype if scale is not None else ""
    if x is None or scale is None or {scale.dtype, dtype} - {*_FLOATS}:
        return None
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    size = x.elements * np.dtype(dtype).itemsize
    make = partial(_compute_dequantized_bytes, x, scale, zero, axis, block, dtype)
    return Tensor(node.outputs[0], dtype, x.shape, DerivedPayload(size, make))


def _compute_dequantized_bytes(
    x: Tensor, scale: Tensor, zero: Tensor | None, axis: int, block: int, dtype: str
) -> bytes:
    """Computes (code - zero point) x scale in float32, as the runtime does, and rounds it once to `dtype`."""
    codes = x.array()
    # codes of 4 or 8 bits may be floats, such as float8_e4m3fn
    code_type = np.int32 if codes.dtype.kind in "iu" else np.float32
    zeros = np.zeros((), code_type) if zero is None else zero.array().astype(code_type)
    has_one_scale = scale.elements == 1
    grid = Grid(scale.array(), zeros, None if has_one_scale else axis, block if len(scale.shape) > 1 else 0)
    steps = reshape_for_tensor(grid.scale, x.shape, grid).astype(np.float32)
    centered = codes.astype(code_type) - reshape_for_tensor(grid.zero, x.shape, grid)
    with np.errstate(over="ignore", invalid="ignore"):
        floats: Array = (centered.astype(np.float32) * steps).astype(dtype)
    return floats.tobytes()
