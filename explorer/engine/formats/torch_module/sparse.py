"""Sparse tensors of a module: records the number of stored elements on the dense tensors that replace them.

Without values, a sparse tensor is run as a dense one of its shape. Its products are then an upper bound, and
its bytes are those of its values and indices.
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
"""Methods that return the tensors of a layout, values first."""


def parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The values and the indices of a sparse tensor; none for another tensor."""
    names = _PARTS.get(tensor.layout, ())
    if not names or tensor.is_meta:
        return ()
    with torch.no_grad():
        whole = tensor.detach().coalesce() if tensor.layout is torch.sparse_coo else tensor.detach()
        return tuple(getattr(whole, name)() for name in names)


def marked(twin: Tensor, original: torch.Tensor) -> Tensor:
    """`twin`, marked with the number of elements that `original` stores if it is sparse."""
    sparse_parts = parts(original)
    if sparse_parts:
        setattr(twin, _ATTRIBUTE, sparse_parts[0].numel())
    return twin


def stored_elements(tensor: torch.Tensor) -> int | None:
    """Number of elements stored in the sparse tensor that a dense one replaces; None for another tensor."""
    return getattr(tensor, _ATTRIBUTE, None)
