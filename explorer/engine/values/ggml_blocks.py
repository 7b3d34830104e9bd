"""The blocks of numbers that ggml stores a quantized tensor in, and the numbers that they stand for.

Sizes are those of ggml-common.h, formulas those of ggml's dequantize_row_* (ggml-quants.c): a block of
integers shares a scale, and those of the K types share one in two steps. All arithmetic is in float32, in
ggml's order, so the numbers are what ggml itself computes with. Types whose numbers are rows of a printed
table (IQ1, IQ2, IQ3) are known by their sizes only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.engine.values.numbers import SLAB, Array

if TYPE_CHECKING:
    from explorer.engine.graph.model import Span

_Blocks = np.ndarray[Any, np.dtype[np.uint8]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]


def known(dtype: str) -> bool:
    """Whether the numbers of a type of ggml's are made here."""
    return dtype in _TYPES


def slabs(dtype: str, span: Span) -> Iterator[Array]:
    """The numbers of a tensor in order, as float32, in arrays of at most `SLAB` bytes.

    Args:
        dtype: One that is `known`.
        span: Whole blocks.
    """
    numbers, size, make = _TYPES[dtype]
    # intermediate arrays of 64-bit would not be needed, several of 32-bit at once are
    step = max(SLAB // (4 * numbers), 1) * size
    view = span.view()
    for at in range(0, span.size, step):
        stop = min(at + step, span.size)
        blocks = np.frombuffer(view[at:stop], np.uint8).reshape(-1, size)
        with np.errstate(all="ignore"):
            made = make(blocks)
        span.release(at, stop)
        yield made.reshape(-1)


def _halves(blocks: _Blocks, at: int) -> _Floats:
    """The float16 at a byte of every block, as a column of float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: _Blocks, group: int) -> _Blocks:
    """Numbers of four bits: of every `group` bytes the lower halves, then the upper halves."""
    grouped = packed.reshape(packed.shape[0], -1, 1, group)
    made: _Blocks = np.concatenate((grouped & 15, grouped >> 4), axis=2, dtype=np.uint8)
    return made.reshape(packed.shape[0], -1)


def _bits(packed: _Blocks, width: int, group: int) -> _Blocks:
    """Numbers of `width` bits: of every `group` bytes the lowest bits, then the next, to the highest."""
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    grouped = packed.reshape(packed.shape[0], -1, 1, group) >> shifts
    made: _Blocks = (grouped & np.uint8((1 << width) - 1)).astype(np.uint8, copy=False)
    return made.reshape(packed.shape[0], -1)


def _fifth(blocks: _Blocks, at: int) -> _Blocks:
    """The fifth bits of 32 numbers, in four bytes, as 0 or 16."""
    bits: _Blocks = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return np.left_shift(bits, 4, dtype=np.uint8)


def _q1_0(blocks: _Blocks) -> _Floats:
    return _halves(blocks, 0) * (_bits(blocks[:, 2:], 1, 1).astype(np.float32) * 2 - 1)


def _q4_0(blocks: _Blocks) -> _Floats:
    return _halves(blocks, 0) * (_nibbles(blocks[:, 2:], 16).astype(np.float32) - 8)


def _q4_1(blocks: _Blocks) -> _Floats:
    return _halves(blocks, 0) * _nibbles(blocks[:, 4:], 16).astype(np.float32) + _halves(blocks, 2)


def _q5_0(blocks: _Blocks) -> _Floats:
    numbers = _nibbles(blocks[:, 6:], 16) | _fifth(blocks, 2)
    return _halves(blocks, 0) * (numbers.astype(np.float32) - 16)


def _q5_1(blocks: _Blocks) -> _Floats:
    numbers = _nibbles(blocks[:, 8:], 16) | _fifth(blocks, 4)
    return _halves(blocks, 0) * numbers.astype(np.float32) + _halves(blocks, 2)


def _q8_0(blocks: _Blocks) -> _Floats:
    return _halves(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _scaled(numbers: Array, scale: _Floats, low: _Floats | None = None) -> _Floats:
    """Numbers of every block in as many equal runs as there are scales, times the scale, less the minimum."""
    runs = numbers.reshape(scale.shape[0], scale.shape[1], -1).astype(np.float32)
    made: _Floats = scale[:, :, None] * runs
    return made if low is None else made - low[:, :, None]


def _q2_k(blocks: _Blocks) -> _Floats:
    scales = blocks[:, :16]
    factor = _halves(blocks, 80) * (scales & 15).astype(np.float32)
    low = _halves(blocks, 82) * (scales >> 4).astype(np.float32)
    return _scaled(_bits(blocks[:, 16:80], 2, 32), factor, low)


def _q3_k(blocks: _Blocks) -> _Floats:
    # sixteen scales of six bits: the lower four in eight bytes, the upper two in the four behind them
    lower, upper = _nibbles(blocks[:, 96:104], 8), _bits(blocks[:, 104:108], 2, 4)
    scales = (lower | (upper << 4)).astype(np.float32) - 32
    # a number whose third bit is not set lies four lower
    high = _bits(blocks[:, :32], 1, 32).astype(np.float32) * 4 - 4
    numbers = _bits(blocks[:, 32:96], 2, 32).astype(np.float32) + high
    return _scaled(numbers, _halves(blocks, 108) * scales)


def _six_bits(packed: _Blocks) -> tuple[_Floats, _Floats]:
    """Eight scales and eight minima of six bits each, in twelve bytes."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate((a & 63, (c & 15) | (a >> 2 & 48)), axis=1)
    minima = np.concatenate((b & 63, (c >> 4) | (b >> 2 & 48)), axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(blocks: _Blocks) -> _Floats:
    scales, minima = _six_bits(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 16:], 32)
    return _scaled(numbers, _halves(blocks, 0) * scales, _halves(blocks, 2) * minima)


def _q5_k(blocks: _Blocks) -> _Floats:
    scales, minima = _six_bits(blocks[:, 4:16])
    numbers = _nibbles(blocks[:, 48:], 32) | (_bits(blocks[:, 16:48], 1, 32) << 4)
    return _scaled(numbers, _halves(blocks, 0) * scales, _halves(blocks, 2) * minima)


def _q6_k(blocks: _Blocks) -> _Floats:
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    numbers = _nibbles(blocks[:, :128], 64) | (_bits(blocks[:, 128:192], 2, 32) << 4)
    return _scaled(numbers.astype(np.float32) - 32, _halves(blocks, 208) * scales)


def _q8_k(blocks: _Blocks) -> _Floats:
    scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    made: _Floats = scale * np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32)
    return made


def _thirds(packed: _Blocks, digits: int, group: int) -> _Blocks:
    """Numbers 0, 1, 2: the leading digits, in base three, of bytes that are fractions of 256."""
    powers = np.array([1, 3, 9, 27, 81][:digits], np.uint8).reshape(1, 1, -1, 1)
    moved = packed.reshape(packed.shape[0], -1, 1, group) * powers
    return ((moved.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(packed.shape[0], -1)


def _tq1_0(blocks: _Blocks) -> _Floats:
    parts = _thirds(blocks[:, :32], 5, 32), _thirds(blocks[:, 32:48], 5, 16), _thirds(blocks[:, 48:52], 4, 4)
    return _halves(blocks, 52) * (np.concatenate(parts, axis=1).astype(np.float32) - 1)


def _tq2_0(blocks: _Blocks) -> _Floats:
    return _halves(blocks, 64) * (_bits(blocks[:, :64], 2, 32).astype(np.float32) - 1)


_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)
"""Values of float4_e2m1 (OCP Microscaling Formats 1.0), doubled."""


def _mxfp4(blocks: _Blocks) -> _Floats:
    # half of two to the power of the exponent, as the values above are doubled
    scale = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128).astype(np.float32)
    made: _Floats = scale * _E2M1[_nibbles(blocks[:, 1:], 16)]
    return made


def _nvfp4(blocks: _Blocks) -> _Floats:
    # four scales of float8_e4m3 without a sign, halved as the values are doubled
    codes = blocks[:, :4] & 127
    exponent, mantissa = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 8)
    scale = np.where(exponent == 0, mantissa * np.float32(2**-10), normal).astype(np.float32)
    # ggml reads its only NaN as nothing
    scale = np.where(blocks[:, :4] == 127, np.float32(0), scale)
    return _scaled(_E2M1[_nibbles(blocks[:, 4:], 8)], scale)


_NL4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""What the sixteen numbers of IQ4_NL and IQ4_XS stand for (kvalues_iq4nl)."""


def _iq4_nl(blocks: _Blocks) -> _Floats:
    made: _Floats = _halves(blocks, 0) * _NL4[_nibbles(blocks[:, 2:], 16)]
    return made


def _iq4_xs(blocks: _Blocks) -> _Floats:
    upper = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    lower = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=-1).reshape(-1, 8)
    scales = (lower | (upper << 4)).astype(np.float32) - 32
    return _scaled(_NL4[_nibbles(blocks[:, 8:], 16)], _halves(blocks, 0) * scales)


_TYPES: dict[str, tuple[int, int, Callable[[_Blocks], _Floats]]] = {
    "Q1_0": (128, 18, _q1_0),
    "Q4_0": (32, 18, _q4_0),
    "Q4_1": (32, 20, _q4_1),
    "Q5_0": (32, 22, _q5_0),
    "Q5_1": (32, 24, _q5_1),
    "Q8_0": (32, 34, _q8_0),
    "Q2_K": (256, 84, _q2_k),
    "Q3_K": (256, 110, _q3_k),
    "Q4_K": (256, 144, _q4_k),
    "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k),
    "Q8_K": (256, 292, _q8_k),
    "TQ1_0": (256, 54, _tq1_0),
    "TQ2_0": (256, 66, _tq2_0),
    "MXFP4": (32, 17, _mxfp4),
    "NVFP4": (64, 36, _nvfp4),
    "IQ4_NL": (32, 18, _iq4_nl),
    "IQ4_XS": (256, 136, _iq4_xs),
}
"""Numbers of a block, its bytes, and what makes the numbers."""
