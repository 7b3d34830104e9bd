"""Sparse tensors of a module: records the number of stored elements on the dense tensors that replace them.

In a run on shapes, a dense tensor of the same shape replaces a sparse tensor. The number of multiplications
is then an upper bound. The bytes are still the bytes of the values and indices.
"""

from __future__ import annotations

from typing import TypeVar

import torch

_ATTRIBUTE = "_stored_elements"
"""Name of the attribute of a dense tensor that holds the number of stored elements."""

Tensor = TypeVar("Tensor", bound=torch.Tensor)

_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("values", "indices"),
    torch.sparse_csr: ("values", "crow_indices", "col_indices"),
    torch.sparse_bsr: ("values", "crow_indices", "col_indices"),
    torch.sparse_csc: ("values", "ccol_indices", "row_indices"),
    torch.sparse_bsc: ("values", "ccol_indices", "row_indices"),
}
"""Methods that return the inner tensors of a sparse layout, values first."""


SPARSE_LAYOUTS = frozenset(_PARTS)
"""Layouts of sparse tensors."""


def list_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the values and the indices of a sparse tensor; empty for others and on the meta device."""
    names = _PARTS.get(tensor.layout, ())
    if not names or tensor.is_meta:
        return ()
    with torch.no_grad():
        coalesced = tensor.detach().coalesce() if tensor.layout is torch.sparse_coo else tensor.detach()
        return tuple(getattr(coalesced, name)() for name in names)


def mark_sparse(twin: Tensor, original: torch.Tensor) -> Tensor:
    """Records on `twin` the number of elements that `original` stores, if it is sparse; returns `twin`."""
    sparse_parts = list_parts(original)
    if sparse_parts:
        setattr(twin, _ATTRIBUTE, sparse_parts[0].numel())
    return twin


def read_stored_elements(tensor: torch.Tensor) -> int | None:
    """Returns how many elements the sparse tensor stores that `tensor` replaces; None for other tensors."""
    return getattr(tensor, _ATTRIBUTE, None)
