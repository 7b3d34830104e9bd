"""Computes attention over jagged nested tensors: each row of the batch attends to itself.

torch selects a kernel for such tensors by the values of their offsets, which a run on shapes lacks. Here
attention is called once per row, so that the products have the sizes of each row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from explorer.engine.formats.torch_module import jagged

LENGTHS = "attention over nested tensors is not counted where the lengths of their rows are not known"
MIXED = "attention over nested tensors is counted where queries, keys and values are jagged, without a mask"


def applies(args: Sequence[Any], kwargs: Any) -> bool:
    """Whether attention is called with a jagged nested tensor."""
    return any(jagged.is_jagged(value) for value in (*args, *kwargs.values()))


def run(
    attend: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Computes attention row by row.

    Args:
        attend: Attention over dense tensors.
        query: Jagged tensor of shape (batch, heads, row length, width).
        key: Jagged tensor like `query`.
        value: Jagged tensor like `query`.
        attn_mask: Must be None.
        dropout_p: As in `scaled_dot_product_attention`.
        is_causal: As in `scaled_dot_product_attention`.
        options: Further arguments of `scaled_dot_product_attention`.

    Raises:
        RuntimeError: The row lengths are unknown, a mask is given, or a tensor is not jagged.
    """
    tensors = (query, key, value)
    if attn_mask is not None or not all(jagged.is_jagged(t) and t.dim() == 4 for t in tensors):
        raise RuntimeError(MIXED)
    rows = [_split_rows(tensor) for tensor in tensors]
    outputs = []
    for q, k, v in zip(*rows, strict=True):
        row = attend(q, k, v, dropout_p=dropout_p, is_causal=is_causal, **options)
        outputs.append(row[0].transpose(0, 1))
    values = torch.cat(outputs)
    return torch.nested.nested_tensor_from_jagged(values, offsets=query.offsets()).transpose(1, 2)


def _split_rows(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Returns the rows of a jagged tensor, each as a batch of one: (1, heads, length, width).

    Raises:
        RuntimeError: The third axis is not the jagged one, or the row lengths are unknown.
    """
    if isinstance(tensor.shape[2], int):
        raise RuntimeError(MIXED)
    flat = tensor.transpose(1, 2)
    lengths = jagged.compute_row_lengths(flat.offsets())
    if lengths is None or flat.lengths() is not None:
        raise RuntimeError(LENGTHS)
    return [part.transpose(0, 1).unsqueeze(0) for part in flat.values().split(list(lengths))]
