"""Folded tensors: computed in float64 and rounded once, in slabs, to check and to write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from explorer.engine.graph.model import ComputedPayload, FileSpan, Inline, Tensor

Array = np.ndarray[Any, np.dtype[Any]]

Factors = Array
"""Float64 factors, in a shape that broadcasts to the weight's."""

FLOATS = ("float16", "float32", "float64")
"""dtypes to which numpy rounds float64 in one step."""

_SLAB_ELEMENTS = 1 << 18
"""Number of elements in one slab."""


def multiply_tensor(tensor: Tensor, factors: Factors) -> Tensor:
    """Returns a weight times factors in the weight's type, computed when it is read or written."""

    def iterate_pieces() -> Iterator[memoryview]:
        for _, values in _multiply_slabs(tensor, factors):
            yield memoryview(values.tobytes())

    return Tensor(tensor.name, tensor.dtype, tensor.shape, ComputedPayload(tensor.nbytes, iterate_pieces))


def build_rounded(name: str, values: Array, dtype: str) -> Tensor:
    """Returns a small tensor of float64 values, rounded to a type."""
    with np.errstate(all="ignore"):
        rounded = values.astype(dtype)
    return Tensor(name, dtype, tuple(rounded.shape), Inline(rounded.tobytes()))


def iterate_slabs(tensor: Tensor) -> Iterator[tuple[slice, Array]]:
    """Yields slabs of a weight's rows as slice and float64 values. Mapped pages are released at the end."""
    values = tensor.array()
    rows = max(1, _SLAB_ELEMENTS // max(1, tensor.elements // max(1, len(values))))
    for start in range(0, len(values), rows):
        part = slice(start, min(start + rows, len(values)))
        yield part, values[part].astype(np.float64)
    if isinstance(tensor.payload, FileSpan):
        tensor.payload.release(0, tensor.payload.size)


def stays_finite(tensor: Tensor, factors: Factors) -> bool:
    """Whether every element of a weight stays finite after multiplication and rounding."""
    return all(np.isfinite(part).all() for _, part in _multiply_slabs(tensor, factors))


def _multiply_slabs(tensor: Tensor, factors: Factors) -> Iterator[tuple[slice, Array]]:
    for part, values in iterate_slabs(tensor):
        with np.errstate(all="ignore"):
            row_factors = factors[part] if factors.shape[0] > 1 else factors
            yield part, (values * row_factors).astype(tensor.dtype)
