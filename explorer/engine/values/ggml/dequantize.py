"""ggml's blocks: the numbers of a quantized tensor of llama.cpp, a slab at a time.

A block of integers shares a scale. gguf, the package of ggml's authors, computes in float32 and in ggml's
order, so the numbers are exactly ggml's. Two types that gguf does not compute yet are computed here, after
ggml's dequantize_row_* (ggml-quants.c).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.engine.formats.weights.gguf import TYPES
from explorer.engine.values.numbers import SLAB, Array, behind

if TYPE_CHECKING:
    from explorer.engine.graph.model import FileSpan

_Blocks = np.ndarray[Any, np.dtype[np.uint8]]
Patch = Callable[[_Blocks], _Blocks]

_SIZES = {name: (numbers, size) for name, numbers, size in TYPES.values() if numbers > 1}
"""Numbers of a block, and its bytes."""

_UNKNOWN = frozenset(("Q8_1", *(name for name in _SIZES if name.count("_") > 2)))
"""Types that ggml computes with but does not store, and blocks in the order of a certain processor."""


def can_dequantize(dtype: str) -> bool:
    """Whether the numbers of a ggml type can be computed."""
    return dtype in _SIZES and dtype not in _UNKNOWN


def slabs(dtype: str, span: FileSpan, patched: Patch | None = None) -> Iterator[Array]:
    """The numbers of a tensor in order, as float32, in arrays of at most `SLAB` bytes.

    Args:
        dtype: One that is `known`.
        span: Whole blocks.
        patched: Replaces rows of bytes, one block each, before their numbers are computed.
    """
    make = _OWN.get(dtype) or _by_gguf(dtype)
    numbers, size = _SIZES[dtype]
    # gguf makes several 32-bit arrays at once, so a slab counts 4 bytes a number
    step = max(SLAB // (4 * numbers), 1) * size
    view = span.view()
    for at in range(0, span.size, step):
        stop = min(at + step, span.size)
        with np.errstate(all="ignore"):
            blocks = np.frombuffer(view[at:stop], np.uint8).reshape(-1, size)
            numbers_of_slab = make(blocks if patched is None else patched(blocks))
        span.release(at, stop)
        yield numbers_of_slab.reshape(-1)


def part(dtype: str, span: FileSpan, start: int, stop: int, patched: Patch | None = None) -> Iterator[Array]:
    """The numbers from `start` to before `stop`; only their blocks are read."""
    numbers, size = _SIZES[dtype]
    first, last = start // numbers, -(-stop // numbers)
    blocks = type(span)(span.source, span.offset + first * size, (last - first) * size)
    return behind(slabs(dtype, blocks, patched), start - first * numbers, stop - first * numbers)


def _by_gguf(dtype: str) -> Callable[[_Blocks], Array]:
    # it takes a tenth of a second to import, and few models are quantized so
    from gguf import GGMLQuantizationType, quants

    kind = GGMLQuantizationType[dtype]
    return lambda blocks: quants.dequantize(blocks.reshape(-1), kind)


def _q1_0(blocks: _Blocks) -> Array:
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    return scale * (np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float32) * 2 - 1)


def _q8_k(blocks: _Blocks) -> Array:
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    scaled: Array = scale * np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32)
    return scaled


_OWN: dict[str, Callable[[_Blocks], Array]] = {"Q1_0": _q1_0, "Q8_K": _q8_k}
