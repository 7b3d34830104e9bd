"""Padding of edge tiles: how what reaches beyond a matrix is filled, whoever holds the matrix.

Operands that a graph makes are padded by a node, for sizes that are known or open; stored weights as their
bytes are cut, those that are kernels of a convolution by `tiling.kinds.convolution_windows`. (Tiled modules
of torch pad in `tiling.torch.products`.)
"""

from __future__ import annotations

import numpy as np

from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.sites import WORDS, Site

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

ODD_BYTES = 64
"""Bytes by which the rows of a staging buffer are longer than their content."""

_STAGED = 256
"""Stored rows that are transposed at once."""


def tile_extents(size: int, tile: int, padded: bool) -> list[int]:
    """Sizes of the tiles along an axis of `size`."""
    full, rest = divmod(size, tile)
    return [tile] * full + ([tile if padded else rest] if rest else [])


def pad_operand(
    builder: GraphBuilder, site: Site, x: str, rows: int, columns: int, label: str, side: int
) -> str:
    """An operand with as many rows and columns more behind it."""
    if not rows and not columns:
        return x
    lead = (0,) if site.stacked else ()
    pads = (*lead, 0, 0, *lead, rows, columns)
    dtype = site.right_dtype if side else site.dtype
    return builder.pad(x, pads, f"{label}_padded", narrow=dtype if dtype in WORDS else "")


def pad_to_whole_tiles(
    builder: GraphBuilder,
    x: str,
    site: Site,
    axes: tuple[str, str],
    tile: tuple[int, int],
    label: str,
) -> str:
    """A matrix padded to whole tiles along both axes."""
    behind: list[str] = []
    needed = False
    for at, (axis, size) in enumerate(zip(axes, tile, strict=True)):
        if axis in site.dynamic:
            # ONNX's Mod takes the sign of the divisor: what is missing to the next multiple
            length = builder.size(x, at, f"{label}_length_{at}")
            less = builder.add(
                "Mul", (length, builder.integers((-1,), f"{label}_minus_{at}")), f"{label}_less_{at}"
            )
            over = builder.integers((size,), f"{label}_tile_{at}")
            behind.append(builder.add("Mod", (less, over), f"{label}_missing_{at}"))
            needed = True
        else:
            missing = -int(getattr(site, axis)) % size
            behind.append(builder.integers((missing,), f"{label}_missing_{at}"))
            needed = needed or bool(missing)
    if not needed:
        return x
    pads = builder.concat([builder.integers((0, 0), f"{label}_before"), *behind], 0, f"{label}_pads")
    return builder.add("Pad", (x, pads), f"{label}_padded")


def padded_block(matrix: Array, k: int, n: int, height: int, width: int) -> Array:
    """matrix[k:k+height, n:n+width], contiguous, with zeros where it reaches beyond the matrix."""
    part = matrix[k : k + height, n : n + width]
    whole = part.shape == (height, width)
    if part.strides[0] >= part.strides[1] and whole:
        return np.ascontiguousarray(part)
    out = np.empty((height, width), part.dtype) if whole else np.zeros((height, width), part.dtype)
    if part.strides[0] >= part.strides[1]:
        out[: part.shape[0], : part.shape[1]] = part
        return out
    # Stored rows a multiple of 4 KiB apart share their cache sets, and reading across them misses
    # every time: a copy with odd distances first makes the transposition five times faster.
    for first in range(0, part.shape[1], _STAGED):
        rows = part[:, first : first + _STAGED].T
        stage = np.empty((len(rows), rows.shape[1] + ODD_BYTES // part.itemsize), part.dtype)[
            :, : rows.shape[1]
        ]
        np.copyto(stage, rows)
        np.copyto(out[: rows.shape[1], first : first + len(rows)], stage.T)
    return out
