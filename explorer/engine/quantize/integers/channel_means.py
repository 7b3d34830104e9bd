"""Channel means: the mean of each channel of activations, over the samples of a calibration."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from explorer.engine.number_formats.number_format import Array


class ChannelMeans:
    """Means of activations along one axis, over all samples that were added.

    Args:
        axes: The axis of each value that is kept, counted from behind.
    """

    def __init__(self, axes: Mapping[str, int]) -> None:
        self.axes = axes
        self._sums: dict[str, tuple[Array, int]] = {}

    def add(self, name: str, value: Array) -> None:
        """Takes one sample of a value in; another value is passed over."""
        axis = self.axes.get(name)
        if axis is None or value.ndim < -axis:
            return
        others = tuple(at for at in range(value.ndim) if at != value.ndim + axis)
        total = value.sum(axis=others, dtype=np.float64)
        before, count = self._sums.get(name, (np.zeros_like(total), 0))
        if before.shape == total.shape:
            self._sums[name] = before + total, count + value.size // max(total.size, 1)

    def of(self, name: str) -> Array | None:
        """The mean of each channel; None where nothing was seen."""
        total, count = self._sums.get(name, (None, 0))
        return None if total is None or not count else total / count
