"""Padding of edge tiles: fills the parts of tiles beyond a matrix, for computed and stored matrices.

Computed operands are padded by a node, for fixed and open sizes. Stored weights are padded while their bytes
are cut; kernels of convolutions by `tiling.kinds.convolution_windows`. (Tiled torch modules pad in
`tiling.torch.products`.)
"""

from __future__ import annotations

import numpy as np

from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.sites import WORDS, Site

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

ODD_BYTES = 64
"""Extra bytes in each row of a staging buffer."""

_STAGED = 256
"""The number of stored rows that are transposed at once."""


def tile_extents(size: int, tile: int, padded: bool) -> list[int]:
    """The lengths of the tiles along an axis of `size`."""
    full, rest = divmod(size, tile)
    return [tile] * full + ([tile if padded else rest] if rest else [])


def pad_operand(
    builder: GraphBuilder, site: Site, x: str, rows: int, columns: int, label: str, side: int
) -> str:
    """An operand with `rows` and `columns` of padding at its end."""
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
            # ONNX's Mod has the sign of the divisor: the distance to the next multiple
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
    """matrix[k:k+height, n:n+width], contiguous, with zeros beyond the matrix."""
    part = matrix[k : k + height, n : n + width]
    whole = part.shape == (height, width)
    if part.strides[0] >= part.strides[1] and whole:
        return np.ascontiguousarray(part)
    out = np.empty((height, width), part.dtype) if whole else np.zeros((height, width), part.dtype)
    if part.strides[0] >= part.strides[1]:
        out[: part.shape[0], : part.shape[1]] = part
        return out
    # Rows at distances of 4 KiB share cache sets, so reading across them always misses: copying to odd
    # distances first makes the transposition five times faster.
    for first in range(0, part.shape[1], _STAGED):
        rows = part[:, first : first + _STAGED].T
        stage = np.empty((len(rows), rows.shape[1] + ODD_BYTES // part.itemsize), part.dtype)[
            :, : rows.shape[1]
        ]
        np.copyto(stage, rows)
        np.copyto(out[: rows.shape[1], first : first + len(rows)], stage.T)
    return out
