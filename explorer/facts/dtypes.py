"""Facts about element types: what a model stores in which."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["DTypeShare", "DTypes"]


class DTypeShare(Struct, frozen=True):
    """The stored tensors of one element type."""

    dtype: str
    tensors: int


class DTypes(Struct, frozen=True):
    """Element types of stored tensors, the most frequent first."""

    dtypes: tuple[DTypeShare, ...]
