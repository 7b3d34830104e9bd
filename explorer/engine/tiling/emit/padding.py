"""Pads edge tiles: fills the parts of tiles beyond a matrix.

Computed operands are padded by a node, for fixed and open sizes. Stored weights are padded while their bytes
are cut. `tiling.kinds.convolution_windows` pads kernels of convolutions, and `tiling.torch.products` pads the
operands of tiled torch modules.
"""

from __future__ import annotations

import numpy as np

from explorer.engine.tiling.builder import GraphBuilder
from explorer.engine.tiling.sites import INT16_TYPES, Site

Array = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

ROW_GAP_BYTES = 64
"""Unused bytes after each row of a staging buffer."""

_STAGED_ROWS = 256
"""Number of stored rows that are transposed at the same time."""


def tile_extents(size: int, tile: int, padded: bool) -> list[int]:
    """Returns the lengths of the tiles along an axis of `size` elements."""
    full_count, remainder = divmod(size, tile)
    return [tile] * full_count + ([tile if padded else remainder] if remainder else [])


def pad_operand(
    builder: GraphBuilder, site: Site, x: str, rows: int, columns: int, label: str, side: int
) -> str:
    """Pads an operand with `rows` and `columns` of zeros at its end; `side` is 0 for X and 1 for W."""
    if not rows and not columns:
        return x
    lead = (0,) if site.stacked else ()
    pads = (*lead, 0, 0, *lead, rows, columns)
    dtype = site.right_dtype if side else site.dtype
    return builder.pad(x, pads, f"{label}_padded", narrow=dtype if dtype in INT16_TYPES else "")


def pad_to_whole_tiles(
    builder: GraphBuilder, x: str, site: Site, axes: tuple[str, str], tile: tuple[int, int], label: str
) -> str:
    """Pads a matrix to whole tiles along both axes, at run time.

    `axes` names its axes, such as ('M', 'K'), and `tile` has the tile lengths along them.
    """
    pads_after: list[str] = []
    needs_padding = False
    for index, (axis, size) in enumerate(zip(axes, tile, strict=True)):
        if axis in site.dynamic:
            # ONNX's Mod has the sign of the divisor, so this is the distance to the next multiple
            length = builder.write_size(x, index, f"{label}_length_{index}")
            negative = builder.add(
                "Mul",
                (length, builder.add_integers((-1,), f"{label}_minus_{index}")),
                f"{label}_less_{index}",
            )
            tile_size = builder.add_integers((size,), f"{label}_tile_{index}")
            pads_after.append(builder.add("Mod", (negative, tile_size), f"{label}_missing_{index}"))
            needs_padding = True
        else:
            missing = -int(getattr(site, axis)) % size
            pads_after.append(builder.add_integers((missing,), f"{label}_missing_{index}"))
            needs_padding = needs_padding or bool(missing)
    if not needs_padding:
        return x
    pads = builder.concat([builder.add_integers((0, 0), f"{label}_before"), *pads_after], 0, f"{label}_pads")
    dtype = site.dtype if axes == ("M", "K") else site.right_dtype
    return builder.pad(x, pads, f"{label}_padded", narrow=dtype if dtype in INT16_TYPES else "")


def read_padded_block(matrix: Array, k: int, n: int, height: int, width: int) -> Array:
    """Returns matrix[k:k+height, n:n+width], contiguous, with zeros beyond the matrix."""
    part = matrix[k : k + height, n : n + width]
    is_full = part.shape == (height, width)
    if part.strides[0] >= part.strides[1] and is_full:
        return np.ascontiguousarray(part)
    block = np.empty((height, width), part.dtype) if is_full else np.zeros((height, width), part.dtype)
    if part.strides[0] >= part.strides[1]:
        block[: part.shape[0], : part.shape[1]] = part
        return block
    # Rows at distances of 4 KiB share cache sets, so reading across them always misses. Copying to rows
    # with a gap between them first makes the transposition five times faster.
    for first in range(0, part.shape[1], _STAGED_ROWS):
        rows = part[:, first : first + _STAGED_ROWS].T
        staged_rows = np.empty((len(rows), rows.shape[1] + ROW_GAP_BYTES // part.itemsize), part.dtype)[
            :, : rows.shape[1]
        ]
        np.copyto(staged_rows, rows)
        np.copyto(block[: rows.shape[1], first : first + len(rows)], staged_rows.T)
    return block
