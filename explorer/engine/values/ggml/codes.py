"""Codes, scales and offsets of ggml's blocks: number = scale x (code - zero point) + offset.

The package of ggml's authors computes the numbers of a block, but not its parts. So it is given blocks whose
other parts are one or zero: scales of 1 leave the codes, codes of 1 leave the scales.
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
    """Bytes of a block.

    Attributes:
        role: 'scale' and 'offset' of the whole block, the 'share' that neighboring numbers have of both, or
            'code'.
        one: Bytes for which the part is 1 (an offset 0), so that only the other parts show.
    """

    role: _Role
    one: bytes


class _Layout(NamedTuple):
    pieces: tuple[_Piece, ...]
    zero: int = 0
    is_whole: bool = True


def _layout(text: str, zero: int = 0, is_whole: bool = True) -> _Layout:
    """A layout from words such as 'scale:003c code:99*16': a role, bytes and their count."""
    pieces = []
    for word in text.split():
        role, _, rest = word.partition(":")
        pattern = b""
        for run in rest.split("+"):
            byte, _, many = run.partition("*")
            pattern += bytes.fromhex(byte) * int(many or 1)
        pieces.append(_Piece(role, pattern))  # type: ignore[arg-type]
    return _Layout(tuple(pieces), zero, is_whole)


_LAYOUTS: Mapping[str, _Layout] = {
    "Q1_0": _layout("scale:003c code:ff*16"),
    "Q4_0": _layout("scale:003c code:99*16", 8),
    "Q4_1": _layout("scale:003c offset:0000 code:11*16"),
    "Q5_0": _layout("scale:003c code:ff*4+11*16", 16),
    "Q5_1": _layout("scale:003c offset:0000 code:00*4+11*16"),
    "Q8_0": _layout("scale:003c code:01*32"),
    "Q2_K": _layout("share:01*16 code:55*64 scale:003c offset:0000"),
    "Q3_K": _layout("code:ff*32+55*64 share:11*8+aa*4 scale:003c", 4),
    "Q4_K": _layout("scale:003c offset:0000 share:01*4+00*4+01*4 code:11*128"),
    "Q5_K": _layout("scale:003c offset:0000 share:01*4+00*4+01*4 code:00*32+11*128"),
    "Q6_K": _layout("code:11*128+aa*64 share:01*16 scale:003c", 32),
    "Q8_K": _layout("scale:0000803f code:01*256+00*32"),
    "TQ1_0": _layout("code:ff*52 scale:003c", 1),
    "TQ2_0": _layout("code:aa*64 scale:003c", 1),
    "IQ4_NL": _layout("scale:003c code:88*16"),
    "IQ4_XS": _layout("scale:003c share:aa*2+11*4 code:88*128"),
    "MXFP4": _layout("scale:7f code:22*16", is_whole=False),
    "NVFP4": _layout("scale:38*4 code:22*32", is_whole=False),
}
"""Layouts of types whose numbers have a code each (block_* in ggml-common.h). Codes of IQ4 and of floats of
4 bits are indices of a small table: here they are the table's entries."""

_KEPT: Mapping[Part, frozenset[_Role]] = {
    "codes": frozenset(("code",)),
    "scales": frozenset(("scale", "share")),
    "offsets": frozenset(("share", "offset")),
}


def zero_point(dtype: str) -> int | None:
    """The number subtracted from a code before it is scaled; None if the type's numbers have no codes."""
    layout = _LAYOUTS.get(dtype)
    return None if layout is None else layout.zero


def parts(dtype: str) -> tuple[Part, ...]:
    """The parts of a type that has codes."""
    is_any = any(piece.role == "offset" for piece in _LAYOUTS[dtype].pieces)
    return ("codes", "scales", "offsets") if is_any else ("codes", "scales")


def why_none(dtype: str) -> str:
    """Why the numbers of a type have no codes to tell; '' where they have."""
    is_codebook = ggml_blocks.can_dequantize(dtype) and dtype not in _LAYOUTS
    return f"no codes: {dtype} stores places in a codebook, several numbers each" if is_codebook else ""


def of_part(dtype: str, span: FileSpan, part: Part, start: int, stop: int) -> Iterator[Array]:
    """Codes, scales or offsets of the numbers in `[start, stop)`; only their blocks are read.

    Args:
        dtype: One that has a `zero_point`.
        span: The tensor's bytes.
        part: One of `parts`.
        start: First number.
        stop: Number behind the last.
    """
    layout = _LAYOUTS[dtype]

    def patched(blocks: Array) -> Array:
        patched_blocks, at = blocks.copy(), 0
        for role, pattern in layout.pieces:
            if role not in _KEPT[part]:
                bytes_ = np.frombuffer(pattern, np.uint8)
                patched_blocks[:, at : at + len(pattern)] = (
                    0 if (role, part) == ("code", "offsets") else bytes_
                )
            at += len(pattern)
        return patched_blocks

    for slab in ggml_blocks.part(dtype, span, start, stop, patched):
        yield (slab + layout.zero).astype(np.int16) if part == "codes" and layout.is_whole else slab


assert all(
    sum(len(piece.one) for piece in _LAYOUTS[name].pieces) == size
    for name, _, size in TYPES.values()
    if name in _LAYOUTS
)
