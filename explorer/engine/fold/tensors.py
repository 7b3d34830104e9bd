"""Folded tensors: computed in float64 and rounded once, in slabs, when they are checked and when written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from explorer.engine.graph.model import ComputedPayload, FileSpan, Inline, Tensor

Array = np.ndarray[Any, np.dtype[Any]]

Factors = Array
"""Float64, of a shape that broadcasts over a weight's."""

FLOATS = ("float16", "float32", "float64")
"""Types that numpy rounds a float64 to in one step."""

_SLAB = 1 << 18
"""Elements that are looked at together."""


def scaled(tensor: Tensor, factors: Factors) -> Tensor:
    """A weight times factors, in its own type, made when it is read or written."""

    def pieces() -> Iterator[memoryview]:
        for _, values in _rows(tensor, factors):
            yield memoryview(values.tobytes())

    return Tensor(tensor.name, tensor.dtype, tensor.shape, ComputedPayload(tensor.nbytes, pieces))


def rounded(name: str, values: Array, dtype: str) -> Tensor:
    """A small tensor of float64 values, rounded to a type."""
    with np.errstate(all="ignore"):
        narrow = values.astype(dtype)
    return Tensor(name, dtype, tuple(narrow.shape), Inline(narrow.tobytes()))


def slabs(tensor: Tensor) -> Iterator[tuple[slice, Array]]:
    """Rows of a weight in float64, and which they are; what was looked at of a file is forgotten again."""
    values = tensor.array()
    rows = max(1, _SLAB // max(1, tensor.elements // max(1, len(values))))
    for start in range(0, len(values), rows):
        part = slice(start, min(start + rows, len(values)))
        yield part, values[part].astype(np.float64)
    if isinstance(tensor.payload, FileSpan):
        tensor.payload.release(0, tensor.payload.size)


def fits(tensor: Tensor, factors: Factors) -> bool:
    """Whether every number of a weight is one still when it is multiplied and rounded."""
    return all(np.isfinite(part).all() for _, part in _rows(tensor, factors))


def _rows(tensor: Tensor, factors: Factors) -> Iterator[tuple[slice, Array]]:
    for part, values in slabs(tensor):
        with np.errstate(all="ignore"):
            row_factors = factors[part] if factors.shape[0] > 1 else factors
            yield part, (values * row_factors).astype(tensor.dtype)
