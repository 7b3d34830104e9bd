"""Image layouts: converts shapes between channels-first (ONNX) and channels-last.

onnxruntime's optimizer writes channels-last operators into files (`SessionOptions.optimized_model_filepath`).
Shape rules are written for channels-first: the shape is converted before a rule is applied, and its result is
converted back. Weights keep their order (outputs, inputs, kernel).
"""

from __future__ import annotations

from explorer.facts import Dim, Shape

MS, NCHWC, NHWC = "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"


def channels_first(shape: Shape | None) -> Shape | None:
    """(N, *spatial, C) as (N, C, *spatial); a shape without channels is unchanged."""
    return shape if shape is None or len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])


def channels_last(shape: Shape | None) -> Shape | None:
    """(N, C, *spatial) as (N, *spatial, C)."""
    return shape if shape is None or len(shape) < 2 else (shape[0], *shape[2:], shape[1])


BLOCKED = "channels in whole blocks"
"""Attribute that the reader adds to a node that blocks channels: the number of channels that it writes."""

_WIDEST_BLOCK = 16


def pad_to_blocks(channels: Dim) -> Dim:
    """Returns number of channels padded to full blocks of unknown width; None if it depends on the width."""
    return channels if isinstance(channels, int) and channels % _WIDEST_BLOCK == 0 else None
