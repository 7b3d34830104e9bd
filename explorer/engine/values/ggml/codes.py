"""Codes, scales and offsets of ggml's blocks: number = scale x (code - zero point) + offset.

The package of ggml's authors computes the numbers of a block, but not their codes or scales. This module
changes the bytes of a block before the package computes it. With scales of 1 the result is the codes, and
with codes of 1 it is the scales.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from explorer.engine.formats.weights.gguf import TYPES
from explorer.engine.values.ggml import dequantize as ggml_blocks
from explorer.engine.values.numbers import Array

if TYPE_CHECKING:
    from explorer.engine.graph.model import FileSpan

Part = Literal["codes", "scales", "offsets"]
_Role = Literal["scale", "share", "offset", "code"]


class _Piece(NamedTuple):
    """A range of bytes in a block.

    Attributes:
        role: 'scale' or 'offset' of the block, 'code', or 'share': factors of the scale and the offset for
            each group of numbers in the block.
        unit_bytes: Bytes that set the range to 1 (an offset to 0), so that only the other ranges affect
            the result.
    """

    role: _Role
    unit_bytes: bytes


class _Layout(NamedTuple):
    """The ranges of bytes in the blocks of a type.

    Attributes:
        pieces: The ranges, in the order of the block.
        zero: Zero point of the codes.
        has_integer_codes: Whether the codes are integers. The codes of other types are small floats.
    """

    pieces: tuple[_Piece, ...]
    zero: int = 0
    has_integer_codes: bool = True


def _parse_layout(text: str, zero: int = 0, has_integer_codes: bool = True) -> _Layout:
    """Parses a layout from words such as 'scale:003c code:99*16'.

    Each word has a role, and bytes in hexadecimal with their count.
    """
    pieces = []
    for word in text.split():
        role, _, byte_runs = word.partition(":")
        pattern = b""
        for run in byte_runs.split("+"):
            byte, _, count = run.partition("*")
            pattern += bytes.fromhex(byte) * int(count or 1)
        pieces.append(_Piece(role, pattern))  # type: ignore[arg-type]
    return _Layout(tuple(pieces), zero, has_integer_codes)


_LAYOUTS: Mapping[str, _Layout] = {
    "Q1_0": _parse_layout("scale:003c code:ff*16"),
    "Q4_0": _parse_layout("scale:003c code:99*16", 8),
    "Q4_1": _parse_layout("scale:003c offset:0000 code:11*16"),
    "Q5_0": _parse_layout("scale:003c code:ff*4+11*16", 16),
    "Q5_1": _parse_layout("scale:003c offset:0000 code:00*4+11*16"),
    "Q8_0": _parse_layout("scale:003c code:01*32"),
    "Q2_K": _parse_layout("share:01*16 code:55*64 scale:003c offset:0000"),
    "Q3_K": _parse_layout("code:ff*32+55*64 share:11*8+aa*4 scale:003c", 4),
    "Q4_K": _parse_layout("scale:003c offset:0000 share:01*4+00*4+01*4 code:11*128"),
    "Q5_K": _parse_layout("scale:003c offset:0000 share:01*4+00*4+01*4 code:00*32+11*128"),
    "Q6_K": _parse_layout("code:11*128+aa*64 share:01*16 scale:003c", 32),
    "Q8_K": _parse_layout("scale:0000803f code:01*256+00*32"),
    "TQ1_0": _parse_layout("code:ff*52 scale:003c", 1),
    "TQ2_0": _parse_layout("code:aa*64 scale:003c", 1),
    "IQ4_NL": _parse_layout("scale:003c code:88*16"),
    "IQ4_XS": _parse_layout("scale:003c share:aa*2+11*4 code:88*128"),
    "MXFP4": _parse_layout("scale:7f code:22*16", has_integer_codes=False),
    "NVFP4": _parse_layout("scale:38*4 code:22*32", has_integer_codes=False),
}
"""Layouts of the types in which each number has a code (block_* in ggml-common.h).

The codes of IQ4 and of 4-bit floats are indices of a small table. For these types, this module returns the
entries of the table as the codes.
"""

_KEPT_ROLES: Mapping[Part, frozenset[_Role]] = {
    "codes": frozenset(("code",)),
    "scales": frozenset(("scale", "share")),
    "offsets": frozenset(("share", "offset")),
}
"""Roles of the bytes that are not changed, by the part that is computed."""


def get_zero_point(dtype: str) -> int | None:
    """Returns the number subtracted from a code before it is scaled, or None for a type without codes."""
    layout = _LAYOUTS.get(dtype)
    return None if layout is None else layout.zero


def list_parts(dtype: str) -> tuple[Part, ...]:
    """Returns the parts of a type that has codes: codes, scales, and offsets if it has them."""
    has_offset = any(piece.role == "offset" for piece in _LAYOUTS[dtype].pieces)
    return ("codes", "scales", "offsets") if has_offset else ("codes", "scales")


def explain_missing_codes(dtype: str) -> str:
    """Returns why the numbers of a block type have no codes; '' if they have codes, and for other types."""
    is_codebook = ggml_blocks.can_dequantize(dtype) and dtype not in _LAYOUTS
    if is_codebook:
        return f"no codes: {dtype} stores indices of a codebook, whose entries are several numbers"
    return ""


def read_part(dtype: str, span: FileSpan, part: Part, start: int, stop: int) -> Iterator[Array]:
    """Yields codes, scales or offsets of the numbers `[start, stop)`.

    Only the blocks of these numbers are read.

    Args:
        dtype: A type for which `get_zero_point` returns a number.
        span: Bytes of the tensor.
        part: One of `list_parts`.
        start: Index of the first number.
        stop: Index after the last number.
    """
    layout = _LAYOUTS[dtype]

    def patch_blocks(blocks: Array) -> Array:
        patched_blocks, offset = blocks.copy(), 0
        for role, pattern in layout.pieces:
            if role not in _KEPT_ROLES[part]:
                is_code_without_scale = role == "code" and part == "offsets"
                filler = np.frombuffer(pattern, np.uint8)
                patched_blocks[:, offset : offset + len(pattern)] = 0 if is_code_without_scale else filler
            offset += len(pattern)
        return patched_blocks

    for slab in ggml_blocks.read_part(dtype, span, start, stop, patch_blocks):
        # with a scale of 1, the dequantized number is the code minus the zero point
        yield (slab + layout.zero).astype(np.int16) if part == "codes" and layout.has_integer_codes else slab


# the ranges of a layout cover the complete block
assert all(
    sum(len(piece.unit_bytes) for piece in _LAYOUTS[name].pieces) == size
    for name, _, size in TYPES.values()
    if name in _LAYOUTS
)
