"""Tiles a site with open sizes, for all sizes at once.

Each axis is padded to whole tiles at run time. Scans run over the matrices of a stack, over blocks of rows,
over columns of tiles, and, if the depth is open, over the depth with a running sum. Their bodies contain full
tiles, so one graph serves every batch size and length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from explorer.engine.graph.model import Value
from explorer.engine.graph.tile_metadata import DOMAIN
from explorer.engine.tiling.builder import GraphBuilder, Size
from explorer.engine.tiling.emit.operands import StoredOperand
from explorer.engine.tiling.emit.operators import register_tile_operator, scan_columns, write_cut
from explorer.engine.tiling.emit.padding import pad_to_whole_tiles
from explorer.engine.tiling.sites import Site, Weight
from explorer.facts import SitePlan

MIN_OPSET = 11
"""The operator set from which Pad takes its sizes as an input."""


def emit_open(builder: GraphBuilder, site: Site, plan: SitePlan, inputs: Sequence[str]) -> str:
    """Writes the products of a site with open sizes, (M, N) or (batch, M, N), cropped to the actual sizes."""
    _, tk, tn = plan.tile
    x = site.left(builder, inputs)
    weight = site.weight
    if weight is not None:
        # columns of whole tiles, (n, K, TN); for a stack (batch, n, K, TN)
        w = StoredOperand(weight, -(-site.K // tk) * tk).write_columns(builder, -(-site.N // tn), tn)
    else:
        assert not isinstance(site.right, Weight)
        w = site.right(builder, inputs)
        w = w if site.stacked else builder.set_apart(w, "w_set_apart")
    if not site.stacked:
        return _tile_matrix(builder, site, plan.tile, x, w)
    body = builder.create_inner("matrix")
    x_matrix, w_matrix = body.name_value("x"), body.name_value("w")
    columns = -(-site.N // tn), -(-site.K // tk) * tk, tn
    w_shape = columns if weight is not None else (_get_length(site, "K"), _get_length(site, "N"))
    z = _tile_matrix(body, site, plan.tile, x_matrix, w_matrix)
    return builder.scan(
        "matrices",
        body,
        inputs=[
            Value(x_matrix, site.dtype, (_get_length(site, "M"), _get_length(site, "K"))),
            Value(w_matrix, site.right_dtype, w_shape),
        ],
        outputs=[Value(z, site.accumulator, (_get_length(site, "M"), _get_length(site, "N")))],
        scanned=[x, w],
    )


def _get_length(site: Site, axis: str) -> int | None:
    """Returns the length of an axis of a site, or None if it is open."""
    return None if axis in site.dynamic else int(getattr(site, axis))


def _tile_matrix(builder: GraphBuilder, site: Site, tile: tuple[int, int, int], x: str, w: str) -> str:
    """Writes the matmul X W, cropped to its actual size, as a Scan over blocks of rows.

    `w` is the matrix W if it is computed, else its columns of tiles.
    """
    tm, tk, tn = tile
    rows = pad_to_whole_tiles(builder, x, site, ("M", "K"), (tm, tk), "x")
    K = -(-site.K // tk) * tk
    is_depth_open = "K" in site.dynamic
    columns = _cut_columns(builder, site, tile, w) if site.weight is None else w
    width: Size = (rows, 1) if is_depth_open else K
    blocks = builder.reshape(rows, (-1, tm, width), "x_blocks")
    body = builder.create_inner("row")
    row_block = body.name_value("x")
    write_block = _write_open_depth if is_depth_open else _write_fixed_depth
    product = write_block(body, site, tile, row_block, columns)
    n = None if "N" in site.dynamic else -(-site.N // tn) * tn
    scanned = builder.scan(
        "rows",
        body,
        inputs=[Value(row_block, site.dtype, (tm, None if is_depth_open else K))],
        outputs=[Value(product, site.accumulator, (tm, n))],
        scanned=[blocks],
    )
    z = builder.add("Flatten", (scanned,), "y_blocks", attributes={"axis": 2})
    M: Size = (x, 0) if "M" in site.dynamic else site.M
    N: Size = (w, 1) if "N" in site.dynamic else site.N
    return builder.crop(z, (M, N), "cropped")


def _cut_columns(builder: GraphBuilder, site: Site, tile: tuple[int, int, int], w: str) -> str:
    """Reshapes a computed operand to columns of whole tiles, (n, K, TN)."""
    _, tk, tn = tile
    padded = pad_to_whole_tiles(builder, w, site, ("K", "N"), (tk, tn), "w")
    depth: Size = (padded, 0) if "K" in site.dynamic else -(-site.K // tk) * tk
    tiles = builder.reshape(padded, (depth, -1, tn), "w_in_tiles")
    return builder.transpose(tiles, (1, 0, 2), "w_columns")


def _write_fixed_depth(
    builder: GraphBuilder, site: Site, tile: tuple[int, int, int], x: str, columns: str
) -> str:
    """Writes one block of rows, (TM, N), with a node for each block along the depth."""
    tm, tk, tn = tile
    ks = [tk] * -(-site.K // tk)
    xs = write_cut(builder, x, [tm], ks, (tm, tk), "x")
    body = builder.create_inner("column")
    w_column = body.name_value("w")
    ws = write_cut(body, w_column, ks, [tn], (tk, tn), "w")
    operator = register_tile_operator(builder.emission, tile, site.dtype, site.right_dtype)
    terms = [
        body.add(operator, (block, ws[k][0]), f"p_{k}", domain=DOMAIN, mnk=f"*,*,{k}")
        for k, block in enumerate(xs[0])
    ]
    total = body.write_sum(terms, "c", site.accumulator)
    column = Value(w_column, site.right_dtype, (len(ks) * tk, tn))
    return scan_columns(builder, body, column, Value(total, site.accumulator, (tm, tn)), columns, "y")


def _write_open_depth(
    builder: GraphBuilder, site: Site, tile: tuple[int, int, int], x: str, columns: str
) -> str:
    """Writes one block of rows, (TM, N), as a Scan along the depth with a running sum."""
    tm, tk, tn = tile
    tiles_in_row = builder.reshape(x, (tm, -1, tk), "x_in_tiles")
    blocks = builder.transpose(tiles_in_row, (1, 0, 2), "x_tiles")
    body = builder.create_inner("column")
    w_column = body.name_value("w")
    tiles = body.reshape(w_column, (-1, tk, tn), "w_tiles")
    step = body.create_inner("depth")
    a, b, previous_sum = step.name_value("a"), step.name_value("b"), step.name_value("before")
    operator = register_tile_operator(builder.emission, tile, site.dtype, site.right_dtype)
    term = step.add(operator, (a, b), "p", domain=DOMAIN, mnk="*,*,*")
    next_sum = step.add("Add", (previous_sum, term), "after")
    start = body.add_array(np.zeros((tm, tn), site.accumulator), "zeros")
    total = body.scan(
        "depths",
        step,
        inputs=[
            Value(previous_sum, site.accumulator, (tm, tn)),
            Value(a, site.dtype, (tm, tk)),
            Value(b, site.right_dtype, (tk, tn)),
        ],
        outputs=[Value(next_sum, site.accumulator, (tm, tn))],
        scanned=[blocks, tiles],
        state=[start],
    )
    column = Value(w_column, site.right_dtype, (None, tn))
    return scan_columns(builder, body, column, Value(total, site.accumulator, (tm, tn)), columns, "y")
