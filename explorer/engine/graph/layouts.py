"""Channels-last or second, as ONNX has it: where the channels of images stand.

onnxruntime's optimizer writes operators with channels last into files
(`SessionOptions.optimized_model_filepath`). Rules are written for channels that stand second: an image is
turned before a rule is asked, and its answer turned back. Weights keep their order (outputs, inputs, kernel).
"""

from __future__ import annotations

from explorer.facts import Dim, Shape

MS, NCHWC, NHWC = "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"


def channels_first(shape: Shape | None) -> Shape | None:
    """(N, *spatial, C) as (N, C, *spatial); what has no channels stays."""
    return shape if shape is None or len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])


def channels_last(shape: Shape | None) -> Shape | None:
    """(N, C, *spatial) as (N, *spatial, C)."""
    return shape if shape is None or len(shape) < 2 else (shape[0], *shape[2:], shape[1])


BLOCKED = "channels in whole blocks"
"""The attribute that a node which blocks channels is read with: how many channels it writes."""

_WIDEST_BLOCK = 16


def in_blocks(channels: Dim) -> Dim:
    """Channels filled up to whole blocks of a width that is not known: None where it matters."""
    return channels if isinstance(channels, int) and channels % _WIDEST_BLOCK == 0 else None
