"""Jagged nested tensors: records the lengths of their rows, which a tensor on the meta device lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_ATTRIBUTE = "_row_lengths"
"""Name of the attribute of an offsets tensor that holds the row lengths."""

MAX_ROWS = 4_096
"""Maximum number of row offsets, one more than rows, of a tensor whose row lengths are recorded."""


def is_jagged(tensor: Any) -> bool:
    """Whether a value is a nested tensor in the jagged layout."""
    return isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout is torch.jagged


STRIDED = (
    "an input is a nested tensor in the strided layout, whose work is not counted; pass layout=torch.jagged"
)
"""Reason why a model with a strided nested tensor as input cannot be analyzed."""

STRIDED_INSIDE = (
    "the model makes a nested tensor in the strided layout, whose work is not counted;"
    " pass layout=torch.jagged"
)
"""Reason why a run on shapes ends when the model creates a strided nested tensor."""


def is_strided(tensor: Any) -> bool:
    """Whether a value is a nested tensor in the strided layout, which cannot exist without values."""
    return isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout is torch.strided


def copy_without_values(tensor: Any) -> Any:
    """Copies a jagged tensor to the meta device, and records its row lengths."""
    twin = tensor.detach().to("meta")
    mark(twin.offsets(), tensor.offsets())
    return twin


def mark(twin: torch.Tensor, offsets: torch.Tensor) -> None:
    """Records the row lengths of a jagged tensor on the offsets of its copy without values.

    Args:
        twin: Offsets of the copy, on the meta device.
        offsets: Offsets of the original, with values.
    """
    lengths = compute_row_lengths(offsets)
    if lengths is not None:
        setattr(twin, _ATTRIBUTE, lengths)


def compute_row_lengths(offsets: torch.Tensor) -> Sequence[int] | None:
    """Returns the lengths of the rows that `offsets` delimit, or None if they are unknown or too many."""
    if offsets.is_meta:
        return getattr(offsets, _ATTRIBUTE, None)
    if offsets.dim() != 1 or offsets.is_floating_point() or not 1 < offsets.numel() <= MAX_ROWS:
        return None
    return [int(length) for length in offsets.diff()]
