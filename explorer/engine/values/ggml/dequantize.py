"""ggml's blocks: dequantizes the tensors of llama.cpp, a slab at a time.

The integers of a block share a scale. gguf, the package of ggml's authors, computes in float32 and in the
same order as ggml, so its numbers are exactly those of ggml. For two types that gguf does not support, this
module does the same as ggml's dequantize_row_* (ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.engine.formats.weights.gguf import TYPES
from explorer.engine.values.numbers import SLAB, Array, select_elements

if TYPE_CHECKING:
    from explorer.engine.graph.model import FileSpan

_Blocks = np.ndarray[Any, np.dtype[np.uint8]]
Patch = Callable[[_Blocks], _Blocks]
"""Function that returns changed bytes of blocks; a block is a row."""

_SIZES = {name: (numbers, size) for name, numbers, size in TYPES.values() if numbers > 1}
"""Number of elements and bytes of a block, by type."""

_UNSUPPORTED = frozenset(("Q8_1", *(name for name in _SIZES if name.count("_") > 2)))
"""Types that no file stores, and types whose blocks are ordered for one kind of processor."""


def can_dequantize(dtype: str) -> bool:
    """Whether the numbers of a ggml type can be computed."""
    return dtype in _SIZES and dtype not in _UNSUPPORTED


def read_slabs(dtype: str, span: FileSpan, patch: Patch | None = None) -> Iterator[Array]:
    """Yields the numbers of a tensor in order, as float32, in arrays of at most `SLAB` bytes.

    Args:
        dtype: A type that `can_dequantize` accepts.
        span: Bytes of whole blocks.
        patch: Function that changes the bytes of blocks before they are dequantized, or None.
    """
    dequantize = _OWN_FUNCTIONS.get(dtype) or _get_gguf_function(dtype)
    numbers, size = _SIZES[dtype]
    # gguf creates 32-bit arrays, so a slab counts 4 bytes for each number
    step = max(SLAB // (4 * numbers), 1) * size
    view = span.view()
    for start in range(0, span.size, step):
        stop = min(start + step, span.size)
        with np.errstate(all="ignore"):
            blocks = np.frombuffer(view[start:stop], np.uint8).reshape(-1, size)
            numbers_of_slab = dequantize(blocks if patch is None else patch(blocks))
        span.release(start, stop)
        yield numbers_of_slab.reshape(-1)


def read_part(
    dtype: str, span: FileSpan, start: int, stop: int, patch: Patch | None = None
) -> Iterator[Array]:
    """Yields the numbers `[start, stop)` of a tensor. Only their blocks are read. See `read_slabs`."""
    numbers, size = _SIZES[dtype]
    first, last = start // numbers, -(-stop // numbers)
    blocks = type(span)(span.source, span.offset + first * size, (last - first) * size)
    return select_elements(read_slabs(dtype, blocks, patch), start - first * numbers, stop - first * numbers)


def _get_gguf_function(dtype: str) -> Callable[[_Blocks], Array]:
    """Returns gguf's function that dequantizes the blocks of a type."""
    # the import takes a tenth of a second, and few models have such types
    from gguf import GGMLQuantizationType, quants

    ggml_type = GGMLQuantizationType[dtype]
    return lambda blocks: quants.dequantize(blocks.reshape(-1), ggml_type)


def _dequantize_q1_0(blocks: _Blocks) -> Array:
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return scale * (np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1)


def _dequantize_q8_k(blocks: _Blocks) -> Array:
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    scaled: Array = scale * np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32)
    return scaled


_OWN_FUNCTIONS: dict[str, Callable[[_Blocks], Array]] = {"Q1_0": _dequantize_q1_0, "Q8_K": _dequantize_q8_k}
