"""Channel means: the mean of each channel of an activation over the calibration samples."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from explorer.engine.number_formats.number_format import Array


class ChannelMeans:
    """Means of activations along one axis, over all added samples.

    Args:
        axes: Channel axis of each value, as a negative index.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = axes
        self._sums: dict[str, tuple[Array, int]] = {}

    def add(self, name: str, value: Array) -> None:
        """Adds one sample of a value. Ignored are values without a channel axis or with other channels."""
        axis = self.axes.get(name)
        if axis is None or value.ndim < -axis:
            return
        other_axes = tuple(axis_index for axis_index in range(value.ndim) if axis_index != value.ndim + axis)
        total = value.sum(axis=other_axes, dtype=np.float64)
        previous_sum, count = self._sums.get(name, (np.zeros_like(total), 0))
        if previous_sum.shape == total.shape:
            self._sums[name] = previous_sum + total, count + value.size // max(total.size, 1)

    def get_mean(self, name: str) -> Array | None:
        """Returns the mean of each channel, or None if no sample was added."""
        total, count = self._sums.get(name, (None, 0))
        return None if total is None or not count else total / count
