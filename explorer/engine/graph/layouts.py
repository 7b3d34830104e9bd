"""Image layouts: converts shapes between channels-first (ONNX) and channels-last.

onnxruntime's optimizer writes channels-last operators into files (`SessionOptions.optimized_model_filepath`).
Shape rules are written for channels-first: the shape is converted before a rule is applied, and its result is
converted back. Weights keep their order (outputs, inputs, kernel).
"""

from __future__ import annotations

from explorer.facts import Dim, Shape

MS, NCHWC, NHWC = "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"
"""Domains of onnxruntime's operators: its own, those with blocked channels, those with channels last."""


def move_channels_first(shape: Shape | None) -> Shape | None:
    """Converts (N, *spatial, C) to (N, C, *spatial); a shape without channels is unchanged."""
    return shape if shape is None or len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])


def move_channels_last(shape: Shape | None) -> Shape | None:
    """Converts (N, C, *spatial) to (N, *spatial, C); a shape without channels is unchanged."""
    return shape if shape is None or len(shape) < 2 else (shape[0], *shape[2:], shape[1])


PADDED_CHANNELS = "channels in whole blocks"
"""Attribute that shape inference adds to a `ReorderInput` node: the number of channels in its output."""

_WIDEST_BLOCK = 16
"""Number of channels in the widest block of a blocked layout."""


def pad_to_blocks(channels: Dim) -> Dim:
    """Pads a number of channels to full blocks of 8 or 16.

    The result is None if it depends on the width of the blocks, which is unknown.
    """
    return channels if isinstance(channels, int) and channels % _WIDEST_BLOCK == 0 else None
