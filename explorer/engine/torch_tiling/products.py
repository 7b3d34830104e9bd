"""A matrix product as products of tiles, in torch's own operators, so that whatever follows can read it:
autograd, torch.jit.trace, torch.export, both ONNX exporters.

Every product is a `bmm` of TM x TK by TK x TN blocks, or less at a ragged edge, and what belongs to one block
of the result is added up in the order of k. Blocks that share an operand are multiplied in one `bmm`, whose
other operand is expanded, not copied: the operators are K/TK times the fewer of row and column blocks, not
one for each of the 9,216 tile products of AlexNet's first Linear.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Tile", "accumulator", "tiled_product"]

Tile = tuple[int, int, int]


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type of partial sums: float32 for half-precision operands, else the operands' own."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def tiled_product(x: Tensor, weight: Tensor, tile: Tile, *, padded: bool) -> Tensor:
    """X W^T by tiles.

    While torch.jit.trace runs, rows are filled up with zeros to whole blocks, so that the trace holds for
    every number of rows. Where torch.export leaves their number open they stay in one block, however many
    they are (a size that depends on an open one through a division would be fixed by torch's guards): TM then
    cuts nothing, which changes no number, as no sum goes across rows.

    Args:
        x: (M, K).
        weight: (N, K), as nn.Linear keeps it.
        tile: (TM, TK, TN).
        padded: Fill operands up with zeros, so that every product is exactly TM x TK x TN.

    Returns:
        (M, N), in `accumulator(weight.dtype)`.
    """
    tm, tk, tn = tile
    wide = accumulator(weight.dtype)
    x, weight = x.to(wide), weight.to(wide)
    count, (columns, depth) = x.shape[0], weight.shape
    if padded:
        x, weight = _filled(x, 1, tk), _filled(_filled(weight, 0, tn), 1, tk)
    elif depth == 0:
        return x.new_zeros(count, columns)
    right = _cut(weight, tn)
    if isinstance(count, int) and not _is_tracing():
        left = _cut(_filled(x, 0, tm) if padded else x, tm)
        product = _joined([_joined([_region(a, b, tk) for b in right], 1) for a in left], 0)
    else:
        size: int = count
        if _is_tracing():
            x, size = _filled(x, 0, tm), tm
        blocks = x.reshape(-1, 1, size, x.shape[1])
        product = _joined([_open_region(blocks, b, tk) for b in right], 1)
    return product[:count, :columns] if padded or not isinstance(count, int) else product


def _is_tracing() -> bool:
    jit: Any = torch.jit  # its functions have no types
    return bool(jit.is_tracing())


def _filled(x: Tensor, axis: int, size: int) -> Tensor:
    """`x` with zeros behind its end, so that `size` divides the axis."""
    missing = -x.shape[axis] % size
    if isinstance(missing, int) and not missing:
        return x
    return torch.nn.functional.pad(x, (0, 0, 0, missing) if axis == 0 else (0, missing))


def _cut(x: Tensor, size: int) -> list[Tensor]:
    """Blocks of `size` rows, (blocks, size, K), and by themselves the rows that remain."""
    whole = x.shape[0] // size
    parts = []
    if whole:
        parts.append(x[: whole * size].reshape(whole, size, x.shape[1]))
    if whole * size < x.shape[0] or not whole:
        parts.append(x[whole * size :].unsqueeze(0))
    return parts


def _joined(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _region(left: Tensor, right: Tensor, tk: int) -> Tensor:
    """Row blocks (m, rows, K) by column blocks (n, columns, K): (m rows, n columns)."""
    (m, rows, _), (n, columns, _) = left.shape, right.shape
    if m <= n:
        found = [_summed(a.expand(n, -1, -1), right, tk, torch.bmm) for a in left.unbind()]
        return _joined([part.transpose(0, 1).reshape(rows, n * columns) for part in found], 0)
    found = [_summed(left, b.expand(m, -1, -1), tk, torch.bmm) for b in right.unbind()]
    return _joined([part.reshape(m * rows, columns) for part in found], 1)


def _open_region(left: Tensor, right: Tensor, tk: int) -> Tensor:
    """As `_region`, with any number of row blocks or rows: (m, 1, rows, K)."""
    n, columns, _ = right.shape
    found = _summed(left, right, tk, torch.matmul)
    return found.transpose(1, 2).reshape(-1, n * columns)


def _summed(left: Tensor, right: Tensor, tk: int, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The products along K, added up in its order."""
    depth = right.shape[-1]
    total: Tensor | None = None
    for k in range(0, depth, tk):
        part = product(left[..., k : k + tk], right[..., k : k + tk].transpose(-1, -2))
        total = part if total is None else total + part
    assert total is not None
    return total
