"""Sparse tensors of a module: the dense tensors that stand for them know how many elements are stored.

Without values a sparse tensor is run as a dense one of its shape. Its products are an upper bound then, and
its bytes are those of the values and indices that it holds.
"""

from __future__ import annotations

from typing import TypeVar

import torch

_ATTRIBUTE = "_stored_elements"

Tensor = TypeVar("Tensor", bound=torch.Tensor)

_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("values", "indices"),
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
}
"""Methods that give the tensors which a layout keeps, its values first."""


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The values and the indices of a sparse tensor; none of another one."""
    names = _PARTS.get(tensor.layout, ())
    if not names or tensor.is_meta:
        return ()
    with torch.no_grad():
        whole = tensor.detach().coalesce() if tensor.layout is torch.sparse_coo else tensor.detach()
        return tuple(getattr(whole, name)() for name in names)


def marked(twin: Tensor, original: torch.Tensor) -> Tensor:
    """`twin`, which knows how many elements `original` stores if that is sparse."""
    sparse_parts = parts(original)
    if sparse_parts:
        setattr(twin, _ATTRIBUTE, sparse_parts[0].numel())
    return twin


def stored_elements(tensor: torch.Tensor) -> int | None:
    """How many elements the sparse tensor stores that a dense one stands for; None of another tensor."""
    return getattr(tensor, _ATTRIBUTE, None)
