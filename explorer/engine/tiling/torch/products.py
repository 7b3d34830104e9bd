"""Tiled matmul in torch operators, for autograd, torch.jit.trace, torch.export and both ONNX exporters.

Every product is a `bmm` of TM x TK by TK x TN blocks, smaller at ragged edges. The products for one block of
the result are added in the order of k. One `bmm` multiplies all blocks that share an operand; the shared
operand is expanded without a copy. This takes only K/TK times min(row blocks, column blocks) operators,
instead of 9,216 for the tile products of AlexNet's first Linear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tile = tuple[int, int, int]
"""TM, TK and TN."""


def choose_accumulator(dtype: torch.dtype) -> torch.dtype:
    """Returns the type of partial sums: float32 for half precision, else the type of the operands."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def compute_tiled_product(
    x: Tensor, weight: Tensor, tile: Tile, *, padded: bool, sizes: tuple[int, int] | None = None
) -> Tensor:
    """Returns the product of x and the transposed weight, computed by tiles.

    A graph of torch.jit.trace works for every number of rows. One part of it computes all full blocks of TM
    rows. If the rows are not padded, another part computes the remaining rows. If torch.export leaves the
    number of rows open, all rows stay in one block, because torch's guards would fix an open size that is
    divided. The result is the same, because no sum crosses rows.

    Args:
        x: Left operand, (M, K).
        weight: Right operand, (N, K), as nn.Linear stores it.
        tile: (TM, TK, TN).
        padded: Whether to pad operands with zeros, so that every product is exactly TM x TK x TN.
        sizes: (N, K) as numbers, or None to read the weight's shape, which torch.jit.trace would record.

    Returns:
        (M, N), in the type `choose_accumulator(weight.dtype)`.
    """
    tm, tk, tn = tile
    accumulator = choose_accumulator(weight.dtype)
    x, weight = x.to(accumulator), weight.to(accumulator)
    row_count, (columns, depth) = x.shape[0], sizes or weight.shape
    padded_columns, padded_depth = columns, depth
    if padded:
        padded_columns, padded_depth = -(-columns // tn) * tn, -(-depth // tk) * tk
        x = _pad(x, 0, padded_depth - depth)
        weight = _pad(weight, padded_columns - columns, padded_depth - depth)
    elif not depth:
        return x.new_zeros(row_count, columns)
    column_blocks = _split_rows(weight, tn, padded_columns, padded_depth)
    if isinstance(row_count, int) and not _is_tracing():
        padded_rows = -(-row_count // tm) * tm if padded else row_count
        row_blocks = _split_rows(_pad(x, padded_rows - row_count, 0), tm, padded_rows, padded_depth)
        product_rows = [
            _join([_compute_region(a, b, tk, padded_depth) for b in column_blocks], 1) for a in row_blocks
        ]
    else:
        open_blocks = [x.reshape(-1, 1, row_count, padded_depth)]
        if _is_tracing():
            x = _pad(x, -row_count % tm, 0) if padded else x
            full_rows = x.shape[0] // tm * tm
            open_blocks = [x[:full_rows].reshape(-1, 1, tm, padded_depth)]
            open_blocks += [] if padded else [x[full_rows:].reshape(1, 1, -1, padded_depth)]
        product_rows = [
            _join([_compute_open_region(a, b, tk, padded_depth) for b in column_blocks], 1)
            for a in open_blocks
        ]
    product = _join(product_rows, 0)
    return product[:row_count, :columns] if padded or not isinstance(row_count, int) else product


class _Blocks(NamedTuple):
    """Blocks of one size, as a tensor of shape (blocks, rows, K)."""

    tensor: Tensor
    block_count: int
    rows: int


def _is_tracing() -> bool:
    jit: Any = torch.jit  # the functions of torch.jit have no type annotations
    return bool(jit.is_tracing())


def _pad(x: Tensor, rows: int, columns: int) -> Tensor:
    """Returns `x` with rows and columns of zeros appended."""
    if isinstance(rows, int) and not rows and not columns:
        return x
    return torch.nn.functional.pad(x, (0, columns, 0, rows))


def _split_rows(x: Tensor, size: int, rows: int, depth: int) -> list[_Blocks]:
    """Returns the blocks of `size` rows, and then the block of the remaining rows if there are any."""
    block_count = rows // size
    parts = []
    if block_count:
        parts.append(_Blocks(x[: block_count * size].reshape(block_count, size, depth), block_count, size))
    if block_count * size < rows or not block_count:
        parts.append(_Blocks(x[block_count * size :].unsqueeze(0), 1, rows - block_count * size))
    return parts


def _join(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _compute_region(row_blocks: _Blocks, column_blocks: _Blocks, tk: int, depth: int) -> Tensor:
    """Returns the product of row blocks and column blocks, (all rows, all columns)."""
    m, n = row_blocks.block_count, column_blocks.block_count
    if m <= n:
        sums = [
            _sum_products(a.expand(n, -1, -1), column_blocks.tensor, tk, depth, torch.bmm)
            for a in row_blocks.tensor.unbind()
        ]
        return _join(
            [part.transpose(0, 1).reshape(row_blocks.rows, n * column_blocks.rows) for part in sums], 0
        )
    sums = [
        _sum_products(row_blocks.tensor, b.expand(m, -1, -1), tk, depth, torch.bmm)
        for b in column_blocks.tensor.unbind()
    ]
    return _join([part.reshape(m * row_blocks.rows, column_blocks.rows) for part in sums], 1)


def _compute_open_region(row_blocks: Tensor, column_blocks: _Blocks, tk: int, depth: int) -> Tensor:
    """Does what `_compute_region` does, for row blocks (m, 1, rows, K) with a symbolic m or rows."""
    sums = _sum_products(row_blocks, column_blocks.tensor, tk, depth, torch.matmul)
    return sums.transpose(1, 2).reshape(-1, column_blocks.block_count * column_blocks.rows)


def _sum_products(
    rows: Tensor, columns: Tensor, tk: int, depth: int, product: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Returns the sum of the products along K, added in order."""
    total: Tensor | None = None
    for k in range(0, depth, tk):
        part = product(rows[..., k : k + tk], columns[..., k : k + tk].transpose(-1, -2))
        total = part if total is None else total + part
    assert total is not None
    return total
