"""Jagged nested tensors: keeps the lengths of their rows, which a tensor without values loses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_ATTRIBUTE = "_row_lengths"

MOST = 4_096
"""Most rows of a tensor whose lengths are kept."""


def is_jagged(tensor: Any) -> bool:
    """Whether a value is a nested tensor in the jagged layout."""
    return isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout is torch.jagged


STRIDED = (
    "an input is a nested tensor in the strided layout, whose work is not counted; pass layout=torch.jagged"
)
"""Reason why nothing is known of a model that takes a strided nested tensor."""


STRIDED_INSIDE = (
    "the model makes a nested tensor in the strided layout, whose work is not counted;"
    " pass layout=torch.jagged"
)
"""Reason why a run on shapes ends where such a tensor is made."""


def is_strided(tensor: Any) -> bool:
    """Whether a value is a nested tensor in the strided layout, which has no form without values."""
    return isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout is torch.strided


def without_values(tensor: Any) -> Any:
    """A jagged tensor on the meta device with the same row lengths."""
    twin = tensor.detach().to("meta")
    mark(twin.offsets(), tensor.offsets())
    return twin


def mark(twin: torch.Tensor, offsets: torch.Tensor) -> None:
    """Attaches the row lengths from `offsets`, which has values, to offsets without values."""
    lengths = row_lengths(offsets)
    if lengths is not None:
        setattr(twin, _ATTRIBUTE, lengths)


def row_lengths(offsets: torch.Tensor) -> Sequence[int] | None:
    """The lengths of the rows between offsets; None if they are unknown, or too many."""
    if offsets.is_meta:
        return getattr(offsets, _ATTRIBUTE, None)
    if offsets.dim() != 1 or offsets.is_floating_point() or not 1 < offsets.numel() <= MOST:
        return None
    return [int(length) for length in offsets.diff()]
